"""Rows of topics as the source gives them: for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from rocketmq_spark.jobs.archive.files import FILE_COLUMNS

START = datetime(2026, 1, 31, 5, 0, tzinfo=UTC)
ROW_SCHEMA = pa.schema([("topic", pa.string()), *FILE_COLUMNS.items()])


def row(topic: str, queue: int, offset: int, *, minutes: float = 0.0, **fields: Any) -> dict[str, Any]:
    """One message, stored so many minutes after START and born 5 ms before."""
    stored = START + timedelta(minutes=minutes)
    return {
        "topic": topic,
        "brokerName": "broker-a",
        "queueId": queue,
        "queueOffset": offset,
        "physicalOffset": offset * 1_000,
        "msgId": f"{topic}-{queue}-{offset}",
        "keys": f"key-{offset}",
        "tags": f"Tag{offset % 3}",
        "properties": [("UNIQ_KEY", f"{queue}-{offset}"), ("number", str(offset))],
        "body": f"message {offset} of queue {queue}".encode(),
        "bornTimestamp": stored - timedelta(milliseconds=5),
        "storeTimestamp": stored,
        "bornHost": "127.0.0.1:1000",
        "reconsumeTimes": 0,
        "flag": 0,
        "sysFlag": 0,
    } | fields


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """The rows in one batch, with the source's columns and the archive's types."""
    return pa.RecordBatch.from_pylist(list(rows), schema=ROW_SCHEMA)


def batches_cut(rows: Sequence[dict[str, Any]], length: int) -> list[pa.RecordBatch]:
    """The rows in batches of at most so many, each a slice of one larger batch, as Spark hands them over."""
    whole = batch_of(rows)
    return [whole.slice(start, length) for start in range(0, whole.num_rows, length)]
