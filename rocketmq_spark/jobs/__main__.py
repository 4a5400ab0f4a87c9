"""`python -m rocketmq_spark.jobs archive …`, and the file to give to spark-submit."""

from rocketmq_spark.jobs.cli import main

if __name__ == "__main__":
    main()
