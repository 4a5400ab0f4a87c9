"""Delayed messages come when they are due, in order, and go on with a new leader."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from broker.state.changes import PutTopic, SetDelayOffset
from broker.state.topics import TopicConfig
from broker.timer.delay import BATCH_MESSAGES_MAX
from broker.timer.feature import make_delays
from broker.timer.scheduling import SCHEDULE_TOPIC, to_scheduled
from commitlog.log import PutResult, PutStatus
from commitlog.log_machine import RETRY_MS
from commitlog.record import Message, format_properties, parse_properties
from tests.support.broker_parts import NOW_MS, BrokerParts, make_parts
from tests.support.fake_log import FakeLog
from tests.unit.broker.consume_bench import ignore

SECOND = 1_000


class DelayBench:
    """A delay service whose clock and timer are the test's: `at` moves the clock and lets the timer fire."""

    def __init__(self, parts: BrokerParts, log: FakeLog) -> None:
        self.parts = parts
        self.log = log
        self.now_ms = NOW_MS
        parts.clock = lambda: self.now_ms
        self.delivery = make_delays(parts.core)

    async def settle(self) -> None:
        for _ in range(24):
            await asyncio.sleep(0)

    async def put(self, *bodies: bytes, level: int = 1, topic: str = "t") -> None:
        """Delayed messages, stored now."""
        self.log.now_ms = self.now_ms
        properties = format_properties({"UNIQ_KEY": "K1", "TAGS": "a"})
        messages = [
            to_scheduled(Message(topic, 3, body, properties, flag=5, sys_flag=1, reconsume_times=2), level)
            for body in bodies
        ]
        self.log.put(messages, ignore)
        await self.settle()

    async def at(self, offset_ms: int) -> list[bytes]:
        """Bodies delivered when it is so many ms after the start."""
        self.now_ms = NOW_MS + offset_ms
        self.log.now_ms = self.now_ms
        before = len(self.delivered)
        self.delivery._timer.fire()
        await self.settle()
        return [message.body for message in self.delivered[before:]]

    @property
    def delivered(self) -> list[Message]:
        return [message for message in self.log.messages if message.topic == "t"]

    @property
    def timer_ms(self) -> int | None:
        """When the timer fires, after the start."""
        due_ms = self.delivery._timer.due_ms
        return None if due_ms is None else due_ms - NOW_MS


async def make_delay_bench(tmp_path: Path) -> DelayBench:
    bench = DelayBench(make_parts(tmp_path, log := FakeLog()), log)
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 4, 4)))
    await bench.delivery.start()
    await bench.at(0)
    return bench


@pytest.fixture
async def bench(tmp_path: Path) -> DelayBench:
    return await make_delay_bench(tmp_path)


async def test_a_message_comes_when_its_level_is_over_and_not_before(bench: DelayBench) -> None:
    await bench.put(b"one", level=2)
    assert bench.timer_ms == 5 * SECOND
    assert await bench.at(5 * SECOND - 1) == []
    assert await bench.at(5 * SECOND) == [b"one"]
    assert await bench.at(60 * SECOND) == []


async def test_a_delivered_message_is_as_it_was_sent_but_for_its_properties(bench: DelayBench) -> None:
    await bench.put(b"one")
    await bench.at(SECOND)
    (message,) = bench.delivered
    assert (message.topic, message.queue_id, message.flag, message.sys_flag) == ("t", 3, 5, 1)
    assert message.reconsume_times == 2
    assert message.store_host == bench.parts.store_host
    assert parse_properties(message.properties) == {
        "UNIQ_KEY": "K1",
        "TAGS": "a",
        "DELAY": "1",
        "REAL_TOPIC": "t",
        "REAL_QID": "3",
    }


async def test_levels_are_apart_and_the_timer_waits_for_the_earliest(bench: DelayBench) -> None:
    await bench.put(b"late", level=3)
    assert bench.timer_ms == 10 * SECOND
    await bench.put(b"early", level=1)
    assert bench.timer_ms == SECOND
    assert await bench.at(SECOND) == [b"early"]
    assert bench.timer_ms == 10 * SECOND
    assert await bench.at(10 * SECOND) == [b"late"]
    assert bench.timer_ms is None


async def test_what_is_due_of_a_level_is_one_put_and_one_step_of_progress(bench: DelayBench) -> None:
    await bench.put(*[b"%d" % n for n in range(40)])
    bench.now_ms += 100
    await bench.put(b"later")
    calls = len(bench.log.put_calls)
    assert len(await bench.at(SECOND)) == 40
    assert len(bench.log.put_calls) == calls + 2
    assert bench.parts.state.delay_offsets == {1: 40}
    assert await bench.at(SECOND + 100) == [b"later"]
    assert bench.parts.state.delay_offsets == {1: 41}


async def test_a_long_queue_comes_in_several_batches_in_order(bench: DelayBench) -> None:
    bodies = [b"%d" % n for n in range(BATCH_MESSAGES_MAX + 10)]
    await bench.put(*bodies)
    calls = len(bench.log.put_calls)
    assert await bench.at(SECOND) == bodies
    puts = [len(call) for call in bench.log.put_calls[calls:] if call[0].topic == "t"]
    assert puts == [BATCH_MESSAGES_MAX, 10]


async def test_progress_is_made_only_when_the_put_is_committed(bench: DelayBench) -> None:
    await bench.put(b"one")
    bench.log.auto_commit = False
    await bench.at(SECOND)
    assert bench.parts.state.delay_offsets == {}
    assert await bench.at(2 * SECOND) == []
    bench.log.commit()
    await bench.settle()
    bench.log.commit()
    assert bench.parts.state.delay_offsets == {1: 1}


async def test_messages_that_arrive_while_a_batch_is_put_are_not_forgotten(bench: DelayBench) -> None:
    await bench.put(b"one")
    bench.log.auto_commit = False
    await bench.at(SECOND)
    await bench.put(b"two")
    bench.log.commit()
    bench.log.auto_commit = True
    await bench.settle()
    assert bench.timer_ms == 2 * SECOND
    assert await bench.at(2 * SECOND) == [b"two"]


@pytest.mark.parametrize("status", [PutStatus.OS_PAGE_CACHE_BUSY, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH])
async def test_a_refused_put_is_tried_again(bench: DelayBench, status: PutStatus) -> None:
    await bench.put(b"one")
    bench.log.next_status = status
    assert await bench.at(SECOND) == []
    assert bench.timer_ms == SECOND + RETRY_MS
    bench.log.next_status = PutStatus.PUT_OK
    assert await bench.at(SECOND + RETRY_MS) == [b"one"]


async def test_a_put_that_fails_later_is_tried_again(bench: DelayBench) -> None:
    await bench.put(b"one")
    bench.log.auto_commit = False
    await bench.at(SECOND)
    bench.log.fail(PutStatus.UNKNOWN_ERROR)
    bench.log.auto_commit = True
    assert bench.parts.state.delay_offsets == {}
    assert await bench.at(SECOND + RETRY_MS) == [b"one"]


async def test_an_illegal_message_is_found_and_does_not_stop_the_others(
    bench: DelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.put(b"one", b"bad", b"three")
    put = bench.log.put

    def refuse_bad(messages: list[Message], on_done: object, deleted: list[str] | None = None) -> object:
        assert not deleted
        if any(message.body == b"bad" for message in messages):
            status, bench.log.next_status = bench.log.next_status, PutStatus.MESSAGE_ILLEGAL
            result = put(messages, on_done)  # type: ignore[arg-type]
            bench.log.next_status = status
            return result
        return put(messages, on_done)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.log, "put", refuse_bad)
    for _ in range(6):
        await bench.at(SECOND)
    assert [message.body for message in bench.delivered] == [b"one", b"three"]
    assert bench.parts.state.delay_offsets == {1: 3}


async def test_messages_whose_topic_is_gone_or_that_cannot_be_read_are_passed_over(
    bench: DelayBench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.put(b"gone", topic="absent")
    await bench.put(b"unreadable", b"good")
    (_, unreadable, _) = bench.log.fake_queues.by_key[SCHEDULE_TOPIC, 0].rows
    del bench.log._records[unreadable[0]]
    assert await bench.at(SECOND) == [b"good"]
    assert bench.parts.state.delay_offsets == {1: 3}
    assert "2 messages dropped" in caplog.text


async def test_retention_that_took_waiting_messages_does_not_stop_the_level(bench: DelayBench) -> None:
    await bench.put(b"one", b"two", b"three")
    bench.log.fake_queues.by_key[SCHEDULE_TOPIC, 0].drop_before(2)
    assert await bench.at(SECOND) == [b"three"]
    assert bench.parts.state.delay_offsets == {1: 3}


async def test_a_message_from_the_far_future_is_due_now(bench: DelayBench) -> None:
    bench.now_ms = NOW_MS + 3_600 * SECOND
    await bench.put(b"one", level=2)
    assert await bench.at(0) == [b"one"]


async def test_a_clock_a_little_behind_does_not_shorten_the_delay(bench: DelayBench) -> None:
    bench.now_ms = NOW_MS + 500
    await bench.put(b"one", level=2)
    assert await bench.at(0) == []
    assert await bench.at(5 * SECOND + 500) == [b"one"]


async def test_a_follower_delivers_nothing_until_it_leads(bench: DelayBench) -> None:
    await bench.put(b"one")
    bench.log.set_writable(False)
    assert bench.timer_ms is None
    bench.log.set_writable(True)
    assert await bench.at(SECOND) == [b"one"]


async def test_a_batch_of_an_earlier_leadership_moves_nothing(bench: DelayBench) -> None:
    await bench.put(b"one")
    bench.log.auto_commit = False
    await bench.at(SECOND)
    bench.log.set_writable(False)
    bench.log.set_writable(True)
    bench.log.fail(PutStatus.UNKNOWN_ERROR)
    bench.log.auto_commit = True
    assert await bench.at(SECOND) == [b"one"]


async def test_a_new_leader_goes_on_where_the_old_one_stopped(tmp_path: Path) -> None:
    old = await make_delay_bench(tmp_path / "old")
    await old.put(b"one", b"two")
    await old.parts.state.propose(SetDelayOffset(1, 1))
    await old.delivery.stop()
    assert old.timer_ms is None

    log = old.log.reopened()
    new = DelayBench(make_parts(tmp_path / "new", log), log)
    await log.start()
    await new.delivery.start()
    assert await new.at(SECOND) == [b"two"]
    assert new.parts.state.delay_offsets == {1: 2}


class BusyLog(FakeLog):
    """Takes so many messages at a time."""

    room = 1_000

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        if len(messages) > self.room:
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY, [], [], 0)
        return super().put(messages, on_done, deleted_topics)


async def test_what_is_due_fits_into_the_log_s_bound_of_waiting_messages(tmp_path: Path) -> None:
    log = BusyLog()
    bench = DelayBench(make_parts(tmp_path, log, maxPendingRequestsNum=3), log)
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 4, 4)))
    await bench.delivery.start()
    await bench.put(*(b"%d" % number for number in range(7)))
    log.room = 3
    for _ in range(7):
        await bench.at(SECOND)
    assert [message.body for message in bench.delivered] == [b"%d" % number for number in range(7)]


async def test_a_log_that_others_keep_busy_gets_smaller_batches(tmp_path: Path) -> None:
    log = BusyLog()
    bench = DelayBench(make_parts(tmp_path, log), log)
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 4, 4)))
    await bench.delivery.start()
    await bench.put(*(b"%d" % number for number in range(300)))
    log.room = 80
    for step in range(20):
        await bench.at(SECOND + step * RETRY_MS)
    assert [message.body for message in bench.delivered] == [b"%d" % number for number in range(300)]


async def test_a_batch_whose_majority_is_late_is_not_put_again(bench: DelayBench) -> None:
    """It is in the log, before its progress: both are committed, or the next leader delivers it."""
    await bench.put(b"one")
    bench.log.auto_commit = False
    assert await bench.at(SECOND) == [b"one"]
    bench.log.time_out()
    assert await bench.at(SECOND + RETRY_MS) == []
    bench.log.commit()
    await bench.settle()
    assert await bench.at(60 * SECOND) == []
    assert bench.parts.state.delay_offsets[1] == 1


async def test_a_log_that_stays_closed_is_told_of_once(
    bench: DelayBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await bench.put(b"one")
    bench.log.next_status = PutStatus.SERVICE_NOT_AVAILABLE
    for step in range(5):
        await bench.at(SECOND + step * RETRY_MS)
    assert len(caplog.messages) == 1
    bench.log.next_status = PutStatus.PUT_OK
    assert await bench.at(10 * SECOND) == [b"one"]
