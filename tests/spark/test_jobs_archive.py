"""Archives of real topics: whole after kills of the leader and of the job, and proved so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketmq_spark.jobs.archive import ArchiveOptions, run_archive
from rocketmq_spark.jobs.archive_check import run_verify
from rocketmq_spark.jobs.archive_rows import SPARK_SCHEMA
from rocketmq_spark.jobs.archive_store import ArchiveStore
from rocketmq_spark.jobs.errors import ArchiveError
from tests.integration.cluster import Cluster
from tests.spark.conftest import TopicName
from tests.spark.producing import Stored, create_topic, numbered, send


def assert_holds(spark: SparkSession, path: Path, topic: str, stored: Sequence[Stored]) -> None:
    """The archive is proved whole, and a plain reader of the folder sees what was stored."""
    found = run_verify(spark, str(path))
    assert found.problems == ()
    assert found.messages == len(stored)
    rows = spark.read.schema(SPARK_SCHEMA).parquet(str(path)).where(f"topic = '{topic}'").collect()
    seen = sorted(
        (row.queueId, row.queueOffset, bytes(row.body), row.keys, row.tags, row.properties["number"])
        for row in rows
    )
    sent = sorted(
        (one.queue_id, one.offset, one.out.body, one.out.keys, one.out.tags, one.out.properties["number"])
        for one in stored
    )
    assert seen == sent


def test_an_archive_goes_on_where_it_ended(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic, path = topic_name("Archived"), tmp_path / "archive"
    create_topic(cluster.namesrv, topic)
    options = ArchiveOptions(cluster.namesrv, str(path), (topic,), batch_messages=70)
    stored = send(cluster.namesrv, topic, numbered(200))
    first = run_archive(spark, options)
    assert (first.messages, first.batches) == (200, 3)
    assert_holds(spark, path, topic, stored)
    assert run_archive(spark, options).messages == 0
    stored += send(cluster.namesrv, topic, numbered(50))
    assert run_archive(spark, options).messages == 50
    assert_holds(spark, path, topic, stored)
