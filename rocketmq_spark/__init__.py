"""The data pipeline: PySpark reads, writes, archives and audits the topics of RocketMQ clusters."""
