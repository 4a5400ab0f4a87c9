"""Sends: where they go, what they carry, which failures are tried again, and what an error says."""

import asyncio

import pytest

from ledgermq.client import (
    AccessDeniedError,
    ClosedError,
    Compression,
    Message,
    MessageQueue,
    NotSentError,
    Producer,
    RefusedError,
    TopicNotFoundError,
    UncertainError,
    WrongMessageError,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader
from remoting.message_body import compression_of, unpack_body
from remoting.record import parse_properties, tags_code
from remoting.route import PERM_READ
from tests.support.polling import until
from tests.unit.ledgermq.client.fake_cluster import TOPIC, FakeCluster, close_connection, running

SEND = RequestCode.SEND_MESSAGE_V2


def properties_of(cluster: FakeCluster) -> dict[str, str]:
    (kept,) = cluster.kept
    return parse_properties(kept.header.properties.encode())  # type: ignore[union-attr]


def unique_key(request: RemotingCommand) -> str:
    header = SendMessageRequestHeader.parse(request.ext_fields)
    return parse_properties(header.properties.encode())["UNIQ_KEY"]


async def test_sends_go_round_the_queues_and_say_where_the_message_is() -> None:
    async with running(FakeCluster("a", "b")) as cluster, Producer(cluster.namesrv) as producer:
        results = [await producer.send(Message(TOPIC, b"%d" % number)) for number in range(8)]
    places = {(result.queue, result.queue_offset) for result in results}
    assert places == {
        (MessageQueue(TOPIC, name, queue_id), offset)
        for name in "ab"
        for queue_id in (0, 1)
        for offset in (0, 1)
    }
    assert {result.tries for result in results} == {1}
    assert cluster.route_asks == [TOPIC]
    assert len({result.message_id for result in results}) == 8


async def test_a_message_carries_its_tag_keys_and_properties() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv, group="shop") as producer:
        message = Message(TOPIC, b"m", tag="red", keys=("k1", "k2"), properties={"p": "v"}, flag=7)
        result = await producer.send(message)
    assert properties_of(cluster) == {
        "UNIQ_KEY": result.message_id,
        "WAIT": "true",
        "TAGS": "red",
        "KEYS": "k1 k2",
        "p": "v",
    }
    (kept,) = cluster.kept
    assert (kept.header.producer_group, kept.header.flag) == ("shop", 7)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"delay_level": 3}, "DELAY", "3"),
        ({"delay_ms": 1500}, "TIMER_DELAY_MS", "1500"),
        ({"deliver_at_ms": 1_800_000_000_000}, "TIMER_DELIVER_MS", "1800000000000"),
        ({"ordering_key": "o-1"}, "__SHARDINGKEY", "o-1"),
    ],
)
async def test_delays_and_ordering_keys_are_properties(given: dict[str, str], name: str, value: str) -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send(Message(TOPIC, b"m", **given))  # type: ignore[arg-type]
    assert properties_of(cluster)[name] == value


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("no topic", b"m"), "illegal characters"),
        (Message(TOPIC, b"x" * (4 * 1024 * 1024 + 1)), "4194304 are possible"),
        (Message(TOPIC, b"m", keys=("a b",)), "no blank"),
        (Message(TOPIC, b"m", delay_level=1, delay_ms=5), "one of delay_level"),
        (Message(TOPIC, b"m", properties={"TAGS": "x"}), "fields of a Message"),
        (Message(TOPIC, b"m", properties={"a": "b\x02c"}), "separator"),
        (Message(TOPIC, b"m", properties={"a": "b" * 33_000}), "32767 are possible"),
    ],
)
async def test_a_message_that_cannot_be_is_not_sent(message: Message, words: str) -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(WrongMessageError, match=words) as caught:
            await producer.send(message)
    assert caught.value.is_retry_safe
    assert cluster.kept == []


async def test_messages_of_a_key_stay_in_one_queue_whose_broker_has_no_leader_for_a_moment() -> None:
    """The queue is that of Java's SelectMessageQueueByHash."""
    async with running(FakeCluster("a", "b")) as cluster, Producer(cluster.namesrv) as producer:
        queues = await producer.queues(TOPIC)
        expected = queues[abs(tags_code("order-1")) % 4]
        broker = cluster.brokers[expected.broker_name]
        broker.script(SEND, (ResponseCode.SERVICE_NOT_AVAILABLE, "no leader"))
        result = await producer.send(Message(TOPIC, b"m", ordering_key="order-1"))
    assert (result.queue, result.tries) == (expected, 2)


@pytest.mark.parametrize(
    "code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR]
)
async def test_a_refusal_that_may_pass_is_tried_again_at_another_broker(code: ResponseCode) -> None:
    async with running(FakeCluster("a", "b")) as cluster, Producer(cluster.namesrv) as producer:
        for broker in cluster.brokers.values():
            broker.script(SEND, (code, "not now"))
        result = await producer.send(Message(TOPIC, b"m"))
    assert 2 <= result.tries <= 3
    assert len(cluster.kept) == 1
    sent = [each for broker in cluster.brokers.values() for each in broker.of(SEND)]
    assert len({unique_key(each) for each in sent}) == 1


async def test_a_send_whose_answer_is_lost_goes_to_another_broker_with_a_fresh_route() -> None:
    async with running(FakeCluster("a", "b")) as cluster, Producer(cluster.namesrv) as producer:
        await producer.queues(TOPIC)
        for broker in cluster.brokers.values():
            broker.script(SEND, close_connection)
        result = await producer.send(Message(TOPIC, b"m"))
    assert result.tries == 3
    assert cluster.route_asks.count(TOPIC) >= 2


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, "too long", RefusedError),
        (ResponseCode.NO_PERMISSION, "User:eve has no permission", AccessDeniedError),
        (ResponseCode.SYSTEM_ERROR, "Check signature failed for accessKey=eve", AccessDeniedError),
    ],
)
async def test_a_final_refusal_is_raised_with_its_code(
    code: ResponseCode, remark: str, kind: type[RefusedError]
) -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        cluster.brokers["broker-a"].script(SEND, (code, remark))
        with pytest.raises(kind, match=remark) as caught:
            await producer.send(Message(TOPIC, b"m"))
    assert (caught.value.code, caught.value.is_retry_safe) == (code, True)
    assert len(cluster.brokers["broker-a"].of(SEND)) == 1


async def test_a_refusal_after_a_lost_answer_does_not_say_that_a_retry_is_safe() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        cluster.brokers["broker-a"].script(SEND, close_connection, (ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(UncertainError) as caught:
            await producer.send(Message(TOPIC, b"m"))
    assert not caught.value.is_retry_safe


async def test_a_broker_that_fails_at_each_try_leaves_the_send_uncertain() -> None:
    """SYSTEM_ERROR says that it was not finished, not that it was not begun."""
    async with (
        running(FakeCluster()) as cluster,
        Producer(cluster.namesrv, send_timeout_s=0.4) as producer,
    ):
        cluster.brokers["broker-a"].script(SEND, *[(ResponseCode.SYSTEM_ERROR, "store error")] * 99)
        with pytest.raises(UncertainError, match="store error"):
            await producer.send(Message(TOPIC, b"m"))


async def test_without_a_leader_a_send_ends_in_time_and_nothing_was_sent() -> None:
    async with (
        running(FakeCluster()) as cluster,
        Producer(cluster.namesrv, send_timeout_s=0.05) as producer,
    ):
        cluster.leaderless.add("broker-a")
        with pytest.raises(NotSentError, match="no leader") as caught:
            await producer.send(Message(TOPIC, b"m"))
    assert caught.value.is_retry_safe


async def test_a_broker_that_answers_nothing_leaves_the_send_uncertain() -> None:
    async with (
        running(FakeCluster()) as cluster,
        Producer(cluster.namesrv, send_timeout_s=0.6, request_timeout_s=0.25) as producer,
    ):
        cluster.brokers["broker-a"].script(SEND, *[lambda *_: None] * 9)
        with pytest.raises(UncertainError):
            await producer.send(Message(TOPIC, b"m"))


async def test_a_new_topic_is_made_by_its_first_send_or_not_found() -> None:
    async with running(FakeCluster()) as cluster:
        async with Producer(cluster.namesrv) as producer:
            assert (await producer.send(Message("new", b"m"))).queue.queue_id < 4
        async with Producer(cluster.namesrv, creates_topics=False) as producer:
            with pytest.raises(TopicNotFoundError):
                await producer.send(Message("new", b"m"))


@pytest.mark.parametrize("kind", ["zlib", "lz4"])
async def test_large_bodies_are_compressed(kind: str) -> None:
    if kind == "lz4":
        pytest.importorskip("lz4.frame")
    body = b"again and again " * 1_000
    async with (
        running(FakeCluster()) as cluster,
        Producer(cluster.namesrv, compression=Compression(kind)) as producer,
    ):
        await producer.send(Message(TOPIC, body))
        await producer.send(Message(TOPIC, b"small"))
    large, small = cluster.kept
    flags = large.header.sys_flag
    assert (compression_of(flags), unpack_body(large.body, flags, 1 << 20)) == (kind, body)
    assert (small.header.sys_flag, small.body) == (0, b"small")


async def test_a_batch_is_one_request_for_one_queue() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        results = await producer.send_batch([Message(TOPIC, b"%d" % number) for number in range(3)])
        assert await producer.send_batch([]) == []
        with pytest.raises(WrongMessageError, match="one topic"):
            await producer.send_batch([Message(TOPIC, b"a"), Message("b", b"b")])
        with pytest.raises(WrongMessageError, match="sent alone"):
            await producer.send_batch([Message(TOPIC, b"a", delay_level=1)])
    assert [each.body for each in cluster.kept] == [b"0", b"1", b"2"]
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert len({(result.queue, result.message_id) for result in results}) == 3
    assert len(cluster.brokers["broker-a"].of(RequestCode.SEND_BATCH_MESSAGE)) == 1


async def test_a_send_without_acknowledgement_is_not_answered() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send_oneway(Message(TOPIC, b"m"))
        await producer.send(Message(TOPIC, b"after it"))
        sent = cluster.brokers["broker-a"].of(SEND)
    assert sorted(each.is_oneway for each in sent) == [False, True]


async def test_sends_wait_for_a_place() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv, in_flight_max=1) as producer:
        broker = cluster.brokers["broker-a"]
        await producer.send(Message(TOPIC, b"first"))
        broker.script(SEND, lambda *_: None)
        held = asyncio.ensure_future(producer.send(Message(TOPIC, b"held")))
        waiting = asyncio.ensure_future(producer.send(Message(TOPIC, b"waiting")))
        await until(lambda: len(broker.of(SEND)) >= 2)
        held.cancel()
        await waiting
    assert [each.body for each in cluster.kept] == [b"first", b"waiting"]


async def test_no_send_before_the_start_or_after_the_end() -> None:
    async with running(FakeCluster()) as cluster:
        producer = Producer(cluster.namesrv)
        with pytest.raises(ClosedError, match="not started"):
            await producer.send(Message(TOPIC, b"m"))
        async with producer:
            pass
        with pytest.raises(ClosedError, match="is closed"):
            await producer.send(Message(TOPIC, b"m"))
        with pytest.raises(ClosedError, match="once"):
            await producer.start()


async def test_sends_under_way_end_with_the_producer_and_no_task_is_left() -> None:
    before = asyncio.all_tasks()
    async with running(FakeCluster()) as cluster:
        producer = Producer(cluster.namesrv)
        await producer.start()
        broker = cluster.brokers["broker-a"]
        broker.script(SEND, lambda *_: None)
        held = asyncio.ensure_future(producer.send(Message(TOPIC, b"m")))
        await until(lambda: broker.of(SEND))
        await producer.close()
        with pytest.raises(ClosedError):
            await held
    assert asyncio.all_tasks() == before


async def test_a_topic_that_may_only_be_read_is_refused_at_once() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        cluster.perm = PERM_READ
        with pytest.raises(RefusedError, match="permission to write to the topic"):
            await producer.send(Message(TOPIC, b"m"))
    assert cluster.route_asks == [TOPIC]


async def test_sends_go_on_while_a_restarted_name_server_is_empty() -> None:
    async with running(FakeCluster()) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send(Message(TOPIC, b"m"))
        cluster.topics.clear()
        cluster.brokers["broker-a"].script(SEND, (ResponseCode.SERVICE_NOT_AVAILABLE, "not now"))
        assert (await producer.send(Message(TOPIC, b"m"))).tries == 2
        with pytest.raises(TopicNotFoundError):
            await producer.send(Message("unknown", b"m"))


async def test_a_name_server_that_does_not_answer_is_named() -> None:
    async with Producer("127.0.0.1:1", send_timeout_s=0.05) as producer:
        with pytest.raises(NotSentError, match="the name server gives no answer"):
            await producer.send(Message(TOPIC, b"m"))
