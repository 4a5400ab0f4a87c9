"""Parts that share a task: which, and what comes of them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.source.reading import (
    HELD_MAX,
    MERGED_ROWS,
    PART_MESSAGES,
    TASK_MESSAGES,
    TASKS_MAX,
    JoinedPartition,
    RangePartition,
    group_lengths,
    merged,
)
from tests.unit.spark.source.planned import filled, offsets, reader

SIZES = st.lists(st.integers(0, 100_000), max_size=300)


@given(SIZES, st.integers(1, 40))
def test_every_part_has_a_task_and_no_task_has_much_more_than_another(sizes: list[int], most: int) -> None:
    lengths = group_lengths(sizes, most)
    assert sum(lengths) == len(sizes)
    assert len(lengths) <= max(most, 0)
    assert all(lengths)
    fair = sum(size + PART_MESSAGES for size in sizes) / most
    at = 0
    for length in lengths:
        of_task = [size + PART_MESSAGES for size in sizes[at : at + length]]
        if len(sizes) > most:
            assert sum(of_task) <= fair + max(of_task)
        at += length


def test_parts_stay_alone_while_there_are_few() -> None:
    assert group_lengths([1, 0, 9], 3) == [1, 1, 1]
    assert group_lengths([1, 1, 1, 1], 3) == [1, 2, 1]
    assert group_lengths([], 3) == []


def test_only_small_parts_share_a_task_unless_an_option_says_so() -> None:
    many = 5 * TASKS_MAX
    assert len(group_lengths([1] * many, None)) == TASKS_MAX
    assert len(group_lengths([1] * many, None, tasks_min=many)) == many
    assert len(group_lengths([TASK_MESSAGES] * many, None)) == many
    assert len(group_lengths([TASK_MESSAGES] * many, 10)) == 10
    assert len(group_lengths([TASK_MESSAGES // 2] * many, None)) == many // 2


@given(st.lists(st.integers(0, 2 * MERGED_ROWS), max_size=30))
def test_small_batches_become_one_and_rows_stay_in_order(rows: list[int]) -> None:
    numbers = iter(range(sum(rows)))
    schema = pa.schema({"n": pa.int64()})
    batches = [pa.record_batch({"n": [next(numbers) for _ in range(count)]}, schema) for count in rows]
    found = list(merged(iter(batches)))
    assert [n for batch in found for n in batch.column(0).to_pylist()] == list(range(sum(rows)))
    assert len(found) <= len(rows)
    small = [batch for batch in found if batch.num_rows < MERGED_ROWS]
    assert len(small) <= 1 + sum(count >= MERGED_ROWS for count in rows)


def test_what_many_parts_hold_is_let_go() -> None:
    batches = iter([pa.record_batch({"n": [number]}) for number in range(3 * HELD_MAX)])
    assert [batch.num_rows for batch in merged(batches)] == [HELD_MAX] * 3


def test_a_stream_reads_many_queues_by_few_tasks() -> None:
    """What is lost shortens a part; its task stays the same, as a batch that is repeated needs it."""
    queues = [MessageQueue("T", "a", number) for number in range(10)]
    topics = filled(*queues)
    made = reader(topics, maxPartitions=4, failOnDataLoss=False)
    start, end = offsets(**{f"a{n}": 0 for n in range(10)}), offsets(**{f"a{n}": 10 for n in range(10)})
    groups = []
    for _ in range(2):
        found = made.partitions(start, end)
        assert all(isinstance(one, RangePartition | JoinedPartition) for one in found)
        groups.append(
            [
                [part.wanted for part in (one.parts if isinstance(one, JoinedPartition) else (one,))]
                for one in found
                if isinstance(one, RangePartition | JoinedPartition)
            ]
        )
        topics.queues[queues[3]].first = 7
    assert [[part.queue.queue_id for part in group] for group in groups[0]] == [
        [part.queue.queue_id for part in group] for group in groups[1]
    ]
    assert [len(group) for group in groups[0]] == [2, 3, 2, 3]
    assert groups[0][1][1] == QueueRange(queues[3], 0, 10)
    assert groups[1][1][1] == QueueRange(queues[3], 7, 10)
