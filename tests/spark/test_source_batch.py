"""Topics read as tables from a cluster of three nodes."""

from __future__ import annotations

import io
import json
import time
import zlib
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.integration.cluster import Cluster
from tests.spark.conftest import TopicName
from tests.spark.producing import Out, Stored, create_topic, numbered, send
from tests.spark.queries import batch, places

QUEUES = 3
COUNT = 1_500
BIG_QUEUE_COUNT = 4_000


@dataclass(frozen=True, slots=True)
class Filled:
    """A topic with messages in two bursts, the second of which began at `middle_ms`."""

    namesrv: str
    topic: str
    stored: list[Stored]
    middle_ms: int


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Filled:
    topic = f"Filled_{time.time_ns()}"
    create_topic(cluster.namesrv, topic, QUEUES)
    messages = numbered(COUNT, QUEUES, ("TagA", "TagB", "TagC"))
    first = send(cluster.namesrv, topic, messages[: COUNT // 2])
    time.sleep(0.05)
    middle_ms = time.time_ns() // 1_000_000
    second = send(cluster.namesrv, topic, messages[COUNT // 2 :])
    return Filled(cluster.namesrv, topic, first + second, middle_ms)


def test_every_message_comes_once_with_all_columns(spark: SparkSession, filled: Filled) -> None:
    rows = batch(spark, filled.namesrv, subscribe=filled.topic, includeHeaders=True).collect()
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in rows} == places(filled.stored)
    assert len(rows) == COUNT
    by_place = {(one.queue_id, one.offset): one for one in filled.stored}
    assert len({row.physicalOffset for row in rows}) == COUNT
    assert len({row.msgId for row in rows}) == COUNT
    now = datetime.now(UTC).replace(tzinfo=None)
    for row in rows:
        out = by_place[row.queueId, row.queueOffset].out
        assert (row.topic, row.brokerName) == (filled.topic, "broker-a")
        assert (row.keys, row.tags) == (out.keys, out.tags)
        assert row.properties.items() >= {("number", out.properties["number"]), ("TAGS", out.tags)}
        assert (row.reconsumeTimes, row.flag, row.sysFlag) == (0, 0, 0)
        assert row.bornHost.startswith("127.0.0.1:")
        assert timedelta(0) <= row.storeTimestamp - row.bornTimestamp < timedelta(minutes=1)
        assert timedelta(seconds=-1) < now - row.storeTimestamp < timedelta(minutes=5)


def test_queues_are_read_in_order_and_big_ones_split(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName
) -> None:
    topic = topic_name("Split")
    create_topic(cluster.namesrv, topic, 2)
    big = [Out(b"%d" % number) for number in range(BIG_QUEUE_COUNT)]
    send(cluster.namesrv, topic, [*big, Out(b"alone", 1)])
    frame = batch(spark, cluster.namesrv, subscribe=topic, minPartitions=5)
    numbered_rows = frame.withColumn("part", F.spark_partition_id()).withColumn(
        "position", F.monotonically_increasing_id()
    )
    rows = sorted(numbered_rows.collect(), key=lambda row: (row.part, row.position))
    big_rows = [row for row in rows if row.queueId == 0]
    assert [row.queueOffset for row in big_rows] == list(range(BIG_QUEUE_COUNT))
    assert [int(row.body) for row in big_rows] == list(range(BIG_QUEUE_COUNT))
    sizes = [sum(row.part == part for row in rows) for part in range(5)]
    assert sizes == [1_000, 1_000, 1_000, 1_000, 1]
    assert batch(spark, cluster.namesrv, subscribe=topic).rdd.getNumPartitions() == 2


def test_queues_share_tasks_where_there_are_many(spark: SparkSession, filled: Filled) -> None:
    frame = batch(spark, filled.namesrv, subscribe=filled.topic, maxPartitions=2)
    assert frame.rdd.getNumPartitions() == 2
    placed = frame.select("queueId", "queueOffset", "body", F.monotonically_increasing_id().alias("at"))
    rows = sorted(placed.collect(), key=lambda row: row.at)
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in rows} == places(filled.stored)
    assert [(row.queueId, row.queueOffset) for row in rows] == sorted(places(filled.stored))


def test_a_query_with_a_condition_sees_what_has_come_since(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName
) -> None:
    """Spark keeps what one `load()` is planned to read, until a condition comes that it pushes down."""
    topic = topic_name("Since")
    create_topic(cluster.namesrv, topic, 1)
    send(cluster.namesrv, topic, numbered(10, 1))
    frame = batch(spark, cluster.namesrv, subscribe=topic)
    fresh = frame.where("queueOffset >= 0")
    assert (frame.count(), fresh.count()) == (10, 10)
    send(cluster.namesrv, topic, numbered(5, 1))
    assert fresh.count() == 15
    create_topic(cluster.namesrv, topic, 2)
    send(cluster.namesrv, topic, [Out(b"of a new queue", 1)])
    assert fresh.count() == 16
    assert batch(spark, cluster.namesrv, subscribe=topic).count() == 16


def test_offsets_bound_what_is_read(spark: SparkSession, filled: Filled) -> None:
    start = {"broker-a:0": 100, "broker-a:1": -2, "broker-a:2": 400}
    end = {"broker-a:0": 110, "broker-a:1": 7, "broker-a:2": -1}
    frame = batch(
        spark,
        filled.namesrv,
        subscribe=filled.topic,
        startingOffsets=json.dumps({filled.topic: start}),
        endingOffsets=json.dumps({filled.topic: end}),
    )
    found = {(row.queueId, row.queueOffset) for row in frame.select("queueId", "queueOffset").collect()}
    wanted = {0: range(100, 110), 1: range(7), 2: range(400, 500)}
    assert found == {(queue, offset) for queue, offsets in wanted.items() for offset in offsets}


def test_times_bound_what_is_read(spark: SparkSession, filled: Filled) -> None:
    second = places(filled.stored[COUNT // 2 :])
    after = batch(spark, filled.namesrv, subscribe=filled.topic, startingTimestamp=filled.middle_ms)
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in after.collect()} == second
    before = batch(spark, filled.namesrv, subscribe=filled.topic, endingTimestamp=filled.middle_ms)
    assert before.count() == COUNT - len(second)
    late = filled.middle_ms + 3_600_000
    with pytest.raises(PySparkException, match="no message is that new"):
        batch(spark, filled.namesrv, subscribe=filled.topic, startingTimestamp=late).count()
    none = batch(
        spark,
        filled.namesrv,
        subscribe=filled.topic,
        startingTimestamp=late,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert none.count() == 0


def test_filters_are_pushed_down_and_lose_nothing(spark: SparkSession, filled: Filled) -> None:
    def frame() -> DataFrame:
        return batch(spark, filled.namesrv, subscribe=filled.topic, storeTimeSkew=0, pushFilters=True)

    moment = datetime.fromtimestamp(filled.middle_ms / 1000, UTC)
    chosen = frame().where(
        F.col("tags").isin("TagA", "TagC") & (F.col("queueId") != 1) & (F.col("queueOffset") >= 300)
    )
    expected = {
        (one.queue_id, one.offset)
        for one in filled.stored
        if one.out.tags in ("TagA", "TagC") and one.queue_id != 1 and one.offset >= 300
    }
    assert {(row.queueId, row.queueOffset) for row in chosen.collect()} == expected
    late = frame().where(F.col("storeTimestamp") >= F.lit(moment))
    assert late.count() == COUNT - COUNT // 2
    assert late.rdd.getNumPartitions() == QUEUES
    assert frame().where("queueId = 2").rdd.getNumPartitions() == 1
    assert frame().where("topic = 'Another'").count() == 0
    assert frame().where("tags = 'TagA' and tags = 'TagB'").count() == 0
    plan = io.StringIO()
    with redirect_stdout(plan):
        frame().where("tags = 'TagA' and queueOffset < 5").explain("formatted")
    assert "PushedFilters: [EqualTo(tags,TagA), LessThan(queueOffset,5)]" in plan.getvalue()


def test_queries_of_one_frame_do_not_get_each_others_filters(spark: SparkSession, filled: Filled) -> None:
    """Spark keeps the plan of a Python source for all of them."""
    frame = batch(spark, filled.namesrv, subscribe=filled.topic)
    of_tag = {tag: sum(one.out.tags == tag for one in filled.stored) for tag in ("TagA", "TagB")}
    for tag, count in of_tag.items():
        assert frame.where(F.col("tags") == tag).count() == count
    assert frame.count() == COUNT
    both = frame.where("tags = 'TagA'").union(frame.where("tags = 'TagB'"))
    assert both.count() == sum(of_tag.values())
    assert frame.select("body").count() == COUNT


def test_tags_option_lets_only_these_tags_come(spark: SparkSession, filled: Filled) -> None:
    frame = batch(spark, filled.namesrv, subscribe=filled.topic, tags="TagB || TagX")
    rows = frame.select("tags", "body").collect()
    assert {row.tags for row in rows} == {"TagB"}
    assert len(rows) == COUNT // 3


def test_columns_can_be_chosen_by_schema(spark: SparkSession, filled: Filled) -> None:
    reader = spark.read.format("rocketmq").option("namesrv", filled.namesrv)
    reader = reader.option("subscribe", filled.topic)
    frame = reader.schema("tags string, queueOffset long").load()
    assert frame.columns == ["tags", "queueOffset"]
    assert frame.where("tags = 'TagA'").count() == COUNT // 3
    with pytest.raises(PySparkException, match="rocketmq has no column price"):
        reader.schema("price double").load().count()


def test_assigned_queues_alone_are_read(spark: SparkSession, filled: Filled) -> None:
    assigned = json.dumps({filled.topic: ["broker-a:1"]})
    frame = batch(spark, filled.namesrv, assign=assigned)
    assert [row.queueId for row in frame.select("queueId").distinct().collect()] == [1]
    assert frame.count() == COUNT // QUEUES
    unknown = json.dumps({filled.topic: ["broker-a:9"]})
    with pytest.raises(PySparkException, match=r"queues that do not exist: .*broker-a:9"):
        batch(spark, filled.namesrv, assign=unknown).count()


def test_pattern_matches_whole_names(spark: SparkSession, cluster: Cluster, topic_name: TopicName) -> None:
    first, second = topic_name("Fruit"), topic_name("FruitSalad")
    for topic in (first, second):
        create_topic(cluster.namesrv, topic, 1)
        send(cluster.namesrv, topic, [Out(topic.encode())])
    suffix = first.removeprefix("Fruit")
    both = batch(spark, cluster.namesrv, subscribePattern=f"Fruit.*{suffix}")
    assert sorted(row.topic for row in both.collect()) == sorted([first, second])
    one = batch(spark, cluster.namesrv, subscribePattern=f"Fruit{suffix}")
    assert [bytes(row.body) for row in one.collect()] == [first.encode()]
    assert batch(spark, cluster.namesrv, subscribePattern="Nothing.*Such").count() == 0


def test_bodies_of_all_kinds_come_whole(spark: SparkSession, cluster: Cluster, topic_name: TopicName) -> None:
    """Large ones, which an answer holds alone; compressed ones; one that is empty but for a byte."""
    topic = topic_name("Bodies")
    create_topic(cluster.namesrv, topic, 1)
    large = bytes(range(256)) * 4_096
    text = "naïve ☕ 你好 ".encode() * 1_000
    sent = [Out(b"x"), Out(large), Out(zlib.compress(text), sys_flag=1), Out(large), Out(b"\x00")]
    for _ in range(3):
        send(cluster.namesrv, topic, sent)
    rows = batch(spark, cluster.namesrv, subscribe=topic).orderBy("queueOffset").collect()
    assert [bytes(row.body) for row in rows] == [b"x", large, text, large, b"\x00"] * 3
    left = batch(spark, cluster.namesrv, subscribe=topic, decompress=False).where("queueOffset = 2")
    assert [bytes(row.body) for row in left.collect()] == [zlib.compress(text)]


def test_offsets_that_the_cluster_does_not_hold_are_named(spark: SparkSession, filled: Filled) -> None:
    end = {filled.topic: {"broker-a:0": 10, "broker-a:1": 10, "broker-a:2": 600}}
    options = {"subscribe": filled.topic, "endingOffsets": json.dumps(end)}
    wanted = rf"offsets 500 to 599 of {filled.topic}/broker-a:2 were requested, .* offsets 0 to 499"
    with pytest.raises(PySparkException, match=wanted):
        batch(spark, filled.namesrv, **options).count()
    assert batch(spark, filled.namesrv, failOnDataLoss=False, **options).count() == 10 + 10 + 500


def test_wrong_options_and_topics_are_named(spark: SparkSession, filled: Filled) -> None:
    with pytest.raises(PySparkException, match="no option subscrib; nearest: subscribe"):
        batch(spark, filled.namesrv, subscrib=filled.topic).count()
    with pytest.raises(PySparkException, match="the name server knows no topic NoSuchTopic"):
        batch(spark, filled.namesrv, subscribe="NoSuchTopic").count()
    starts = json.dumps({filled.topic: {"broker-a:0": 1}})
    with pytest.raises(PySparkException, match="does not define where to begin or end in"):
        batch(spark, filled.namesrv, subscribe=filled.topic, startingOffsets=starts).count()
