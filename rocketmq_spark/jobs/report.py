"""The job that reports on topics: throughput, sizes, latency, top keys and tags, lag, dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from rocketmq_spark import register
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.system_topics import DLQ_PREFIX
from rocketmq_spark.jobs import report_tables as figures
from rocketmq_spark.jobs.archive_rows import SPARK_SCHEMA
from rocketmq_spark.jobs.archive_store import ArchiveStore, absolute
from rocketmq_spark.jobs.errors import JobError
from rocketmq_spark.jobs.progress import Progress, Silent
from rocketmq_spark.jobs.report_lag import GroupLag, dead_letter_topics, lag_table, sample_lag
from rocketmq_spark.jobs.report_page import moment, report_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_TOP: Final = 20
LAG_EVERY_S: Final = 10.0
STEPS: Final = 4
_TIME_SKEW_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What to report on, and the folder that the report goes to.

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
    """Where the page is, the tables' names, and how many messages it is about."""

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
    with progress or Silent() as told:
        told.update(0, STEPS, "lag")
        samples = [] if options.archive is not None else _sample(options, time.sleep)
        told.update(1, STEPS, "messages")
        tables, seconds, messages = _figures(spark, options)
        told.update(2, STEPS, "dead letters")
        tables["dead_letters"] = _dead_letters(spark, options, seconds)
        told.update(3, STEPS, "page")
        folder = ReportFolder(options.path)
        tables["lag"] = folder.add_lag(samples)
        for name, one in tables.items():
            folder.write_table(name, one)
        about = f"{_about(options)}; {messages:,} messages; written {moment(now_ms)} UTC"
        rows = {name: one.to_pylist() for name, one in tables.items()}
        page = folder.write_text("report.html", report_page(about, rows, seconds))
        told.update(STEPS, STEPS)
    return ReportResult(page, tuple(sorted(tables)), messages)


def check(options: ReportOptions) -> None:
    """Raises: JobError naming what contradicts itself."""
    if options.top < 1:
        raise JobError("the top of nothing is empty: --top is 1 or more.")
    if options.bucket_s is not None and options.bucket_s < 1:
        raise JobError("a point of the timeline is a second or longer.")
    if options.archive is not None and options.lag_for_s > 0:
        raise JobError("an archive tells nothing of consumer lag; sample it from the live topics.")


class ReportFolder:
    """Where a report goes, local or wherever fsspec reaches."""

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


def _sample(options: ReportOptions, sleep: Callable[[float], None]) -> list[GroupLag]:
    found: list[GroupLag] = []
    end_s = time.monotonic() + options.lag_for_s
    with Cluster(options.namesrv) as cluster:
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
        with Cluster(options.namesrv) as cluster:
            topics = tuple(cluster.topics())
    return _within(_live(spark, options, topics), options)


def _live(spark: SparkSession, options: ReportOptions, topics: tuple[str, ...]) -> DataFrame:
    if not topics:
        return spark.createDataFrame([], figures.READ_SCHEMA)
    source = {"namesrv": options.namesrv, "subscribe": ",".join(topics)}
    if options.start_ms is not None:
        source["startingTimestamp"] = str(max(0, options.start_ms - _TIME_SKEW_MS))
        source["startingOffsetsByTimestampStrategy"] = "latest"
    if options.end_ms is not None:
        source["endingTimestamp"] = str(options.end_ms + _TIME_SKEW_MS)
    return spark.read.format("rocketmq").schema(figures.READ_SCHEMA).options(**source).load()


def _archived(spark: SparkSession, path: str, topics: tuple[str, ...]) -> DataFrame:
    """Only what the manifest names: files of a batch under way are none of the archive's."""
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
        with Cluster(options.namesrv) as cluster:
            topics = tuple(dead_letter_topics(cluster, options.groups))
        rows = _live(spark, options, topics)
    return figures.dead_letters(figures.slim(_within(rows, options)), seconds)


def _about(options: ReportOptions) -> str:
    where = f"archive {options.archive}" if options.archive is not None else f"live at {options.namesrv}"
    what = ", ".join(options.topics) if options.topics else "all topics"
    window: Mapping[str, Any] = {"from": options.start_ms, "until": options.end_ms}
    times = " ".join(f"{word} {moment(at)}" for word, at in window.items() if at is not None)
    return f"{what}, {where}{f', {times} UTC' if times else ''}"
