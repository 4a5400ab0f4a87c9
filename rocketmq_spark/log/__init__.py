"""The format `rocketmq-log`: the files of a store as a table, read without a broker."""
