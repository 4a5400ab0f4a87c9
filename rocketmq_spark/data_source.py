"""The format `rocketmq`: topics as tables and streams, to read and to write."""

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
        from rocketmq_spark.source.schema import FULL_SCHEMA

        return FULL_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketmq_spark.source.batch_reader import make_reader

        return make_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from rocketmq_spark.source.stream_reader import RocketmqStreamReader

        return RocketmqStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rocketmq_spark.sink.data_source import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from rocketmq_spark.sink.data_source import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)
