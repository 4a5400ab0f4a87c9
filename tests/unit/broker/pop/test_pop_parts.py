"""Handles, deadlines and the table of waiting pops, by themselves."""

import pytest

from broker.pop.deadlines import BUCKET_MS, EMPTY_MAX, Deadlines
from broker.pop.long_polling import Held, HeldPops
from broker.pop.ops import from_runs, to_runs
from remoting.pop_receipts import (
    HandleError,
    mark_of,
    marked_topic,
    origin_topic,
    parse_handle,
    pop_retry_topic,
)
from remoting.topic_names import topic_name_error


def test_retry_topics_of_both_versions() -> None:
    assert pop_retry_topic("t", "g") == "%RETRY%g_t"
    assert pop_retry_topic("t", "g", v2=True) == "%RETRY%g+t"
    for mark, name in (("0", "t"), ("1", "%RETRY%g_t"), ("2", "%RETRY%g+t")):
        assert mark_of(name) == mark
        assert marked_topic("t", "g", mark) == name
        assert origin_topic(name, "g") == "t"
        assert topic_name_error(name) is None
    assert topic_name_error("a+b") is not None
    with pytest.raises(HandleError):
        marked_topic("t", "g", "3")


def test_handles() -> None:
    handle = parse_handle("0 1700000000000 60000 999 0 broker-a 3 17")
    assert (handle.pop_time_ms, handle.invisible_ms, handle.is_ordered) == (1_700_000_000_000, 60_000, True)
    assert not parse_handle("0 1 2 3 1 b 0").is_ordered
    for text in ("", "0 1 2 3 0 b", "0 x 2 3 0 b 0", "0 -1 2 3 0 b 0", "0 1 2 3 0 b 0 " + "9" * 2_000):
        with pytest.raises(HandleError):
            parse_handle(text)


def test_runs() -> None:
    for offsets in ((), (5,), (1, 2, 3), (1, 3, 4, 9)):
        assert from_runs(to_runs(offsets)) == offsets
    assert to_runs((1, 2, 3, 7)) == [1, 3, 7, 1]


def test_deadlines_come_due_in_order_and_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10):
        deadlines.add(number, 1_000 - number * 2 * BUCKET_MS)
    deadlines.add(9, 5_000)
    deadlines.discard(8)
    deadlines.discard(8)
    assert deadlines.earliest_ms() == 1_000 - 7 * 2 * BUCKET_MS
    assert deadlines.pop_due(1_000) == [7, 6, 5, 4, 3, 2, 1, 0]
    assert deadlines.earliest_ms() == 5_000
    assert len(deadlines) == 1
    for number in range(10 * EMPTY_MAX):
        deadlines.add(9, 10_000 + number * BUCKET_MS)
    assert len(deadlines._buckets) <= EMPTY_MAX + 3
    assert deadlines.pop_due(10**9) == [9]
    assert deadlines.earliest_ms() is None


def held(queue_id: int = -1, connection_id: int = 1, topic: str = "t", group: str = "g") -> Held[int]:
    return Held(group, topic, queue_id, connection_id, 0)


def test_waiting_pops_by_topic_group_and_queue() -> None:
    waits: HeldPops[int] = HeldPops(held_max=4, per_queue_max=2)
    first, second, other = held(), held(0), held(group="h", connection_id=2)
    assert all(waits.hold(each, deadline) for deadline, each in ((100, first), (200, second), (300, other)))
    assert waits.hold(held(0), 400)
    assert not waits.hold(held(1), 500)
    assert waits.waiting_for("t") == [("g", "t"), ("h", "t")]
    assert waits.waiting_for("%RETRY%g_t") == waits.waiting_for("%RETRY%g+t") == [("g", "t")]
    assert waits.queue_ids("g", "t") == [-1, 0]
    assert waits.first("g", "t", 0) is second
    waits.discard(second)
    assert waits.count("g", "t", 0) == 1
    waits.drop_connection(2)
    assert waits.waiting_for("t") == [("g", "t")]
    assert waits.remove_expired(100) == [first]
    assert len(waits.remove_all()) == 1
    assert (len(waits), list(waits.topics), list(waits.retry_topics)) == (0, [], [])
    assert waits.waiting_for("%RETRY%g_t") == []


def test_one_queue_has_a_bound_of_its_own() -> None:
    waits: HeldPops[int] = HeldPops(per_queue_max=1)
    assert waits.hold(held(), 1)
    assert not waits.hold(held(), 1)
    assert waits.hold(held(0), 1)
