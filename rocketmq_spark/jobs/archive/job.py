"""The job that keeps topics as Parquet: every message once, provably.

A batch of the streaming query becomes one batch of the manifest. Spark repeats a batch whose end it has not
seen; the manifest identifies a batch by its query and number, and accepts it only once. A batch that does not
begin where the archive ends is refused, so neither a lost checkpoint nor a second query can cause a gap or a
repeat. A query without a checkpoint begins where the archive ends.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from remoting.client.routes import MessageQueue
from rocketmq_spark import register
from rocketmq_spark.client.cluster import Backoff, Cluster
from rocketmq_spark.client.queue_offsets import bounds
from rocketmq_spark.errors import ArchiveError, ClusterUnavailableError, JobError
from rocketmq_spark.jobs.archive.delta_log import DeltaLog
from rocketmq_spark.jobs.archive.files import RESULT_SCHEMA, SPARK_COLUMNS, TaskPlan, writing_task
from rocketmq_spark.jobs.archive.manifest import (
    Batch,
    DataFile,
    Head,
    QueueName,
    breaks,
    parse_file,
    spans_after,
)
from rocketmq_spark.jobs.archive.store import CHECKPOINT, NO_BATCH, ArchiveStore, absolute
from rocketmq_spark.jobs.progress import Progress, Silent
from rocketmq_spark.jobs.words import bytes_words
from rocketmq_spark.options import job_connection
from rocketmq_spark.source.data_loss import RemovalDetector
from rocketmq_spark.source.offsets import to_json
from rocketmq_spark.source.options import Subscription, stream_options
from rocketmq_spark.source.subscription import require_named, resolve, wait_for_queues

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTS_MAX: Final = 6
WORKER_IS_LATE: Final = "Python worker failed to connect back"
"""Spark gives the process that plans a Python source ten seconds to start, and has no setting for it: too
short on a busy machine.
"""


def run_query(
    writer: DataStreamWriter, every_s: float | None, problem: Callable[[], Exception | None]
) -> None:
    """Start the query and wait for its end: after all present messages, or a batch each `every_s` to Ctrl-C.

    `problem` returns the exception of the query's own Python function, or None: it is raised, not Spark's
    own. On an interrupt the current batch is cancelled; Spark repeats it at the next start.
    """
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    for starts_left in reversed(range(STARTS_MAX)):
        try:
            _run_once(writer)
        except Exception as error:
            own = problem()
            if own is not None:
                raise own from error
            if starts_left and WORKER_IS_LATE in str(error):
                continue
            raise
        return


def _run_once(writer: DataStreamWriter) -> None:
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        if query.isActive:
            query.stop()


_STARTING: Final = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingOffsets",
)

logger = logging.getLogger(__name__)


def continued(source: Mapping[str, str], ends: Mapping[QueueName, int]) -> dict[str, str]:
    """The options with startingOffsets for every subscribed queue: the archive's end, else as requested.

    Raises: OptionError, ClusterUnavailableError, TopicNotFoundError; DataLossError when queues were removed.
    """
    common = stream_options(source).common
    connection = common.connection
    with connection.cluster() as cluster:
        removals = RemovalDetector(cluster, common.fail_on_data_loss, common.group)
        found = bounds(cluster, _queues_with(cluster, common.subscription, ends, removals))
        offsets = resolve(cluster, common.start, found, common.missing, common.group)
    for queue in offsets:
        offsets[queue] = ends.get(_name(queue), offsets[queue])
    kept = {name: value for name, value in source.items() if name not in _STARTING}
    return kept | {"startingOffsets": orjson.dumps(to_json(offsets)).decode()}


def _queues_with(
    cluster: Cluster, subscription: Subscription, ends: Mapping[QueueName, int], removals: RemovalDetector
) -> list[MessageQueue]:
    """The subscribed queues. Waits for those of the archive until the retry deadline, because one that joins
    the query later is read from its first message, which the archive has. Does not wait for removed queues.
    """
    wanted = {MessageQueue(*name): ends[name] for name in ends if _is_subscribed(name, subscription)}
    backoff = Backoff("waiting for the queues of the archive", cluster.deadline_s)
    while True:
        queues = wait_for_queues(cluster, subscription)
        removed = removals.find(wanted, wanted.keys() - queues)
        wanted = removed.left_of(wanted)
        require_named(cluster, subscription, queues, removed.deleted)
        away = sorted(wanted.keys() - queues)
        if not away:
            return queues
        try:
            backoff.failed(f"not there: {', '.join(map(str, away[:5]))}")
        except ClusterUnavailableError as error:
            logger.warning("%s. Should they come back, remove the checkpoint then", error)
            return queues


def _name(queue: MessageQueue) -> QueueName:
    return QueueName(queue.topic, queue.broker_name, queue.queue_id)


def _is_subscribed(name: QueueName, subscription: Subscription) -> bool:
    if subscription.pattern is not None:
        return subscription.pattern.fullmatch(name.topic) is not None
    return name.topic in subscription.topics or MessageQueue(*name) in subscription.queues


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS: Final = ("parquet", "delta")
DEFAULT_BYTES_A_BATCH: Final = 1024 * 1024 * 1024
OWN_OPTIONS: Final[Mapping[str, str]] = {
    "tags": "would make gaps, since an archive holds every message",
    "failondataloss": "is said by --allow-data-loss (allow_data_loss)",
    "includeheaders": "is on: the archive has the properties",
    "decompress": "is on: bodies are kept as consumers see them",
    "namesrv": "is an option of the job",
    "subscribe": "is said by the job's topics",
    "subscribepattern": "is said by the job's pattern",
    "assign": "would leave queues out",
}
"""Source options that the job sets itself, each with the reason why it cannot be given."""
_QUERY_ID: Final = "sql.streaming.queryId"
_LEAST_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What to archive, and where to.

    Either `topics` or a `pattern` (a regular expression). `every_s` None: one run over all messages; else
    batches follow each other at least so far apart, until the job is interrupted. `starting` is the source's
    startingOffsets, for queues that the archive does not know. `source_options` go to the source as they are.
    `checkpoint`: a folder in the archive by default.
    """

    namesrv: str
    path: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    every_s: float | None = None
    format: str = "parquet"
    starting: str = "earliest"
    batch_bytes: int | None = DEFAULT_BYTES_A_BATCH
    batch_messages: int | None = None
    files_a_batch: int | None = None
    allow_data_loss: bool = False
    checkpoint: str | None = None
    source_options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What this run added."""

    batches: int
    files: int
    messages: int
    body_bytes: int


def run_archive(
    spark: SparkSession, options: ArchiveOptions, progress: Progress | None = None
) -> ArchiveResult:
    """Archive all present messages, or with `every_s` until interrupted.

    Raises: JobError and the source's errors, each with a sentence.
    """
    check(options)
    register(spark)
    store = ArchiveStore(absolute(options.path))
    delta = _delta_log(store, options.format)
    is_committed = delta.holds if delta is not None else lambda _: False
    with progress or Silent() as reporting, store.writing(is_committed):
        writer = BatchWriter(store, delta, options, reporting)
        query = _query(spark, options, store, writer)
        run_query(query, options.every_s, lambda: writer.problem)
    return writer.result()


def check(options: ArchiveOptions) -> None:
    """Raises: JobError naming the options that contradict each other."""
    if bool(options.topics) == (options.pattern is not None):
        raise JobError("an archive needs topics or a pattern of topics, and not both.")
    if options.format not in FORMATS:
        raise JobError(f"the format {options.format!r} is not known; known are {' and '.join(FORMATS)}.")
    if options.every_s is not None and options.every_s < _LEAST_EVERY_S:
        raise JobError(f"batches follow each other after {_LEAST_EVERY_S:g} s or later.")
    own = [name for name in options.source_options if name.lower() in OWN_OPTIONS]
    if own:
        reasons = (f"{name} {OWN_OPTIONS[name.lower()]}" for name in own)
        raise JobError(f"these options of the source are not for an archive: {'; '.join(reasons)}.")
    if options.files_a_batch is not None and options.files_a_batch < 1:
        raise JobError("a batch has one file or more.")


def _delta_log(store: ArchiveStore, kind: str) -> DeltaLog | None:
    if kind == "delta":
        return DeltaLog(store)
    if store.is_delta():
        raise ArchiveError(f"the archive {store.path} is a Delta table; go on with --format delta.")
    return None


def _query(
    spark: SparkSession, options: ArchiveOptions, store: ArchiveStore, writer: BatchWriter
) -> DataStreamWriter:
    source = source_options(options)
    if writer.head.spans and options.checkpoint is None and not store.has_checkpoint():
        source = continued(source, writer.head.ends)
    checkpoint = options.checkpoint or store.url(CHECKPOINT)
    return (
        spark.readStream.format("rocketmq")
        .options(**source)
        .load()
        .writeStream.queryName(f"archive of {options.pattern or ', '.join(options.topics)}")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(writer.write)
    )


def source_options(options: ArchiveOptions) -> dict[str, str]:
    """The options of the source."""
    found = job_connection(options.namesrv, os.environ)
    found |= {"includeHeaders": "true", "startingOffsets": options.starting}
    found["failOnDataLoss"] = "false" if options.allow_data_loss else "true"
    if options.pattern is not None:
        found["subscribePattern"] = options.pattern
    else:
        found["subscribe"] = ",".join(options.topics)
    if options.batch_bytes is not None:
        found["maxBytesPerTrigger"] = str(options.batch_bytes)
    if options.batch_messages is not None:
        found["maxOffsetsPerTrigger"] = str(options.batch_messages)
    return found | options.source_options


class BatchWriter:
    """Adds each micro-batch of the query to the archive once."""

    def __init__(
        self, store: ArchiveStore, delta: DeltaLog | None, options: ArchiveOptions, progress: Progress
    ) -> None:
        self._store = store
        self._delta = delta
        self._files_a_batch = options.files_a_batch
        self._allow_data_loss = options.allow_data_loss
        self._progress = progress
        self.head: Head = store.last()
        self._added: list[int] = [0, 0, 0, 0]
        self.problem: Exception | None = None
        """The exception of a failed batch."""
        # `write` runs in the thread of Spark's callback, so the job reads it here: the exception that Spark
        # raises has only its text.

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """For `foreachBatch`."""
        try:
            query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            self.add(frame, str(query), batch_id)
        except Exception as error:
            self.problem = error
            raise

    def add(self, frame: DataFrame, query: str, batch_id: int) -> None:
        """Add one batch, unless the archive has it already.

        Raises: ArchiveError when it does not begin where the archive ends, or has the number of a batch that
            the archive has and more messages.
        """
        if self.head is not NO_BATCH and query == self.head.query and batch_id <= self.head.batch:
            self._check_repeat(frame, batch_id)
            return
        sequence = self.head.sequence + 1
        files = self._write_files(frame, sequence)
        if not files:
            return
        self._check(files)
        spans = spans_after(self.head.spans, files)
        head = Head(sequence, query, batch_id, round(time.time() * 1000), spans)
        batch = Batch(head, tuple(files))
        # Commit protocol: first the pending note and the files, then Delta, last the rename of the note.
        # After a crash before the rename the next start removes the files of the note; if Delta has committed
        # the batch, it does the rename instead. Spark repeats a batch that was not committed.
        self._store.prepare(batch)
        if self._delta is not None:
            self._delta.commit(batch)
        self._store.commit(sequence)
        self._store.clear_staging()
        self.head = head
        self._report_progress(batch)

    def result(self) -> ArchiveResult:
        return ArchiveResult(*self._added)

    def _write_files(self, frame: DataFrame, sequence: int) -> list[DataFile]:
        rows = frame.select(*SPARK_COLUMNS)
        if self._files_a_batch is not None:
            rows = rows.coalesce(self._files_a_batch)
        plan = TaskPlan(self._store.path, self._store.token, sequence)
        lines = rows.mapInArrow(writing_task(plan), RESULT_SCHEMA).collect()
        return sorted((parse_file(row.line) for row in lines), key=lambda file: file.name)

    def _check_repeat(self, frame: DataFrame, batch_id: int) -> None:
        """A batch that the archive has must not have more messages now."""
        # Spark may have lost its plan of the batch in a power failure, and have planned a longer one.
        from pyspark.sql.functions import max as greatest

        queues = frame.groupBy("topic", "brokerName", "queueId")
        for row in queues.agg(greatest("queueOffset").alias("last")).collect():
            queue = QueueName(row.topic, row.brokerName, row.queueId)
            end = self.head.ends.get(queue, 0)
            if row.last >= end:
                raise ArchiveError(
                    f"batch {batch_id} is in the archive {self._store.path} up to offset {end} of {queue}, "
                    f"and is repeated up to {row.last + 1}: its checkpoint has lost what it knew. Remove "
                    "the checkpoint; without it, the job continues where the archive ends."
                )

    def _check(self, files: list[DataFile]) -> None:
        found = breaks(files, self.head.ends)
        if self._allow_data_loss:
            found = [problem for problem in found if not problem.endswith(" missing")]
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise ArchiveError(
                f"the batch does not begin where the archive {self._store.path} ends: {found[0]}{more}. "
                "Its checkpoint belongs to another one; without it, the job continues where the archive ends."
            )

    def _report_progress(self, batch: Batch) -> None:
        added = (1, len(batch.files), batch.messages, batch.body_bytes)
        self._added = [old + new for old, new in zip(self._added, added, strict=True)]
        batches, _, messages, body_bytes = self._added
        self._progress.update(messages, None, f"{bytes_words(body_bytes)}, {batches:,} batches")
