"""The pull consumer against brokers in memory: where it reads, how far it reads ahead, and what it stores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledgermq.client import (
    AtTime,
    ClosedError,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    RefusedError,
    Sql,
    TopicNotFoundError,
    Where,
    WrongSubscriptionError,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from tests.support.polling import loop_turns, until
from tests.unit.ledgermq.client.fake_cluster import close_connection
from tests.unit.ledgermq.client.fake_queues import GROUP, TOPIC, FakeGroup

QUEUE = MessageQueue(TOPIC, "broker-a", 0)
OTHER = MessageQueue(TOPIC, "broker-a", 1)


@asynccontextmanager
async def pulling(group: FakeGroup, **options: Any) -> AsyncIterator[PullConsumer]:
    async with group.running(), PullConsumer(group.namesrv, group=GROUP, **options) as consumer:
        yield consumer


def filled(count: int, queues: int = 1) -> FakeGroup:
    group = FakeGroup(queues=queues)
    for queue_id in range(queues):
        for number in range(count):
            group.broker.put(b"%d" % number, queue_id)
    return group


async def next_bodies(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        async for message in consumer:
            found.append(message.body)
            if len(found) == count:
                return found
    raise AssertionError


async def test_queues_are_those_of_the_route_in_the_order_of_java() -> None:
    group = FakeGroup("b", "a", queues=2)
    async with pulling(group) as consumer:
        found = await consumer.queues(TOPIC)
        with pytest.raises(TopicNotFoundError):
            await consumer.queues("unknown")
    assert found == [MessageQueue(TOPIC, name, number) for name in "ab" for number in (0, 1)]


async def test_an_assigned_queue_is_read_from_the_groups_offset_or_from_start_at() -> None:
    group = filled(4, queues=2)
    group.broker.offsets[GROUP, TOPIC, 0] = 2
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        assert await next_bodies(consumer, 2) == [b"2", b"3"]
        await consumer.assign([OTHER])
        assert await next_bodies(consumer, 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("to", "body"), [(2, b"2"), (Where.BEGINNING, b"0"), (Where.END, b"new"), (AtTime(3000), b"3")]
)
async def test_seek_to_an_offset_the_beginning_the_end_and_a_time(to: Any, body: bytes) -> None:
    group = filled(4)
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        await next_bodies(consumer, 1)
        consumer.seek(QUEUE, to)
        await until(lambda: consumer.position(QUEUE) is not None)
        group.broker.put(b"new")
        assert await next_bodies(consumer, 1) == [body]
        with pytest.raises(WrongSubscriptionError, match="not assigned"):
            consumer.seek(OTHER, 0)


async def test_commit_stores_the_positions_of_what_was_taken_and_not_of_what_was_pulled() -> None:
    group = filled(10)
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        await next_bodies(consumer, 3)
        assert consumer.position(QUEUE) == 3
        await consumer.commit()
        assert (group.broker.stored(), await consumer.committed(QUEUE)) == (3, 3)
    assert group.broker.stored() == 3


async def test_read_to_end_stops_at_what_was_the_newest_message() -> None:
    group = filled(40, queues=2)
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE, OTHER])
        found: list[ReceivedMessage] = []
        async for message in consumer.read_to_end():
            if not found:
                group.broker.put(b"later", 0)
            found.append(message)
        assert len(found) == 80
        offsets = [each.queue_offset for each in found if each.queue == QUEUE]
        assert offsets == list(range(40))
        assert consumer.position(QUEUE) == 40
        assert await next_bodies(consumer, 1) == [b"later"]
        assert [each async for each in consumer.read_to_end()] == []


async def test_read_to_end_of_messages_that_are_not_wanted_ends_too() -> None:
    group = FakeGroup(queues=1)
    for number in range(40):
        group.broker.put(b"%d" % number, TAGS="a" if number < 2 else "b")
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE], "a")
        assert [each.body async for each in consumer.read_to_end()] == [b"0", b"1"]
        assert consumer.position(QUEUE) == 40


async def test_poll_returns_what_there_is_and_nothing_after_its_time() -> None:
    group = filled(5)
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        assert [each.body for each in await consumer.poll(3, timeout_s=20)] == [b"0", b"1", b"2"]
        assert [each.body for each in await consumer.poll(timeout_s=20)] == [b"3", b"4"]
        assert await consumer.poll(timeout_s=0.01) == []
        polling = asyncio.create_task(consumer.poll(timeout_s=20))
        await loop_turns()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        group.broker.put(b"5")
        assert [each.body for each in await consumer.poll(timeout_s=20)] == [b"5"]


async def test_queues_are_read_in_turn() -> None:
    group = filled(64, queues=2)
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE, OTHER])
        await until(lambda: len(group.broker.of(RequestCode.PULL_MESSAGE)) == 6)
        await loop_turns()
        found = [{each.queue for each in await consumer.poll(32, timeout_s=20)} for _ in range(4)]
    assert found in ([{QUEUE}, {OTHER}] * 2, [{OTHER}, {QUEUE}] * 2)


async def test_a_queue_that_fails_costs_no_message_of_another() -> None:
    group = filled(2, queues=2)
    group.broker.script(RequestCode.PULL_MESSAGE, (int(ResponseCode.NO_PERMISSION), "not readable"))
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE, OTHER])
        await until(lambda: len(group.broker.of(RequestCode.PULL_MESSAGE)) == 3)
        await loop_turns()
        outcomes: list[object] = []
        for _ in range(2):
            try:
                outcomes.append([each.body for each in await consumer.poll(timeout_s=20)])
            except RefusedError:
                outcomes.append("refused")
    assert outcomes in ([[b"0", b"1"], "refused"], ["refused", [b"0", b"1"]])


async def test_no_more_is_pulled_ahead_than_the_limits_allow() -> None:
    group = filled(100)
    async with pulling(group, ahead_messages_max=40) as consumer:
        await consumer.assign([QUEUE])
        await until(lambda: len(group.broker.of(RequestCode.PULL_MESSAGE)) == 2)
        await loop_turns()
        assert len(group.broker.of(RequestCode.PULL_MESSAGE)) == 2
        assert len(await next_bodies(consumer, 100)) == 100
    bytes_of = filled(100)
    async with pulling(bytes_of, ahead_bytes_max=1) as consumer:
        await consumer.assign([QUEUE])
        await until(lambda: len(bytes_of.broker.of(RequestCode.PULL_MESSAGE)) == 1)
        await loop_turns()
        assert len(bytes_of.broker.of(RequestCode.PULL_MESSAGE)) == 1
        assert len(await next_bodies(consumer, 100)) == 100


async def test_a_dropped_queue_frees_the_room_that_its_messages_took() -> None:
    group = filled(32, queues=2)
    async with pulling(group, ahead_messages_max=32) as consumer:
        await consumer.assign([QUEUE])
        await until(lambda: len(group.broker.of(RequestCode.PULL_MESSAGE)) == 1)
        await consumer.assign([OTHER])
        assert len(await next_bodies(consumer, 32)) == 32


async def test_reading_goes_on_after_failures_that_pass() -> None:
    group = filled(2)
    group.broker.script(
        RequestCode.PULL_MESSAGE, close_connection, (int(ResponseCode.SERVICE_NOT_AVAILABLE), "election")
    )
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        assert await next_bodies(consumer, 2) == [b"0", b"1"]


async def test_a_refusal_that_does_not_pass_is_raised_until_the_queue_is_sought() -> None:
    group = filled(1)
    group.broker.script(RequestCode.PULL_MESSAGE, (int(ResponseCode.NO_PERMISSION), "not readable"))
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        for _ in range(2):
            with pytest.raises(RefusedError, match="not readable"):
                await consumer.poll(timeout_s=20)
        consumer.seek(QUEUE, 0)
        assert await next_bodies(consumer, 1) == [b"0"]


async def test_an_expression_that_brokers_do_not_evaluate_is_refused() -> None:
    group = filled(1)
    group.broker.script(RequestCode.CHECK_CLIENT_CONFIG, (int(ResponseCode.SUBSCRIPTION_PARSE_FAILED), "no"))
    async with pulling(group) as consumer:
        with pytest.raises(RefusedError, match="no"):
            await consumer.assign([QUEUE], Sql("a >"))


async def test_an_offset_that_was_set_is_followed() -> None:
    group = filled(4)

    def moved(request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = {"nextBeginOffset": "1", "minOffset": "0"}
        return RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, ext_fields=ext)

    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        await next_bodies(consumer, 4)
        group.broker.script(RequestCode.PULL_MESSAGE, moved)
        group.broker.put(b"4")
        await until(lambda: consumer.position(QUEUE) == 1)
        assert await next_bodies(consumer, 4) == [b"1", b"2", b"3", b"4"]


async def test_offsets_of_times_and_bounds() -> None:
    group = filled(4)
    group.broker.firsts[TOPIC, 0] = 1
    async with pulling(group) as consumer:
        assert await consumer.offset_at(QUEUE, 1500) == 2
        assert await consumer.bounds(QUEUE) == (1, 4)
        assert await consumer.committed(QUEUE) is None


async def test_a_closed_consumer_wakes_those_that_wait_and_leaves_no_task() -> None:
    group = filled(0)
    async with group.running():
        consumer = PullConsumer(group.namesrv, group=GROUP)
        with pytest.raises(ClosedError, match="not started"):
            await consumer.queues(TOPIC)
        await consumer.start()
        await consumer.assign([QUEUE])
        waiting = asyncio.create_task(next_bodies(consumer, 1))
        await until(lambda: group.broker.of(RequestCode.PULL_MESSAGE))
        await consumer.close()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await consumer.poll()
    assert group.broker.clients == {}
    assert group.broker.stored() is None


async def test_while_a_broker_has_no_leader_its_other_nodes_are_read() -> None:
    group = filled(2)
    group.broker.offsets[GROUP, TOPIC, 0] = 0
    async with pulling(group) as consumer:
        await consumer.assign([QUEUE])
        assert len(await next_bodies(consumer, 2)) == 2
        group.has_leaders = False
        group.broker.script(RequestCode.PULL_MESSAGE, close_connection)
        group.broker.put(b"2")
        assert await next_bodies(consumer, 1) == [b"2"]
        group.broker.put(b"3")
        assert await next_bodies(consumer, 1) == [b"3"]
