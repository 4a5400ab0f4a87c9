"""The figures of a report, computed by Spark from the messages; each small enough for the driver's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

BUCKETS_MAX: Final = 240
"""Approximate maximum of points in a timeline."""
_NICE_S: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600)
_MARKS: Final = (0.5, 0.95, 0.99)
_ACCURACY: Final = 1000
READ_SCHEMA: Final = (
    "topic string, brokerName string, queueId int, keys string, tags string, body binary, "
    "bornTimestamp timestamp, storeTimestamp timestamp"
)


@dataclass(frozen=True, slots=True)
class Span:
    """The store times of all messages, in milliseconds; None in an empty report."""

    first_ms: int
    last_ms: int
    messages: int


def slim(frame: DataFrame) -> DataFrame:
    """The columns that the figures need: of the body only its size."""
    latency = F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")
    return frame.select(
        "topic",
        F.concat_ws(":", "brokerName", F.col("queueId").cast("string")).alias("queue"),
        "keys",
        "tags",
        F.octet_length("body").cast("long").alias("bytes"),
        F.unix_millis("storeTimestamp").alias("storeMs"),
        latency.alias("latencyMs"),
    )


def span_of(rows: DataFrame) -> Span | None:
    """The first and last store time, and the number of messages; None without messages."""
    found = rows.agg(F.min("storeMs"), F.max("storeMs"), F.count("*")).first()
    if found is None or found[0] is None:
        return None
    return Span(found[0], found[1], found[2])


def bucket_s(first_ms: int, last_ms: int) -> int:
    """Seconds per point of the timeline: a round number, with BUCKETS_MAX points at most, or a week."""
    seconds = (last_ms - first_ms) / 1000
    return next((nice for nice in _NICE_S if seconds / nice <= BUCKETS_MAX), _NICE_S[-1])


def totals(rows: DataFrame) -> pa.Table:
    """By topic: messages, bytes, sizes and latencies."""
    return (
        rows.groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.countDistinct("queue").alias("queues"),
            F.sum("bytes").alias("bytes"),
            F.min("storeMs").alias("firstMs"),
            F.max("storeMs").alias("lastMs"),
            F.max("bytes").alias("bytesMax"),
            F.max("latencyMs").alias("latencyMsMax"),
            *(_mark(name, mark) for name in ("bytes", "latencyMs") for mark in _MARKS),
        )
        .orderBy("topic")
        .toArrow()
    )


def timeline(rows: DataFrame, seconds: int) -> pa.Table:
    """By topic and bucket of store time: messages, bytes, latencies born → stored."""
    length_ms = seconds * 1000
    start = (F.floor(F.col("storeMs") / length_ms) * length_ms).alias("startMs")
    return (
        rows.groupBy("topic", start)
        .agg(
            F.count("*").alias("messages"),
            F.sum("bytes").alias("bytes"),
            *(_mark("latencyMs", mark) for mark in _MARKS),
            F.max("latencyMs").alias("latencyMsMax"),
        )
        .orderBy("topic", "startMs")
        .toArrow()
    )


def sizes(rows: DataFrame) -> pa.Table:
    """By topic and power of two: how many bodies are shorter than `bytesBelow`, and half of it or more."""
    bits = F.when(F.col("bytes") == 0, 0).otherwise(F.length(F.bin("bytes")))
    below = F.pow(F.lit(2.0), bits)
    return (
        rows.groupBy("topic", below.cast("long").alias("bytesBelow"))
        .agg(F.count("*").alias("messages"))
        .orderBy("topic", "bytesBelow")
        .toArrow()
    )


def top_tags(rows: DataFrame, most: int) -> pa.Table:
    """The tags with the most messages."""
    return _top(
        rows.where("tags is not null").select("topic", F.col("tags").alias("tag"), "bytes"), "tag", most
    )


def top_keys(rows: DataFrame, most: int) -> pa.Table:
    """The keys with the most messages; a message may have several, separated by blanks."""
    each = F.explode(F.split("keys", " ")).alias("key")
    return _top(rows.where("keys is not null").select("topic", each, "bytes").where("key != ''"), "key", most)


def dead_letters(rows: DataFrame, seconds: int) -> pa.Table:
    """By dead-letter topic and bucket: how many arrived, how many wait at its end, age of the oldest."""
    from pyspark.sql import Window

    length_ms = seconds * 1000
    start = (F.floor(F.col("storeMs") / length_ms) * length_ms).alias("startMs")
    so_far = Window.partitionBy("topic").orderBy("startMs").rowsBetween(Window.unboundedPreceding, 0)
    arrived = rows.groupBy("topic", start).agg(
        F.count("*").alias("arrived"), F.min("storeMs").alias("firstMs"), F.max("storeMs").alias("lastMs")
    )
    return (
        arrived.withColumn("waiting", F.sum("arrived").over(so_far))
        .withColumn("oldestAgeMs", F.col("startMs") + length_ms - F.min("firstMs").over(so_far))
        .select("topic", "startMs", "arrived", "waiting", "oldestAgeMs")
        .orderBy("topic", "startMs")
        .toArrow()
    )


def _top(rows: DataFrame, name: str, most: int) -> pa.Table:
    counted = rows.groupBy("topic", name).agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
    return counted.orderBy(F.desc("messages"), "topic", name).limit(most).toArrow()


def _mark(name: str, mark: float) -> Column:
    return F.percentile_approx(name, mark, _ACCURACY).alias(f"{name}P{round(mark * 100)}")
