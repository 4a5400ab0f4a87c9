"""The consumers for threads: the same behaviour as in asyncio, and a thread that ends with them."""

import asyncio
import threading
from collections.abc import Callable
from itertools import islice

import pytest

from ledgermq.client import ClosedError, MessageQueue, NotSentError, ReceivedMessage, Where
from ledgermq.client.blocking import PullConsumer, PushConsumer, SimpleConsumer
from tests.support.polling import until
from tests.unit.ledgermq.client.fake_queues import GROUP, TOPIC, FakeGroup

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


async def with_brokers(group: FakeGroup, work: Callable[[], None]) -> None:
    """The brokers run on this loop, so the client's user needs a thread."""
    async with group.running():
        await asyncio.to_thread(work)
    assert not [each for each in threading.enumerate() if each.name.startswith("ledgermq-")]


def filled(count: int) -> FakeGroup:
    group = FakeGroup(queues=1)
    for number in range(count):
        group.broker.put(b"%d" % number)
    return group


async def test_a_pull_consumer_is_iterated_polled_and_read_to_its_end() -> None:
    group = filled(5)

    def work() -> None:
        with PullConsumer(group.namesrv, group=GROUP) as consumer:
            consumer.assign(consumer.queues(TOPIC))
            assert [each.body for each in islice(consumer, 2)] == [b"0", b"1"]
            assert consumer.position(QUEUE) == 2
            consumer.commit()
            assert [each.body for each in consumer.poll(2, timeout_s=20)] == [b"2", b"3"]
            assert [each.body for each in consumer.read_to_end()] == [b"4"]
            consumer.seek(QUEUE, Where.BEGINNING)
            assert len(list(consumer.read_to_end())) == 5
            assert (consumer.bounds(QUEUE), consumer.committed(QUEUE)) == ((0, 5), 2)
            assert consumer.offset_at(QUEUE, 3000) == 3

    await with_brokers(group, work)
    assert group.broker.stored() == 2


async def test_a_simple_consumer_receives_and_acknowledges() -> None:
    group = filled(2)

    def work() -> None:
        with SimpleConsumer(group.namesrv, group=GROUP, topics=TOPIC) as consumer:
            first, second = consumer.receive()
            consumer.ack(first)
            consumer.change_invisible(second, 0)
            assert consumer.receive(wait_s=0) == []

    await with_brokers(group, work)
    assert (group.broker.acked, group.broker.given_back) == ([(TOPIC, 0, 0)], [(1, 1)])


async def test_a_push_consumer_calls_an_ordinary_function_in_threads() -> None:
    group = filled(3)
    names: set[str] = set()
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        names.add(threading.current_thread().name)
        seen.append(message.body)

    async with group.running():
        consumer = PushConsumer(
            group.namesrv, handle, group=GROUP, topics=TOPIC, consume_from=Where.BEGINNING, concurrency=1
        )
        await asyncio.to_thread(consumer.start)
        await until(lambda: len(seen) == 3)
        await asyncio.to_thread(consumer.close)
        await asyncio.to_thread(consumer.close)
    assert seen == [b"0", b"1", b"2"]
    assert all(name.startswith("ledgermq-handler") for name in names)
    assert group.broker.stored() == 3


def test_a_start_that_fails_leaves_no_thread() -> None:
    consumer = SimpleConsumer("127.0.0.1:1", group=GROUP, topics=TOPIC)
    with pytest.raises(ClosedError, match="not started"):
        consumer.receive()
    with pytest.raises(NotSentError):
        consumer.start()
    assert not [each for each in threading.enumerate() if each.name.startswith("ledgermq-")]
