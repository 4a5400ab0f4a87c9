"""Reads over a real loopback connection: order, offsets, failures, queues that appear."""

import asyncio
import zlib

import pytest

from ledgermq.messaging import Consumer, Delivery, decode_records
from remoting.client.aio import RemotingClient
from remoting.codes import ResponseCode
from remoting.errors import ClientError
from tests.support.polling import until
from tests.unit.ledgermq.fake_broker import GROUP, TOPIC, FakeBroker, serving


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    """So many messages, each marked as taken."""
    taken: list[Delivery] = []
    async with asyncio.timeout(20):
        async for delivery in consumer.messages():
            consumer.consume(delivery)
            taken.append(delivery)
            if len(taken) == count:
                break
    return taken


def bodies(taken: list[Delivery], queue_id: int) -> list[bytes]:
    return [delivery.record.body for delivery in taken if delivery.queue[1] == queue_id]


def consumer_of(client: RemotingClient, broker: FakeBroker, *, from_first: bool = True) -> Consumer:
    return Consumer(client, broker.address, TOPIC, GROUP, from_first=from_first)


async def test_messages_of_each_queue_come_in_order_and_their_offsets_are_stored() -> None:
    broker = FakeBroker(queue_count=2)
    for number in range(10):
        broker.put(number % 2, f"m{number}".encode())
    async with serving(broker) as client, consumer_of(client, broker) as consumer:
        taken = await take(consumer, 10)
    assert bodies(taken, 0) == [b"m0", b"m2", b"m4", b"m6", b"m8"]
    assert bodies(taken, 1) == [b"m1", b"m3", b"m5", b"m7", b"m9"]
    assert broker.offsets == {0: 5, 1: 5}


async def test_messages_go_on_behind_the_stored_offset() -> None:
    broker = FakeBroker(queue_count=1)
    for number in range(5):
        broker.put(0, f"m{number}".encode())
    async with serving(broker) as client:
        async with consumer_of(client, broker) as consumer:
            assert bodies(await take(consumer, 3), 0) == [b"m0", b"m1", b"m2"]
        assert broker.offsets == {0: 3}
        async with consumer_of(client, broker) as consumer:
            assert bodies(await take(consumer, 2), 0) == [b"m3", b"m4"]


async def test_new_group_from_last_sees_only_what_comes_later() -> None:
    broker = FakeBroker(queue_count=1)
    broker.put(0, b"old")
    async with serving(broker) as client, consumer_of(client, broker, from_first=False) as consumer:
        reading = asyncio.create_task(take(consumer, 1))
        await until(lambda: not broker.grew.is_set())  # the pull that waits clears it
        broker.put(0, b"new")
        assert bodies(await reading, 0) == [b"new"]


async def test_pull_refused_for_now_is_tried_again_without_losing_a_message() -> None:
    broker = FakeBroker(queue_count=1)
    broker.pull_refusals = [
        (ResponseCode.SYSTEM_ERROR, "changing"),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "changing"),
    ]
    broker.put(0, b"m")
    async with serving(broker) as client, consumer_of(client, broker) as consumer:
        assert bodies(await take(consumer, 1), 0) == [b"m"]


async def test_pull_refused_for_good_ends_with_its_remark() -> None:
    broker = FakeBroker(queue_count=1)
    broker.pull_refusals = [(ResponseCode.NO_PERMISSION, "not readable")]
    async with serving(broker) as client, consumer_of(client, broker) as consumer:
        with pytest.raises(ClientError, match="code 16 to PULL_MESSAGE: not readable"):
            await take(consumer, 1)


async def test_offset_that_was_removed_moves_on_to_where_the_broker_says() -> None:
    broker = FakeBroker(queue_count=1)
    for number in range(4):
        broker.put(0, f"m{number}".encode())
    broker.offsets[0] = 0
    broker.first_offsets[0] = 3
    async with serving(broker) as client, consumer_of(client, broker) as consumer:
        assert bodies(await take(consumer, 1), 0) == [b"m3"]


async def test_topic_that_does_not_exist_yet_is_waited_for() -> None:
    broker = FakeBroker(queue_count=1)
    broker.topics = {}
    words: list[str] = []
    async with (
        serving(broker) as client,
        Consumer(client, broker.address, TOPIC, GROUP, say=words.append) as consumer,
    ):
        reading = asyncio.create_task(take(consumer, 1))
        await until(lambda: len(broker.route_asks) >= 2)
        broker.topics = {TOPIC: 1}
        broker.put(0, b"m")
        assert bodies(await reading, 0) == [b"m"]
    assert words == [f"waiting for the topic {TOPIC} ..."]


async def test_compressed_body_is_made_plain() -> None:
    broker = FakeBroker(queue_count=1)
    broker.put(0, zlib.compress(b"plain text"), sys_flag=1)
    async with serving(broker) as client, consumer_of(client, broker) as consumer:
        assert bodies(await take(consumer, 1), 0) == [b"plain text"]


def test_decode_records_garbage_is_an_error() -> None:
    with pytest.raises(ClientError, match="cannot be read"):
        decode_records(b"\0" * 100)


async def test_compressed_body_beyond_the_bound_is_refused() -> None:
    broker = FakeBroker(queue_count=1)
    broker.put(0, zlib.compress(bytes(16 * 1024 * 1024 + 1)), sys_flag=1)
    async with serving(broker) as client, consumer_of(client, broker) as consumer:
        with pytest.raises(ClientError, match="larger than 16777216 bytes"):
            await take(consumer, 1)
