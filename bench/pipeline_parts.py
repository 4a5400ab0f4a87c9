"""The measured parts of the pipeline. Each does its work once, and fails if the result is wrong."""

from __future__ import annotations

import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import stock_java
from bench.pipeline_data import Counter, Tally, WrongResultError
from bench.pipeline_machine import MEMORY_FOLDER
from bench.pipeline_site import Site, stored, tally_of, write_topic
from commitlog.entry import BLANK_MAGIC, ENTRY_MAGIC, HEADER, HEADER_BYTES, has_right_crcs
from commitlog.record import decode_record
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import QueueRange, RangeReader, ReadSettings
from rocketmq_spark.client.queue_offsets import bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEAD_BYTES = 4096
"""Of each file that the binary scan reads: their CRCs show that it had the contents."""
JAVA_LIMIT_S = 300.0
WARM_UP_S = 3.0
"""Of the Java consumer, and of the parts in Spark."""


@dataclass(frozen=True, slots=True)
class Took:
    """One measurement: what was read or written, and how long it took."""

    seconds: float
    messages: int
    data_bytes: int

    def as_json(self) -> dict[str, Any]:
        seconds = max(self.seconds, 1e-9)
        return {
            "seconds": round(self.seconds, 3),
            "messages": self.messages,
            "bytes": self.data_bytes,
            "per_second": round(self.messages / seconds, 1),
            "mb_s": round(self.data_bytes / 1e6 / seconds, 2),
        }


@dataclass(frozen=True, slots=True)
class Part:
    """`guess_s` is about how long 1,000,000 messages take, for the progress bar."""

    name: str
    run: Callable[[Site], Took]
    guess_s: float
    needs_warm_up: bool = True
    """False for parts in pure Python, and for those that warm up by themselves."""
    reads_log: bool = True
    """After sinks the log may be larger than the memory."""


def _read(site: Site, frame: DataFrame, data_bytes: int, copies: int = 1) -> Took:
    """Time the reading of a frame that holds the messages so many times."""
    began_s = time.monotonic()
    found = tally_of(frame, site.messages.size)
    seconds = time.monotonic() - began_s
    expected = site.messages.tally
    times = (copies * one for one in (expected.messages, expected.body_bytes, expected.sampled))
    found.require(Tally(*times))
    return Took(seconds, found.messages, data_bytes)


def source(site: Site) -> Took:
    frame = site.spark.read.format("rocketmq").options(**site.cluster, subscribe=site.topic).load()
    return _read(site, frame, site.messages.tally.body_bytes)


def source_body(site: Site) -> Took:
    reader = site.spark.read.format("rocketmq").schema("body binary")
    return _read(
        site, reader.options(**site.cluster, subscribe=site.topic).load(), site.messages.tally.body_bytes
    )


def source_loop(site: Site) -> Took:
    """Our blocking client in one thread; each record is decoded alone."""
    counter = Counter()
    began_s = time.monotonic()
    with Cluster(site.side.namesrv) as cluster:
        for queue, ends in bounds(cluster, cluster.queues(site.topic)).items():
            wanted = QueueRange(queue, ends.min_offset, ends.max_offset)
            for data in RangeReader(cluster, wanted, ReadSettings()):
                at = 0
                while at < len(data):
                    record = decode_record(data, at)
                    counter.add(record.body)
                    at += record.size
    return _counted(site, counter, began_s, site.messages.tally.body_bytes)


def _counted(site: Site, counter: Counter, began_s: float, data_bytes: int) -> Took:
    seconds = time.monotonic() - began_s
    counter.tally().require(site.messages.tally)
    return Took(seconds, counter.messages, data_bytes)


def _java(batch: int) -> Callable[[Site], Took]:
    def run(site: Site) -> Took:
        options = {"topic": site.topic, "batch": batch, "warmup_s": WARM_UP_S}
        found = stock_java.run("Pull", site.cluster | options, JAVA_LIMIT_S)
        Tally(found["messages"], found["bytes"], found["sum"]).require(site.messages.tally)
        return Took(found["seconds"], found["messages"], found["bytes"])

    return run


def _log(schema: str | None, replicas: int = 1) -> Callable[[Site], Took]:
    def run(site: Site) -> Took:
        reader = site.spark.read.format("rocketmq-log").option("corrupt", "fail")
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.load(",".join(site.stores[:replicas]))
        return _read(site, frame, replicas * site.log_bytes, copies=replicas)

    return run


def log_loop(site: Site) -> Took:
    """The files of one replica in one thread; each entry is checked, and its record decoded alone."""
    counter = Counter()
    began_s = time.monotonic()
    for path in site.files(site.stores[0]):
        data = memoryview(path.read_bytes())
        at = 0
        while at + HEADER_BYTES <= len(data):
            magic, size = HEADER.unpack_from(data, at)[:2]
            if magic != ENTRY_MAGIC or size < HEADER_BYTES:
                if magic in (0, BLANK_MAGIC):
                    break
                raise WrongResultError(f"{path} has no entry at byte {at}")
            if not has_right_crcs(data, at, size):
                raise WrongResultError(f"the entry at byte {at} of {path} is damaged")
            record = decode_record(data, at + HEADER_BYTES)
            if record.topic == site.topic:
                counter.add(bytes(record.body))
            at += size
    return _counted(site, counter, began_s, site.log_bytes)


def _binary(replicas: int) -> Callable[[Site], Took]:
    """Spark's own reading of the files into memory, which does nothing with them."""

    def run(site: Site) -> Took:
        from pyspark.sql import functions as sql

        files = [path for store in site.stores[:replicas] for path in site.files(store)]
        folders = sorted({str(path.parent) for path in files})
        frame = site.spark.read.format("binaryFile").load(folders)
        head = sql.expr(f"sum(crc32(substring(content, 1, {HEAD_BYTES})))")
        began_s = time.monotonic()
        row = frame.agg(sql.count(sql.lit(1)), sql.sum(sql.length("content")), head).collect()[0]
        seconds = time.monotonic() - began_s
        heads = sum(zlib.crc32(_head(path)) for path in files)
        size = sum(path.stat().st_size for path in files)
        if tuple(row) != (len(files), size, heads):
            raise WrongResultError(f"the binary scan found {tuple(row)}, not {(len(files), size, heads)}")
        return Took(seconds, replicas * site.messages.tally.messages, size)

    return run


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def parquet(site: Site) -> Took:
    frame = site.spark.read.parquet(str(site.messages.path))
    return _read(site, frame, site.messages.tally.body_bytes)


def _transfer(schema: str | None) -> Callable[[Site], Took]:
    def run(site: Site) -> Took:
        from bench.pipeline_transfer import TransferDataSource

        site.spark.dataSource.register(TransferDataSource)
        reader = site.spark.read.format("bench-transfer")
        if schema is not None:
            reader = reader.schema(schema)
        return _read(site, reader.load(str(site.messages.path)), site.messages.tally.body_bytes)

    return run


def archive(site: Site) -> Took:
    """A topic to Parquet with its manifest; the result is read again afterwards, and removed."""
    from rocketmq_spark.jobs.archive.files import SPARK_SCHEMA
    from rocketmq_spark.jobs.archive.job import ArchiveOptions, run_archive

    path = site.folder / site.new_name("archive")
    try:
        options = ArchiveOptions(namesrv=site.side.namesrv, path=str(path), topics=(site.topic,))
        began_s = time.monotonic()
        result = run_archive(site.spark, options)
        seconds = time.monotonic() - began_s
        kept = tally_of(site.spark.read.schema(SPARK_SCHEMA).parquet(str(path)), site.messages.size)
        kept.require(site.messages.tally)
        return Took(seconds, result.messages, result.body_bytes)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def archive_in_memory(site: Site) -> Took:
    """The same to a file system in memory: a disk gets no faster with more cores."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY_FOLDER) as folder:
        return archive(replace(site, folder=Path(folder)))


def audit(site: Site) -> Took:
    from rocketmq_spark.jobs.audit.job import AuditOptions, run_audit

    began_s = time.monotonic()
    report = run_audit(site.spark, AuditOptions(tuple(site.stores)))
    seconds = time.monotonic() - began_s
    entries, replicas = int(report.content["entries"]), len(report.content["replicas"])
    messages = site.messages.tally.messages
    if not report.is_identical or entries < messages or replicas != len(site.stores):
        verdict = report.content["verdict"]
        raise WrongResultError(f"the audit says {verdict} of {replicas} replicas after {entries} entries")
    return Took(seconds, replicas * messages, replicas * site.log_bytes)


def _sink(delivery: str) -> Callable[[Site], Took]:
    """From Parquet to a new topic, which is read again afterwards."""

    def run(site: Site) -> Took:
        topic = site.new_name("PipelineSink")
        options: dict[str, Any] = {"delivery": delivery}
        if delivery == "exactly-once":
            options |= {"writerId": topic, "batchId": 0}
        seconds = write_topic(site, site.spark.read.parquet(str(site.messages.path)), topic, options)
        if (found := stored(site, topic)) != site.messages.tally.messages:
            raise WrongResultError(f"{found} messages are in the topic that the sink wrote")
        read = site.spark.read.format("rocketmq").schema("body binary")
        kept = tally_of(read.options(**site.cluster, subscribe=topic).load(), site.messages.size)
        kept.require(site.messages.tally)
        return Took(seconds, kept.messages, kept.body_bytes)

    return run


READING = (
    Part("source", source, 5),
    Part("source-body", source_body, 3),
    Part("transfer", _transfer(None), 4),
    Part("transfer-body", _transfer("body binary"), 3),
    Part("source-loop", source_loop, 12, needs_warm_up=False),
    Part("java-pull-32", _java(32), 15, needs_warm_up=False),
    Part("java-pull-1024", _java(1024), 12, needs_warm_up=False),
    Part("log", _log(None), 6),
    Part("log-body", _log("body binary"), 4),
    Part("log-loop", log_loop, 12, needs_warm_up=False),
    Part("binary", _binary(1), 2),
    Part("parquet", parquet, 2, reads_log=False),
)
ONE_CORE = (Part("archive-1", archive_in_memory, 25), Part("audit-1", audit, 6))
TWO_CORES = (
    Part("audit", audit, 4),
    Part("log-3", _log(None, 3), 14),
    Part("binary-3", _binary(3), 9),
    Part("archive-2", archive_in_memory, 14),
    Part("archive", archive, 18),
)
WRITING = (
    Part("sink", _sink("at-least-once"), 20, reads_log=False),
    Part("sink-once", _sink("exactly-once"), 22, reads_log=False),
)
