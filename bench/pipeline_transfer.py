"""The rows of the topic without the topic: what Spark itself takes for rows that a Python source gives to it.

Bodies come from the Parquet files of the messages, the other columns are the same in all rows, and as long as
the topic's are.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

ROWS = 1024
"""In a batch: about as many as the source's batches have."""
_TIME = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "topic": "Pipeline",
    "brokerName": "broker-a",
    "queueId": 3,
    "queueOffset": 1 << 20,
    "physicalOffset": 1 << 30,
    "msgId": "7F0000010001B4AAC2A90000000000FF",
    "keys": None,
    "tags": None,
    "properties": None,
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "bornHost": "127.0.0.1:40000",
    "reconsumeTimes": 0,
    "flag": 0,
    "sysFlag": 0,
}


class TransferDataSource(DataSource):
    """Option `path`: the folder of Parquet files."""

    @classmethod
    def name(cls) -> str:
        return "bench-transfer"

    def schema(self) -> StructType:
        from rocketmq_spark.schemas import FULL_SCHEMA

        return FULL_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"], schema)


class _Reader(DataSourceReader):
    def __init__(self, path: str, schema: StructType) -> None:
        self._path = path
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(Path(self._path).glob("*.parquet"))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import parquet
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        same = {
            field.name: pa.repeat(pa.scalar(VALUES[field.name], field.type), ROWS)
            for field in schema
            if field.name != "body"
        }
        for batch in parquet.ParquetFile(partition.value).iter_batches(ROWS, columns=["body"]):
            columns = {name: values[: len(batch)] for name, values in same.items()} | {"body": batch["body"]}
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
