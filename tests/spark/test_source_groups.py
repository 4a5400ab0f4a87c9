"""Topics on two brokers, one of which is away at times, and so is the name server: reads and writes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rocketmq_spark.client.cluster import Cluster as Client
from tests.integration.waiting import wait_for
from tests.spark.faults import failing_at_first
from tests.spark.producing import Out, create_topic, send_to
from tests.spark.queries import Sink, batch, stopping, stream
from tests.spark.reading import read_topic
from tests.spark.two_groups import NAMES, TwoGroups
from tests.spark.writing import write

TOPIC = "Both"
NAMESRV_AWAY_S = 15.0
ROWS = 4_000
WRITTEN_LIMIT_S = 60.0


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[TwoGroups]:
    folder = tmp_path / "groups"
    folder.mkdir()
    running = TwoGroups(folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def bodies(sink: Sink) -> list[str]:
    return sorted(bytes(row.body).decode() for row in sink.rows().collect()) if sink.out.exists() else []


def test_no_broker_and_no_name_server_is_needed_all_the_time(
    spark: SparkSession, groups: TwoGroups, tmp_path: Path
) -> None:
    """A stream begins while one broker is away, reads it from its own start when it comes, and then goes on
    while no name server answers.
    """
    create_topic(groups.namesrv, TOPIC, 1)
    with Client(groups.namesrv) as client:
        client.queues(TOPIC)  # from here on the leaders are known

        def send(text: str, *names: str) -> list[str]:
            for name in names:
                send_to(client, name, TOPIC, [Out(f"{text} {name}".encode())])
            return [f"{text} {name}" for name in names]

        old = send("old", *NAMES)
        rows = batch(spark, groups.namesrv, subscribe=TOPIC, requireBrokers="broker-a,broker-b").collect()
        assert sorted((row.brokerName, bytes(row.body).decode()) for row in rows) == [
            *zip(NAMES, old, strict=True)
        ]
        time.sleep(0.05)
        start_ms = time.time_ns() // 1_000_000
        groups.end("broker-b")
        groups.wait_listed("broker-b", is_wanted=False)
        strict = batch(
            spark, groups.namesrv, subscribe=TOPIC, requireBrokers="broker-a,broker-b", retryTimeout="1s"
        )
        with pytest.raises(PySparkException, match=r"no leader of broker-b is registered"):
            strict.count()
        sink = Sink(spark, tmp_path)
        options = {"startingTimestamp": start_ms, "startingOffsetsByTimestampStrategy": "latest"}
        frame = stream(spark, groups.namesrv, subscribe=TOPIC, **options)
        with stopping(sink.start(frame, processingTime="200 milliseconds")) as query:

            def wait_written(wanted: list[str]) -> None:
                sink.wait_count(len(wanted), query)
                assert bodies(sink) == sorted(wanted)

            wanted = send("without b", "broker-a")
            wait_written(wanted)
            groups.start_broker("broker-b")
            client.forget_leader("broker-b")  # that connection is gone
            wanted += send("with b", *NAMES)
            wait_written(wanted)
            for name in NAMES:
                client.leader_connection(name)
            groups.end("namesrv")
            away_s = time.monotonic()
            wanted += send("no name server", *NAMES)
            wait_written(wanted)
            time.sleep(max(0.0, away_s + NAMESRV_AWAY_S - time.monotonic()))
            wanted += send("still none", *NAMES)
            wait_written(wanted)
            groups.start_namesrv()
            for name in NAMES:
                groups.wait_listed(name)
            wanted += send("all again", *NAMES)
            wait_written(wanted)


def test_rows_are_written_exactly_once_while_one_of_two_groups_dies_and_returns(
    spark: SparkSession, groups: TwoGroups, tmp_path: Path
) -> None:
    """Rows of its queues wait for it; each task fails once, and sends what it sent before again."""
    create_topic(groups.namesrv, "SinkBoth", 2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    rows = spark.range(0, ROWS, 1, 2).selectExpr("rpad(string(id), 1000, '.') body")
    frame = rows.mapInArrow(failing_at_first(tmp_path, 300), "body string")
    options = {"topic": "SinkBoth", "delivery": "exactly-once", "batchBytes": 5_000}
    with ThreadPoolExecutor(1) as pool:  # Spark's sources are known to the main thread's session only
        dying = pool.submit(die_and_return, groups, tmp_path)
        try:
            write(frame, groups.namesrv, **options)
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        dying.result(WRITTEN_LIMIT_S)
    found = read_topic(groups.namesrv, "SinkBoth")
    counts = Counter(int(record.body.rstrip(b".")) for records in found.values() for record in records)
    assert counts == dict.fromkeys(range(ROWS), 1)
    assert {queue.broker_name for queue, records in found.items() if records} == {*NAMES}


def die_and_return(groups: TwoGroups, marks: Path) -> None:
    wait_for("a task has failed", lambda: list(marks.glob("0-*")), WRITTEN_LIMIT_S)
    groups.kill("broker-b")
    groups.start_broker("broker-b")
