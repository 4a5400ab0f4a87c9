"""Batch writes with the sink."""

from __future__ import annotations

from pyspark.sql import DataFrame


def write(frame: DataFrame, namesrv: str, **options: object) -> None:
    """Append the frame; options by their names."""
    writer = frame.write.format("rocketmq").mode("append").option("namesrv", namesrv)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()
