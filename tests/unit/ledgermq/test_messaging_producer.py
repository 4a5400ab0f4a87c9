"""Sends over a real loopback connection: routes, retries, refusals."""

import asyncio
import gc

import pytest

from commitlog.record import parse_properties
from ledgermq.messaging import Producer
from remoting.client.aio import RouteTable
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.route import PERM_READ
from tests.support.polling import until
from tests.unit.ledgermq.fake_broker import TOPIC, FakeBroker, serving


async def test_send_goes_round_the_queues_and_says_where_the_message_is() -> None:
    broker = FakeBroker(queue_count=2)
    async with serving(broker) as client:
        producer = Producer(client, broker.address)
        receipts = [await producer.send(TOPIC, f"m{number}".encode()) for number in range(4)]
    assert sorted((receipt.queue_id, receipt.queue_offset) for receipt in receipts) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert {receipt.tries for receipt in receipts} == {1}
    assert broker.route_asks == [TOPIC]


async def test_send_carries_tag_key_and_a_unique_key() -> None:
    broker = FakeBroker()
    async with serving(broker) as client:
        receipt = await Producer(client, broker.address).send(TOPIC, b"m", tag="red", key="k ü")
    assert parse_properties(broker.sends[0].properties.encode()) == {
        "UNIQ_KEY": receipt.unique_key,
        "WAIT": "true",
        "TAGS": "red",
        "KEYS": "k ü",
    }


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.TOPIC_NOT_EXIST,
    ],
)
async def test_send_refused_for_now_asks_for_the_route_and_tries_again(code: ResponseCode) -> None:
    broker = FakeBroker()
    broker.refusals = [(code, "not now"), (code, "not now")]
    async with serving(broker) as client:
        receipt = await Producer(client, broker.address).send(TOPIC, b"m")
    assert receipt.tries == 3
    assert broker.route_asks == [TOPIC] * 3
    assert len({parse_properties(send.properties.encode())["UNIQ_KEY"] for send in broker.sends}) == 1


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, "too long"),
        (ResponseCode.NO_PERMISSION, "User:alice has no permission to access Topic:t from 10.0.0.7"),
        (ResponseCode.SYSTEM_ERROR, "No default permission for topic:t"),
        (ResponseCode.SYSTEM_ERROR, "Check signature failed for accessKey=alice"),
    ],
)
async def test_send_refused_for_good_is_not_tried_again(code: ResponseCode, remark: str) -> None:
    broker = FakeBroker()
    broker.refusals = [(code, remark)]
    async with serving(broker) as client:
        with pytest.raises(ClientError, match=f"code {code.value} to SEND_MESSAGE: {remark}"):
            await Producer(client, broker.address).send(TOPIC, b"m")
    assert len(broker.sends) == 1


async def test_send_to_a_topic_without_write_permission_is_not_tried_again() -> None:
    broker = FakeBroker()
    broker.perm = PERM_READ
    async with serving(broker) as client:
        with pytest.raises(ClientError, match="permission to write to the topic"):
            await Producer(client, broker.address).send(TOPIC, b"m")
    assert broker.route_asks == [TOPIC]


async def test_send_without_a_leader_waits_until_there_is_one() -> None:
    broker = FakeBroker()
    broker.has_leader = False
    async with serving(broker) as client:
        sending = asyncio.create_task(Producer(client, broker.address).send(TOPIC, b"m"))
        await until(lambda: len(broker.route_asks) >= 2)
        broker.has_leader = True
        receipt = await asyncio.wait_for(sending, 20)
    assert receipt.tries > 2
    assert len(broker.sends) == 1


async def test_send_gives_up_with_the_last_reason() -> None:
    broker = FakeBroker()
    broker.has_leader = False
    async with serving(broker) as client:
        producer = Producer(client, broker.address, give_up_s=0.2)
        with pytest.raises(ClientError, match=rf"within 0.2 s: no broker accepts messages for {TOPIC}"):
            await producer.send(TOPIC, b"m")


async def test_send_to_a_topic_that_does_not_exist_uses_the_default_topics_route() -> None:
    broker = FakeBroker(queue_count=8)
    broker.topics = {"TBW102": 8}
    async with serving(broker) as client:
        producer = Producer(client, broker.address)
        receipts = [await producer.send("new", b"m") for _ in range(8)]
    assert {receipt.queue_id for receipt in receipts} == {0, 1, 2, 3}
    assert (broker.sends[0].default_topic, broker.sends[0].default_topic_queue_nums) == ("TBW102", 4)
    assert broker.topics["new"] == 4


async def test_send_name_server_gone_gives_up_with_a_sentence() -> None:
    broker = FakeBroker()
    async with serving(broker) as client:
        producer = Producer(client, "127.0.0.1:1", give_up_s=0.2)
        with pytest.raises(ClientError, match="the name server gives no answer"):
            await producer.send(TOPIC, b"m")


async def test_a_route_that_nobody_waits_for_any_more_may_fail_unseen() -> None:
    """Found by a simulated seed: the sender was cancelled while the name server did not answer."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    unanswered = asyncio.Event()

    class SilentClient:
        async def invoke(self, *_: object) -> RemotingCommand:
            await unanswered.wait()
            raise RemotingError("did not answer in time")

    routes = RouteTable(SilentClient(), "127.0.0.1:1")  # type: ignore[arg-type]
    asking = asyncio.create_task(routes.request(TOPIC))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    unanswered.set()
    for _ in range(4):
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []
    with pytest.raises(ClientError):
        await routes.request(TOPIC)
