"""Many parts for few tasks: a Spark task costs as much as reading thousands of messages.

A task of several parts reads them one after the other, each in its queue's order, and makes one Arrow batch
of the small ones that follow each other.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.source.reading import RangePartition, RangeTask

TASKS_MAX: Final = 200
TASK_MESSAGES: Final = 5_000
"""Unless an option says how many tasks there are at most: so many, or one for so many messages if that is
more. So only small parts share a task.
"""
PART_MESSAGES: Final = 100
"""To begin with a part costs about what so many messages cost: a connection and a pull."""
BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 1 << 20
"""Batches that follow each other become one of about so much. A larger one stays as it is, without a copy."""
HELD_MAX: Final = 64
"""So many become one at most: each of them holds the blocks of memory that its part was read into."""


class JoinedPartition(InputPartition):
    """Several parts that one task reads."""

    def __init__(self, parts: Sequence[RangePartition]) -> None:
        super().__init__(tuple(parts))
        self.parts = tuple(parts)


def group_lengths(sizes: Sequence[int], tasks_max: int | None, tasks_min: int = 0) -> list[int]:
    """How many parts of these numbers of messages each task has, in their order: about as much work for each,
    and each part a task of its own where there are no more than `tasks_max`. Pure.

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
        is_large = batch.num_rows >= BATCH_ROWS or batch.nbytes >= BATCH_BYTES
        is_full = rows >= BATCH_ROWS or size_bytes >= BATCH_BYTES or len(held) == HELD_MAX
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
