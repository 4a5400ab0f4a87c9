"""`ledgermq spark`: the pipeline's jobs, which are commands of their own package."""

from rocketmq_spark.jobs.cli import spark_commands

app = spark_commands()
