"""Timer messages come once, when they are due, in order; recalled ones do not."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.state.changes import DeleteTopic, PutTopic
from broker.state.topics import TopicConfig
from broker.timer import delivery
from broker.timer.admission import TimerRules
from broker.timer.delivery import BATCH_MESSAGES_MAX
from broker.timer.feature import timer_feature
from broker.timer.records import ALL_KEPT
from broker.timer.scheduling import TIMER_TOPIC
from commitlog.errors import DamagedRecordError
from commitlog.log import PutStatus
from commitlog.record import Message, parse_properties
from remoting.codes import ResponseCode
from tests.support.broker_parts import NOW_MS, make_parts
from tests.support.fake_log import FakeLog
from tests.support.send_bench import send_request
from tests.support.timer_bench import HOUR, SECOND, TimerBench, make_timer_bench
from tests.unit.broker.consume_bench import ignore

FAR = 3 * 24 * HOUR


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TimerBench]:
    bench = await make_timer_bench(tmp_path)
    yield bench
    await bench.stop()


async def test_a_message_comes_when_it_is_due_and_not_before(bench: TimerBench) -> None:
    await bench.send(b"one", TIMER_DELIVER_MS=NOW_MS + 5_001)
    assert bench.timer_ms == 6 * SECOND
    assert await bench.at(5_999) == []
    assert await bench.at(6_000) == [b"one"]
    assert bench.waiting == 0
    assert await bench.at(FAR) == []


async def test_a_shorter_precision_is_kept(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path, timerPrecisionMs=100)
    await bench.send(b"one", TIMER_DELAY_MS=350)
    assert await bench.at(399) == []
    assert await bench.at(400) == [b"one"]
    await bench.stop()


async def test_messages_come_in_the_order_of_their_times(bench: TimerBench) -> None:
    for seconds in (9, 3, 6, 3, 1):
        await bench.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    assert await bench.at(3 * SECOND) == [b"1", b"3", b"3"]
    await bench.send(b"2", TIMER_DELIVER_MS=NOW_MS + 3_100)
    assert await bench.at(20 * SECOND) == [b"2", b"6", b"9"]


async def test_a_delivered_message_is_as_it_was_sent_but_for_its_properties(bench: TimerBench) -> None:
    await bench.send(b"one", TIMER_DELAY_SEC=2, KEYS="k", TAGS="a")
    await bench.at(2 * SECOND)
    (message,) = bench.messages
    assert (message.topic, message.queue_id, message.born_timestamp_ms) == ("t", 2, NOW_MS)
    assert message.store_host == bench.parts.store_host
    assert parse_properties(message.properties) == {
        "UNIQ_KEY": "K1",
        "KEYS": "k",
        "TAGS": "a",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "TIMER_DELAY_SEC": "2",
        "TIMER_OUT_MS": str(NOW_MS + SECOND),
        "REAL_TOPIC": "t",
        "REAL_QID": "2",
        "TIMER_ENQUEUE_MS": str(NOW_MS),
        "TIMER_DEQUEUE_MS": str(NOW_MS + 2 * SECOND),
    }


async def test_the_timer_fires_by_itself(bench: TimerBench) -> None:
    await bench.send(b"one", TIMER_DELAY_SEC=1)
    bench.now_ms = NOW_MS + SECOND
    bench.delivery._timer.fire()
    await bench.settle()
    assert bench.delivered == [b"one"]
    assert (bench.journal.placed, bench.journal.delivered) == (1, 1)


async def test_more_than_a_batch_comes_whole_and_in_order(bench: TimerBench) -> None:
    bodies = [b"%04d" % number for number in range(2 * BATCH_MESSAGES_MAX + 3)]
    for body in bodies:
        await bench.send(body, TIMER_DELAY_SEC=1)
    assert await bench.at(SECOND) == bodies
    sizes = [len(each.delivered) for each in bench.deliveries]
    assert sizes == [BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX, 3]
    assert [each.kept for each in bench.deliveries] == [ALL_KEPT, BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX]


async def test_nothing_is_put_before_the_last_put_is_read(bench: TimerBench) -> None:
    for number in range(BATCH_MESSAGES_MAX + 1):
        await bench.send(b"%d" % number, TIMER_DELAY_SEC=1)
    bench.log.auto_commit = False
    assert len(await bench.at(SECOND)) == BATCH_MESSAGES_MAX
    assert await bench.at(2 * SECOND) == []
    bench.log.commit()
    await bench.settle()
    assert len(bench.delivered) == BATCH_MESSAGES_MAX + 1


async def test_a_put_that_a_majority_does_not_have_in_time_is_not_put_again(bench: TimerBench) -> None:
    await bench.send(b"one", TIMER_DELAY_SEC=1)
    bench.log.auto_commit = False
    await bench.at(SECOND)
    bench.log.time_out()
    assert await bench.at(9 * SECOND) == []
    bench.log.commit()
    await bench.settle()
    assert bench.delivered == [b"one"]
    assert bench.waiting == 0


async def test_a_put_that_failed_is_put_again(bench: TimerBench) -> None:
    await bench.send(b"one", TIMER_DELAY_SEC=1)
    bench.log.auto_commit = False
    await bench.at(SECOND)
    bench.log.put_calls.pop()
    bench.log.fail(PutStatus.UNKNOWN_ERROR)
    bench.log.auto_commit = True
    assert await bench.at(2 * SECOND) == [b"one"]


@pytest.mark.parametrize("status", [PutStatus.OS_PAGE_CACHE_BUSY, PutStatus.SERVICE_NOT_AVAILABLE])
async def test_a_log_that_takes_nothing_is_asked_again(bench: TimerBench, status: PutStatus) -> None:
    for number in range(8):
        await bench.send(b"%d" % number, TIMER_DELAY_SEC=1)
    bench.log.next_status = status
    assert await bench.at(SECOND) == []
    assert bench.timer_ms == SECOND + 200
    bench.log.next_status = PutStatus.PUT_OK
    assert await bench.at(SECOND + 200) == [b"%d" % number for number in range(8)]


async def test_a_message_that_cannot_be_stored_is_dropped_alone(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"a", b"bad", b"c"):
        await bench.send(body, TIMER_DELAY_SEC=1)
    put = bench.log.put

    def picky(messages, on_done, deleted=()):  # type: ignore[no-untyped-def]
        bench.log.next_status = PutStatus.PUT_OK
        if any(message.body == b"bad" for message in messages):
            bench.log.next_status = PutStatus.MESSAGE_ILLEGAL
        return put(messages, on_done, deleted)

    monkeypatch.setattr(bench.log, "put", picky)
    with caplog.at_level(logging.ERROR):
        found = [body for step in range(5) for body in await bench.at(SECOND + 200 * step)]
    assert found == [b"a", b"c"]
    assert "illegal; dropped" in caplog.text
    assert bench.waiting == 0


async def test_a_message_whose_topic_is_gone_is_dropped(
    bench: TimerBench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.send(b"one", TIMER_DELAY_SEC=1)
    await bench.parts.state.propose(DeleteTopic("t"))
    with caplog.at_level(logging.WARNING):
        assert await bench.at(SECOND) == []
    assert "1 timer messages dropped" in caplog.text
    assert bench.waiting == 0


async def test_a_message_for_a_far_time_is_written_again(tmp_path: Path) -> None:
    """Old files are deleted after fileReservedTime."""
    bench = await make_timer_bench(tmp_path, timerMaxDelaySec=30 * 86_400, fileReservedTime=48)
    await bench.send(b"far", TIMER_DELAY_SEC=60 * 3_600)
    assert await bench.at(24 * HOUR) == []
    assert await bench.at(25 * HOUR) == []
    assert bench.waiting == 1
    assert await bench.at(50 * HOUR) == []
    waiting = [
        message for message in bench.log.messages if message.topic == TIMER_TOPIC and message.body == b"far"
    ]
    assert [parse_properties(each.properties).get("TIMER_ROLL_TIMES") for each in waiting] == [None, "1", "2"]
    assert await bench.at(60 * HOUR - 1) == []
    assert await bench.at(60 * HOUR) == [b"far"]
    await bench.stop()


async def test_a_follower_delivers_nothing(bench: TimerBench) -> None:
    await bench.send(b"one", TIMER_DELAY_SEC=1)
    bench.log.set_writable(False)
    assert await bench.at(SECOND) == []
    bench.log.set_writable(True)
    assert await bench.at(SECOND) == [b"one"]


# -- recalls


@pytest.fixture
async def recaller(tmp_path: Path) -> AsyncIterator[TimerBench]:
    bench = await make_timer_bench(tmp_path, recallMessageEnable=True)
    yield bench
    await bench.stop()


async def test_a_recalled_message_does_not_come(recaller: TimerBench) -> None:
    answers = [await recaller.send(body, TIMER_DELAY_SEC=5) for body in (b"a", b"b", b"c")]
    handle = answers[1].ext_fields["recallHandle"]
    assert await recaller.recall(handle) == ResponseCode.SUCCESS
    assert recaller.waiting == 2
    assert await recaller.recall(handle) == ResponseCode.ILLEGAL_OPERATION
    assert await recaller.at(5 * SECOND) == [b"a", b"c"]
    assert await recaller.recall(handle) == ResponseCode.ILLEGAL_OPERATION


async def test_a_recall_holds_for_the_next_leader(recaller: TimerBench, tmp_path: Path) -> None:
    answer = await recaller.send(b"a", TIMER_DELAY_SEC=5)
    assert await recaller.recall(answer.ext_fields["recallHandle"]) == ResponseCode.SUCCESS
    new = await recaller.next_leader(tmp_path=tmp_path / "other")
    assert new.waiting == 0
    assert await new.at(9 * SECOND) == []
    await new.stop()


async def test_a_message_that_was_rolled_can_be_recalled(tmp_path: Path) -> None:
    values = {"recallMessageEnable": True, "timerMaxDelaySec": 30 * 86_400}
    bench = await make_timer_bench(tmp_path, **values)
    answers = [await bench.send(body, TIMER_DELAY_SEC=10 * 86_400) for body in (b"a", b"b")]
    assert await bench.recall(answers[0].ext_fields["recallHandle"]) == ResponseCode.SUCCESS
    await bench.at(60 * HOUR)
    assert await bench.recall(answers[1].ext_fields["recallHandle"]) == ResponseCode.SUCCESS
    assert bench.waiting == 0
    await bench.stop()


async def test_a_recall_sent_as_a_message_is_carried_out_when_its_time_comes(bench: TimerBench) -> None:
    await bench.send(b"a", TIMER_DELIVER_MS=NOW_MS + 5_000)
    await bench.send(b"b", TIMER_DELIVER_MS=NOW_MS + 5_000)
    await bench.send(b"0", TIMER_DELIVER_MS=NOW_MS + 4_500, TIMER_DEL_UNIQKEY="t+K1")
    await bench.send(b"0", TIMER_DELIVER_MS=NOW_MS + 5_000, TIMER_DEL_UNIQKEY="other+K2")
    assert await bench.at(5 * SECOND) == [b"b"]
    assert bench.waiting == 0


async def test_recalls_are_off_unless_they_are_wanted(bench: TimerBench) -> None:
    answer = await bench.send(TIMER_DELAY_SEC=5)
    assert await bench.recall(answer.ext_fields["recallHandle"]) == ResponseCode.NO_PERMISSION


async def test_recalls_that_mean_nothing_here_are_refused(recaller: TimerBench) -> None:
    handle = (await recaller.send(TIMER_DELAY_SEC=5)).ext_fields["recallHandle"]
    assert await recaller.recall(handle, topic="none") == ResponseCode.TOPIC_NOT_EXIST
    assert await recaller.recall(handle, topic="TBW102") == ResponseCode.ILLEGAL_OPERATION
    assert await recaller.recall("x") == ResponseCode.ILLEGAL_OPERATION
    await recaller.at(20 * SECOND)
    assert await recaller.recall(handle) == ResponseCode.ILLEGAL_OPERATION
    recaller.log.set_writable(False)
    assert await recaller.recall(handle) == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_recalls_wait_for_the_put_before_them(recaller: TimerBench) -> None:
    answers = [await recaller.send(body, TIMER_DELAY_SEC=seconds) for body, seconds in ((b"a", 1), (b"b", 9))]
    recaller.log.auto_commit = False
    await recaller.at(SECOND)
    asked = asyncio.ensure_future(recaller.recall(answers[1].ext_fields["recallHandle"]))
    for _ in range(3):
        recaller.log.commit()
        await asyncio.sleep(0)
    recaller.log.auto_commit = True
    recaller.log.commit()
    for _ in range(20):
        recaller.log.commit()
        await asyncio.sleep(0)
    assert await asked == ResponseCode.SUCCESS


async def test_a_disk_that_fails_once_loses_no_message_where_nobody_else_has_it(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.send(b"hello", TIMER_DELAY_SEC=10)
    read, failures = bench.log.read, [DamagedRecordError("once")]

    def read_or_fail(position: int, size: int) -> bytes:
        if failures:
            raise failures.pop()
        return read(position, size)

    monkeypatch.setattr(bench.log, "read", read_or_fail)
    assert await bench.at(11 * SECOND) == [b"hello"]
    assert failures == []


# -- clocks


async def test_what_a_clock_that_was_ahead_delayed_is_due_when_it_is_set_back(bench: TimerBench) -> None:
    await bench.send(b"before", TIMER_DELAY_SEC=10)
    await bench.at(HOUR - 20 * SECOND)
    assert bench.delivered == [b"before"]
    bench.now_ms = bench.log.now_ms = NOW_MS + HOUR
    await bench.send(b"delayed", TIMER_DELAY_SEC=10)
    await bench.send(b"timed", TIMER_DELIVER_MS=NOW_MS + HOUR + 5 * SECOND)
    assert await bench.at(5 * SECOND) == [b"delayed"]
    assert await bench.at(HOUR) == []
    assert await bench.at(HOUR + 5 * SECOND) == [b"timed"]
    assert bench.waiting == 0


async def test_what_was_under_way_when_the_clock_was_set_back_is_due_as_well(bench: TimerBench) -> None:
    bench.now_ms = bench.log.now_ms = NOW_MS + HOUR
    await bench.send(b"first", TIMER_DELAY_SEC=10)
    bench.log.auto_commit = False
    properties = "UNIQ_KEY\x01K\x02TIMER_DELAY_SEC\x0110\x02"
    bench.put(send_request("t", b"under way", 1, properties=properties, queue_id=2))
    bench.now_ms = bench.log.now_ms = NOW_MS
    bench.delivery.deliver_due()
    bench.log.auto_commit = True
    bench.log.commit()
    await bench.settle()
    assert bench.delivered == [b"first", b"under way"]
    bench.sender.take_answers()
    await bench.send(b"since", TIMER_DELAY_SEC=10)
    assert await bench.at(5 * SECOND) == []
    assert await bench.at(11 * SECOND) == [b"since"]


async def test_a_message_stored_since_does_not_hide_what_a_clock_that_was_ahead_delayed(
    bench: TimerBench,
) -> None:
    bench.now_ms = bench.log.now_ms = NOW_MS + HOUR
    await bench.send(b"delayed", TIMER_DELAY_SEC=10)
    bench.now_ms = bench.log.now_ms = NOW_MS
    await bench.send(b"since", TIMER_DELAY_SEC=10)
    assert bench.delivered == [b"delayed"]
    assert await bench.at(11 * SECOND) == [b"since"]


async def test_a_clock_that_was_ahead_between_two_checks_is_noticed_by_what_it_stored(
    bench: TimerBench,
) -> None:
    await bench.send(b"before", TIMER_DELAY_SEC=60)
    bench.log.auto_commit = False
    bench.now_ms = bench.log.now_ms = NOW_MS + HOUR
    properties = "UNIQ_KEY\x01K\x02TIMER_DELAY_SEC\x0110\x02"
    bench.put(send_request("t", b"delayed", 1, properties=properties, queue_id=2))
    bench.now_ms = bench.log.now_ms = NOW_MS
    bench.log.auto_commit = True
    bench.log.commit()
    await bench.settle()
    assert bench.delivered == [b"delayed"]


async def test_a_new_leader_searches_a_part_of_the_queue_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "CHECKED_AT_ONCE", 2)
    monkeypatch.setattr(delivery, "RECORDS_MAX", 9)
    bench = await make_timer_bench(tmp_path)
    bench.now_ms = bench.log.now_ms = NOW_MS + HOUR
    for body in (b"beyond", b"a", b"b"):
        await bench.send(body, TIMER_DELAY_SEC=10)
    await bench.delivery.stop()
    bench.log.now_ms = bench.now_ms = NOW_MS
    for _ in range(7):
        await bench.send(b"right", TIMER_DELAY_SEC=10)
    bench = await bench.next_leader()
    assert bench.delivered == [b"a", b"b"]
    await bench.stop()


async def test_a_new_leader_sees_that_the_old_ones_clock_was_ahead(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path)
    bench.now_ms = bench.log.now_ms = NOW_MS + HOUR
    for body in (b"a", b"b"):
        await bench.send(body, TIMER_DELAY_SEC=10)
    bench.now_ms = NOW_MS
    bench = await bench.next_leader()
    assert bench.delivered == [b"a", b"b"]
    await bench.stop()


async def test_small_differences_of_clocks_are_borne(bench: TimerBench) -> None:
    bench.now_ms = bench.log.now_ms = NOW_MS + 50 * SECOND
    await bench.send(b"a", TIMER_DELAY_SEC=10)
    assert await bench.at(0) == []
    assert await bench.at(60 * SECOND) == [b"a"]


# -- figures


async def test_runtime_info_tells_of_what_waits(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, log := FakeLog())
    now_ms = NOW_MS
    parts.clock = lambda: now_ms
    feature, _ = timer_feature(parts.core)
    parts.add(feature)
    (read,) = parts.features.runtime_figures
    assert set(read().values()) == {"0", "0.00"}
    await parts.state.propose(PutTopic(TopicConfig("t", 4, 4)))
    for service in parts.features.services:
        await service.start()
    rules = TimerRules(parts.config, parts.clock)
    for seconds in (1, 9):
        message = Message("t", 0, b"", b"")
        waiting = rules.waiting(message, {"TIMER_DELAY_SEC": str(seconds)})
        assert waiting is not None
        log.put([waiting], ignore)
    for _ in range(40):
        await asyncio.sleep(0)
    figures = read()
    assert float(figures.pop("timerEnqueueTps")) > 0
    assert figures == {
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "2",
        "timerDequeueTps": "0.00",
    }
    now_ms += 4 * SECOND
    assert read()["timerReadBehind"] == "3"
    for service in reversed(parts.features.services):
        await service.stop()
    assert read()["timerReadBehind"] == "0"


async def test_a_recall_waits_for_what_was_acknowledged_before_it(recaller: TimerBench) -> None:
    """The followers have it on their disks, and the leader itself does not yet."""
    answer = await recaller.send(b"a", TIMER_DELAY_SEC=5)
    recaller.log.auto_commit = False
    recaller.parts.end_position = lambda: recaller.log._end_position
    recaller.log.put([Message("other", 0, b"", b"")], ignore)
    recaller.ask_to_recall(answer.ext_fields["recallHandle"])
    await recaller.settle()
    assert (recaller.deliveries, recaller.sender.take_answers()) == ([], [])
    recaller.log.auto_commit = True
    recaller.log.commit()
    await recaller.settle()
    (reply,) = recaller.sender.take_answers()
    assert reply.code == ResponseCode.SUCCESS
