"""The format `rocketmq-log`: a store's files as a table, without a broker."""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class RocketmqLogDataSource(DataSource):
    """Reads stores of LedgerMQ and of RocketMQ from any file system that fsspec knows."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-log"

    def schema(self) -> StructType:
        """Every column of the view; a schema given by the user may name fewer of them."""
        from rocketmq_spark.log.columns import schema_of
        from rocketmq_spark.log_options import parse_log_options

        return schema_of(parse_log_options(self.options).view)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rocketmq_spark.log.reader import make_reader

        return make_reader(self.options, schema)
