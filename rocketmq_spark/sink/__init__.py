"""The format `rocketmq` for writing: rows become messages, exactly once or at least once."""
