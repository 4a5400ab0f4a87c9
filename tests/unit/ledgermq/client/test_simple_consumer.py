"""The simple consumer against brokers in memory: what it receives, how it waits, and what is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledgermq.client import (
    AccessDeniedError,
    ClosedError,
    MessagingError,
    ReceiptExpiredError,
    ReceivedMessage,
    SimpleConsumer,
    UnreadableError,
    Where,
    WrongSubscriptionError,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from tests.support.polling import until
from tests.unit.ledgermq.client.fake_cluster import close_connection
from tests.unit.ledgermq.client.fake_queues import GROUP, TOPIC, FakeGroup
from tests.unit.ledgermq.client.test_consumer_rules import message


@asynccontextmanager
async def receiving(group: FakeGroup, **options: Any) -> AsyncIterator[SimpleConsumer]:
    options.setdefault("topics", TOPIC)
    async with group.running(), SimpleConsumer(group.namesrv, group=GROUP, **options) as consumer:
        yield consumer


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [each.body for each in messages]


async def test_messages_are_received_and_acknowledged_each_by_itself() -> None:
    group = FakeGroup(queues=2)
    for number in range(3):
        group.broker.put(b"%d" % number, number % 2)
    async with receiving(group) as consumer:
        found = await consumer.receive(2, invisible_s=30)
        assert len(found) == 2
        found += await consumer.receive()
        for message in found:
            assert message.topic == TOPIC
            await consumer.ack(message)
        assert await consumer.receive(wait_s=0) == []
    assert sorted(group.broker.acked) == [(TOPIC, 0, 0), (TOPIC, 0, 1), (TOPIC, 1, 0)]
    pop = group.broker.of(RequestCode.POP_MESSAGE)[0].ext_fields
    wanted = {"maxMsgNums": "2", "invisibleTime": "30000", "pollTime": "0", "queueId": "-1", "initMode": "0"}
    assert wanted.items() <= pop.items()


async def test_a_group_may_begin_at_the_end_and_in_order() -> None:
    group = FakeGroup()
    async with receiving(group, consume_from=Where.END, ordered=True) as consumer:
        await consumer.receive(wait_s=0)
    pop = group.broker.of(RequestCode.POP_MESSAGE)[0].ext_fields
    assert (pop["initMode"], pop["order"]) == ("1", "true")


async def test_receive_waits_for_a_notice_of_any_topic_and_broker() -> None:
    group = FakeGroup("a", "b", queues=1)
    group.topics["payments"] = 1
    async with receiving(group, topics=[TOPIC, "payments"]) as consumer:
        waiting = asyncio.create_task(consumer.receive(wait_s=20))
        await until(
            lambda: sum(len(each.of(RequestCode.NOTIFICATION)) for each in group.brokers.values()) == 4
        )
        group.brokers["b"].put(b"m", topic="payments")
        assert bodies(await waiting) == [b"m"]
    assert len(group.brokers["a"].of(RequestCode.POP_MESSAGE)) <= 4


async def test_places_are_asked_in_turn_so_that_none_starves() -> None:
    group = FakeGroup("a", "b", queues=1)
    for name, broker in group.brokers.items():
        for number in range(4):
            broker.put(f"{name}{number}".encode())
    async with receiving(group) as consumer:
        found = [(await consumer.receive(2))[0].queue.broker_name for _ in range(4)]
    assert sorted(found[:2]) == sorted(found[2:]) == ["a", "b"]


async def test_a_place_that_fails_does_not_keep_the_others_back() -> None:
    group = FakeGroup("a", "b", queues=1)
    group.brokers["b"].put(b"m")
    group.brokers["a"].script(RequestCode.POP_MESSAGE, *[(int(ResponseCode.NO_PERMISSION), "no")] * 4)
    async with receiving(group) as consumer:
        assert bodies(await consumer.receive()) == [b"m"]


async def test_where_all_places_refuse_their_refusal_is_raised() -> None:
    group = FakeGroup()
    group.broker.script(RequestCode.POP_MESSAGE, (int(ResponseCode.NO_PERMISSION), "no"))
    async with receiving(group) as consumer:
        with pytest.raises(AccessDeniedError, match="no"):
            await consumer.receive()


async def test_a_message_that_a_cancelled_caller_does_not_get_is_given_back() -> None:
    group, pops = FakeGroup(queues=1), asyncio.Event()
    release = asyncio.Event()
    group.broker.put(b"m")

    async def late(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        pops.set()
        await release.wait()
        return group.broker._pop(request)

    group.broker.script(RequestCode.POP_MESSAGE, late)
    async with receiving(group) as consumer:
        receiving_one = asyncio.create_task(consumer.receive())
        await pops.wait()
        receiving_one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving_one
        release.set()
        await until(lambda: group.broker.given_back)
    assert group.broker.given_back == [(0, 1_000)]
    assert group.broker.acked == []


async def test_cancelling_a_wait_takes_nothing() -> None:
    group = FakeGroup(queues=1)
    async with receiving(group) as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await until(lambda: group.broker.of(RequestCode.NOTIFICATION))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        group.broker.put(b"m")
        assert bodies(await consumer.receive()) == [b"m"]
    assert group.broker.given_back == []


async def test_a_changed_invisible_time_gives_the_message_a_new_receipt() -> None:
    group = FakeGroup(queues=1)
    group.broker.put(b"m")
    async with receiving(group) as consumer:
        (message,) = await consumer.receive()
        await consumer.change_invisible(message, 5)
        await consumer.change_invisible(message, 0)
        await consumer.ack(message)
    assert group.broker.given_back == [(0, 5_000), (0, 1)]
    (ack,) = group.broker.of(RequestCode.ACK_MESSAGE)
    assert ack.ext_fields["extraInfo"].startswith("0 1800000000000 1 0 0 broker-a 0 0 ")


async def test_an_acknowledgement_after_its_time_is_an_error() -> None:
    group = FakeGroup(queues=1)
    group.broker.put(b"m")
    async with receiving(group) as consumer:
        (message,) = await consumer.receive()
        group.broker.popped[TOPIC, 0].clear()
        with pytest.raises(ReceiptExpiredError, match="not in flight"):
            await consumer.ack(message)
        with pytest.raises(ReceiptExpiredError):
            await consumer.change_invisible(message, 5)


async def test_a_repeated_acknowledgement_whose_first_answer_was_lost_is_none() -> None:
    group = FakeGroup(queues=1)
    group.broker.put(b"m")

    def lose(request: RemotingCommand, connection: Connection) -> None:
        group.broker.popped[TOPIC, 0].clear()
        connection.abort()

    async with receiving(group) as consumer:
        (message,) = await consumer.receive()
        group.broker.script(RequestCode.ACK_MESSAGE, lose)
        await consumer.ack(message)


async def test_a_message_whose_tag_only_has_the_hash_is_acknowledged_and_not_received() -> None:
    group = FakeGroup(queues=1)
    group.broker.put(b"no", TAGS="BBBB")
    group.broker.put(b"yes", TAGS="AaAa")
    async with receiving(group, topics={TOPIC: "AaAa"}) as consumer:
        assert bodies(await consumer.receive()) == [b"yes"]
        await until(lambda: group.broker.acked == [(TOPIC, 0, 0)])


async def test_a_pop_goes_on_after_a_failover() -> None:
    group = FakeGroup(queues=1)
    group.broker.put(b"m")
    group.broker.script(
        RequestCode.POP_MESSAGE, close_connection, (int(ResponseCode.SERVICE_NOT_AVAILABLE), "election")
    )
    async with receiving(group) as consumer:
        assert bodies(await consumer.receive()) == [b"m"]


async def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    group = FakeGroup(queues=1)

    def unreadable(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        return RemotingCommand(0, body=b"?" * 100)

    group.broker.script(RequestCode.POP_MESSAGE, unreadable)
    async with receiving(group) as consumer:
        with pytest.raises(UnreadableError):
            await consumer.receive()


@pytest.mark.parametrize("count", [0, 33])
async def test_impossible_numbers_are_refused(count: int) -> None:
    group = FakeGroup(queues=1)
    async with receiving(group) as consumer:
        with pytest.raises(WrongSubscriptionError):
            await consumer.receive(count)


async def test_a_message_of_another_kind_of_consumer_cannot_be_acknowledged() -> None:
    group = FakeGroup(queues=1)
    async with receiving(group) as consumer:
        with pytest.raises(WrongSubscriptionError):
            await consumer.ack(message())


async def test_close_ends_a_receive_that_waits() -> None:
    group = FakeGroup(queues=1)
    async with group.running():
        consumer = SimpleConsumer(group.namesrv, group=GROUP, topics=TOPIC)
        with pytest.raises(ClosedError):
            await consumer.receive()
        await consumer.start()
        waiting = asyncio.create_task(consumer.receive())
        await until(lambda: group.broker.of(RequestCode.NOTIFICATION))
        await consumer.close()
        with pytest.raises(MessagingError):
            await waiting
        with pytest.raises(ClosedError):
            await consumer.receive()
    assert group.broker.clients == {}


async def test_a_place_that_has_failed_is_avoided_for_a_while() -> None:
    group = FakeGroup("a", "b", queues=1)
    for number in range(6):
        group.brokers["b"].put(b"%d" % number)
    group.brokers["a"].script(RequestCode.POP_MESSAGE, (int(ResponseCode.NO_PERMISSION), "no"))
    async with receiving(group) as consumer:
        found = [bodies(await consumer.receive(1)) for _ in range(6)]
        assert found == [[b"%d" % number] for number in range(6)]
    assert len(group.brokers["a"].of(RequestCode.POP_MESSAGE)) == 1
