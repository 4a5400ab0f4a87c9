"""The format `rocketmq` for reading: topics as tables and as streams."""
