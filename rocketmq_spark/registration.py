"""Makes the pipeline's formats known to a Spark session. A new format adds its class to `register_all`."""

from typing import Final

from pyspark.sql import SparkSession

from rocketmq_spark.data_source import RocketmqPushdownDataSource
from rocketmq_spark.log.data_source import RocketmqLogPushdownDataSource

PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Off unless set: Spark then refuses to read from a Python source that takes filters."""


def register_all(spark: SparkSession) -> None:
    """Register every format, with filter push-down switched on for this session."""
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(RocketmqPushdownDataSource)
    spark.dataSource.register(RocketmqLogPushdownDataSource)
