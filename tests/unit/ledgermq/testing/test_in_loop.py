"""A broker on the test's own loop: what is due after so much time happens when the clock is moved."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from ledgermq.errors import UserError
from ledgermq.testing import InProcessBroker, in_process
from ledgermq.testing.in_loop import MovedClock
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.pop import PopMessageRequestHeader
from tests.unit.ledgermq.testing.messages import Messages

DAY_S = 86_400


@pytest.fixture
async def broker() -> AsyncIterator[InProcessBroker]:
    async with in_process(settings={"transactionTimeOut": 6_000}) as running:
        yield running


@pytest.fixture
async def messages(broker: InProcessBroker) -> AsyncIterator[Messages]:
    async with Messages(broker.namesrv, "orders") as client:
        await client.send(b"first")
        yield client


# -- the clock


async def test_the_loops_time_and_both_clocks_are_moved_together() -> None:
    loop = asyncio.get_running_loop()
    clock = MovedClock.of(loop)
    before = loop.time(), clock.monotonic_ms(), clock.wall_clock_ms()
    clock.move(DAY_S)
    after = loop.time(), clock.monotonic_ms(), clock.wall_clock_ms()
    assert after[0] - before[0] >= DAY_S
    assert all(late - early >= DAY_S * 1_000 for late, early in zip(after[1:], before[1:], strict=True))
    assert abs(clock.wall_clock_ms() / 1_000 - DAY_S - time.time()) < 3_600


async def test_timers_fire_in_their_order_when_the_clock_has_moved() -> None:
    loop, fired = asyncio.get_running_loop(), list[str]()
    clock = MovedClock.of(loop)
    loop.call_later(20, fired.append, "later")
    loop.call_later(10, fired.append, "sooner")
    loop.call_later(DAY_S, fired.append, "not yet")
    clock.move(60)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fired == ["sooner", "later"]


async def test_a_loop_has_one_clock_which_never_goes_back() -> None:
    loop = asyncio.get_running_loop()
    MovedClock.of(loop).move(100)
    moved_s = loop.time()
    assert MovedClock.of(loop) is MovedClock.of(loop)
    assert loop.time() >= moved_s


def test_the_time_of_other_loops_cannot_be_moved() -> None:
    loop = uvloop.new_event_loop()
    try:
        with pytest.raises(UserError, match="cannot be moved"):
            MovedClock.of(loop)
    finally:
        loop.close()


async def test_time_does_not_go_back(broker: InProcessBroker) -> None:
    with pytest.raises(ValueError, match="ahead only"):
        await broker.advance(-1)


# -- the broker


async def test_a_message_is_there_at_once(messages: Messages) -> None:
    assert await messages.read() == [b"first"]


async def test_a_delay_level_is_over_when_the_clock_says_so(
    broker: InProcessBroker, messages: Messages
) -> None:
    await messages.send(b"in 30 s", DELAY="4")
    await broker.advance(29)
    assert await messages.read() == [b"first"]
    await broker.advance(1.5)
    assert await messages.read() == [b"first", b"in 30 s"]


async def test_a_timer_of_three_hours_needs_no_three_hours(
    broker: InProcessBroker, messages: Messages
) -> None:
    await messages.send(b"in three hours", TIMER_DELAY_SEC=str(DAY_S // 8))
    await broker.advance(DAY_S / 8 - 10)
    assert await messages.read() == [b"first"]
    await broker.advance(15)
    assert await messages.read() == [b"first", b"in three hours"]


async def test_an_absolute_time_is_of_the_brokers_clock(broker: InProcessBroker, messages: Messages) -> None:
    await broker.advance(3_600)
    await messages.send(b"in 60 s", TIMER_DELIVER_MS=str(broker.now_ms() + 60_000))
    await broker.advance(50)
    assert await messages.read() == [b"first"]
    await broker.advance(15)
    assert await messages.read() == [b"first", b"in 60 s"]


async def test_a_held_pull_gets_what_comes_while_time_is_moved(
    broker: InProcessBroker, messages: Messages
) -> None:
    await messages.send(b"in 10 s", DELAY="3")
    held = messages.held(offset=1, limit_s=20)
    await broker.advance(12)
    assert [record.body for record in await held] == [b"in 10 s"]


async def test_a_held_pull_ends_at_its_limit_before_its_client_gives_up(
    broker: InProcessBroker, messages: Messages
) -> None:
    held = messages.held(offset=1, limit_s=20)
    await broker.advance(60)
    assert held.done()
    assert await held == []


async def test_an_unacknowledged_message_comes_back_after_its_invisible_time(
    broker: InProcessBroker, messages: Messages
) -> None:
    assert await pop(messages) == ResponseCode.SUCCESS
    await broker.advance(50)
    assert await pop(messages) != ResponseCode.SUCCESS
    await broker.advance(15)
    assert await pop(messages) == ResponseCode.SUCCESS


async def pop(messages: Messages) -> int:
    """The code of the answer to a pop with an invisible time of 60 s, which is not held."""
    header = PopMessageRequestHeader(
        consumer_group="poppers",
        topic=messages.topic,
        queue_id=-1,
        max_msg_nums=1,
        invisible_time_ms=60_000,
    )
    request = RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=header.ext_fields())
    return (await messages.client.invoke(await messages.leader(), request)).code


async def test_nodes_and_clients_stay_connected_however_far_time_is_moved(
    broker: InProcessBroker, messages: Messages
) -> None:
    address = await messages.leader()
    connection = await messages.client.connect(address)
    await broker.advance(DAY_S / 24)
    assert await messages.leader() == address, "the name server has not dropped the broker"
    await messages.send(b"second")
    assert await messages.read() == [b"first", b"second"]
    assert not connection.is_open or await messages.client.connect(address) is connection


async def test_a_broker_on_a_path_has_its_messages_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with in_process(tmp_path) as broker, Messages(broker.namesrv, "kept") as messages:
            await messages.send(b"one more")
    async with in_process(tmp_path) as broker, Messages(broker.namesrv, "kept") as messages:
        assert await messages.read() == [b"one more"] * 2


async def test_two_brokers_share_a_loop() -> None:
    async with (
        in_process() as one,
        in_process() as other,
        Messages(one.namesrv, "t") as first,
        Messages(other.namesrv, "t") as second,
    ):
        await first.send(b"one")
        await second.send(b"other")
        assert (await first.read(), await second.read()) == ([b"one"], [b"other"])


async def test_a_broker_that_failed_ends_the_wait(broker: InProcessBroker) -> None:
    broker._node.broker.failure.set_result(OSError("the disk is gone"))
    with pytest.raises(UserError, match="the disk is gone"):
        await broker.advance(1)
