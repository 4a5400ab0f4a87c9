"""The formats `rocketmq` (topics as tables and streams, to read and to write) and `rocketmq-log` (a store's
files as a table, without a broker), and their registration at a Spark session.
"""

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class RocketmqDataSource(DataSource):
    """Reads and writes topics."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        """Every column; a schema given by the user may name fewer of them."""
        from rocketmq_spark.schemas import FULL_SCHEMA

        return FULL_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketmq_spark.source.batch_reader import make_reader

        return make_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from rocketmq_spark.source.stream_reader import RocketmqStreamReader

        return RocketmqStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rocketmq_spark.sink.writers import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from rocketmq_spark.sink.writers import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


class RocketmqLogDataSource(DataSource):
    """Reads stores of LedgerMQ and of RocketMQ from any file system that fsspec knows."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-log"

    def schema(self) -> StructType:
        """Every column of the view; a schema given by the user may name fewer of them."""
        from rocketmq_spark.log.options import parse_log_options
        from rocketmq_spark.schemas import schema_of

        return schema_of(parse_log_options(self.options).view)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketmq_spark.log.reader import make_reader

        return make_reader(self.options, schema)


PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Off by default: Spark then refuses to read from a Python source that accepts filters."""


def register_all(spark: SparkSession) -> None:
    """Register every format. Filter push-down is switched on for this session, so that the option pushFilters
    can be used.
    """
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(RocketmqDataSource)
    spark.dataSource.register(RocketmqLogDataSource)
