"""The blocking client: the same results and errors, from any thread, and no thread is left behind."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledgermq.client import ClosedError, Message, TransactionOutcome, UncertainError, WrongMessageError
from ledgermq.client.blocking import LoopThread, Producer
from remoting.codes import RequestCode
from remoting.headers.transactions import EndTransactionRequestHeader
from tests.unit.ledgermq.client.fake_cluster import TOPIC, FakeCluster, running


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """It runs on a loop in a thread of its own."""
    thread, made = LoopThread("fake cluster"), FakeCluster()
    stop = asyncio.Event()

    async def serve(ready: threading.Event) -> None:
        async with running(made):
            ready.set()
            await stop.wait()

    ready = threading.Event()
    serving = thread.start(serve(ready))
    assert ready.wait(5)
    yield made
    thread.run(set_event(stop))
    serving.result(5)
    thread.close()


async def set_event(event: asyncio.Event) -> None:
    event.set()


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ledgermq")]


def test_any_number_of_threads_send_over_one_producer(cluster: FakeCluster) -> None:
    with Producer(cluster.namesrv) as producer, ThreadPoolExecutor(8) as threads:
        sends = [threads.submit(producer.send, Message(TOPIC, b"%d" % number)) for number in range(100)]
        results = [each.result(10) for each in sends]
        assert names_of_threads() == ["ledgermq-client"]
    assert len({(result.queue, result.queue_offset) for result in results}) == 100
    assert names_of_threads() == []


def test_a_send_that_was_begun_has_a_future(cluster: FakeCluster) -> None:
    with Producer(cluster.namesrv) as producer:
        futures = [producer.send_soon(Message(TOPIC, b"m")) for _ in range(10)]
        assert {each.result(5).tries for each in futures} == {1}
        assert len(producer.send_batch([Message(TOPIC, b"a"), Message(TOPIC, b"b")])) == 2
        producer.send_oneway(Message(TOPIC, b"m"))
        assert len(producer.queues(TOPIC)) == 2


def test_errors_are_those_of_asyncio(cluster: FakeCluster) -> None:
    with Producer(cluster.namesrv) as producer:
        with pytest.raises(WrongMessageError):
            producer.send(Message("no topic", b"m"))
        with pytest.raises(UncertainError, match="no reply"):
            producer.request(Message(TOPIC, b"question"), timeout_s=0.01)


def test_the_block_of_a_transaction_commits_or_rolls_back(cluster: FakeCluster) -> None:
    with Producer(cluster.namesrv, group="shop") as producer:
        with producer.transaction(Message(TOPIC, b"m")):
            pass
        with pytest.raises(KeyError), producer.transaction(Message(TOPIC, b"n")):
            raise KeyError
        with producer.transaction(Message(TOPIC, b"o")) as transaction:
            transaction.rollback()
    requests = cluster.brokers["broker-a"].of(RequestCode.END_TRANSACTION)
    ends = [EndTransactionRequestHeader.parse(each.ext_fields).commit_or_rollback for each in requests]
    rollback = TransactionOutcome.ROLLBACK
    assert ends == [TransactionOutcome.COMMIT, rollback, rollback]


def test_no_send_before_the_start_or_after_the_end(cluster: FakeCluster) -> None:
    producer = Producer(cluster.namesrv)
    with pytest.raises(ClosedError, match="not started"):
        producer.send(Message(TOPIC, b"m"))
    producer.close()
    with producer, pytest.raises(ClosedError, match="once"):
        producer.start()
    with pytest.raises(ClosedError):
        producer.send(Message(TOPIC, b"m"))
    producer.close()


def test_the_end_of_the_producer_ends_the_sends_of_other_threads(cluster: FakeCluster) -> None:
    broker = cluster.brokers["broker-a"]
    broker.script(RequestCode.SEND_MESSAGE_V2, lambda *_: None)
    producer = Producer(cluster.namesrv)
    producer.start()
    held = producer.send_soon(Message(TOPIC, b"m"))
    while not broker.of(RequestCode.SEND_MESSAGE_V2):
        threading.Event().wait(0.001)
    producer.close()
    with pytest.raises(ClosedError):
        held.result(5)
