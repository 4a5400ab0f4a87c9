"""Streams over topics in memory: what they read next, batch for batch."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.schemas import FULL_SCHEMA
from rocketmq_spark.source.offsets import OffsetJson
from rocketmq_spark.source.reading import RangePartition
from rocketmq_spark.source.stream_reader import RocketmqStreamReader
from tests.unit.spark.source.fake_topics import FakeCluster, Topics

A, A1, B = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)
DEADLINE_S = 5.0
ALL = ReadAllAvailable()


def reader(topics: Topics, **options: object) -> RocketmqStreamReader:
    given = {"namesrv": "fake:1", "subscribe": "T", "startingOffsets": "earliest"}
    given |= {name: str(value) for name, value in options.items()}
    made = RocketmqStreamReader({name: value for name, value in given.items() if value}, FULL_SCHEMA)
    made._cluster = FakeCluster(topics, DEADLINE_S)
    return made


def filled(*queues: MessageQueue, count: int = 10, stored_ms: int = 1_000) -> Topics:
    topics = Topics()
    for queue in queues:
        topics.put(queue, *[stored_ms] * count)
    return topics


def offsets(**places: int) -> OffsetJson:
    """`a0=5` is offset 5 of queue 0 of broker a."""
    return {"T": {f"{name[0]}:{name[1:]}": offset for name, offset in sorted(places.items())}}


def ranges(made: RocketmqStreamReader, start: OffsetJson, end: OffsetJson) -> list[QueueRange]:
    parts: list[Any] = made.partitions(start, end)
    assert all(isinstance(part, RangePartition) for part in parts)
    return [part.wanted for part in parts]


def run(made: RocketmqStreamReader, start: OffsetJson, limit: ReadLimit = ALL) -> list[OffsetJson]:
    """The ends of the batches until nothing more comes."""
    ends: list[OffsetJson] = []
    while (end := made.latestOffset(start, limit)) != start:
        ends.append(end)
        start = end
    return ends
