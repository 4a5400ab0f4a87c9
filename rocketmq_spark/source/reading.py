"""What a task does with its partition: pulls ranges of queues, makes Arrow batches. Runs in Spark's workers.

The offsets of each answer are checked, because a node could have left out a message. A node that numbers
messages without a gap and reports exactly what it keeps (LedgerMQ) may still have offsets that no message
has, in a log that Java's DLedger wrote. So a gap in an answer is requested once more: if a message comes
then, the first answer was wrong.

A Spark task costs as much as reading thousands of messages, so a task may have several parts. It reads them
one after the other, each in its queue's order, and joins small Arrow batches that follow each other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from commitlog.entry import Buffer
from rocketmq_spark.client.buffer_pool import BufferPool
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import (
    ALL_TAGS,
    COUNT_MAX,
    DEFAULT_GROUP,
    Pulled,
    PullStatus,
    QueueRange,
    RangeReader,
    ReadSettings,
    pull,
)
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.options import ConnectionOptions
from rocketmq_spark.records.fields import Ints
from rocketmq_spark.schemas import check_schema
from rocketmq_spark.source.options import SourceOptions
from rocketmq_spark.source.rows import RowFormat


def require_continuous(
    cluster: Cluster, wanted: QueueRange, offsets: Ints, group: str = DEFAULT_GROUP
) -> None:
    """Check that `offsets` has every offset of the range, in order, or that no message has it.

    Raises:
        CorruptDataError: naming the queue and the offset that is missing, or not in its place.
    """
    for gap in gaps(wanted, offsets):
        _require_empty(cluster, gap, group)


def gaps(wanted: QueueRange, offsets: Ints) -> list[QueueRange]:
    """The parts of the range that are not in `offsets`. Pure. Raises CorruptDataError."""
    borders = np.concatenate(([wanted.start - 1], offsets, [wanted.stop]))
    steps = np.diff(borders)
    if bool((steps < 1).any()):
        at = int(np.argmax(steps < 1))
        raise CorruptDataError(
            f"{wanted.queue}: offset {borders[at + 1]} follows {borders[at]} in an answer for {wanted}"
        )
    places: list[int] = np.flatnonzero(steps > 1).tolist()
    return [QueueRange(wanted.queue, int(borders[at]) + 1, int(borders[at + 1])) for at in places]


def _require_empty(cluster: Cluster, gap: QueueRange, group: str) -> None:
    queue, at = gap.queue, gap.start
    while at < gap.stop:
        result = pull(cluster, queue, at, min(gap.stop - at, COUNT_MAX), group=group)
        first = result.first_offset
        if first is not None and first < gap.stop:
            raise CorruptDataError(f"{queue}: an answer left out offset {first}, which has a message")
        if result.status is not PullStatus.NO_MATCH or result.next_offset <= at:
            return  # retention has deleted this part meanwhile
        at = result.next_offset


BATCH_BYTES: Final = 1 << 20
"""Bytes of records that become one Arrow batch. The memory of a task is a few times this. The size fits the
caches of a processor; much smaller batches cost Spark more than their rows.
"""
_BATCHES_KEPT: Final = 3
"""Buffers for batches: Spark still uses a batch and the one before it while the next one is made."""
_ANSWERS_KEPT: Final = 6
"""Buffers for answers: those of one batch, and those received next."""


class RangePartition(InputPartition):
    """One part of one queue. `leader` is the address of the leader at planning, if known: the task tries it
    first, without a request to a name server, which may be unreachable.
    """

    def __init__(self, wanted: QueueRange, leader: str | None = None) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.leader = leader


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Everything a worker needs besides the part itself. Spark pickles it."""

    connection: ConnectionOptions
    settings: ReadSettings
    format: RowFormat

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in the order of the queue."""
        # For a plan without parts Spark calls this with a part of its own.
        if not isinstance(partition, RangePartition):
            return
        wanted, connection = partition.wanted, self.connection
        memory = BufferPool(_BATCHES_KEPT)
        with connection.cluster() as cluster:
            if partition.leader is not None:
                cluster.suppose_leader(wanted.queue.broker_name, partition.leader)
            answers = RangeReader(cluster, wanted, self.settings, BufferPool(_ANSWERS_KEPT)).answers()
            for pulled in gathered(answers, BATCH_BYTES):
                yield from self._batches(cluster, wanted, pulled, memory)
                del pulled  # releases its buffers for the next answers

    def _batches(
        self, cluster: Cluster, wanted: QueueRange, pulled: "Gathered", memory: BufferPool
    ) -> Iterator[pa.RecordBatch]:
        check = None
        if pulled.is_exact:
            answered = QueueRange(wanted.queue, pulled.start, pulled.stop)
            check = partial(require_continuous, cluster, answered, group=self.settings.group)
        return self.format.batches(pulled.pieces, wanted.queue, wanted.start, wanted.stop, check, memory)


def range_task(options: SourceOptions, schema: StructType, tags: frozenset[str] | None) -> RangeTask:
    """The task of a query that reads these columns, only of messages with one of the tags.

    Raises:
        OptionError: the schema has a column that does not exist.
    """
    check_schema(schema)
    settings = ReadSettings(tags_expression(tags), options.group, options.fail_on_data_loss)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    row_format = RowFormat(arrow_schema, options.include_headers, options.decompress, tags)
    return RangeTask(options.connection, settings, row_format)


def tags_expression(tags: frozenset[str] | None) -> str:
    """`TagA || TagB`; `*` if a tag cannot be written so, since rows are filtered here again."""
    if tags is None or any(not tag or "||" in tag or tag != tag.strip() or tag == ALL_TAGS for tag in tags):
        return ALL_TAGS
    return " || ".join(sorted(tags))


@dataclass(frozen=True, slots=True)
class Gathered:
    """Answers that follow each other. start, stop and is_exact are as of one answer."""

    pieces: tuple[Buffer, ...]
    start: int
    stop: int
    is_exact: bool


def gathered(answers: Iterator[Pulled], bytes_min: int) -> Iterator[Gathered]:
    """The answers in groups of at least `bytes_min`, except the last group and those before a loss."""
    held: list[Pulled] = []
    held_bytes = 0
    for answer in answers:
        if held and answer.start != held[-1].stop:
            yield _joined(held)
            held, held_bytes = [], 0
        held.append(answer)
        held_bytes += len(answer.data)
        if held_bytes >= bytes_min:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _joined(answers: list[Pulled]) -> Gathered:
    pieces = tuple(answer.data for answer in answers)
    is_exact = all(answer.is_exact for answer in answers)
    return Gathered(pieces, answers[0].start, answers[-1].stop, is_exact)


TASKS_MAX: Final = 200
TASK_MESSAGES: Final = 5_000
"""Without the option maxPartitions there are at most TASKS_MAX tasks, or one for TASK_MESSAGES messages if
that is more. So only small parts share a task.
"""
PART_MESSAGES: Final = 100
"""The start of a part, a connection and a pull, costs about as much as this many messages."""
MERGED_ROWS: Final = 1_000
MERGED_BYTES: Final = 1 << 20
"""Successive small batches are joined to about this size. A larger one is passed on without a copy."""
HELD_MAX: Final = 64
"""Memory bound: at most this many batches are joined, since each holds the buffers of its part."""


class JoinedPartition(InputPartition):
    """Several parts that one task reads."""

    def __init__(self, parts: Sequence[RangePartition]) -> None:
        super().__init__(tuple(parts))
        self.parts = tuple(parts)


def group_lengths(sizes: Sequence[int], tasks_max: int | None, tasks_min: int = 0) -> list[int]:
    """How many successive parts each task has. `sizes`: the parts' messages. All tasks have about equal work,
    and one task for each part if there are no more than `tasks_max`. Pure.

    tasks_max: None to decide by the messages, not below `tasks_min`.
    """
    groups_max = tasks_max or max(TASKS_MAX, tasks_min, sum(sizes) // TASK_MESSAGES)
    if len(sizes) <= groups_max:
        return [1] * len(sizes)
    weights = [size + PART_MESSAGES for size in sizes]
    total = sum(weights)
    middles = (2 * behind - weight for behind, weight in zip(accumulate(weights), weights, strict=True))
    numbers = (middle * groups_max // (2 * total) for middle in middles)
    return [len(list(group)) for _, group in groupby(numbers)]


def partitions_of(
    parts: Sequence[QueueRange], lengths: Sequence[int], leader_of: Callable[[str], str | None]
) -> list[InputPartition]:
    """The parts for Spark, grouped as `group_lengths` says. leader_of: the known leader of a broker."""
    waiting = iter([RangePartition(part, leader_of(part.queue.broker_name)) for part in parts])
    found: list[InputPartition] = []
    for length in lengths:
        group = [next(waiting) for _ in range(length)]
        found.append(group[0] if length == 1 else JoinedPartition(group))
    return found


def read(task: RangeTask, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one part, or of several one after the other."""
    if not isinstance(partition, JoinedPartition):
        return task.read(partition)
    return merged(batch for part in partition.parts if len(part.wanted) for batch in task.read(part))


def merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order: small batches that follow each other as one. Pure."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        is_large = batch.num_rows >= MERGED_ROWS or batch.nbytes >= MERGED_BYTES
        is_full = rows >= MERGED_ROWS or size_bytes >= MERGED_BYTES or len(held) == HELD_MAX
        if held and (is_large or is_full):
            yield pa.concat_batches(held)
            held, rows, size_bytes = [], 0, 0
        if is_large:
            yield batch
            continue
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if held:
        yield pa.concat_batches(held)
