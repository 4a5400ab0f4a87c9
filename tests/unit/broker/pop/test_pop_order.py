"""FIFO pops: a queue gives nothing more until what is out of it was acknowledged, or its time is over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remoting.codes import RequestCode, ResponseCode
from tests.support.pop_bench import INVISIBLE_MS, SECOND, PopBench, PoppedMessage, make_pop_bench, messages_of


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PopBench]:
    made = await make_pop_bench(tmp_path)
    await made.put(b"a", b"b", b"c", b"d")
    yield made
    await made.stop()


async def pop(bench: PopBench, **fields: object) -> list[PoppedMessage]:
    return await bench.pop(**({"order": "true", "queueId": 0, "maxMsgNums": 2} | fields))


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def test_the_queue_is_blocked_until_all_is_acknowledged(bench: PopBench) -> None:
    first, second = await pop(bench)
    assert first.handle.split(" ")[3] == "999"
    assert await pop(bench) == []
    assert await bench.ack(second) == 0
    assert await pop(bench) == []
    assert bench.floor() == 0
    assert await bench.ack(first) == 0
    assert bench.floor() == 2
    assert bodies(await pop(bench)) == [b"c", b"d"]


async def test_after_its_time_the_same_comes_again_with_its_count(bench: PopBench) -> None:
    first, second = await pop(bench)
    await bench.ack(second)
    bench.at(INVISIBLE_MS + 1)
    (again, new) = await pop(bench, maxMsgNums=3)
    assert (again.body, again.count, new.body, new.count) == (b"a", 1, b"c", 0)
    assert await bench.ack(first) == ResponseCode.NO_MESSAGE
    assert await bench.ack(again) == 0
    assert await bench.ack(new) == 0
    assert bodies(await pop(bench)) == [b"d"]
    assert bench.stored("%RETRY%g_t") == []


async def test_what_was_acknowledged_out_of_turn_does_not_come_again(bench: PopBench) -> None:
    messages = await pop(bench, maxMsgNums=4)
    for message in messages[1:]:
        await bench.ack(message)
    bench.at(INVISIBLE_MS + 1)
    (only,) = await pop(bench, maxMsgNums=1)
    assert only.body == b"a"
    await bench.ack(only)
    assert await pop(bench) == []
    assert bench.floor() == 4


async def test_the_same_attempt_gets_the_same_again(bench: PopBench) -> None:
    first = await pop(bench, attemptId="x")
    bench.at(SECOND)
    second = await pop(bench, attemptId="x")
    assert bodies(second) == bodies(first)
    assert [message.count for message in second] == [0, 0]
    assert await pop(bench, attemptId="y") == []


async def test_a_message_given_up_frees_the_queue_for_who_waits(bench: PopBench) -> None:
    first, second = await pop(bench)
    waiting = bench.pop_request(order="true", queueId=0, maxMsgNums=2, pollTime=60_000)
    bench.start(waiting)
    await bench.settle()
    await bench.ack(first)
    bench.start(bench.change_request(second, 0))
    await bench.settle()
    answers = {answer.opaque: answer for answer in bench.connection.take_answers()}
    held = answers.pop(waiting.opaque)
    assert bodies(messages_of(held)) == [b"b", b"c"]
    (changed,) = answers.values()
    assert changed.code == 0
    assert changed.ext_fields["popTime"] == second.handle.split(" ")[1]


async def test_who_waits_gets_the_next_when_the_last_is_acknowledged(bench: PopBench) -> None:
    first, second = await pop(bench)
    waiting = bench.pop_request(order="true", queueId=-1, pollTime=60_000)
    bench.start(waiting)
    await bench.settle()
    bench.start(bench.ack_request(first), bench.ack_request(second))
    await bench.settle()
    answers = bench.connection.take_answers()
    (held,) = [answer for answer in answers if answer.opaque == waiting.opaque]
    assert bodies(messages_of(held)) == [b"c", b"d"]


async def test_an_acknowledgement_said_twice_is_one(bench: PopBench) -> None:
    first, second = await pop(bench)
    assert await bench.ack(first) == 0
    assert await bench.ack(first) == 0
    assert await bench.ack(second) == 0
    assert await bench.ack(second) == 0


async def test_a_notification_waits_for_the_block_to_end(bench: PopBench) -> None:
    await bench.put(b"e")
    await pop(bench, maxMsgNums=32)
    await bench.put(b"f")
    request = bench.request(
        RequestCode.NOTIFICATION, consumerGroup="g", topic="t", queueId=0, pollTime=0, order="true"
    )
    assert (await bench.ask(request)).ext_fields["hasMsg"] == "false"
    bench.at(INVISIBLE_MS + 1)
    request = bench.request(
        RequestCode.NOTIFICATION, consumerGroup="g", topic="t", queueId=0, pollTime=0, order="true"
    )
    assert (await bench.ask(request)).ext_fields["hasMsg"] == "true"


async def test_other_queues_are_not_blocked(bench: PopBench) -> None:
    await bench.put(b"other", queue_id=1)
    await pop(bench)
    assert bodies(await pop(bench, queueId=-1)) == [b"other"]
