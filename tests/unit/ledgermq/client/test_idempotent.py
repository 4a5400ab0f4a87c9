"""Numbered sends: one request for a queue at a time, and a repeat that the broker drops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.client import Message, MessageQueue, Producer, RefusedError, UncertainError, WrongMessageError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from tests.support.polling import loop_turns, until
from tests.unit.ledgermq.client.fake_cluster import (
    TOPIC,
    FakeCluster,
    FakeLeader,
    close_connection,
    running,
)

NUMBERED = RequestCode.LEDGERMQ_SEND_SEQUENCED
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@asynccontextmanager
async def producing(send_timeout_s: float = 10.0) -> AsyncIterator[tuple[FakeLeader, Producer]]:
    async with (
        running(FakeCluster(queues=1)) as cluster,
        Producer(cluster.namesrv, idempotent=True, send_timeout_s=send_timeout_s) as producer,
    ):
        yield cluster.brokers["broker-a"], producer


async def send_all(producer: Producer, count: int) -> list[int | None]:
    results = await asyncio.gather(
        *(producer.send(Message(TOPIC, b"%d" % number)) for number in range(count))
    )
    return [result.queue_offset for result in results]


async def test_what_is_sent_meanwhile_goes_into_the_next_request_in_order() -> None:
    async with producing() as (broker, producer):
        assert await send_all(producer, 50) == list(range(50))
    assert [each.body for each in broker.kept] == [b"%d" % number for number in range(50)]
    assert len(broker.of(NUMBERED)) <= 3
    (end,) = broker.of(RequestCode.LEDGERMQ_END_BATCH)
    assert b'"isOver":true' in end.body


async def test_a_request_whose_answer_was_lost_stores_its_messages_once() -> None:
    def keep_and_close(request: RemotingCommand, connection: Connection) -> None:
        broker._keep_numbered(request)
        connection.abort()

    async with producing() as (broker, producer):
        broker.script(NUMBERED, keep_and_close)
        first = await producer.send(Message(TOPIC, b"first"))
        second = await producer.send(Message(TOPIC, b"second"))
    assert [each.body for each in broker.kept] == [b"first", b"second"]
    assert (first.queue_offset, first.tries) == (None, 2)
    assert (second.queue_offset, second.tries) == (1, 1)


async def test_a_leader_without_the_last_numbers_is_passed_over() -> None:
    async with producing() as (broker, producer):
        broker.script(NUMBERED, *[(ResponseCode.LEDGERMQ_SEQUENCE_GAP, "a gap")] * 3)
        assert (await producer.send(Message(TOPIC, b"m"))).tries == 4


async def test_after_an_uncertain_send_the_numbers_begin_again() -> None:
    async with producing(send_timeout_s=0.4) as (broker, producer):
        broker.script(NUMBERED, *[close_connection] * 200)
        with pytest.raises(UncertainError):
            await producer.send(Message(TOPIC, b"lost"))
        broker.scripted.clear()
        assert (await producer.send(Message(TOPIC, b"next"))).tries == 1
    partitions = {each.ext_fields["partition"] for each in broker.of(NUMBERED)}
    assert len(partitions) == 2, "the lost one may come yet: its number is not given to another message"


async def test_brokers_that_know_no_numbers_refuse() -> None:
    async with producing() as (broker, producer):
        broker.script(NUMBERED, (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 65003 not supported"))
        with pytest.raises(RefusedError, match="not supported"):
            await producer.send(Message(TOPIC, b"m"))


async def test_a_message_for_later_has_no_number() -> None:
    async with producing() as (_, producer):
        with pytest.raises(WrongMessageError):
            await producer.send(Message(TOPIC, b"m", delay_level=2))


async def test_a_cancelled_message_that_waits_is_not_sent() -> None:
    async with producing() as (broker, producer):
        await producer.send(Message(TOPIC, b"0"))
        broker.script(NUMBERED, lambda *_: None)
        held = asyncio.ensure_future(producer.send(Message(TOPIC, b"held")))
        await until(lambda: len(broker.of(NUMBERED)) >= 2)
        waiting = asyncio.ensure_future(producer.send(Message(TOPIC, b"waiting")))
        await loop_turns(2)
        waiting.cancel()
        next(iter(broker.connections)).abort()
        await held
    assert [each.body for each in broker.kept] == [b"0", b"held"]
