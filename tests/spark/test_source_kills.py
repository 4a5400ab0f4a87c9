"""Leaders that are killed while a query reads: it is delayed, and every message still comes once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.spark.producing import create_topic, numbered, send
from tests.spark.queries import Sink, batch, meanwhile, places, stopping, stream

QUEUES = 2
MARK_OFFSET = 300
SIZE = 4_096
"""Large enough that a query of all messages takes many pulls."""


def slow_step(mark: Path) -> Callable[[int], int]:
    """Passes offsets on slowly, so that pulling goes on meanwhile; leaves a mark once it is under way."""

    def step(offset: int) -> int:
        time.sleep(0.0005)
        if offset == MARK_OFFSET:
            mark.touch()
        return offset

    return step


def test_a_batch_query_survives_its_leader(
    spark: SparkSession, killable_cluster: Cluster, tmp_path: Path
) -> None:
    """The leader is killed when some rows have come and most have not been pulled yet."""
    cluster = killable_cluster
    create_topic(cluster.namesrv, "Killed", QUEUES)
    sent = places(send(cluster.namesrv, "Killed", numbered(8_000, QUEUES, size=SIZE)))
    mark = tmp_path / "mark"
    step = F.udf(slow_step(mark), "long", useArrow=False)
    frame = batch(spark, cluster.namesrv, subscribe="Killed")
    frame = frame.select("queueId", step("queueOffset").alias("queueOffset"), "body")
    leader = cluster.wait_leader()

    def kill() -> None:
        wait_for("the query is under way", mark.exists, 60.0)
        cluster.kill(leader)

    with meanwhile(kill):
        rows = frame.collect()
    assert len(rows) == len(sent)
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in rows} == sent
    assert cluster.has_ended(leader)


def test_a_stream_survives_two_leaders(
    spark: SparkSession, killable_cluster: Cluster, tmp_path: Path
) -> None:
    """Messages before, between and after; the query itself is stopped and restarted once."""
    cluster = killable_cluster
    create_topic(cluster.namesrv, "Killed", QUEUES)
    sink = Sink(spark, tmp_path)
    options = {"subscribe": "Killed", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 400}
    sent = places(send(cluster.namesrv, "Killed", numbered(1_000, QUEUES, size=SIZE)))
    with stopping(sink.start(stream(spark, cluster.namesrv, **options), processingTime="0 seconds")) as query:
        sink.wait_count(300, query)
        first = cluster.wait_leader()
        cluster.kill(first)
        wait_for("another leader", lambda: cluster.leader() not in (None, first), 30.0)
        sent |= places(send(cluster.namesrv, "Killed", numbered(500, QUEUES)))
        sink.wait_count(len(sent), query)
        cluster.restart(first)
    sent |= places(send(cluster.namesrv, "Killed", numbered(500, QUEUES)))
    with stopping(sink.start(stream(spark, cluster.namesrv, **options), processingTime="0 seconds")) as query:
        cluster.kill(cluster.wait_leader())
        sink.wait_count(len(sent), query)
    assert sink.bodies() == sent
