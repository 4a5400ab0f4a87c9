"""The same reads from RocketMQ's own broker in Java, of 5.x and 4.9: the plain protocol only.

How a stream ends when its topic or a queue does is tested with our brokers in every run, here in long ones.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from remoting.codes import RequestCode
from rocketmq_spark.client.cluster import Cluster as Client
from rocketmq_spark.client.queue_offsets import bounds, consumer_offset
from tests.integration.wire import call
from tests.spark.conftest import TopicName
from tests.spark.producing import Out, create_topic, delete_topic, numbered, send
from tests.spark.queries import Sink, batch, places, stopping, stream
from tests.spark.stock_broker import StockBroker

QUEUES = 3
COUNT = 900


def test_batch_reads_what_was_sent(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName
) -> None:
    """Everything, by tag, by filter, by time and in parts; RocketMQ 4 finds times in its own way."""
    namesrv, topic = java_broker.namesrv, topic_name("Stock")
    create_topic(namesrv, topic, QUEUES)
    messages = numbered(COUNT, QUEUES, ("TagA", "TagB"), size=2_000)
    first = send(namesrv, topic, messages[: COUNT // 3])
    time.sleep(0.05)
    middle_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    stored = places(first) | places(send(namesrv, topic, messages[COUNT // 3 :]))
    frame = batch(spark, namesrv, subscribe=topic, minPartitions=5, includeHeaders=True)
    rows = frame.collect()
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in rows} == stored
    assert len(rows) == COUNT
    assert {row.tags for row in rows} == {"TagA", "TagB"}
    assert all(row.properties["KEYS"] == row.keys for row in rows)
    assert {row.brokerName for row in rows} == {"stock"}
    assert len({row.msgId for row in rows}) == COUNT
    assert frame.where("tags = 'TagB' and queueOffset < 100").count() == 150
    assert batch(spark, namesrv, subscribe=topic, tags="TagA").count() == COUNT // 2
    late = batch(spark, namesrv, subscribe=topic, startingTimestamp=middle_ms)
    assert late.count() == COUNT - COUNT // 3
    early = batch(spark, namesrv, subscribe=topic, endingTimestamp=middle_ms)
    assert early.count() == COUNT // 3
    with pytest.raises(PySparkException, match="no message is that new"):
        batch(spark, namesrv, subscribe=topic, startingTimestamp=middle_ms + 3_600_000).count()


def test_stream_restarts_and_finds_new_topics(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName, tmp_path: Path
) -> None:
    namesrv, topic, group = java_broker.namesrv, topic_name("Run"), topic_name("Group")
    suffix = topic.removeprefix("Run")
    create_topic(namesrv, topic, QUEUES)
    sink = Sink(spark, tmp_path)
    options = {"subscribePattern": f"Run.*{suffix}", "startingOffsets": "earliest", "groupId": group}
    frame = stream(spark, namesrv, maxOffsetsPerTrigger=400, **options)
    stored = places(send(namesrv, topic, numbered(600, QUEUES)))
    sink.run_available(frame)
    assert sink.bodies() == stored
    stored |= places(send(namesrv, topic, numbered(60, QUEUES)))
    with stopping(sink.start(frame, processingTime="200 milliseconds")) as query:
        sink.wait_count(len(stored), query)
        create_topic(namesrv, f"RunLater{suffix}", 1)
        send(namesrv, f"RunLater{suffix}", [Out(b"later")])
        later = f"topic = 'RunLater{suffix}'"
        sink.wait_count(1, query, later)
    kept = sink.rows().where(f"topic = '{topic}'").collect()
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in kept} == stored
    assert len(kept) == len(stored)
    with Client(namesrv) as client:
        committed = [consumer_offset(client, group, queue) for queue in client.queues(topic)]
    assert committed == [220, 220, 220]


def test_retention_is_told_or_passed_over(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName, tmp_path: Path
) -> None:
    """The broker's old files are deleted: what a checkpoint had still to read is gone."""
    namesrv, topic = java_broker.namesrv, topic_name("Kept")
    create_topic(namesrv, topic, 1)
    sink = Sink(spark, tmp_path)
    options = {"subscribe": topic, "startingOffsets": "earliest", "retryTimeout": "5s"}
    send(namesrv, topic, numbered(10, 1))
    sink.run_available(stream(spark, namesrv, **options))
    count = 10 + len(send(namesrv, topic, numbered(300, 1, size=10_000)))
    first = java_broker.lose_before(topic, 200)
    assert 10 < first <= 200
    with pytest.raises(StreamingQueryException, match=rf"offsets 10 to {first - 1} of {topic}/stock:0"):
        sink.run_available(stream(spark, namesrv, **options))
    sink.run_available(stream(spark, namesrv, failOnDataLoss=False, **options))
    assert sorted(offset for _, offset in sink.bodies()) == [*range(10), *range(first, count)]
    earliest = batch(spark, namesrv, subscribe=topic)
    assert earliest.count() == count - first
    given = json.dumps({topic: {"stock:0": 0}})
    with pytest.raises(PySparkException, match=rf"offsets 0 to {first - 1} of .* were requested"):
        batch(spark, namesrv, subscribe=topic, startingOffsets=given).count()


@pytest.mark.long
@pytest.mark.parametrize("of_broker_only", [False, True])
def test_a_topic_that_is_deleted_ends_its_stream(
    spark: SparkSession,
    java_broker: StockBroker,
    topic_name: TopicName,
    tmp_path: Path,
    of_broker_only: bool,
) -> None:
    """Its name server goes on to list a topic that only the broker has deleted."""
    namesrv, topic = java_broker.namesrv, topic_name("Gone")
    create_topic(namesrv, topic, 1)
    send(namesrv, topic, numbered(20, 1))
    sink = Sink(spark, tmp_path)
    frame = stream(spark, namesrv, subscribe=topic, startingOffsets="earliest")
    with stopping(sink.start(frame, processingTime="200 milliseconds")) as query:
        sink.wait_count(20, query)
        if of_broker_only:
            with Client(namesrv) as client:
                call(client.leader("stock"), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        else:
            delete_topic(namesrv, topic)
        with pytest.raises(
            StreamingQueryException, match=f"topic {topic} was deleted.*{topic}/stock:0 up to offset 20"
        ):
            query.awaitTermination(120)


@pytest.mark.long
def test_a_queue_that_is_taken_away_unread_ends_the_stream(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName, tmp_path: Path
) -> None:
    namesrv, topic = java_broker.namesrv, topic_name("Fewer")
    create_topic(namesrv, topic, 2)
    send(namesrv, topic, numbered(20, 2))
    sink = Sink(spark, tmp_path)
    options = {"subscribe": topic, "startingOffsets": "earliest", "retryTimeout": "5s"}
    sink.run_available(stream(spark, namesrv, **options))
    create_topic(namesrv, topic, 1)
    sink.run_available(stream(spark, namesrv, **options))
    create_topic(namesrv, topic, 2)
    send(namesrv, topic, numbered(6, 2))
    create_topic(namesrv, topic, 1)
    with pytest.raises(
        StreamingQueryException, match=rf"fewer queues.*{topic}/stock:1 up to offset 10 of 13"
    ):
        sink.run_available(stream(spark, namesrv, **options))


@pytest.mark.long
def test_a_topic_made_anew_is_told_as_loss(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName, tmp_path: Path
) -> None:
    namesrv, topic = java_broker.namesrv, topic_name("Anew")
    create_topic(namesrv, topic, 1)
    send(namesrv, topic, numbered(20, 1))
    sink = Sink(spark, tmp_path)
    options = {"subscribe": topic, "startingOffsets": "earliest", "retryTimeout": "1s"}
    sink.run_available(stream(spark, namesrv, **options))
    with Client(namesrv) as client:
        delete_topic(namesrv, topic)
        create_topic(namesrv, topic, 1)
        send(namesrv, topic, [Out(b"new")])
        (ends,) = bounds(client, client.queues(topic)).values()
    assert ends.max_offset == 1
    with pytest.raises(StreamingQueryException, match="ends at offset 1, but the query has read up to 20"):
        sink.run_available(stream(spark, namesrv, **options))
