"""Parts for tasks and limits of triggers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.planning import (
    limit_offsets,
    limit_weighted,
    never_backwards,
    ranges_between,
    split,
    total_between,
)

QUEUES = [MessageQueue(topic, broker, number) for topic in "TU" for broker in "ab" for number in range(3)]
OFFSETS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 1_000))


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "a", number)


def offsets(*numbers: int) -> Offsets:
    return {queue(number): offset for number, offset in enumerate(numbers)}


@given(OFFSETS, OFFSETS)
def test_ranges_cover_what_lies_between_and_nothing_else(start: Offsets, end: Offsets) -> None:
    covered = {(one.queue, n) for one in ranges_between(start, end) for n in range(one.start, one.stop)}
    assert covered == {(q, n) for q in start.keys() & end.keys() for n in range(start[q], end[q])}


def test_new_queues_are_not_read_in_the_batch_that_finds_them() -> None:
    assert ranges_between({}, offsets(5)) == []


@given(
    st.dictionaries(st.sampled_from(QUEUES), st.tuples(st.integers(0, 100), st.integers(1, 500)), min_size=1),
    st.integers(0, 40),
)
def test_parts_are_the_ranges_cut(ranges: dict[MessageQueue, tuple[int, int]], parts_min: int) -> None:
    whole = [QueueRange(q, first, first + size) for q, (first, size) in sorted(ranges.items())]
    parts = split(whole, parts_min)
    for one in whole:
        own = [part for part in parts if part.queue == one.queue]
        assert [part.start for part in own] == [one.start, *(part.stop for part in own[:-1])]
        assert own[-1].stop == one.stop
        assert all(len(part) for part in own)
    assert len(parts) >= len(whole)


def test_big_queues_are_cut_and_small_ones_stay() -> None:
    whole = [QueueRange(queue(0), 0, 1_000), QueueRange(queue(1), 0, 10)]
    parts = split(whole, 5)
    assert [len(part) for part in parts] == [250, 250, 250, 250, 10]
    assert split(whole, 2) == whole
    assert [len(part) for part in split([QueueRange(queue(0), 0, 3)], 10)] == [1, 1, 1]
    assert split([], 4) == []


@given(OFFSETS, OFFSETS, st.integers(1, 2_000))
def test_limit_is_kept_and_used(start: Offsets, more: Offsets, most: int) -> None:
    end = never_backwards(start, {q: start.get(q, 0) + count for q, count in more.items() if q in start})
    limited = limit_offsets(start, end, most)
    assert limited.keys() == end.keys()
    assert all(start[q] <= limited[q] <= end[q] for q in end)
    assert total_between(start, limited) == min(most, total_between(start, end))


def test_every_queue_gets_a_share() -> None:
    limited = limit_offsets(offsets(0, 0, 0), offsets(1_000_000, 1, 1), 10)
    assert limited == offsets(8, 1, 1)


def test_queues_take_turns_when_there_is_not_one_for_each() -> None:
    start, read = offsets(0, 0, 0, 0, 0), set()
    for _ in range(5):
        limited = limit_offsets(start, offsets(9, 9, 9, 9, 9), 2)
        read |= {q for q in start if limited[q] > start[q]}
        start = limited
    assert len(read) == 5


def test_weights_bound_the_sum() -> None:
    start, end = offsets(0, 0), offsets(100, 100)
    weights = {queue(0): 10.0, queue(1): 90.0}
    assert limit_weighted(start, end, weights, 10_000) == end
    assert limit_weighted(start, end, weights, 1_000) == offsets(10, 10)
    assert total_between(start, limit_weighted(start, end, weights, 1)) == 1


@given(OFFSETS, OFFSETS)
def test_never_backwards(start: Offsets, end: Offsets) -> None:
    found = never_backwards(start, end)
    assert found.keys() == start.keys() | end.keys()
    assert all(found[q] >= start[q] for q in start)
    assert all(found[q] == max(start.get(q, 0), end.get(q, 0)) for q in found)


def test_range_is_described_by_its_first_and_last_offset() -> None:
    assert str(QueueRange(queue(1), 5, 9)) == "offsets 5 to 8 of T/a:1"


def test_length_of_a_backward_range_is_none() -> None:
    assert len(QueueRange(queue(0), 9, 5)) == 0


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_limit_below_what_waits_never_reads_all(count: int) -> None:
    assert total_between(offsets(0), limit_offsets(offsets(0), offsets(8), count)) == count
