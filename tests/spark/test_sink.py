"""The sink on a real cluster: every column, both deliveries, failing tasks, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from commitlog.record import parse_properties
from commitlog.sequences import place_of
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.spark.conftest import TopicName
from tests.spark.faults import failing_at_first
from tests.spark.producing import create_topic
from tests.spark.reading import read_bodies, read_topic
from tests.spark.writing import write

DELIVERIES = ["at-least-once", "exactly-once"]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_every_column_arrives(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, delivery: str
) -> None:
    one, other = topic_name("SinkA"), topic_name("SinkB")
    for topic in (one, other):
        create_topic(cluster.namesrv, topic)
    frame = spark.sql(
        f"""select * from values
        ('{one}', binary('bytes'), 'k1', 'TagA', map('a', '1', 'UNIQ_KEY', 'old'), 2, 7),
        ('{one}', binary('more'), null, null, null, 2, null),
        ('{other}', binary(''), 'k2', null, map('b', 'ü'), null, 0)
        as rows(topic, body, keys, tags, properties, queueId, flag)"""
    )
    write(frame.coalesce(1), cluster.namesrv, delivery=delivery)
    found = {queue.queue_id: records for queue, records in read_topic(cluster.namesrv, one).items()}
    first, second = found[2]
    assert [len(records) for records in found.values()] == [0, 0, 2, 0]
    assert (first.body, first.flag, second.body, second.flag) == (b"bytes", 7, b"more", 0)
    properties = parse_properties(first.properties)
    assert (properties["KEYS"], properties["TAGS"], properties["a"]) == ("k1", "TagA", "1")
    assert len(properties["UNIQ_KEY"]) == 32
    assert parse_properties(second.properties)["UNIQ_KEY"] != properties["UNIQ_KEY"]
    (third,) = [record for records in read_topic(cluster.namesrv, other).values() for record in records]
    assert third.body == b""
    assert parse_properties(third.properties)["b"] == "ü"
    assert (place_of(first.properties) is not None) == (delivery == "exactly-once")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_many_rows_are_spread_over_all_queues_and_keys_keep_their_order(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, delivery: str
) -> None:
    topic = topic_name("SinkMany")
    frame = spark.range(0, 21_000, 1, 3).selectExpr(
        "cast(id as string) value", "case when id % 3 = 0 then concat('key', id % 30) end keys"
    )
    write(frame, cluster.namesrv, topic=topic, delivery=delivery, batchBytes=20_000, createTopicQueues=4)
    found = read_topic(cluster.namesrv, topic)
    assert Counter(record.body for records in found.values() for record in records) == Counter(
        str(number).encode() for number in range(21_000)
    )
    assert all(len(records) > 1_000 for records in found.values())
    places: dict[str, set[int]] = {}
    for queue, records in found.items():
        partitions: dict[str, int] = {}
        for record in records:
            key = parse_properties(record.properties).get("KEYS")
            if key is not None:
                places.setdefault(key, set()).add(queue.queue_id)
                number = int(record.body)
                partition = f"{key} {number // 7_000}"
                assert partitions.get(partition, -1) < number
                partitions[partition] = number
    assert all(len(queues) == 1 for queues in places.values())


def test_empty_partitions_and_an_empty_frame_are_fine(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName
) -> None:
    topic = topic_name("SinkEmpty")
    create_topic(cluster.namesrv, topic)
    frame = spark.range(0, 2, 1, 5).selectExpr("cast(id as string) body")
    for delivery in DELIVERIES:
        write(frame.where("body = 'none'"), cluster.namesrv, topic=topic, delivery=delivery)
        write(frame, cluster.namesrv, topic=topic, delivery=delivery)
    assert sorted(read_bodies(cluster.namesrv, topic)) == ["0", "0", "1", "1"]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_task_that_fails_after_sending_repeats_rows_only_at_least_once(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, delivery: str, tmp_path: Path
) -> None:
    """The one delivery shows that the other has something to drop."""
    topic = topic_name("SinkFailing")
    create_topic(cluster.namesrv, topic)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        frame = spark.range(0, 1_200, 1, 2).selectExpr("rpad(string(id), 1000, '.') body")
        failing = frame.mapInArrow(failing_at_first(tmp_path, 300), "body string")
        write(failing, cluster.namesrv, topic=topic, delivery=delivery, batchBytes=5_000)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list(tmp_path.iterdir())) == 2
    counts = Counter(body.rstrip(".") for body in read_bodies(cluster.namesrv, topic))
    assert counts.keys() == {str(number) for number in range(1_200)}
    assert (max(counts.values()) > 1) == (delivery == "at-least-once")


def test_a_write_with_a_writers_id_can_be_run_again(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName
) -> None:
    topic = topic_name("SinkAgain")
    frame = spark.range(0, 300, 1, 2).selectExpr("cast(id as string) body")
    options: dict[str, object] = {"topic": topic, "delivery": "exactly-once", "writerId": topic}
    for batch_id in (4, 4, 5):
        write(frame, cluster.namesrv, **options, batchId=batch_id, createTopicQueues=2)
    assert set(Counter(read_bodies(cluster.namesrv, topic)).values()) == {2}
    with pytest.raises(PySparkException, match="batch 4 has ended"):
        write(frame, cluster.namesrv, **options, batchId=4)


def test_a_batch_that_is_cut_differently_is_an_error_and_loses_no_row_in_silence(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName
) -> None:
    """Other rows in the place of old ones, fewer of them, or fewer partitions: all were taken for repeats."""
    topic = topic_name("SinkCut")
    options: dict[str, object] = {"topic": topic, "delivery": "exactly-once", "writerId": topic}
    options |= {"batchId": 1, "createTopicQueues": 2}

    def rows(first: int, end: int, partitions: int) -> DataFrame:
        return spark.range(first, end, 1, partitions).selectExpr("cast(id as string) body")

    write(rows(0, 300, 2), cluster.namesrv, **options)
    cuts = [
        (rows(1, 301, 2), "rows before number 150 of batch 1 are not those"),
        (rows(0, 300, 2).where("int(body) % 150 < 100"), "partition 0 has 100 rows, and 150 are in the log"),
        (
            rows(0, 100, 1),
            "partition 0 has 100 rows, and 150 are in the log; partition 1 has 0 rows, and 150",
        ),
    ]
    for frame, words in cuts:
        with pytest.raises(PySparkException, match=words) as caught:
            write(frame, cluster.namesrv, **options)
        assert "has the same partitions and rows at every attempt" in str(caught.value)
    assert Counter(read_bodies(cluster.namesrv, topic)) == Counter(map(str, range(300)))
    write(rows(1, 301, 2), cluster.namesrv, **options, checkRepeats=False)
    assert Counter(read_bodies(cluster.namesrv, topic)) == Counter(map(str, range(300)))


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("select 'x' body, 1 colour", {}, "no column colour"),
        ("select 'x' body", {"topc": "T"}, "no option topc; nearest: topic"),
        ("select 'x' body", {"topic": "NoSuchTopic"}, "createTopicQueues"),
        ("select string(null) body", {}, "row 0 of partition 0 has no body"),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: SparkSession,
    cluster: Cluster,
    topic_name: TopicName,
    query: str,
    options: dict[str, str],
    words: str,
) -> None:
    given: dict[str, object] = {"topic": topic_name("SinkRefused"), "createTopicQueues": 1, **options}
    if options.get("topic") == "NoSuchTopic":
        del given["createTopicQueues"]
    with pytest.raises(PySparkException, match=words):
        write(spark.sql(query), cluster.namesrv, **given)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_delayed_row_comes_later(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, delivery: str
) -> None:
    topic = topic_name("SinkDelayed")
    create_topic(cluster.namesrv, topic, 1)
    frame = spark.sql("select * from values ('late', 1), ('at once', null) as rows(body, delayLevel)")
    write(frame.coalesce(1), cluster.namesrv, topic=topic, delivery=delivery)
    wait_for("both rows", lambda: len(read_bodies(cluster.namesrv, topic)) == 2, 30.0)
    first, late = (record for records in read_topic(cluster.namesrv, topic).values() for record in records)
    assert (first.body, late.body) == (b"at once", b"late")
    assert late.store_timestamp_ms >= late.born_timestamp_ms + 1_000
    assert late.prepared_transaction_offset == 0
