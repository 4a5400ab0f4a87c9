"""Replays between real topics: the same messages, in order, once, whatever was killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from commitlog.record import Record, parse_properties
from rocketmq_spark.jobs.archive.job import ArchiveOptions, run_archive
from rocketmq_spark.jobs.replay import job as replay_job
from rocketmq_spark.jobs.replay.job import ReplayOptions, run_replay
from rocketmq_spark.jobs.replay.rate_limit import Rate
from rocketmq_spark.jobs.replay.state import ReplayState
from tests.integration.cluster import Cluster
from tests.integration.streams import read_topic
from tests.integration.waiting import wait_for
from tests.spark.conftest import TopicName
from tests.spark.producing import Stored, create_topic, numbered, send

COUNT = 300
LIMIT_S = 60.0


def records_of(cluster: Cluster, topic: str, count: int) -> dict[int, list[Record]]:
    """By queue, once there are so many: a leader whose own disk is slow acknowledges what its queues do not
    have yet.
    """

    def probe() -> dict[int, list[Record]] | None:
        found = asyncio.run(read_topic(cluster.namesrv, topic))
        return found if sum(map(len, found.values())) >= count else None

    return wait_for(f"{count} records of {topic}", probe, LIMIT_S)


def content(record: Record) -> tuple[bytes, str, str, str]:
    properties = parse_properties(record.properties)
    return record.body, properties["KEYS"], properties["TAGS"], properties["number"]


def assert_same_queues(cluster: Cluster, topic: str, stored: Sequence[Stored]) -> None:
    """Every queue of the topic has what was stored in the queue of that number, in that order."""
    for queue, records in records_of(cluster, topic, len(stored)).items():
        sent = sorted((one for one in stored if one.queue_id == queue), key=lambda one: one.offset)
        assert [record.body for record in records] == [one.out.body for one in sent]


@pytest.fixture(scope="module")
def source(cluster: Cluster) -> tuple[str, list[Stored]]:
    """A topic of COUNT messages in four queues."""
    topic = "ReplaySource"
    create_topic(cluster.namesrv, topic)
    return topic, send(cluster.namesrv, topic, numbered(COUNT))


def test_an_archive_is_replayed_as_it_is(
    spark: SparkSession,
    cluster: Cluster,
    topic_name: TopicName,
    tmp_path: Path,
    source: tuple[str, list[Stored]],
) -> None:
    topic, stored = source
    target, path, state = topic_name("Replayed"), tmp_path / "archive", tmp_path / "state.json"
    run_archive(spark, ArchiveOptions(cluster.namesrv, str(path), (topic,)))
    options = ReplayOptions(
        cluster.namesrv,
        target,
        str(state),
        archive=str(path),
        keep_queues=True,
        create_queues=4,
        batch_messages=120,
    )
    done = run_replay(spark, options)
    assert (done.messages, done.total, done.batches) == (COUNT, COUNT, 3)
    assert_same_queues(cluster, target, stored)
    sent = Counter((one.out.body, one.out.keys, one.out.tags, one.out.properties["number"]) for one in stored)
    assert Counter(content(one) for of in records_of(cluster, target, COUNT).values() for one in of) == sent
    again = run_replay(spark, options)
    assert (again.messages, again.total) == (0, COUNT)


def test_a_batch_that_was_sent_and_not_noted_is_sent_once(
    spark: SparkSession,
    cluster: Cluster,
    topic_name: TopicName,
    tmp_path: Path,
    source: tuple[str, list[Stored]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, stored = source
    target, state = topic_name("ReplayedOnce"), tmp_path / "state.json"
    options = ReplayOptions(
        cluster.namesrv,
        target,
        str(state),
        (topic,),
        rate=Rate(messages=2_000),
        keep_queues=True,
        delivery="exactly-once",
        create_queues=4,
        batch_messages=200,
    )

    def die(state: ReplayState, sent: int) -> ReplayState:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay_job, "_done", die)
    with pytest.raises(KeyboardInterrupt):
        run_replay(spark, options)
    monkeypatch.undo()
    assert sum(map(len, records_of(cluster, target, 200).values())) == 200
    done = run_replay(spark, replace(options, rate=Rate()))
    assert (done.messages, done.batches) == (COUNT, 2)
    assert_same_queues(cluster, target, stored)


def test_only_what_was_stored_in_the_window_is_sent(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic, target = topic_name("Windowed"), topic_name("Windowed_again")
    create_topic(cluster.namesrv, topic, queues=2)
    send(cluster.namesrv, topic, numbered(20, queues=2))
    times = sorted(
        record.store_timestamp_ms for records in records_of(cluster, topic, 20).values() for record in records
    )
    stored = send(cluster.namesrv, topic, numbered(30, queues=2))
    wanted = [
        record
        for records in records_of(cluster, topic, 50).values()
        for record in records
        if record.store_timestamp_ms > times[-1]
    ]
    options = ReplayOptions(
        cluster.namesrv, target, str(tmp_path / "s"), (topic,), start_ms=times[-1] + 1, create_queues=2
    )
    done = run_replay(spark, options)
    assert 0 < done.messages == len(wanted) <= len(stored)
    sent = Counter(one.body for of in records_of(cluster, target, len(wanted)).values() for one in of)
    assert sent == Counter(record.body for record in wanted)
