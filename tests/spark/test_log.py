"""`rocketmq-log` on stores that real brokers wrote, ours and Java's, stopped and running."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from commitlog.entry import UNIT_BYTES
from rocketmq_spark.jobs.audit.job import AuditOptions, run_audit
from rocketmq_spark.log.planning import committed_end
from rocketmq_spark.log.reader import RocketmqLogReader
from rocketmq_spark.schemas import MESSAGES
from tests.compat.programs import versions
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.spark.conftest import TopicName
from tests.spark.producing import Stored, create_topic, numbered, send
from tests.spark.stock_broker import VERSIONS, StockBroker
from tests.spark.stock_dledger import FILE_BYTES, StockDLedger
from tests.unit.spark.log.stores import DATA_FILE_BYTES, flip, one_log, write_entries
from tests.unit.spark.log.stores import numbered as numbered_puts

COMMITTED_LIMIT_S = 90.0
COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "msgId",
    "keys",
    "tags",
    "properties",
    "body",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "reconsumeTimes",
    "flag",
    "sysFlag",
)


def load(spark: SparkSession, path: object, **options: object) -> DataFrame:
    reader = spark.read.format("rocketmq-log")
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load(str(path))


def logs_of(cluster: Cluster) -> list[Path]:
    """The log's folder of each node."""
    return sorted(path for path in cluster.data.rglob("dledger-n*") if (path / "data").is_dir())


def wait_committed(logs: list[Path], topic: str, count: int) -> None:
    """Until every checkpoint counts the topic's messages: they are written every few seconds."""

    def counted(log: Path) -> int:
        reader = RocketmqLogReader({"path": str(log)}, StructType([MESSAGES["topic"]]))
        batches = (batch for part in reader.partitions() for batch in reader.read(part))
        return sum(batch.column(0).to_pylist().count(topic) for batch in batches)

    waiting = list(logs)
    seen: dict[Path, bytes] = {}

    def all_count() -> bool:
        for log in list(waiting):
            path = log / "checkpoint"
            content = path.read_bytes() if path.exists() else b""
            if seen.get(log) != content and content:
                seen[log] = content
                if counted(log) >= count:
                    waiting.remove(log)
        return not waiting

    wait_for("checkpoints of all nodes", all_count, COMMITTED_LIMIT_S)


def copy_of(log: Path, target: Path) -> Path:
    """A copy of a log that is written to; the rest of its only data file, which is empty, stays behind."""
    end_position, last_index = committed_end(one_log(log))
    for folder, size in (("data", end_position), ("index", (last_index + 1) * UNIT_BYTES)):
        (target / folder).mkdir(parents=True)
        [path] = (log / folder).iterdir()
        with path.open("rb") as file, (target / folder / path.name).open("wb") as copy:
            copy.write(file.read(size))
            copy.truncate(path.stat().st_size)
    for name in ("checkpoint", "epochs", "format"):
        shutil.copy(log / name, target / name)
    return target


def check_all(rows: list[Row], stored: list[Stored]) -> None:
    """Every message once, with what it was sent with."""
    by_place = {(row.queueId, row.queueOffset): row for row in rows}
    assert len(by_place) == len(rows) == len(stored)
    for each in stored:
        row = by_place[each.queue_id, each.offset]
        assert bytes(row.body) == each.out.body
        assert (row.tags, row.keys, row.status) == (each.out.tags, each.out.keys, "ok")


@pytest.fixture(scope="module")
def sent(cluster: Cluster) -> tuple[str, list[Stored]]:
    """A topic and its messages, which all nodes know to be committed."""
    topic = f"Log_{secrets.token_hex(4)}"
    create_topic(cluster.namesrv, topic)
    stored = send(cluster.namesrv, topic, numbered(600, size=200))
    wait_committed(logs_of(cluster), topic, len(stored))
    return topic, stored


def test_a_live_cluster_is_read_from_its_files_as_over_the_protocol(
    spark: SparkSession, cluster: Cluster, sent: tuple[str, list[Stored]]
) -> None:
    topic, stored = sent
    logs = logs_of(cluster)
    assert len(logs) == 3
    source = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("subscribe", topic)
    expected = sorted(source.option("includeHeaders", "true").load().select(*COLUMNS).collect(), key=str)
    split_bytes = len(stored) * 450 // 2
    frame = load(spark, ",".join(map(str, logs)), splitBytes=split_bytes, includeHeaders=True)
    found = frame.where(f"topic = '{topic}' or status <> 'ok' or topic like 'rmq_sys_%'").collect()
    for log in logs:
        rows = [row for row in found if row.store == str(log)]
        check_all(rows, stored)
        assert sorted((Row(*COLUMNS)(*(row[name] for name in COLUMNS)) for row in rows), key=str) == expected


def test_entries_of_a_live_cluster(
    spark: SparkSession, cluster: Cluster, sent: tuple[str, list[Stored]]
) -> None:
    log = logs_of(cluster)[0]
    rows = load(spark, log, view="entries", minPartitions=3).orderBy("index").collect()
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert len(rows) > len(sent[1])
    assert all(row.crcOk and row.bodyCrcOk and row.status == "ok" for row in rows)
    assert all(before.position + before.size <= behind.position for before, behind in pairwise(rows))
    assert [row.term for row in rows] == sorted(row.term for row in rows)
    assert (rows[0].isSystem, rows[0].topic) == (True, "rmq_sys_LEDGERMQ_TERM")
    middle = rows[len(rows) // 2]["index"]
    entries = load(spark, log, view="entries", minPartitions=3)
    assert entries.where(f"index >= {middle}").count() >= len(rows) - middle


def test_reading_while_messages_come_finds_no_damage(
    spark: SparkSession, cluster: Cluster, topic_name: TopicName
) -> None:
    topic = topic_name("LogGrowing")
    create_topic(cluster.namesrv, topic)
    done = threading.Event()
    sent: list[Stored] = []

    def produce() -> None:
        while not done.wait(0.1):
            sent.extend(send(cluster.namesrv, topic, numbered(100)))

    thread = threading.Thread(target=produce)
    thread.start()
    log = logs_of(cluster)[1]
    try:
        for options in ({}, {"includeUncommitted": True}):
            rows = load(spark, log, minPartitions=2, view="entries", **options).select("status", "index")
            found = rows.collect()
            assert {row.status for row in found} <= {"ok", "torn"}, found
            indexes = [row["index"] for row in found if row.status == "ok"]
            assert sorted(indexes) == list(range(len(indexes)))
    finally:
        done.set()
        thread.join()
    wait_committed([log], topic, len(sent))
    check_all(load(spark, log).where(f"topic = '{topic}'").collect(), sent)


def test_replicas_of_a_live_cluster_are_identical_and_a_flipped_bit_is_named(
    spark: SparkSession, cluster: Cluster, sent: tuple[str, list[Stored]], tmp_path: Path
) -> None:
    topic, stored = sent
    logs = logs_of(cluster)
    report = run_audit(spark, AuditOptions(tuple(map(str, logs)), range_bytes=100_000, check_queues=True))
    assert report.is_identical, report.content["problems"]
    assert len(report.content["ranges"]) > 2
    queues = [queue for queue in report.content["queues"] if queue["topic"] == topic]
    assert sum(queue["messages"] for queue in queues) == len(stored)
    copies = [copy_of(log, tmp_path / log.name) for log in logs]
    path = copies[1] / "data" / f"{0:020d}"
    with path.open("rb") as file:
        at = file.read(committed_end(one_log(copies[1]))[0]).find(b"message-300..")
    assert at > 0
    flip(path, at + 5)
    found = run_audit(spark, AuditOptions(tuple(map(str, copies)), range_bytes=100_000))
    assert found.exit_code == 2
    first = found.first_divergence
    assert first is not None
    assert (first["replica"], first["field"]) == ("n1", "record.body")
    assert first["position"] < at < first["position"] + 500


@pytest.mark.parametrize("mode", ["rows", "skip", "fail"])
def test_damage_is_told_as_asked(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    folder = write_entries(tmp_path, numbered_puts(60))
    flip(folder / "data" / f"{DATA_FILE_BYTES:020d}", 30)
    frame = load(spark, tmp_path, corrupt=mode, splitBytes=3000)
    if mode == "fail":
        with pytest.raises(Exception, match=r"corrupt from position 4096 on, .* entries 15 to 15"):
            frame.collect()
        return
    rows = frame.collect()
    assert len([row for row in rows if row.status == "ok"]) == 59
    damaged = [row for row in rows if row.status != "ok"]
    if mode == "skip":
        assert damaged == []
    else:
        [row] = damaged
        assert (row.status, row.position, row["index"], row.topic) == ("corrupt", DATA_FILE_BYTES, 15, None)
        assert "expected entry 15" in row.error


def test_wrong_options_are_named(spark: SparkSession, tmp_path: Path) -> None:
    for options, words in (
        ({"splitByte": 1}, "nearest: splitBytes"),
        ({"view": "rows"}, "must be one of messages, entries"),
        ({}, "there is no log at"),
    ):
        with pytest.raises(Exception, match=re.escape(words)):
            load(spark, tmp_path, **options).collect()


def test_a_choice_of_columns_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    write_entries(tmp_path, numbered_puts(20))
    reader = spark.read.format("rocketmq-log").schema("body binary, queueOffset long, status string")
    rows = reader.load(str(tmp_path)).orderBy("body").collect()
    assert [row.queueOffset for row in rows] == [number // 2 for number in range(20)]
    with pytest.raises(Exception, match="no column bodyy"):
        spark.read.format("rocketmq-log").schema("bodyy binary").load(str(tmp_path)).collect()


@pytest.fixture(scope="module", params=versions(VERSIONS))
def java_dledger(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StockDLedger]:
    version: str = request.param
    running = StockDLedger(tmp_path_factory.mktemp(f"java-dledger-{version}"), version)
    try:
        running.start()
        yield running
    finally:
        running.kill()


def test_a_java_dledger_store_is_read_back_whole(
    spark: SparkSession, java_dledger: StockDLedger, topic_name: TopicName
) -> None:
    topic = topic_name("JavaDLedger")
    create_topic(java_dledger.namesrv, topic)
    stored = send(java_dledger.namesrv, topic, numbered(600, size=1000))
    [log] = java_dledger.store.glob("dledger-*")
    wait_committed([log], topic, len(stored))
    assert len(list((log / "data").iterdir())) > 600 * 1200 // FILE_BYTES
    found = load(spark, java_dledger.store, splitBytes=150_000).where(f"topic = '{topic}'").collect()
    check_all(found, stored)
    java_dledger.stop()
    entries = load(spark, java_dledger.store, view="entries", includeUncommitted=True)
    rows = entries.orderBy("index").collect()
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert {(row.status, row.crcOk, row.bodyCrcOk) for row in rows} == {("ok", None, True)}
    report = run_audit(spark, AuditOptions((str(log),), range_bytes=100_000, check_queues=True))
    assert report.is_identical, report.content["problems"]
    assert report.content["notes"] == []
    row = rows[300]
    start = row.position // FILE_BYTES * FILE_BYTES
    flip(log / "data" / f"{start:020d}", row.position - start + 48 + 500)
    [damage] = load(spark, java_dledger.store).where("status = 'corrupt'").collect()
    assert (damage["index"], damage.position) == (300, row.position)


def test_a_java_plain_store_is_read_back_whole(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName
) -> None:
    topic = topic_name("JavaPlain")
    create_topic(java_broker.namesrv, topic)
    stored = send(java_broker.namesrv, topic, numbered(500, size=1000))
    store = java_broker.folder / "store"
    frame = load(spark, store, splitBytes=100_000)
    assert frame.rdd.getNumPartitions() > 3
    check_all(frame.where(f"topic = '{topic}' or status <> 'ok'").collect(), stored)
    report = run_audit(spark, AuditOptions((str(store),), range_bytes=200_000))
    assert report.is_identical, report.content["problems"]
