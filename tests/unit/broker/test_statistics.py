"""What came and went: sums over windows, by RocketMQ's names and keys, in bounded memory."""

import pytest

from broker.monitoring.runtime_info import DayTotals
from broker.monitoring.statistics import (
    DAY,
    GATHERED_MAX,
    GROUP_GET,
    HOUR,
    MINUTE,
    SLOT_MS,
    STATS,
    TOPIC_PUT,
    USER_GET,
    USER_PUT,
    BrokerStatistics,
    WindowCounter,
)
from commitlog.consume_queue import UNIT
from commitlog.dispatch import DispatchBatch, DispatchRequest, QueueRun

HOUR_MS = 3_600_000
START_MS = 50 * 24 * HOUR_MS


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


def counted(counter: WindowCounter, now_ms: int) -> tuple[int, int, int]:
    minute, hour, day = (counter.figures(window, now_ms) for window in (MINUTE, HOUR, DAY))
    return minute.count, hour.count, day.count


def test_a_window_loses_what_is_older_than_it() -> None:
    counter = WindowCounter(START_MS)
    counter.add(5, 500, START_MS)
    assert counted(counter, START_MS) == (5, 5, 5)
    assert counted(counter, START_MS + 59_000) == (5, 5, 5)
    assert counted(counter, START_MS + 61_000) == (0, 5, 5)
    assert counted(counter, START_MS + HOUR_MS - 1) == (0, 5, 5)
    assert counted(counter, START_MS + HOUR_MS) == (0, 0, 5)
    assert counted(counter, START_MS + 24 * HOUR_MS) == (0, 0, 0)
    assert counter.total == 5


def test_sums_of_a_steady_stream_are_those_of_its_windows() -> None:
    counter = WindowCounter(START_MS)
    for second in range(2 * 24 * 3600):
        counter.add(2, 7, START_MS + second * 1000)
    end_ms = START_MS + 2 * 24 * HOUR_MS - 1
    minute, hour, day = (counter.figures(window, end_ms) for window in (MINUTE, HOUR, DAY))
    assert (minute.count, hour.count, day.count) == (120, 7_200, 172_800)
    assert (minute.bytes, minute.calls) == (420, 60)
    assert minute.per_second(minute.count) == pytest.approx(2.0, rel=0.01)
    assert day.per_second(day.count) == pytest.approx(2.0, rel=0.01)


def test_a_young_counter_has_the_rate_of_its_life() -> None:
    counter = WindowCounter(START_MS)
    counter.add(300, 0, START_MS + 29_000)
    figures = counter.figures(HOUR, START_MS + 30_000)
    assert figures.per_second(figures.count) == 10.0
    at_once = WindowCounter(START_MS)
    at_once.add(5, 0, START_MS)
    figures = at_once.figures(MINUTE, START_MS)
    assert figures.span_ms == SLOT_MS, "a rate over no time would be endless"


def units(*sizes: int) -> bytes:
    return b"".join(UNIT.pack(position, size, -1) for position, size in enumerate(sizes))


def batch_of(*runs: QueueRun) -> DispatchBatch:
    return DispatchBatch(sum(len(run[3]) // 20 for run in runs), 9, runs, list)


def test_puts_are_counted_by_topic_and_for_the_broker() -> None:
    statistics = BrokerStatistics("C", Clock())
    statistics.put(
        batch_of(
            ("a", 0, 0, units(100, 70_000)),
            ("b", 3, 7, units(4_000_000)),
            ("a", 1, 0, units(255, 256)),
            ("SCHEDULE_TOPIC_XXXX", 2, 0, units(50)),
            ("rmq_sys_LEDGERMQ_STATE", 0, 0, units(9)),
        )
    )
    seen = {}
    for name, key in (("TOPIC_PUT_NUMS", "a"), ("TOPIC_PUT_NUMS", "b"), ("BROKER_PUT_NUMS", "C")):
        windows = statistics.view(name, key)
        assert windows is not None
        seen[key] = (windows[2].count, windows[2].bytes, windows[2].calls)
    assert seen == {"a": (4, 70_611, 2), "b": (1, 4_000_000, 1), "C": (6, 4_070_661, 4)}
    assert statistics.total(USER_PUT) == 5, "delayed messages are the system's until they are due"
    assert statistics.view("TOPIC_PUT_NUMS", "rmq_sys_LEDGERMQ_STATE") is None


def test_what_is_gathered_counts_in_the_slot_in_which_it_came() -> None:
    clock = Clock()
    statistics = BrokerStatistics("C", clock)
    statistics.put(batch_of(("a", 0, 0, units(10, 10))))
    clock.now_ms += HOUR_MS - 1
    statistics.put(batch_of(("a", 0, 2, units(10))))
    windows = statistics.view("TOPIC_PUT_NUMS", "a")
    assert windows is not None
    assert [each.count for each in windows] == [1, 3, 3]
    for _ in range(3):
        statistics.put(batch_of(("a", 0, 3, units(*[10] * 3_000))))
    assert statistics.total(USER_PUT) == 9_003


def test_the_quiet_begins_with_the_last_message_of_a_slot_and_new_leadership() -> None:
    clock = Clock()
    statistics = BrokerStatistics("C", clock)
    clock.now_ms += 2 * SLOT_MS
    statistics.put(batch_of(("a", 0, 0, units(10))))
    clock.now_ms += SLOT_MS - 1
    statistics.put(batch_of(("a", 0, 1, units(10))))
    assert statistics.quiet_ms() == 0, "not since the first one of the slot"
    clock.now_ms += 5
    statistics.put(
        batch_of(("rmq_sys_LEDGERMQ_STATE", 0, 0, units(9)), ("SCHEDULE_TOPIC_XXXX", 2, 0, units(5)))
    )
    clock.now_ms += SLOT_MS
    assert statistics.quiet_ms() >= SLOT_MS
    statistics.begin()
    assert statistics.quiet_ms() == 0


def test_answers_count_in_the_slot_in_which_they_came() -> None:
    clock = Clock()
    statistics = BrokerStatistics("C", clock)
    for _ in range(2):
        statistics.got("a", "g", 0, 5, 50, 3)
    clock.now_ms += HOUR_MS - 1
    statistics.got("a", "g", 0, 1, 10, 7)
    windows = statistics.view("GROUP_GET_NUMS", "a@g")
    assert windows is not None
    assert [(each.count, each.calls) for each in windows] == [(1, 1), (11, 3), (11, 3)]
    for queue_id in range(2 * GATHERED_MAX):
        statistics.got("a", "g", queue_id, 1, 10, 1)
    assert len(statistics._gathered_gets) <= GATHERED_MAX + 1
    assert statistics.total(USER_GET) == 11 + 2 * GATHERED_MAX


def test_messages_that_come_one_by_one_are_counted_alike() -> None:
    statistics = BrokerStatistics("C", Clock())
    requests = [DispatchRequest(i, "a", 0, i, i * 1000, 100 + i, 0, 0, 0) for i in range(3)]
    statistics.put(DispatchBatch.of(requests))
    windows = statistics.view("TOPIC_PUT_SIZE", "a")
    assert windows is not None
    assert (windows[0].count, windows[0].bytes) == (3, 303)


def test_gets_send_backs_and_acknowledgements_have_their_keys() -> None:
    clock = Clock()
    statistics = BrokerStatistics("C", clock)
    statistics.got("t", "g", 3, 32, 6_400, 4)
    statistics.got("t", "g", 3, 8, 1_600, 2)
    statistics.sent_back("t", "g", is_dead=False)
    statistics.sent_back("t", "g", is_dead=True)
    statistics.acked("t", "g", 5)
    sums = {}
    for name, key in (
        ("GROUP_GET_NUMS", "t@g"),
        ("GROUP_GET_SIZE", "t@g"),
        ("GROUP_GET_LATENCY", "3@t@g"),
        ("SNDBCK_PUT_NUMS", "t@g"),
        ("DLQ_PUT_NUMS", "t@g"),
        ("GROUP_ACK_NUMS", "t@g"),
        ("BROKER_GET_NUMS", "C"),
        ("BROKER_ACK_NUMS", "C"),
    ):
        windows = statistics.view(name, key)
        assert windows is not None, name
        sums[name] = windows[1].bytes if STATS[name][1] else windows[1].count
    assert sums == {
        "GROUP_GET_NUMS": 40,
        "GROUP_GET_SIZE": 8_000,
        "GROUP_GET_LATENCY": 6,
        "SNDBCK_PUT_NUMS": 2,
        "DLQ_PUT_NUMS": 1,
        "GROUP_ACK_NUMS": 5,
        "BROKER_GET_NUMS": 40,
        "BROKER_ACK_NUMS": 5,
    }
    clock.now_ms += 20_000
    assert statistics.tps(GROUP_GET, "t@g") == 2.0
    assert statistics.tps(GROUP_GET, "t@other") == 0.0
    assert statistics.view("NO_SUCH_STATS", "t@g") is None


def test_the_table_is_bounded_and_idle_counters_make_room() -> None:
    clock = Clock()
    statistics = BrokerStatistics("C", clock, items_max=2)
    for topic in ("a", "b", "c"):
        statistics.put(batch_of((topic, 0, 0, units(10))))
    assert len(statistics) == 2
    assert statistics.view("TOPIC_PUT_NUMS", "c") is None
    assert statistics.total(USER_PUT) == 3, "the broker's own figures miss nothing"
    clock.now_ms += 25 * HOUR_MS
    statistics.put(batch_of(("b", 0, 1, units(10))))
    statistics.put(batch_of(("d", 0, 0, units(10))))
    assert statistics.view("TOPIC_PUT_NUMS", "d") is not None
    assert statistics.view("TOPIC_PUT_NUMS", "a") is None
    assert statistics.view("TOPIC_PUT_NUMS", "b") is not None


def test_a_topic_that_is_gone_is_forgotten_with_all_its_groups() -> None:
    statistics = BrokerStatistics("C", Clock())
    for topic in ("a", "b"):
        statistics.put(batch_of((topic, 0, 0, units(10))))
        statistics.got(topic, "g", 0, 1, 10, 0)
    statistics.keep_topics({"b"})
    assert len(statistics) == 3
    assert statistics.tps(TOPIC_PUT, "a") == 0.0
    assert statistics.view("GROUP_GET_LATENCY", "0@a@g") is None
    assert statistics.view("GROUP_GET_LATENCY", "0@b@g") is not None


def test_totals_of_the_mornings_move_with_the_days() -> None:
    clock = Clock()
    totals = (0, 0)
    days = DayTotals(lambda: totals, clock)
    totals = (10, 4)
    days.check_day()
    assert days.today_morning == (0, 0)
    clock.now_ms += 24 * HOUR_MS
    days.check_day()
    assert (days.yesterday_morning, days.today_morning) == ((0, 0), (10, 4))
    totals = (30, 5)
    clock.now_ms += 24 * HOUR_MS
    days.check_day()
    assert (days.yesterday_morning, days.today_morning) == ((10, 4), (30, 5))
