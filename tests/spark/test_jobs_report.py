"""A report on real topics says what was put into them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from rocketmq_spark.client.cluster import Cluster as Client
from rocketmq_spark.client.queue_offsets import commit_consumer_offsets
from rocketmq_spark.jobs.archive.job import ArchiveOptions, run_archive
from rocketmq_spark.jobs.report.job import ReportOptions, run_report
from tests.integration.cluster import Cluster
from tests.spark.conftest import TopicName
from tests.spark.producing import Out, create_topic, send

LATENCY_MS = 60_000
SIZES = (3, 10, 100)
COUNT = 60
COMMIT_LIMIT_S = 90.0


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return found


def messages() -> list[Out]:
    """Every third of each size; keys come in pairs, one of which all messages have."""
    born_ms = time.time_ns() // 1_000_000 - LATENCY_MS
    return [
        Out(
            b"x" * SIZES[number % 3],
            number % 2,
            tags=f"Tag{number % 4}",
            keys=f"everywhere key-{number % 5}",
            born_timestamp_ms=born_ms,
        )
        for number in range(COUNT)
    ]


def test_a_report_on_live_topics_and_on_their_archive(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic, group = topic_name("Reported"), topic_name("group")
    dead = f"%DLQ%{group}"
    create_topic(cluster.namesrv, topic, queues=2)
    create_topic(cluster.namesrv, dead, queues=1)
    send(cluster.namesrv, topic, messages())
    send(cluster.namesrv, dead, [Out(b"dead", 0)] * 3)
    with Client(cluster.namesrv) as client:
        offsets = {queue: 10 + queue.queue_id for queue in client.queues(topic)}
        commit_consumer_offsets(client, group, offsets, COMMIT_LIMIT_S)
    live = tmp_path / "live"
    options = ReportOptions(cluster.namesrv, str(live), (topic,), groups=(group,), top=3)
    assert run_report(spark, options).messages == COUNT
    assert_figures(live, topic)
    assert {row["queueId"]: row["lag"] for row in rows(live, "lag")} == {0: 20, 1: 19}
    assert sum(row["arrived"] for row in rows(live, "dead_letters")) == 3
    assert rows(live, "dead_letters")[-1]["waiting"] == 3
    page = (live / "report.html").read_text(encoding="utf-8")
    assert topic in page
    assert dead in page

    run_report(spark, options)
    assert len(rows(live, "lag")) == 4

    archive, archived = str(tmp_path / "archive"), tmp_path / "archived"
    run_archive(spark, ArchiveOptions(cluster.namesrv, archive, (topic, dead)))
    done = run_report(spark, ReportOptions("nowhere:1", str(archived), (topic,), archive=archive, top=3))
    assert done.messages == COUNT
    assert_figures(archived, topic)
    assert rows(archived, "lag") == []
    assert [row["waiting"] for row in rows(archived, "dead_letters")][-1] == 3


def assert_figures(folder: Path, topic: str) -> None:
    (total,) = rows(folder, "totals")
    assert (total["topic"], total["messages"], total["queues"]) == (topic, COUNT, 2)
    assert total["bytes"] == sum(SIZES) * COUNT // 3
    assert (total["bytesP50"], total["bytesMax"]) == (10, 100)
    assert LATENCY_MS <= total["latencyMsP50"] <= total["latencyMsMax"]
    timeline = rows(folder, "timeline")
    assert sum(row["messages"] for row in timeline) == COUNT
    assert sum(row["bytes"] for row in timeline) == total["bytes"]
    assert {row["bytesBelow"]: row["messages"] for row in rows(folder, "sizes")} == {4: 20, 16: 20, 128: 20}
    assert Counter({row["key"]: row["messages"] for row in rows(folder, "keys")})["everywhere"] == COUNT
    assert [row["messages"] for row in rows(folder, "keys")] == [60, 12, 12]
    assert {row["tag"]: row["messages"] for row in rows(folder, "tags")} == {
        "Tag0": 15,
        "Tag1": 15,
        "Tag2": 15,
    }


def test_a_report_on_a_window_without_messages(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic = topic_name("Empty")
    create_topic(cluster.namesrv, topic, queues=1)
    send(cluster.namesrv, topic, [Out(b"x")])
    done = run_report(spark, ReportOptions(cluster.namesrv, str(tmp_path), (topic,), end_ms=1_000))
    assert done.messages == 0
    assert "No message." in (tmp_path / "report.html").read_text(encoding="utf-8")
