"""Exactly once through failing tasks, leaders killed with -9 and a query stopped within a batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from commitlog.sequences import sequence_of
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.spark.conftest import TopicName
from tests.spark.faults import failing_at_first
from tests.spark.producing import create_topic
from tests.spark.reading import read_topic

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


def last_batch(folder: Path) -> int:
    """The last one that Spark has committed."""
    commits = folder / "checkpoint" / "commits"
    names = [path.name for path in commits.iterdir()] if commits.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def wait_for_batch(query: StreamingQuery, folder: Path, batch: int) -> None:
    wait_for(f"batch {batch}", lambda: last_batch(folder) >= batch or not query.isActive, LIMIT_S)
    assert query.isActive, query.exception()


def test_every_row_is_in_the_topic_exactly_once(
    spark: SparkSession, killable_cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    cluster, topic = killable_cluster, topic_name("SinkStream")
    create_topic(cluster.namesrv, topic)
    (tmp_path / "input").mkdir()
    (tmp_path / "marks").mkdir()
    for file in range(FILES):
        lines = (f"{file:02}-{row:04}".ljust(1_000, ".") for row in range(ROWS_PER_FILE))
        (tmp_path / "input" / f"{file:02}.txt").write_text("\n".join(lines) + "\n")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        query = start(spark, tmp_path, cluster, topic)
        for batch, kills in ((0, True), (2, True), (4, False)):
            wait_for_batch(query, tmp_path, batch)
            if kills:
                killed = cluster.wait_leader()
                cluster.kill(killed)
                cluster.wait_leader()
                cluster.restart(killed)
        query.stop()
        assert last_batch(tmp_path) < FILES // 2 - 1, "the query was over before it was stopped"
        query = start(spark, tmp_path, cluster, topic)
        assert query.awaitTermination(LIMIT_S)
        assert query.exception() is None
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list((tmp_path / "marks").iterdir())) >= FILES // 3
    records = [record for records in read_topic(cluster.namesrv, topic).values() for record in records]
    counts = Counter(record.body.decode().rstrip(".") for record in records)
    expected = {f"{file:02}-{row:04}" for file in range(FILES) for row in range(ROWS_PER_FILE)}
    assert counts.keys() == expected
    assert {body: count for body, count in counts.items() if count > 1} == {}
    numbers = Counter(sequence_of(record.properties) for record in records)
    assert None not in numbers
    assert set(numbers.values()) == {1}
