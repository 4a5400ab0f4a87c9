"""The job that sends messages of an archive, or of a time window of topics, again: at a bounded rate.

It works batch by batch. What a batch sends, by which task and in which order, is stored in a file before the
batch is sent; after a kill the replay sends exactly the same batch again. With a LedgerMQ cluster the
sink then drops what is stored already; other brokers may store a batch's messages twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from remoting.client.routes import MessageQueue
from rocketmq_spark import register
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.client.queue_offsets import bounds
from rocketmq_spark.errors import JobError, TopicNotFoundError
from rocketmq_spark.jobs.archive.manifest import QueueName
from rocketmq_spark.jobs.archive.store import ArchiveStore, absolute
from rocketmq_spark.jobs.progress import Progress, Silent
from rocketmq_spark.jobs.replay.plan import (
    NO_FILE,
    Left,
    Slice,
    Waiting,
    Window,
    archive_slices,
    bytes_in,
    messages_in,
    positions_after,
)
from rocketmq_spark.jobs.replay.rate_limit import BURST_S, Rate, shares
from rocketmq_spark.jobs.replay.state import ReplayState, StateFile
from rocketmq_spark.jobs.replay.task import SENT_QUEUE_SCHEMA, SENT_SCHEMA, ReplayTask, topic_reader
from rocketmq_spark.options import job_connection
from rocketmq_spark.schemas import FULL_SCHEMA
from rocketmq_spark.sink.options import BATCH_BYTES, Delivery, parse_sink_options
from rocketmq_spark.sink.planning import is_sequenced
from rocketmq_spark.source.message_sizes import mean_body_bytes, message_bytes
from rocketmq_spark.source.options import STORE_TIME_SKEW_MS, Missing, batch_options
from rocketmq_spark.source.reading import range_task
from rocketmq_spark.source.subscription import find_queues, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_LEAST_ONCE: Final = Delivery.AT_LEAST_ONCE.value
EXACTLY_ONCE: Final = Delivery.EXACTLY_ONCE.value
AUTO: Final = Delivery.AUTO.value
SMALL_MESSAGE_BYTES: Final = 128
DEFAULT_BATCH_MESSAGES: Final = 50_000
BATCH_S: Final = 60.0
"""Duration of a batch at a bounded rate: at most one batch is sent again after a kill. Between two batches
nothing is sent for about a second.
"""
BATCH_MESSAGES_MAX: Final = 1_000_000
ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
ARROW_BURST_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to send again, and where to.

    From the archive `archive`, all its topics or only `topics`; without an archive from the live `topics`.
    `start_ms` to before `end_ms` are store times. `rate` bounds all tasks together. `state` is a file.
    `delivery` is the sink's; `create_queues`: queues of a missing topic; 0 creates none.
    """

    namesrv: str
    to: str
    state: str
    topics: tuple[str, ...] = ()
    archive: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    rate: Rate = field(default_factory=Rate)
    keep_queues: bool = False
    delivery: str = "auto"
    create_queues: int = 0
    batch_messages: int | None = None
    connection_options: Mapping[str, str] = field(default_factory=dict)
    """requestTimeout and retryTimeout, of source and sink."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`messages` were sent by this run, `total` by all runs of the replay."""

    messages: int
    total: int
    batches: int
    replay_id: str


def run_replay(spark: SparkSession, options: ReplayOptions, progress: Progress | None = None) -> ReplayResult:
    """Send all messages that previous runs of this replay have not sent.

    Raises: JobError and the errors of source and sink, each with a sentence.
    """
    check(options)
    register(spark)
    file = StateFile(options.state)
    state = file.read(what_of(options)) or _begin(options)
    if options.delivery == AUTO and not state.delivery:
        state = replace(state, delivery=_settled(options))
    waiting = _waiting(options, state)
    total = sum(map(messages_in, waiting.values()))
    left = Left(waiting, state.positions)
    sent_before, batches = state.sent, 0
    bounds = arrow_bounds(options.rate, options.rate.tasks(spark.sparkContext.defaultParallelism))
    with progress or Silent() as reporting, _settings(spark, bounds):
        reporting.update(total - left.messages, total)
        while True:
            parts = state.planned or _plan(spark, options, left)
            if not parts:
                break
            # Written before the batch is sent: after a kill the next run repeats this plan, with the same
            # writer id and batch number. A new plan could put other rows under the numbers that brokers
            # already have.
            state = replace(state, planned=tuple(map(tuple, parts)))
            file.write(state)
            state = _done(state, _send(spark, options, state))
            file.write(state)
            left.done(parts)
            batches += 1
            reporting.update(total - left.messages, total)
    return ReplayResult(state.sent - sent_before, state.sent, batches, state.replay_id)


def check(options: ReplayOptions) -> None:
    """Raises: JobError naming the options that contradict each other."""
    if options.archive is None and not options.topics:
        raise JobError("a replay needs an archive, or topics to read from.")
    if None not in (options.start_ms, options.end_ms) and (options.start_ms or 0) >= (options.end_ms or 0):
        raise JobError("the time window of a replay ends before it begins.")
    for bound in (options.rate.messages, options.rate.body_bytes, options.batch_messages):
        if bound is not None and bound <= 0:
            raise JobError("the rate and the size of a batch must be more than nothing.")


def what_of(options: ReplayOptions) -> dict[str, Any]:
    """The options that identify a replay; others, such as the rate, may change between two runs."""
    return {
        "archive": None if options.archive is None else absolute(options.archive),
        "topics": sorted(options.topics),
        "to": options.to,
        "start_ms": options.start_ms,
        "end_ms": options.end_ms,
        "keep_queues": options.keep_queues,
    }


def _begin(options: ReplayOptions) -> ReplayState:
    """Take a snapshot of what to send: messages stored later are not part of this replay."""
    if options.archive is not None:
        store = ArchiveStore(absolute(options.archive))
        if not store.has_manifest():
            raise JobError(f"{options.archive} holds no archive: it has no manifest.")
        bound: dict[str, Any] = {"sequence": store.last().sequence}
    else:
        bound = {"ranges": [[*queue, *span] for queue, span in sorted(_ranges(options).items())]}
    return ReplayState(f"replay-{secrets.token_hex(8)}", what_of(options), bound, 0, {}, (), 0)


def _settled(options: ReplayOptions) -> str:
    """The delivery that `auto` means with these brokers: decided once, so that all batches are sent alike."""
    connection = parse_sink_options(_sink_base(options), is_stream=False).connection
    with connection.cluster() as cluster:
        try:
            names = {queue.broker_name for queue in cluster.write_queues(options.to)}
        except TopicNotFoundError:
            names = set(cluster.cluster_info().brokers)
        return EXACTLY_ONCE if is_sequenced(cluster, Delivery.AUTO, sorted(names)) else AT_LEAST_ONCE


def _ranges(options: ReplayOptions) -> dict[QueueName, tuple[int, int]]:
    """The first and last offset within the time window, of each live queue with messages in it."""
    given = batch_options(_source_options(options))
    common = given.common
    with common.connection.cluster() as cluster:
        found = bounds(cluster, find_queues(cluster, common.subscription))
        start = resolve(cluster, common.start, found, common.missing, common.group)
        end = resolve(cluster, given.end, found, Missing.LATEST, common.group)
    return {
        QueueName(queue.topic, queue.broker_name, queue.queue_id): (start[queue], end[queue] - 1)
        for queue in found
        if start[queue] < end[queue]
    }


def _source_options(options: ReplayOptions) -> dict[str, str]:
    found = _connection(options)
    found |= {"subscribe": ",".join(options.topics), "includeHeaders": "true"}
    if options.start_ms is not None:
        found["startingTimestamp"] = str(max(0, options.start_ms - STORE_TIME_SKEW_MS))
        found["startingOffsetsByTimestampStrategy"] = "latest"
    if options.end_ms is not None:
        found["endingTimestamp"] = str(options.end_ms + STORE_TIME_SKEW_MS)
    return found


def _waiting(options: ReplayOptions, state: ReplayState) -> Waiting:
    if options.archive is None:
        ranges = [(QueueName(*line[:3]), line[3], line[4]) for line in state.bound["ranges"]]
        sizes = _live_sizes(options, ranges) if options.rate.body_bytes is not None else {}
        return {
            queue: [Slice(*queue, first, last, NO_FILE, sizes.get(queue, 0.0))]
            for queue, first, last in ranges
        }
    store = ArchiveStore(absolute(options.archive))
    batches = (batch for batch in store.batches() if batch.head.sequence <= state.bound["sequence"])
    files = (file for batch in batches for file in batch.files)
    return archive_slices(files, options.topics, Window(options.start_ms, options.end_ms))


def _live_sizes(
    options: ReplayOptions, ranges: Sequence[tuple[QueueName, int, int]]
) -> dict[QueueName, float]:
    """The mean size of a body in each range of a live queue, from some samples."""
    common = batch_options(_source_options(options)).common
    asked = [QueueRange(MessageQueue(*queue), first, last + 1) for queue, first, last in ranges]
    with common.connection.cluster() as cluster:
        found = message_bytes(cluster, asked, common.group, mean_body_bytes)
    return {QueueName(queue.topic, queue.broker_name, queue.queue_id): size for queue, size in found.items()}


def _plan(spark: SparkSession, options: ReplayOptions, left: Left) -> list[list[Slice]]:
    most = options.batch_messages or batch_messages_at(options.rate, left.message_bytes)
    return left.next_batch(most, options.rate.tasks(spark.sparkContext.defaultParallelism))


def batch_messages_at(rate: Rate, message_bytes: float) -> int:
    """How many messages a batch has: what the rate allows in BATCH_S. message_bytes: mean of a body."""
    in_time = rate.messages_in(BATCH_S, message_bytes)
    return DEFAULT_BATCH_MESSAGES if in_time is None else min(in_time, BATCH_MESSAGES_MAX)


def _send(spark: SparkSession, options: ReplayOptions, state: ReplayState) -> int:
    """Send one batch, each planned part as one partition: a repeat is the same partition by partition.

    Returns how many messages were sent: fewer than planned where a time window cuts.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    parts = state.planned
    read_topic = None
    if options.archive is None:
        source = batch_options(_source_options(options)).common
        read_topic = topic_reader(range_task(source, FULL_SCHEMA, None))
    task = ReplayTask(
        archive=None if options.archive is None else absolute(options.archive),
        read_topic=read_topic,
        window=Window(options.start_ms, options.end_ms),
        keep_queues=options.keep_queues,
        parts=parts,
        rates=shares(
            options.rate, [options.rate.seconds_for(messages_in(part), bytes_in(part)) for part in parts]
        ),
    )
    schema = SENT_QUEUE_SCHEMA if options.keep_queues else SENT_SCHEMA
    numbers = spark.range(0, len(parts), 1, numPartitions=len(parts))
    rows = numbers.mapInArrow(task.run, schema)
    counted = Observation()
    rows = rows.observe(counted, count(lit(1)).alias("sent"))
    rows.write.format("rocketmq").options(**sink_options(options, state)).mode("append").save()
    return int(counted.get["sent"])


def sink_options(options: ReplayOptions, state: ReplayState) -> dict[str, str]:
    """The options of the sink. For exactly-once delivery they include the ids of writer and batch."""
    delivery = state.delivery if options.delivery == AUTO and state.delivery else options.delivery
    found = _sink_base(options) | {"delivery": delivery}
    if delivery != AT_LEAST_ONCE:
        found |= {"writerId": state.replay_id, "batchId": str(state.batch)}
    if options.create_queues:
        found["createTopicQueues"] = str(options.create_queues)
    request_bytes = request_bytes_at(options.rate)
    return found if request_bytes is None else found | {"batchBytes": str(request_bytes)}


def _sink_base(options: ReplayOptions) -> dict[str, str]:
    return _connection(options) | {"topic": options.to}


def _connection(options: ReplayOptions) -> dict[str, str]:
    return {**job_connection(options.namesrv, os.environ), **options.connection_options}


def request_bytes_at(rate: Rate) -> int | None:
    """Maximum size of the sink's requests, so that messages do not wait there long; None without a rate."""
    bounds_s = []
    if rate.messages is not None:
        bounds_s.append(rate.messages * BURST_S * SMALL_MESSAGE_BYTES)
    if rate.body_bytes is not None:
        bounds_s.append(rate.body_bytes * BURST_S)
    return max(1, min(BATCH_BYTES, round(min(bounds_s)))) if bounds_s else None


def _done(state: ReplayState, sent: int) -> ReplayState:
    positions = positions_after(state.planned, state.positions)
    return replace(state, batch=state.batch + 1, positions=positions, planned=(), sent=state.sent + sent)


def arrow_bounds(rate: Rate, tasks: int) -> dict[str, str]:
    """Settings for how many rows Spark collects for the sink in each task: in all tasks together never more
    than the rate allows in ARROW_BURST_S, except one row.
    """
    found = {}
    if rate.messages is not None:
        found[ARROW_ROWS] = str(max(1, int(rate.messages * ARROW_BURST_S / tasks)))
    if rate.body_bytes is not None:
        found[ARROW_BYTES] = str(max(1, round(rate.body_bytes * ARROW_BURST_S / tasks)))
    return found


@contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set these values in the session while the block runs."""
    before = {name: spark.conf.get(name) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            spark.conf.set(name, str(kept))
