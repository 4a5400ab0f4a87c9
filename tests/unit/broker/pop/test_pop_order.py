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


def counted(messages: list[PoppedMessage]) -> list[tuple[bytes, int]]:
    """Each with how often it was handed out before."""
    return [(message.body, message.count) for message in messages]


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


async def test_after_its_time_the_whole_batch_comes_again_with_its_counts(bench: PopBench) -> None:
    first, second = await pop(bench)
    await bench.ack(second)
    bench.at(INVISIBLE_MS + 1)
    again = await pop(bench, maxMsgNums=3)
    assert counted(again) == [(b"a", 1), (b"b", 1), (b"c", 0)]
    assert await bench.ack(first) == ResponseCode.NO_MESSAGE
    assert await bench.ack(second) == ResponseCode.NO_MESSAGE
    for message in again:
        assert await bench.ack(message) == 0
    assert bodies(await pop(bench)) == [b"d"]
    assert bench.stored("%RETRY%g_t") == []


async def test_all_but_the_first_acknowledged_each_time(bench: PopBench) -> None:
    """RocketMQ's e2e case testFIFO_simple_receive_multi_nack: of three the first is never acknowledged."""
    await bench.put(*[b"%d" % number for number in range(16)])
    for turn in range(4):
        bench.at(turn * (INVISIBLE_MS + 1))
        messages = await pop(bench, maxMsgNums=3, attemptId=f"attempt {turn}")
        assert counted(messages) == [(b"a", turn), (b"b", turn), (b"c", turn)]
        for message in messages[1:]:
            assert await bench.ack(message) == 0
            assert await pop(bench, maxMsgNums=3, attemptId="another") == []
        assert bench.floor() == 0


async def test_only_the_first_acknowledged_each_time(bench: PopBench) -> None:
    """RocketMQ's e2e case testFIFO_simple_receive_multi_only_ack_first: a place is free for one more."""
    got = []
    for turn in range(3):
        bench.at(turn * (INVISIBLE_MS + 1))
        messages = await pop(bench, maxMsgNums=2)
        got.append(counted(messages))
        assert await bench.ack(messages[0]) == 0
    assert got == [[(b"a", 0), (b"b", 0)], [(b"b", 1), (b"c", 0)], [(b"c", 1), (b"d", 0)]]


async def test_what_was_acknowledged_counts_in_its_own_batch_only(bench: PopBench) -> None:
    messages = await pop(bench, maxMsgNums=4)
    for message in messages[1:]:
        await bench.ack(message)
    bench.at(INVISIBLE_MS + 1)
    (only,) = await pop(bench, maxMsgNums=1)
    assert counted([only]) == [(b"a", 1)]
    await bench.ack(only)
    assert bench.floor() == 1
    assert counted(await pop(bench, maxMsgNums=4)) == [(b"b", 0), (b"c", 0), (b"d", 0)]


async def test_the_same_attempt_gets_what_is_missing_and_all_behind_it(bench: PopBench) -> None:
    first, second, third = await pop(bench, maxMsgNums=3, attemptId="x")
    await bench.ack(first)
    await bench.ack(third)
    bench.at(SECOND)
    again = await pop(bench, maxMsgNums=3, attemptId="x")
    assert counted(again) == [(b"b", 0), (b"c", 0), (b"d", 0)]
    assert await bench.ack(second) == ResponseCode.NO_MESSAGE
    assert await bench.ack(first) == 0


async def test_a_batch_comes_again_when_the_last_of_its_times_is_over(bench: PopBench) -> None:
    first, second, third = await pop(bench, maxMsgNums=3)
    await bench.ack(second)
    assert (await bench.change(second, 0)).code == ResponseCode.NO_MESSAGE
    bench.at(SECOND)
    changed = await bench.change(third, 2 * INVISIBLE_MS)
    assert changed.ext_fields["popTime"] == third.handle.split(" ")[1]
    assert int(changed.ext_fields["invisibleTime"]) == 2 * INVISIBLE_MS + SECOND
    assert (await bench.change(first, 0)).code == 0
    bench.at(2 * INVISIBLE_MS)
    assert await pop(bench) == []
    bench.at(2 * INVISIBLE_MS + SECOND)
    assert counted(await pop(bench, maxMsgNums=3)) == [(b"a", 1), (b"b", 1), (b"c", 1)]


async def test_a_batch_whose_time_is_over_is_not_counted_beside_itself(tmp_path: Path) -> None:
    bench = await make_pop_bench(tmp_path, popInflightMessageThreshold=2, popInflightTotal=2)
    await bench.put(b"a", b"b", b"c")
    await pop(bench)
    for turn in range(1, 3):
        bench.at(turn * (INVISIBLE_MS + 1))
        assert counted(await pop(bench, maxMsgNums=3)) == [(b"a", turn), (b"b", turn)]
    await bench.stop()


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


async def test_a_notification_tells_the_same_attempt_what_its_pop_would_get(bench: PopBench) -> None:
    await pop(bench, maxMsgNums=32, attemptId="x")

    async def has_message(attempt: str) -> str:
        asked = {"consumerGroup": "g", "topic": "t", "queueId": 0, "pollTime": 0, "order": "true"}
        request = bench.request(RequestCode.NOTIFICATION, b"", **asked, attemptId=attempt)
        return (await bench.ask(request)).ext_fields["hasMsg"]

    assert (await has_message("x"), await has_message("y")) == ("true", "false")


async def test_other_queues_are_not_blocked(bench: PopBench) -> None:
    await bench.put(b"other", queue_id=1)
    await pop(bench)
    assert bodies(await pop(bench, queueId=-1)) == [b"other"]


async def test_a_wall_clock_that_is_set_back_does_not_keep_the_queue(bench: PopBench) -> None:
    """Found by a simulated seed: a message was given up while the clock was 50 minutes ahead."""
    first, second = await pop(bench)
    bench.wall_step_ms = 50 * 60 * SECOND
    assert (await bench.change(first, 200)).code == 0
    assert await bench.ack(second) == 0
    bench.wall_step_ms = 0
    assert await pop(bench) == []
    bench.at(200)
    assert bodies(await pop(bench)) == [b"a", b"b"]


async def test_a_wall_clock_that_is_set_ahead_does_not_free_the_queue(bench: PopBench) -> None:
    await pop(bench)
    bench.wall_step_ms = 50 * 60 * SECOND
    assert await pop(bench) == []
    bench.at(INVISIBLE_MS)
    assert bodies(await pop(bench)) == [b"a", b"b"]


async def test_a_handle_is_readable_after_the_wall_clock_was_set_back(bench: PopBench) -> None:
    first, second = await pop(bench)
    bench.wall_step_ms = -50 * 60 * SECOND
    changed = await bench.change(first, SECOND)
    assert int(changed.ext_fields["invisibleTime"]) == SECOND
    assert await bench.ack(second) == 0


@pytest.mark.parametrize("by_snapshot", [False, True])
async def test_a_next_leader_keeps_the_queue_for_no_longer_than_was_asked(
    bench: PopBench, *, by_snapshot: bool
) -> None:
    (first,) = await pop(bench, maxMsgNums=1)
    bench.wall_step_ms = 50 * 60 * SECOND
    await bench.change(first, 2 * INVISIBLE_MS)
    if by_snapshot:
        bench.ledger.snapshot()
    new = await bench.next_leader()  # whose clock is right
    new.at(2 * INVISIBLE_MS - 1)
    assert await pop(new) == []
    new.at(2 * INVISIBLE_MS)
    assert bodies(await pop(new)) == [b"a", b"b"]
    await new.stop()
