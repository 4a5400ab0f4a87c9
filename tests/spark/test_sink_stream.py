"""Exactly once through failing tasks, leaders killed with -9 and a query stopped within a batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlog.sequences import place_of
from remoting.client.routes import MessageQueue
from rocketmq_spark.client.cluster import Cluster as Client
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.spark.conftest import TopicName
from tests.spark.faults import failing_at_first
from tests.spark.producing import create_topic
from tests.spark.reading import read_queue, read_topic

FILES = 16
ROWS_PER_FILE = 400
LIMIT_S = 90.0


def start(spark: SparkSession, folder: Path, cluster: Cluster, topic: str) -> StreamingQuery:
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(folder / "input"))
    failing = rows.mapInArrow(failing_at_first(folder / "marks", 200, share=3), "value string")
    return (
        failing.writeStream.format("rocketmq")
        .option("namesrv", cluster.namesrv)
        .option("topic", topic)
        .option("delivery", "exactly-once")
        .option("batchBytes", 10_000)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def last_batch(folder: Path, what: str = "commits") -> int:
    """The last one that Spark has committed; of "offsets", that it has planned."""
    found = folder / "checkpoint" / what
    names = [path.name for path in found.iterdir()] if found.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


class Rows:
    """How many rows of each batch are in the topic; each is read once."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv, self._topic = namesrv, topic
        self._ends: Counter[MessageQueue] = Counter()
        self._batches: Counter[int] = Counter()

    def by_batch(self) -> Counter[int]:
        with Client(self._namesrv) as client:
            for queue in client.queues(self._topic):
                for record in read_queue(client, queue, self._ends[queue]):
                    self._ends[queue] = record.queue_offset + 1
                    if (place := place_of(record.properties)) is not None:
                        self._batches[place[1]] += 1
        return self._batches


def wait_within_batch(query: StreamingQuery, folder: Path, rows: Rows, batch: int) -> None:
    """Wait for this batch or a later one: the topic has rows of it, and Spark has not committed it."""

    def is_within() -> bool:
        if last_batch(folder) < batch - 1:
            return not query.isActive
        within = max(rows.by_batch(), default=-1)
        return (within >= batch and within > last_batch(folder)) or not query.isActive

    wait_for(f"rows of batch {batch}", is_within, LIMIT_S)
    assert query.isActive, query.exception()


def test_every_row_is_in_the_topic_exactly_once(
    spark: SparkSession, killable_cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    cluster, topic = killable_cluster, topic_name("SinkStream")
    create_topic(cluster.namesrv, topic)
    rows = Rows(cluster.namesrv, topic)
    (tmp_path / "input").mkdir()
    (tmp_path / "marks").mkdir()
    for file in range(FILES):
        lines = (f"{file:02}-{row:04}".ljust(1_000, ".") for row in range(ROWS_PER_FILE))
        (tmp_path / "input" / f"{file:02}.txt").write_text("\n".join(lines) + "\n")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        query = start(spark, tmp_path, cluster, topic)
        for batch in (1, 3):
            wait_within_batch(query, tmp_path, rows, batch)
            killed = cluster.wait_leader()
            cluster.kill(killed)
            cluster.wait_leader()
            cluster.restart(killed)
        for batch in range(5, FILES // 2):
            wait_within_batch(query, tmp_path, rows, batch)
            query.stop()
            stopped = last_batch(tmp_path, "offsets")
            if stopped > last_batch(tmp_path) and rows.by_batch()[stopped]:
                break
            query = start(spark, tmp_path, cluster, topic)
        else:
            raise AssertionError("the query was never stopped within a batch")
        query = start(spark, tmp_path, cluster, topic)
        assert query.awaitTermination(round(LIMIT_S))
        assert query.exception() is None
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list((tmp_path / "marks").iterdir())) >= FILES // 3
    records = [record for records in read_topic(cluster.namesrv, topic).values() for record in records]
    counts = Counter(record.body.decode().rstrip(".") for record in records)
    expected = {f"{file:02}-{row:04}" for file in range(FILES) for row in range(ROWS_PER_FILE)}
    assert counts.keys() == expected
    assert {body: count for body, count in counts.items() if count > 1} == {}
    places = [place_of(record.properties) for record in records]
    assert None not in places
    assert set(Counter(place[:3] for place in places if place is not None).values()) == {1}
