"""Topics read as streams from a cluster of three nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rocketmq_spark.client.cluster import Cluster as Client
from rocketmq_spark.client.queue_offsets import consumer_offset
from rocketmq_spark.source.progress import lag_by_queue, total_lag
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.spark.conftest import TopicName
from tests.spark.producing import Out, create_topic, delete_topic, numbered, send
from tests.spark.queries import QUERY_LIMIT_S, Sink, places, stopping, stream

QUEUES = 2


def test_restarts_neither_lose_nor_repeat(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """Three runs with one checkpoint, messages between them, limits inside; the group sees how far it is."""
    topic, group = topic_name("Runs"), topic_name("Group")
    create_topic(cluster.namesrv, topic, QUEUES)
    sink = Sink(spark, tmp_path)
    frame = stream(
        spark,
        cluster.namesrv,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=250,
        groupId=group,
    )
    sent = send(cluster.namesrv, topic, numbered(600, QUEUES))
    first = sink.run_available(frame)
    assert [progress.numInputRows for progress in first.recentProgress] == [250, 250, 100]
    assert sink.bodies() == places(sent)
    sent += send(cluster.namesrv, topic, numbered(30, QUEUES))
    sink.run_available(frame)
    assert sink.bodies() == places(sent)
    sink.run_available(frame)  # nothing new
    assert sink.bodies() == places(sent)
    with Client(cluster.namesrv) as client:
        committed = [consumer_offset(client, group, queue) for queue in client.queues(topic)]
    assert committed == [315, 315]
    ends = [json.loads(path.read_text().splitlines()[-1]) for path in offsets_files(sink)]
    assert ends[0] == {topic: {"broker-a:0": 125, "broker-a:1": 125}}
    assert ends[-1] == {topic: {"broker-a:0": 315, "broker-a:1": 315}}


def offsets_files(sink: Sink) -> list[Path]:
    """The checkpoint's offset of each batch, whose last line is the source's own text."""
    files = [path for path in (sink.checkpoint / "offsets").iterdir() if path.name.isdecimal()]
    return sorted(files, key=lambda path: int(path.name))


def test_new_topics_and_queues_join_a_running_stream(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """A pattern, a topic that is there, one made while the query runs, and one that is given more queues."""
    first, second = topic_name("Join"), topic_name("JoinLater")
    suffix = first.removeprefix("Join")
    create_topic(cluster.namesrv, first, 1)
    send(cluster.namesrv, first, [Out(b"before the query")])
    sink = Sink(spark, tmp_path)
    frame = stream(
        spark, cluster.namesrv, subscribePattern=f"Join.*{suffix}", startingOffsets="latest", tags="A || B"
    )
    with stopping(sink.start(frame, processingTime="200 milliseconds")) as query:
        wait_for("the first progress", lambda: query.lastProgress, QUERY_LIMIT_S)
        send(cluster.namesrv, first, [Out(b"first", tags="A"), Out(b"of another tag", tags="C")])
        sink.wait_count(1, query)
        create_topic(cluster.namesrv, second, 1)
        send(cluster.namesrv, second, [Out(b"second", tags="B")])
        sink.wait_count(1, query, f"topic = '{second}'")
        create_topic(cluster.namesrv, first, 2)
        send(cluster.namesrv, first, [Out(b"new queue", 1, tags="A")])
        sink.wait_count(1, query, "queueId = 1")
        wait_for("no lag", lambda: query.lastProgress and not total_lag(query.lastProgress), QUERY_LIMIT_S)
        assert set(lag_by_queue(query.lastProgress)) == {first, second}
    rows = sink.rows().collect()
    assert sorted(bytes(row.body) for row in rows) == [b"first", b"new queue", b"second"]


def test_lag_is_what_was_not_admitted(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic = topic_name("Lag")
    create_topic(cluster.namesrv, topic, QUEUES)
    send(cluster.namesrv, topic, numbered(300, QUEUES, size=1_000))
    frame = stream(
        spark, cluster.namesrv, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger=120_000
    )
    query = Sink(spark, tmp_path).run_available(frame)
    counts = [progress.numInputRows for progress in query.recentProgress]
    assert sum(counts) == 300
    assert all(80 <= count <= 120 for count in counts[:-1]), counts  # records are larger than their bodies
    waiting = [total_lag(progress) for progress in query.recentProgress]
    assert waiting == [300 - sum(counts[: number + 1]) for number in range(len(counts))]


def test_a_topic_made_anew_is_told_or_read_from_its_beginning(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """By a checkpoint of another topic, which is all that is left of the one that was deleted."""
    deleted, topic = topic_name("Deleted"), topic_name("MadeNew")
    for name, count in ((deleted, 20), (topic, 5)):
        create_topic(cluster.namesrv, name, 1)
        send(cluster.namesrv, name, [Out(b"%d of %b" % (n, name.encode())) for n in range(count)])
    options = {"startingOffsets": "earliest", "retryTimeout": "1s"}
    sink = Sink(spark, tmp_path)
    sink.run_available(stream(spark, cluster.namesrv, subscribe=deleted, **options))
    for path in offsets_files(sink):
        path.write_text(path.read_text().replace(deleted, topic))
        path.with_name(f".{path.name}.crc").unlink()
    with pytest.raises(StreamingQueryException, match=r"ends at offset 5, but the query has read up to 20"):
        sink.run_available(stream(spark, cluster.namesrv, subscribe=topic, **options))
    sink.run_available(stream(spark, cluster.namesrv, subscribe=topic, failOnDataLoss=False, **options))
    rows = sink.rows().where(f"topic = '{topic}'").collect()
    assert sorted(row.queueOffset for row in rows) == list(range(5))


def test_a_topic_that_is_deleted_ends_its_stream(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """While it runs, and when it goes on afterwards; without the topic if loss is allowed, and then with the
    one that is made again under its name.
    """
    topic, other = topic_name("Gone"), topic_name("GoneNot")
    suffix = topic.removeprefix("Gone")
    for name in (topic, other):
        create_topic(cluster.namesrv, name, QUEUES)
        send(cluster.namesrv, name, numbered(10, QUEUES))
    sink = Sink(spark, tmp_path)
    options = {"subscribePattern": f"Gone.*{suffix}", "startingOffsets": "earliest"}
    frame = stream(spark, cluster.namesrv, **options)
    wanted = rf"topic {topic} was deleted.*{topic}/broker-a:0 up to offset 5 and {topic}/broker-a:1 up to"
    with stopping(sink.start(frame, processingTime="200 milliseconds")) as query:
        sink.wait_count(20, query)
        delete_topic(cluster.namesrv, topic)
        with pytest.raises(StreamingQueryException, match=wanted):
            query.awaitTermination(int(QUERY_LIMIT_S))
    with pytest.raises(StreamingQueryException, match=wanted):
        sink.run_available(frame)
    send(cluster.namesrv, other, [Out(b"goes on")])
    sink.run_available(stream(spark, cluster.namesrv, failOnDataLoss=False, **options))
    assert sink.rows().count() == 21
    assert json.loads(offsets_files(sink)[-1].read_text().splitlines()[-1]).keys() == {other}
    sink.run_available(frame)  # nothing is missed any more
    with pytest.raises(StreamingQueryException, match=f"knows no topic {topic}"):
        Sink(spark, tmp_path / "new").run_available(stream(spark, cluster.namesrv, subscribe=topic))


def test_a_batch_is_repeated_in_other_parts_after_a_restart(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """minPartitions changed between two tries of a batch that failed in its middle: everything once."""
    topic, mark = topic_name("Parts"), tmp_path / "mark"
    create_topic(cluster.namesrv, topic, QUEUES)
    sent = send(cluster.namesrv, topic, numbered(600, QUEUES))
    sink = Sink(spark, tmp_path)

    def step(offset: int) -> int:
        if offset == 150 and not mark.exists():
            raise RuntimeError("this try was to fail")
        return offset

    def frame(parts: int) -> DataFrame:
        read = stream(
            spark, cluster.namesrv, subscribe=topic, startingOffsets="earliest", minPartitions=parts
        )
        failing = F.udf(step, "long", useArrow=False)
        return read.select("topic", "queueId", failing("queueOffset").alias("queueOffset"), "body")

    with pytest.raises(StreamingQueryException, match="this try was to fail"):
        sink.run_available(frame(0))
    assert (sink.checkpoint / "offsets/0").exists()
    assert not (sink.checkpoint / "commits/0").exists()
    mark.touch()
    query = sink.run_available(frame(7))
    assert sink.bodies() == places(sent)
    assert [progress.numInputRows for progress in query.recentProgress][:1] == [600]


def test_available_now_reads_a_new_queue_within_limits(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic = topic_name("Grows")
    create_topic(cluster.namesrv, topic, 1)
    sent = send(cluster.namesrv, topic, numbered(10, 1))
    sink = Sink(spark, tmp_path)
    frame = stream(
        spark, cluster.namesrv, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=12
    )
    sink.run_available(frame)
    create_topic(cluster.namesrv, topic, 2)
    sent += send(cluster.namesrv, topic, numbered(30, 2))
    query = sink.run_available(frame)
    assert sink.bodies() == places(sent)
    assert sum(progress.numInputRows for progress in query.recentProgress) == 30
    assert max(progress.numInputRows for progress in query.recentProgress) <= 12


def test_wrong_options_are_named_before_the_query_runs(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    frame = stream(spark, cluster.namesrv, subscribe="T", maxOffsetPerTrigger=5)
    with pytest.raises(Exception, match="nearest: maxOffsetsPerTrigger"):
        Sink(spark, tmp_path).run_available(frame)
