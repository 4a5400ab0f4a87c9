"""`ledgermq.client` over real processes: a leader is killed amid sends; stock brokers and stock clients."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.client import (
    Compression,
    Message,
    Producer,
    ReceivedMessage,
    SendResult,
    TransactionOutcome,
)
from ledgermq.client.blocking import Producer as BlockingProducer
from ledgermq.messaging import Consumer
from remoting.client.aio import RemotingClient
from remoting.message_body import compression_of
from remoting.record import Record, parse_properties
from tests.integration.client_runs import java_driver
from tests.integration.cluster import Cluster
from tests.integration.conftest import Measured
from tests.spark.stock_broker import VERSIONS, StockBroker

pytestmark = pytest.mark.integration
SENDERS, SENDS_AROUND = 8, 300
LIMIT_S = 60.0


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[Cluster]:
    own = Cluster(tmp_path / "cluster")
    try:
        own.start()
        yield own
    finally:
        own.stop()


async def records_of(namesrv: str, topic: str, count: int) -> list[Record]:
    """The first so many messages of the topic, with plain bodies."""
    client = RemotingClient()
    found: list[Record] = []
    try:
        async with asyncio.timeout(LIMIT_S), Consumer(client, namesrv, topic, "OwnReaders") as consumer:
            async for delivery in consumer.messages():
                found.append(delivery.record)
                consumer.consume(delivery)
                if len(found) == count:
                    break
    finally:
        await client.close()
    return found


@pytest.mark.parametrize("idempotent", [False, True])
async def test_no_send_fails_and_none_is_lost_when_the_leader_is_killed(
    breakable: Cluster, measured: Measured, *, idempotent: bool
) -> None:
    numbers, results, longest_s = itertools.count(), dict[int, SendResult](), 0.0
    is_over = False
    async with Producer(breakable.namesrv, idempotent=idempotent, send_timeout_s=30.0) as producer:

        async def send() -> None:
            nonlocal longest_s
            while not is_over:
                number, began_s = next(numbers), time.monotonic()
                results[number] = await producer.send(Message("Own", b"%d" % number))
                longest_s = max(longest_s, time.monotonic() - began_s)

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(send())
            await reached(results, SENDS_AROUND)
            breakable.kill(breakable.wait_leader())
            await reached(results, len(results) + SENDS_AROUND)
            is_over = True
    kind = "numbered" if idempotent else "ordinary"
    measured(f"the longest {kind} send over a killed leader, ms", round(longest_s * 1000))
    found = Counter(int(each.body) for each in await records_of(breakable.namesrv, "Own", len(results)))
    if idempotent:
        assert found == Counter(results.keys()), "each of them once"
    else:
        repeated = {number for number, result in results.items() if result.tries > 1}
        assert {number for number, copies in found.items() if copies > 1} <= repeated


async def reached(results: dict[int, SendResult], count: int) -> None:
    while len(results) < count:
        await asyncio.sleep(0.01)


async def test_kinds_of_messages_are_as_stock_consumers_expect_them(namesrv: str, name: str) -> None:
    topic = f"Kinds{name}"
    body = b"a large body " * 1_000
    async with Producer(namesrv, compression=Compression("zlib")) as producer:
        plain = await producer.send(
            Message(topic, b"plain", tag="t", keys=("k1", "k2"), properties={"p": "v"})
        )
        large = await producer.send(Message(topic, body))
        batch = await producer.send_batch([Message(topic, b"%d" % number) for number in range(5)])
        ordered = [await producer.send(Message(topic, b"o", ordering_key="k")) for _ in range(3)]
        await producer.send(Message(topic, b"later", delay_ms=500))
        await producer.send_oneway(Message(topic, b"oneway"))
    found = await records_of(namesrv, topic, 12)
    by_id = {parse_properties(each.properties)["UNIQ_KEY"]: each for each in found}
    assert by_id[large.message_id].body == body
    assert compression_of(by_id[large.message_id].sys_flag) == "zlib"
    properties = parse_properties(by_id[plain.message_id].properties)
    assert properties.items() >= {"TAGS": "t", "KEYS": "k1 k2", "p": "v"}.items()
    assert len({result.queue for result in ordered}) == len({result.queue for result in batch}) == 1
    for result in (plain, large, *ordered, *batch):
        record = by_id[result.message_id]
        assert (record.queue_id, record.queue_offset) == (result.queue.queue_id, result.queue_offset)
    assert {bytes(each.body) for each in found} >= {b"later", b"oneway"}


class Ledger:
    """Commits what it is asked about."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    async def execute(self, message: Message, result: SendResult) -> TransactionOutcome:
        return TransactionOutcome.UNKNOWN

    async def check(self, message: ReceivedMessage) -> TransactionOutcome:
        self.checked.append(message.message_id)
        return TransactionOutcome.COMMIT


async def test_transactions_end_by_the_block_or_by_the_brokers_question(tmp_path: Path) -> None:
    cluster, ledger = Cluster(tmp_path, nodes=1), Ledger()
    try:
        cluster.start({"transactionTimeOut": "500", "transactionCheckInterval": "200"})
        async with Producer(cluster.namesrv, group="Shop", transaction_listener=ledger) as producer:
            async with await producer.transaction(Message("Sales", b"committed")):
                pass
            with pytest.raises(KeyError):
                async with await producer.transaction(Message("Sales", b"rolled back")):
                    raise KeyError
            asked, _ = await producer.send_in_transaction(Message("Sales", b"asked"))
            found = await records_of(cluster.namesrv, "Sales", 2)
        assert {bytes(each.body) for each in found} == {b"committed", b"asked"}
        assert set(ledger.checked) == {asked.message_id}
    finally:
        cluster.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_stock_brokers_take_what_it_sends(version: str, tmp_path: Path) -> None:
    broker = StockBroker(tmp_path, version)
    try:
        broker.start()
        with BlockingProducer(broker.namesrv, group="Own") as producer:
            results = [producer.send(Message("OwnStock", b"%d" % number, tag="t")) for number in range(20)]
            batch = producer.send_batch([Message("OwnStock", b"%d" % number) for number in range(20, 25)])
            with producer.transaction(Message("OwnStock", b"25")):
                pass
        assert all(result.is_durable for result in results)
        driver, out = java_driver("5.5.0", tmp_path), tmp_path / "consumed.jsonl"
        options = {
            "namesrv": broker.namesrv,
            "topic": "OwnStock",
            "group": "Readers",
            "out": out,
            "count": 26,
        }
        limits = {"quiet_ms": 3_000, "limit_ms": 60_000}
        consumed = driver.run(
            ["consume", *(f"{key}={value}" for key, value in (options | limits).items())], out
        )
        assert {row["body"] for row in consumed} == {str(number) for number in range(26)}
        assert len({result.offset_message_id for result in (*results, *batch)}) == 25
    finally:
        broker.stop()
