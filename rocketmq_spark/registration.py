"""Makes the pipeline's formats known to a Spark session. A new format adds its class to `register_all`."""

from typing import Final

from pyspark.sql import SparkSession

from rocketmq_spark.data_source import RocketmqDataSource
from rocketmq_spark.log.data_source import RocketmqLogDataSource

PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Off unless set: Spark then refuses to read from a Python source that takes filters."""


def register_all(spark: SparkSession) -> None:
    """Register every format. Filter push-down is switched on for this session, so that the option pushFilters
    can ask for it.
    """
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(RocketmqDataSource)
    spark.dataSource.register(RocketmqLogDataSource)
