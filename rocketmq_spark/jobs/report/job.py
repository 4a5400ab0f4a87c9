"""The job that reports on topics: throughput, sizes, latency, top keys and tags, consumer lag, dead
letters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import fsspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads
from remoting.topic_names import DLQ_PREFIX
from rocketmq_spark import register
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.errors import JobError, RequestRefusedError
from rocketmq_spark.jobs.archive.files import SPARK_SCHEMA
from rocketmq_spark.jobs.archive.store import ArchiveStore, absolute
from rocketmq_spark.jobs.progress import Progress, Silent
from rocketmq_spark.jobs.report import tables as figures
from rocketmq_spark.jobs.report.page import moment, report_page
from rocketmq_spark.options import CONNECTION_OPTIONS, OptionReader, job_connection

LAG_SCHEMA: Final = pa.schema(
    [
        ("sampledMs", pa.int64()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("consumerOffset", pa.int64()),
        ("brokerOffset", pa.int64()),
        ("lag", pa.int64()),
        ("behindMs", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group in one queue at one moment, in the columns of LAG_SCHEMA.

    `behindMs` is how long ago the last message that the group consumed was stored, 0 when nothing waits, and
    None when no message that it consumed is still stored.
    """

    sampledMs: int  # noqa: N815 - the columns' names
    group: str
    topic: str
    brokerName: str  # noqa: N815
    queueId: int  # noqa: N815
    consumerOffset: int  # noqa: N815
    brokerOffset: int  # noqa: N815
    lag: int
    behindMs: int | None  # noqa: N815


def sample_lag(cluster: Cluster, topics: Sequence[str], groups: Sequence[str], now_ms: int) -> list[GroupLag]:
    """The lag of every group in every queue where it has offsets; all groups or topics, if none is named."""
    found = []
    for broker_name in sorted(cluster.cluster_info().brokers):
        for group in groups or group_names(cluster, broker_name):
            answer = cluster.invoke_leader(broker_name, partial(_stats_command, group))
            if answer.code == ResponseCode.SUCCESS:
                found += parse_lag(answer.body, group, now_ms)
    return [one for one in found if not topics or one.topic in topics]


def _stats_command(group: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_CONSUME_STATS, ext_fields={"consumerGroup": group})


def group_names(cluster: Cluster, broker_name: str) -> list[str]:
    """The groups that a broker knows. Raises: RequestRefusedError."""
    what = f"the list of groups of {broker_name}"
    answer = cluster.invoke_leader(
        broker_name, lambda: RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    )
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefusedError(what, answer.code, answer.remark)
    try:
        return sorted(loads(answer.body)["subscriptionGroupTable"])
    except (FastjsonError, KeyError, TypeError) as error:
        raise RequestRefusedError(what, answer.code, f"unreadable: {error!r}") from None


def parse_lag(body: bytes, group: str, now_ms: int) -> list[GroupLag]:
    """The answer to GET_CONSUME_STATS. Raises: RequestRefusedError when it is unreadable."""
    try:
        table: dict[str, Any] = loads(body).get("offsetTable") or {}
        return [_lag(orjson.loads(queue), offsets, group, now_ms) for queue, offsets in table.items()]
    except (FastjsonError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"the offsets of group {group}"
        raise RequestRefusedError(what, ResponseCode.SUCCESS, f"unreadable: {error!r}") from None


def _lag(queue: dict[str, Any], offsets: dict[str, Any], group: str, now_ms: int) -> GroupLag:
    consumed, end = int(offsets["consumerOffset"]), int(offsets["brokerOffset"])
    lag, last_ms = max(0, end - max(0, consumed)), int(offsets["lastTimestamp"])
    behind_ms = 0 if lag == 0 else max(0, now_ms - last_ms) if last_ms > 0 else None
    where = (str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"]))
    return GroupLag(now_ms, group, *where, consumed, end, lag, behind_ms)


def lag_table(samples: Iterable[GroupLag]) -> pa.Table:
    """The samples with LAG_SCHEMA."""
    return pa.Table.from_pylist([asdict(one) for one in samples], schema=LAG_SCHEMA)


def dead_letter_topics(cluster: Cluster, groups: Sequence[str]) -> list[str]:
    """The existing dead-letter topics, only of these groups if any are named."""
    named = {f"{DLQ_PREFIX}{group}" for group in groups}
    topics = cluster.topics(include_system=True)
    return [one for one in topics if one.startswith(DLQ_PREFIX) and (not groups or one in named)]


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_TOP: Final = 20
LAG_EVERY_S: Final = 10.0
STEPS: Final = 4
_TIME_SKEW_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What to report on, and the folder to write the report to.

    `topics` live (all, if none is named), or in the archive `archive`. `start_ms` to before `end_ms` are
    store times. Lag is sampled once, or each `lag_every_s` for `lag_for_s`; samples of earlier reports in
    the same folder are kept and shown. `groups`: all, if none is named.
    """

    namesrv: str
    path: str
    topics: tuple[str, ...] = ()
    archive: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    groups: tuple[str, ...] = ()
    top: int = DEFAULT_TOP
    bucket_s: int | None = None
    lag_for_s: float = 0.0
    lag_every_s: float = LAG_EVERY_S


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The path of the page, the names of the tables, and the number of messages."""

    page: str
    tables: tuple[str, ...]
    messages: int


def run_report(spark: SparkSession, options: ReportOptions, progress: Progress | None = None) -> ReportResult:
    """Write `report.html` and a Parquet file for each table.

    Raises: JobError and the source's errors, each with a sentence.
    """
    check(options)
    register(spark)
    now_ms = time.time_ns() // 1_000_000
    with progress or Silent() as reporting:
        reporting.update(0, STEPS, "lag")
        samples = [] if options.archive is not None else _sample(options, time.sleep)
        reporting.update(1, STEPS, "messages")
        tables, seconds, messages = _figures(spark, options)
        reporting.update(2, STEPS, "dead letters")
        tables["dead_letters"] = _dead_letters(spark, options, seconds)
        reporting.update(3, STEPS, "page")
        folder = ReportFolder(options.path)
        tables["lag"] = folder.add_lag(samples)
        for name, one in tables.items():
            folder.write_table(name, one)
        about = f"{_about(options)}; {messages:,} messages; written {moment(now_ms)} UTC"
        rows = {name: one.to_pylist() for name, one in tables.items()}
        page = folder.write_text("report.html", report_page(about, rows, seconds))
        reporting.update(STEPS, STEPS)
    return ReportResult(page, tuple(sorted(tables)), messages)


def check(options: ReportOptions) -> None:
    """Raises: JobError naming the options that contradict each other."""
    if options.top < 1:
        raise JobError("the top of nothing is empty: --top is 1 or more.")
    if options.bucket_s is not None and options.bucket_s < 1:
        raise JobError("a point of the timeline is a second or longer.")
    if options.archive is not None and options.lag_for_s > 0:
        raise JobError("an archive has no consumer lag; sample it from the live topics.")


class ReportFolder:
    """The folder of a report, on any file system that fsspec knows."""

    def __init__(self, path: str) -> None:
        self._fs, root = fsspec.core.url_to_fs(absolute(path))
        self._root = str(root).rstrip("/")
        self._fs.makedirs(self._root, exist_ok=True)

    def write_table(self, name: str, table: pa.Table) -> None:
        with self._fs.open(f"{self._root}/{name}.parquet", "wb") as out:
            pq.write_table(table, out)

    def write_text(self, name: str, text: str) -> str:
        """Returns the file's path."""
        path = PurePosixPath(self._root, name)
        with self._fs.open(str(path), "wb") as out:
            out.write(text.encode())
        return str(path)

    def add_lag(self, samples: list[GroupLag]) -> pa.Table:
        """The samples of all reports in this folder."""
        new = lag_table(samples)
        path = f"{self._root}/lag.parquet"
        if not self._fs.exists(path):
            return new
        with self._fs.open(path, "rb") as data:
            old = pq.read_table(data)
        return pa.concat_tables([old.cast(new.schema), new])


def _cluster(options: ReportOptions) -> Cluster:
    reader = OptionReader(job_connection(options.namesrv, os.environ), CONNECTION_OPTIONS, "a report")
    return reader.connection().cluster()


def _sample(options: ReportOptions, sleep: Callable[[float], None]) -> list[GroupLag]:
    found: list[GroupLag] = []
    end_s = time.monotonic() + options.lag_for_s
    with _cluster(options) as cluster:
        while True:
            now_ms = time.time_ns() // 1_000_000
            found += sample_lag(cluster, options.topics, options.groups, now_ms)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return found
            sleep(min(left_s, options.lag_every_s))


def _figures(spark: SparkSession, options: ReportOptions) -> tuple[dict[str, pa.Table], int, int]:
    """The tables, how long a point of the timeline is, and how many messages there are."""
    rows = figures.slim(_messages(spark, options)).persist()
    try:
        span = figures.span_of(rows)
        seconds = options.bucket_s or (1 if span is None else figures.bucket_s(span.first_ms, span.last_ms))
        tables = {
            "totals": figures.totals(rows),
            "timeline": figures.timeline(rows, seconds),
            "sizes": figures.sizes(rows),
            "tags": figures.top_tags(rows, options.top),
            "keys": figures.top_keys(rows, options.top),
        }
        return tables, seconds, 0 if span is None else span.messages
    finally:
        rows.unpersist()


def _messages(spark: SparkSession, options: ReportOptions) -> DataFrame:
    if options.archive is not None:
        return _within(_archived(spark, options.archive, options.topics), options)
    topics = options.topics
    if not topics:
        with _cluster(options) as cluster:
            topics = tuple(cluster.topics())
    return _within(_live(spark, options, topics), options)


def _live(spark: SparkSession, options: ReportOptions, topics: tuple[str, ...]) -> DataFrame:
    if not topics:
        return spark.createDataFrame([], figures.READ_SCHEMA)
    source = job_connection(options.namesrv, os.environ) | {"subscribe": ",".join(topics)}
    if options.start_ms is not None:
        source["startingTimestamp"] = str(max(0, options.start_ms - _TIME_SKEW_MS))
        source["startingOffsetsByTimestampStrategy"] = "latest"
    if options.end_ms is not None:
        source["endingTimestamp"] = str(options.end_ms + _TIME_SKEW_MS)
    return spark.read.format("rocketmq").schema(figures.READ_SCHEMA).options(**source).load()


def _archived(spark: SparkSession, path: str, topics: tuple[str, ...]) -> DataFrame:
    """Only files that the manifest names: those of an uncommitted batch are not part of the archive."""
    store = ArchiveStore(absolute(path))
    if not store.has_manifest():
        raise JobError(f"{path} holds no archive: it has no manifest.")
    names = [file.name for batch in store.batches() for file in batch.files]
    if not names:
        return spark.createDataFrame([], figures.READ_SCHEMA)
    reader = spark.read.schema(SPARK_SCHEMA).option("basePath", store.url(""))
    rows = reader.parquet(*(store.url(name) for name in names))
    return rows.where(rows.topic.isin(list(topics))) if topics else rows


def _within(rows: DataFrame, options: ReportOptions) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    stored = F.unix_millis("storeTimestamp")
    if options.start_ms is not None:
        rows = rows.where(stored >= options.start_ms)
    if options.end_ms is not None:
        rows = rows.where(stored < options.end_ms)
    return rows


def _dead_letters(spark: SparkSession, options: ReportOptions, seconds: int) -> pa.Table:
    if options.archive is not None:
        rows = _archived(spark, options.archive, ())
        rows = rows.where(rows.topic.startswith(DLQ_PREFIX))
        if options.groups:
            rows = rows.where(rows.topic.isin([f"{DLQ_PREFIX}{group}" for group in options.groups]))
    else:
        with _cluster(options) as cluster:
            topics = tuple(dead_letter_topics(cluster, options.groups))
        rows = _live(spark, options, topics)
    return figures.dead_letters(figures.slim(_within(rows, options)), seconds)


def _about(options: ReportOptions) -> str:
    where = f"archive {options.archive}" if options.archive is not None else f"live at {options.namesrv}"
    what = ", ".join(options.topics) if options.topics else "all topics"
    window: Mapping[str, Any] = {"from": options.start_ms, "until": options.end_ms}
    times = " ".join(f"{word} {moment(at)}" for word, at in window.items() if at is not None)
    return f"{what}, {where}{f', {times} UTC' if times else ''}"
