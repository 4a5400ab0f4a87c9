"""The data pipeline: PySpark reads, writes, archives and audits the topics of RocketMQ clusters.

`register(spark)` makes the formats known to a session: `rocketmq` (topics) and `rocketmq-log` (store files).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the formats `rocketmq` and `rocketmq-log` known to the session.

    Spark refuses Python sources that accept filters (option `pushFilters`) unless
    `spark.sql.python.filterPushdown.enabled` is true: this function sets it for the session.
    """
    from rocketmq_spark.formats import register_all

    register_all(spark)
