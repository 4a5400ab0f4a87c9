"""Which sends wait, until when, and which are refused: as by RocketMQ with its timer wheel."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.timer.scheduling import TIMER_TOPIC
from commitlog.record import Message, parse_properties
from remoting.codes import RequestCode, ResponseCode
from remoting.recall_handle import HandleError, RecallHandle, decode_handle, encode_handle
from tests.support.broker_parts import NOW_MS
from tests.support.send_bench import send_request
from tests.support.timer_bench import HOUR, SECOND, TimerBench, make_timer_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TimerBench]:
    bench = await make_timer_bench(tmp_path)
    yield bench
    await bench.stop()


def stored(bench: TimerBench) -> list[Message]:
    return [message for message in bench.log.messages if message.topic == TIMER_TOPIC]


@pytest.mark.parametrize(
    ("asked", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": 10}, 9 * SECOND),
        ({"TIMER_DELAY_MS": 10_001}, 10 * SECOND),
        ({"TIMER_DELAY_MS": 1}, 0),
        ({"TIMER_DELIVER_MS": NOW_MS + 5_500}, 5 * SECOND),
        ({"TIMER_DELAY_SEC": 3 * 86_400}, 3 * 24 * HOUR - SECOND),
        ({"TIMER_DELAY_SEC": 2, "TIMER_DELAY_MS": 9_000, "TIMER_DELIVER_MS": 1}, SECOND),
        ({"TIMER_DELAY_MS": 9_000, "TIMER_DELIVER_MS": NOW_MS + 1}, 8 * SECOND),
    ],
)
async def test_a_timed_message_waits_in_the_timer_topic(
    bench: TimerBench, asked: dict[str, object], out_ms: int
) -> None:
    answer = await bench.send(**asked)
    assert answer.code == 0
    (message,) = stored(bench)
    properties = parse_properties(message.properties)
    assert (message.queue_id, properties["REAL_TOPIC"], properties["REAL_QID"]) == (0, "t", "2")
    assert properties["TIMER_OUT_MS"] == str(NOW_MS + out_ms)
    assert properties.items() >= {name: str(value) for name, value in asked.items()}.items()
    assert answer.ext_fields["queueId"] == "2"
    handle = decode_handle(answer.ext_fields["recallHandle"])
    assert handle == RecallHandle("t", "broker-a", NOW_MS + out_ms + 1, "K1")


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_MS": 0},
        {"TIMER_DELAY_SEC": -5},
        {"TIMER_DELIVER_MS": NOW_MS},
        {"TIMER_DELIVER_MS": 0},
        {"TIMER_DELAY_SEC": 10, "TIMER_OUT_MS": 1},
        {"TIMER_DEQUEUE_MS": 5},
        {"KEYS": "TIMER_DELAY_SEC"},
    ],
)
async def test_a_time_that_is_over_or_was_waited_for_is_no_reason_to_wait(
    bench: TimerBench, asked: dict[str, object]
) -> None:
    answer = await bench.send(b"now", **asked)
    assert answer.code == 0
    assert "recallHandle" not in answer.ext_fields
    assert bench.delivered == [b"now"]
    assert stored(bench) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": 3 * 86_400 + 1},
        {"TIMER_DELIVER_MS": NOW_MS + 3 * 24 * HOUR + 1},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELAY_MS": "9" * 19},
        {"TIMER_DELAY_MS": "9" * 5_000},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELIVER_MS": NOW_MS, "TIMER_DEL_UNIQKEY": "t+K"},
        {"TIMER_DELAY_SEC": 9, "KEYS": "x" * 32_600},
    ],
)
async def test_a_time_that_cannot_be_kept_is_refused(bench: TimerBench, asked: dict[str, object]) -> None:
    answer = await bench.send(**asked)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.log.messages[1:] == []


async def test_a_delay_level_rules_over_a_time(bench: TimerBench) -> None:
    await bench.send(DELAY=2, TIMER_DELAY_SEC=100, TIMER_DELIVER_MS=5)
    message = bench.log.messages[-1]
    assert (message.topic, message.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert not [name for name in parse_properties(message.properties) if name.startswith("TIMER_")]


async def test_a_broker_with_its_timers_off_refuses(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path, timerWheelEnable=False)
    answer = await bench.send(TIMER_DELAY_SEC=9)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "timerWheelEnable" in (answer.remark or "")
    assert (await bench.send(b"plain")).code == 0
    await bench.stop()


async def test_no_more_wait_than_are_to(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path, timerPendingMax=2)
    codes = [(await bench.send(TIMER_DELAY_SEC=9 + number)).code for number in range(3)]
    assert codes == [0, 0, ResponseCode.SYSTEM_ERROR]
    await bench.at(30 * SECOND)
    assert (await bench.send(TIMER_DELAY_SEC=9)).code == 0
    await bench.stop()


async def test_no_more_wait_for_one_time_than_are_to(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path, timerCongestNumEachSlot=2)
    codes = [(await bench.send(TIMER_DELIVER_MS=NOW_MS + 9_100 + number)).code for number in range(3)]
    assert codes == [0, 0, ResponseCode.SYSTEM_ERROR]
    assert (await bench.send(TIMER_DELIVER_MS=NOW_MS + 8_000)).code == 0
    bench = await bench.next_leader(timerCongestNumEachSlot=2)
    assert (await bench.send(TIMER_DELIVER_MS=NOW_MS + 9_200)).code == ResponseCode.SYSTEM_ERROR
    await bench.stop()


async def test_no_client_writes_into_the_timer_topic(bench: TimerBench) -> None:
    answer = await bench.answer(send_request(TIMER_TOPIC))
    assert answer.code == ResponseCode.NO_PERMISSION


def batch_of(properties: bytes) -> bytes:
    body = b"b"
    fixed = (20 + len(body) + 2 + len(properties)).to_bytes(4, "big") + bytes(12)
    return fixed + len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties


async def test_a_batch_does_not_wait(bench: TimerBench) -> None:
    for head, inner, code in (
        ("TIMER_DELAY_SEC\x019\x02", b"KEYS\x01k\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("", b"TIMER_DELAY_SEC\x019\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("", b"KEYS\x01TIMER_DELAY_SEC\x02", 0),
    ):
        request = send_request("t", batch_of(inner), 1, properties=head, is_batch=True)
        request.code = RequestCode.SEND_BATCH_MESSAGE
        assert (await bench.answer(request)).code == code


@pytest.mark.parametrize(
    "text", ["", "=", "x", "%%%", "djIgdCBiIDEgaw==", "djEgdCBiIDE=", "v1 t b 1 k", "\u00e9", "A" * 5_000]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(HandleError):
        decode_handle(text)


def test_a_handle_says_what_was_put_in() -> None:
    handle = encode_handle("t", "b", 7, "K")
    assert handle == "djEgdCBiIDggSw=="
    assert decode_handle(handle) == decode_handle(handle.rstrip("=")) == RecallHandle("t", "b", 8, "K")
