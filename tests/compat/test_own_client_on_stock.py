"""The Python client's producer and consumers on RocketMQ's own name server and broker, 4.9 and 5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.client import Message, RefusedError, RetryLater, SimpleConsumer, Sql, Where, blocking
from ledgermq.client.blocking import Producer, PullConsumer, PushConsumer
from tests.compat.test_own_consumers import Kept
from tests.integration.waiting import wait_for
from tests.spark.stock_broker import StockBroker

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
SENT = 40
SETTINGS = {
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s 1s 1s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
}


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockBroker]:
    stock = StockBroker(tmp_path_factory.mktemp("stock"), request.param)
    try:
        stock.start(**SETTINGS)
        yield stock
    finally:
        stock.kill()


@pytest.fixture(scope="module")
def topic(broker: StockBroker) -> str:
    """With SENT messages, of tags a and b in turn."""
    with Producer(broker.namesrv, send_timeout_s=30.0) as producer:
        for number in range(SENT):
            tag = "ab"[number % 2]
            producer.send(Message("Orders", b"%d" % number, tag=tag, properties={"n": str(number)}))
    return "Orders"


def test_pull_commit_and_times(broker: StockBroker, topic: str) -> None:
    with PullConsumer(broker.namesrv, group="pull") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        found = list(consumer.read_to_end())
        assert {each.body for each in found} == {b"%d" % number for number in range(SENT)}
        consumer.commit()
        assert sum(consumer.committed(queue) or 0 for queue in queues) == SENT
        assert all(consumer.offset_at(queue, 0) == 0 for queue in queues)
        consumer.seek(queues[0], Where.BEGINNING)
        assert consumer.poll(1, timeout_s=LIMIT_S)[0].queue_offset == 0


@pytest.mark.parametrize(
    ("wanted", "count"), [("*", SENT), ("b", SENT // 2), (Sql("n >= 30"), 10), (Sql("TAGS = 'a'"), SENT // 2)]
)
def test_push_with_tags_and_sql(broker: StockBroker, topic: str, wanted: str | Sql, count: int) -> None:
    kept = Kept()
    text = wanted if isinstance(wanted, str) else wanted.expression
    group = "push-" + "".join(each for each in text if each.isalnum())
    with PushConsumer(
        broker.namesrv, kept, group=group, topics={topic: wanted}, consume_from=Where.BEGINNING
    ):
        wait_for("all that is wanted", lambda: len(kept.bodies) == count, LIMIT_S)
    assert len(kept.messages) == count


def test_a_wrong_expression_is_refused_at_the_start(broker: StockBroker, topic: str) -> None:
    consumer = PushConsumer(broker.namesrv, Kept(), group="wrong", topics={topic: Sql("n >")})
    with pytest.raises(RefusedError):
        consumer.start()


def test_retries_in_order_and_dead_letters(broker: StockBroker) -> None:
    attempts: list[int] = []

    def fail(message: object) -> None:
        attempts.append(message.attempts)  # type: ignore[attr-defined]
        raise RetryLater(delay_level=1)

    with Producer(broker.namesrv, send_timeout_s=30.0) as producer:
        producer.send(Message("Bad", b"bad"))
    with PushConsumer(
        broker.namesrv,
        fail,
        group="retries",
        topics="Bad",
        consume_from=Where.BEGINNING,
        max_reconsume_times=1,
    ):
        wait_for("two tries", lambda: len(attempts) == 2, LIMIT_S)
    with PullConsumer(broker.namesrv) as puller:
        puller.assign(wait_for("dead letters", lambda: _queues(puller, "%DLQ%retries"), LIMIT_S))
        assert [each.body for each in puller.poll(timeout_s=LIMIT_S)] == [b"bad"]
    assert attempts == [0, 1]


def _queues(puller: PullConsumer, topic: str) -> list:  # type: ignore[type-arg]
    try:
        return puller.queues(topic)
    except RefusedError:
        return []


def test_ordered_consumption_locks_its_queues(broker: StockBroker, topic: str) -> None:
    first, second = Kept(), Kept()
    options = {"group": "ordered", "topics": topic, "ordered": True, "consume_from": Where.BEGINNING}
    with (
        PushConsumer(broker.namesrv, first, **options),  # type: ignore[arg-type]
        PushConsumer(broker.namesrv, second, **options),  # type: ignore[arg-type]
    ):
        wait_for("all", lambda: len(first.bodies | second.bodies) == SENT, LIMIT_S)
    for kept in (first, second):
        places = [(each.queue, each.queue_offset) for each in kept.messages]
        for queue in {queue for queue, _ in places}:
            offsets = [offset for known, offset in places if known == queue]
            assert offsets == sorted(offsets)


async def test_pop_comes_again_after_its_invisible_time(broker: StockBroker, topic: str) -> None:
    if broker.version.startswith("4."):
        async with SimpleConsumer(broker.namesrv, group="pop", topics=topic) as consumer:
            with pytest.raises(RefusedError):
                await consumer.receive(wait_s=0)
        return
    async with SimpleConsumer(broker.namesrv, group="pop", topics=topic) as consumer:
        seen = {message.body: message for message in await consumer.receive(8, invisible_s=2)}
        assert seen
        done: set[bytes] = set()
        while len(done) < SENT:
            for message in await consumer.receive(32, invisible_s=30, wait_s=LIMIT_S):
                await consumer.change_invisible(message, 20)
                await consumer.ack(message)
                done.add(message.body)
        assert await consumer.receive(wait_s=1) == []


def test_broadcast_on_a_stock_broker(broker: StockBroker, topic: str, tmp_path: Path) -> None:
    kept = Kept()
    for count in (SENT, 0):
        kept.messages.clear()
        with blocking.PushConsumer(
            broker.namesrv,
            kept,
            group="broadcast",
            topics=topic,
            broadcast=True,
            offsets_file=tmp_path / "offsets.json",
            consume_from=Where.BEGINNING,
        ):
            wait_for("all", lambda count=count: len(kept.messages) >= count or None, LIMIT_S)  # type: ignore[misc]
        assert len(kept.messages) == count
