import random

from broker.consume.long_polling import Arrivals, HeldPull, LongPollingTable, group_arrivals
from commitlog.dispatch import DispatchRequest
from remoting.tag_filters import MATCH_ALL, TagFilter, parse_tag_expression

QUEUE = ("T", 0)


def held(
    offset: int = 10,
    deadline_ms: int = 15_000,
    tag_filter: TagFilter = MATCH_ALL,
    connection_id: int = 1,
    key: tuple[str, int] = QUEUE,
) -> HeldPull[str]:
    return HeldPull(key, offset, tag_filter, connection_id, deadline_ms, "request")


def test_a_message_wakes_those_that_want_it_and_nobody_else() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    everything, tag_a, other_queue = (
        held(),
        held(tag_filter=parse_tag_expression("TagA")),
        held(key=("T", 1)),
    )
    for pull in (everything, tag_a, other_queue):
        assert table.hold(pull)
    assert table.wake(QUEUE, Arrivals(11, [(10, 2598920)])) == [everything]
    assert table.wake(QUEUE, Arrivals(12, [(11, 2598919)])) == [tag_a]
    assert len(table) == 1


def test_an_unwanted_message_moves_the_waiting_pull_behind_it() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    pull = held(tag_filter=parse_tag_expression("TagA"))
    table.hold(pull)
    assert table.wake(QUEUE, Arrivals(13, [(10, 0), (11, 0), (12, 0)])) == []
    assert pull.offset == 13


def test_a_gap_before_the_messages_does_not_move_the_pull() -> None:
    """What lies in the gap was never matched: it must be looked at when the pull is answered."""
    table: LongPollingTable[str] = LongPollingTable()
    pull = held(offset=5, tag_filter=parse_tag_expression("TagA"))
    table.hold(pull)
    table.wake(QUEUE, Arrivals(13, [(12, 0)]))
    assert pull.offset == 5


def test_a_pull_beyond_the_end_sleeps_until_its_offset_is_there() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    pull = held(offset=12)
    table.hold(pull)
    assert table.wake(QUEUE, Arrivals(12, [(10, 0), (11, 0)])) == []
    assert table.wake(QUEUE, Arrivals(13, [(12, 0)])) == [pull]


def test_messages_before_the_offset_do_not_count_as_wanted() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    pull = held(offset=12, tag_filter=parse_tag_expression("TagA"))
    table.hold(pull)
    assert table.wake(QUEUE, Arrivals(13, [(11, 2598919), (12, 0)])) == []


def test_deadlines_are_rounded_up_and_come_in_order() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    late, early = held(deadline_ms=2_001), held(deadline_ms=950)
    table.hold(late)
    table.hold(early)
    assert table.earliest_deadline_ms() == 1_000
    assert table.expire(999) == []
    assert table.expire(1_000) == [early]
    assert table.earliest_deadline_ms() == 2_100
    assert table.expire(2_100) == [late]
    assert table.earliest_deadline_ms() is None
    assert len(table) == 0


def test_a_woken_pull_does_not_expire_any_more() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    table.hold(held(deadline_ms=1_000))
    table.wake(QUEUE, Arrivals(11, [(10, 0)]))
    assert table.earliest_deadline_ms() is None
    assert table.expire(5_000) == []


def test_a_closed_connection_takes_its_pulls_along() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    gone, stays = held(connection_id=1), held(connection_id=2)
    table.hold(gone)
    table.hold(stays)
    table.drop_connection(1)
    assert table.take_all() == [stays]
    table.drop_connection(7)


def test_a_full_table_refuses() -> None:
    table: LongPollingTable[str] = LongPollingTable(held_max=1)
    assert table.hold(held())
    assert not table.hold(held())
    table.take_all()
    assert table.hold(held())


def test_holding_and_waking_over_and_over_leaves_nothing_behind() -> None:
    table: LongPollingTable[str] = LongPollingTable()
    for offset in range(1_000):
        table.hold(held(offset=offset, deadline_ms=1_000))
        table.wake(QUEUE, Arrivals(offset + 1, [(offset, 0)]))
    assert not table.waiting_queues
    assert len(table._bucket_order) == 1
    assert not table._connections


def test_every_pull_comes_out_exactly_once_whatever_happens() -> None:
    rng = random.Random(7)
    table: LongPollingTable[str] = LongPollingTable()
    put_in, came_out, now_ms = [], [], 0
    for _ in range(2_000):
        key = ("T", rng.randrange(3))
        match rng.randrange(4):
            case 0 | 1:
                pull = held(key=key, deadline_ms=now_ms + rng.randrange(5_000), offset=rng.randrange(20))
                table.hold(pull)
                put_in.append(pull)
            case 2:
                offset = rng.randrange(20)
                came_out += table.wake(key, Arrivals(offset + 1, [(offset, 0)]))
            case _:
                now_ms += rng.randrange(500)
                came_out += table.expire(now_ms)
        assert len(table) == len(put_in) - len(came_out)
    came_out += table.take_all()
    assert len(came_out) == len(put_in) == len({id(pull) for pull in came_out})


def test_arrivals_are_grouped_for_the_queues_somebody_waits_at() -> None:
    rows = [("T", 0, 10, 1), ("U", 0, 4, 2), ("T", 1, 7, 3), ("T", 0, 11, 4)]
    messages = [DispatchRequest(0, *row[:3], 0, 0, row[3], 0, 0) for row in rows]
    assert group_arrivals({("T", 0), ("T", 2)}, messages) == {("T", 0): Arrivals(12, [(10, 1), (11, 4)])}


def test_full_table_takes_places_from_the_connection_that_has_the_most() -> None:
    table: LongPollingTable[str] = LongPollingTable(held_max=10)
    hog = [held(connection_id=1, deadline_ms=100 * n) for n in range(9)]
    assert all(map(table.hold, hog))
    assert table.hold(held(connection_id=2))
    assert not table.hold(held(connection_id=1))
    assert table.make_room(1) == []
    assert table.make_room(2) == hog[5:]
    assert len(table) == 6
    assert table.hold(held(connection_id=2))


def test_full_table_of_equal_shares_takes_nobodys_place() -> None:
    table: LongPollingTable[str] = LongPollingTable(held_max=4)
    for connection_id in (1, 2, 1, 2):
        assert table.hold(held(connection_id=connection_id))
    assert table.make_room(1) == []
    assert len(table.make_room(3)) == 1
