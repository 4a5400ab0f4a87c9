"""Archives of real topics: whole after kills of the leader and of the job, and proved so."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from remoting.errors import RemotingError
from rocketmq_spark.errors import ArchiveError, RocketmqSparkError
from rocketmq_spark.jobs.archive.files import SPARK_SCHEMA
from rocketmq_spark.jobs.archive.job import ArchiveOptions, run_archive
from rocketmq_spark.jobs.archive.store import ArchiveStore
from rocketmq_spark.jobs.archive.verify import run_verify
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.streams import Acknowledged, read_topic
from tests.integration.waiting import wait_for
from tests.spark.conftest import SESSION_SETTINGS, TopicName
from tests.spark.producing import Stored, create_topic, numbered, send

BATCHES_LIMIT_S = 240.0
PRODUCER_PAUSE_S = 0.2
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
END_LIMIT_S = 30.0


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


def test_without_its_checkpoint_it_goes_on_by_the_manifest(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """New queues, which the manifest does not know, are read from their beginning."""
    topic, path = topic_name("NoCheckpoint"), tmp_path / "archive"
    create_topic(cluster.namesrv, topic, queues=2)
    options = ArchiveOptions(cluster.namesrv, str(path), (topic,))
    stored = send(cluster.namesrv, topic, numbered(40, queues=2))
    run_archive(spark, options)
    shutil.rmtree(path / "_checkpoint")
    create_topic(cluster.namesrv, topic, queues=3)
    stored += send(cluster.namesrv, topic, numbered(30, queues=3))
    assert run_archive(spark, options).messages == 30
    assert_holds(spark, path, topic, stored)


def test_a_plan_that_was_lost_with_the_power_loses_no_message(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    """Spark's notes of the last batch are gone: it plans the same number anew, with what has come since."""
    topic, path = topic_name("PlanLost"), tmp_path / "archive"
    create_topic(cluster.namesrv, topic, queues=2)
    options = ArchiveOptions(cluster.namesrv, str(path), (topic,), files_a_batch=1)
    stored = send(cluster.namesrv, topic, numbered(20, queues=2))
    run_archive(spark, options)

    def lose_the_last_plan() -> None:
        for folder in ("offsets", "commits"):
            for name in (
                f"{ArchiveStore(str(path)).last().batch}",
                f".{ArchiveStore(str(path)).last().batch}.crc",
            ):
                (path / "_checkpoint" / folder / name).unlink(missing_ok=True)

    lose_the_last_plan()
    assert run_archive(spark, options).messages == 0, "the same batch again"
    lose_the_last_plan()
    stored += send(cluster.namesrv, topic, numbered(10, queues=2))
    with pytest.raises(ArchiveError, match=r"is in the archive .* and is repeated up to"):
        run_archive(spark, options)
    shutil.rmtree(path / "_checkpoint")
    assert run_archive(spark, options).messages == 10
    assert_holds(spark, path, topic, stored)


def test_what_does_not_continue_the_archive_is_refused(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic, path = topic_name("Refused"), tmp_path / "archive"
    create_topic(cluster.namesrv, topic, queues=1)
    stored = send(cluster.namesrv, topic, numbered(10, queues=1))
    options = ArchiveOptions(cluster.namesrv, str(path), (topic,))
    run_archive(spark, options)
    with pytest.raises(
        ArchiveError, match=r"does not begin where the archive .* offsets 0 to 9 are there twice"
    ):
        run_archive(spark, replace(options, checkpoint=str(tmp_path / "another")))
    assert_holds(spark, path, topic, stored)


def test_an_archive_can_be_a_delta_table(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic, path = topic_name("Delta"), tmp_path / "archive"
    create_topic(cluster.namesrv, topic)
    options = ArchiveOptions(cluster.namesrv, str(path), (topic,), batch_messages=25, format="delta")
    stored = send(cluster.namesrv, topic, numbered(40))
    assert run_archive(spark, options).batches == 2
    assert_holds(spark, path, topic, stored)
    table = DeltaTable(str(path))
    assert table.version() == 1
    bodies = table.to_pyarrow_table(columns=["body"]).column("body").to_pylist()
    assert sorted(bodies) == sorted(one.out.body for one in stored)
    with pytest.raises(ArchiveError, match="is a Delta table; go on with"):
        run_archive(spark, replace(options, format="parquet"))


@contextmanager
def producing(namesrv: str, topic: str) -> Iterator[list[Stored]]:
    """A thread that sends a few messages now and then, whoever leads, until the block ends."""
    stored: list[Stored] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(PRODUCER_PAUSE_S):
            with suppress(
                AssertionError, RocketmqSparkError, RemotingError
            ):  # some may be stored all the same
                stored.extend(send(namesrv, topic, numbered(20)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield stored
    finally:
        stop.set()
        thread.join()


@contextmanager
def archiving(namesrv: str, topic: str, path: Path) -> Iterator[psutil.Popen]:
    """`ledgermq spark archive --continuous` as a process of its own, killed when the block ends."""
    command = [str(COMMAND), "spark", "archive", topic, "--to", str(path), "--namesrv", namesrv]
    command += ["--continuous", "--every", "1s", "--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    command += [
        "--conf",
        f"spark.driver.extraJavaOptions={SESSION_SETTINGS['spark.driver.extraJavaOptions']}",
    ]
    log = path.with_suffix(".log")
    with log.open("wb") as out:
        job = psutil.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield job
        finally:
            helpers = job.children(recursive=True) if job.is_running() else []
            job.kill()
            job.wait()
            _, alive = psutil.wait_procs(helpers, END_LIMIT_S)
            for one in alive:
                one.kill()
    assert alive == [], f"Spark outlives its driver: {log.read_text()[-2000:]}"


@pytest.mark.long
def test_kills_of_the_leader_and_of_the_job_leave_it_whole(
    spark: SparkSession, killable_cluster: Cluster, tmp_path: Path
) -> None:
    topic, path = "Killed", tmp_path / "archive"
    cluster = killable_cluster
    create_topic(cluster.namesrv, topic)
    store = ArchiveStore(str(path))

    def wait_batches(more: int) -> None:
        wanted = store.last().sequence + more
        wait_for(f"batch {wanted}", lambda: store.last().sequence >= wanted, BATCHES_LIMIT_S)

    with producing(cluster.namesrv, topic) as stored:
        with archiving(cluster.namesrv, topic, path):
            wait_batches(1)
            cluster.kill(cluster.wait_leader())
            wait_batches(2)
        before = store.last().sequence
    run_archive(spark, ArchiveOptions(cluster.namesrv, str(path), (topic,)))
    assert store.last().sequence > before
    found = run_verify(spark, str(path))
    assert found.problems == ()
    acknowledged = [Acknowledged(one.out.body, 0, one.queue_id, one.offset, 0.0) for one in stored]
    truth = asyncio.run(read_topic(cluster.namesrv, topic, acknowledged))
    rows = (
        spark.read.schema(SPARK_SCHEMA).parquet(str(path)).select("queueId", "queueOffset", "body").collect()
    )
    kept = sorted((row.queueId, row.queueOffset, bytes(row.body)) for row in rows)
    assert kept == sorted(
        (queue, record.queue_offset, record.body) for queue, records in truth.items() for record in records
    )
    assert {(one.queue_id, one.offset, one.out.body) for one in stored} <= set(kept)
