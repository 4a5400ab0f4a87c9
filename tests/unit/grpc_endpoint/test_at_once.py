"""Calls that begin without a task: their answers, failures and ends, over a made-up cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from grpc_endpoint.call import PROOF
from grpc_endpoint.endpoint import SERVICE, Endpoint
from grpc_endpoint.messaging_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    Code,
    Message,
    Resource,
    SendMessageRequest,
    SendMessageResponse,
    SystemProperties,
)
from grpc_endpoint.metrics import CANCELLED
from grpc_endpoint.server import GrpcServer
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError
from tests.support.polling import until
from tests.unit.grpc_endpoint.cluster import NAMESRV, NEW, OLD, answer
from tests.unit.grpc_endpoint.test_calls import FakeClient, handle

METADATA = (("x-mq-client-id", "client-1"),)
SEND = RequestCode.SEND_MESSAGE_V2


def stored(offset: int) -> RemotingCommand:
    return answer(queueOffset=offset, msgId="0" * 32)


def request(body: bytes = b"a book", topic: str = "orders") -> SendMessageRequest:
    system = SystemProperties(message_id="01")
    return SendMessageRequest(
        messages=[Message(topic=Resource(name=topic), body=body, system_properties=system)]
    )


class Producer:
    """A client of an endpoint that knows route and types already, and whose connections are open."""

    def __init__(self, cluster: FakeClient, server: GrpcServer, channel: aio.Channel) -> None:
        self.cluster = cluster
        self.channel: Any = channel
        self.figures = server.calls["SendMessage"]
        write, read = SendMessageRequest.SerializeToString, SendMessageResponse.FromString
        self.call: Any = self.channel.unary_unary(f"/{SERVICE}/SendMessage", write, read)

    async def send(
        self, *answers: Any, body: bytes = b"a book", topic: str = "orders"
    ) -> SendMessageResponse:
        self.cluster.script(SEND, *answers)
        response = await self.call(request(body, topic), metadata=METADATA, timeout=5)
        assert isinstance(response, SendMessageResponse)
        return response


@asynccontextmanager
async def producing() -> AsyncIterator[Producer]:
    cluster = FakeClient()
    server = GrpcServer(Endpoint(cast("RemotingClient", cluster), NAMESRV))
    port = await server.listen("127.0.0.1", 0)
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            producer = Producer(cluster, server, channel)
            cluster.is_connected = True
            response = await producer.send(stored(6))
            assert response.entries[0].offset == 6
            assert not cluster.at_once, "route and types had to be asked for"
            yield producer
    finally:
        await server.stop()


async def test_a_send_that_needs_nothing_else_is_begun_at_once() -> None:
    async with producing() as producer:
        response = await producer.send(stored(7))
        assert (response.status.code, response.entries[0].offset) == (Code.OK, 7)
        assert len(producer.cluster.at_once) == 1
        sent = producer.cluster.requests(SEND)[-1]
        assert sent.ext_fields["LEDGERMQ_GRPC_HOST"] == "127.0.0.1"
        assert (producer.figures.open, producer.figures.ended) == (0, {Code.OK: 2})
        assert PROOF.get() is None


async def test_a_lost_answer_is_asked_for_again() -> None:
    async with producing() as producer:
        response = await producer.send(RemotingClosedError("closed"), stored(8))
        assert (response.status.code, response.entries[0].offset) == (Code.OK, 8)
        assert len(producer.cluster.requests(SEND)) == 3
        assert (producer.figures.open, producer.figures.ended) == (0, {Code.OK: 2})


async def test_a_send_follows_a_new_leader() -> None:
    async with producing() as producer:
        producer.cluster.leader = NEW
        response = await producer.send(answer(ResponseCode.SERVICE_NOT_AVAILABLE, "no leader"), stored(9))
        assert (response.status.code, response.entries[0].offset) == (Code.OK, 9)
        assert [where for where, each in producer.cluster.asked if each.code == SEND] == [OLD, OLD, NEW]


@pytest.mark.parametrize(
    ("scripted", "fields", "code"),
    [
        ([answer(ResponseCode.NO_PERMISSION, "you may not")], {}, Code.FORBIDDEN),
        ([answer(queueOffset="x")], {}, Code.INTERNAL_SERVER_ERROR),
        ([], {"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ([], {"topic": "a b"}, Code.ILLEGAL_TOPIC),
        ([answer(ResponseCode.FLUSH_DISK_TIMEOUT)], {}, Code.MASTER_PERSISTENCE_TIMEOUT),
    ],
)
async def test_refusals_are_answers(scripted: list[Any], fields: dict[str, Any], code: Code) -> None:
    async with producing() as producer:
        response = await producer.send(*scripted, **fields)
        assert response.status.code == code
        assert (producer.figures.open, producer.figures.ended) == (0, {Code.OK: 1, code: 1})


async def acknowledged(producer: Producer, *handles: str) -> AckMessageResponse:
    write, read = AckMessageRequest.SerializeToString, AckMessageResponse.FromString
    call = producer.channel.unary_unary(f"/{SERVICE}/AckMessage", write, read)
    entries = [AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
    asked = AckMessageRequest(topic=Resource(name="orders"), group=Resource(name="billing"), entries=entries)
    response = await call(asked, metadata=METADATA, timeout=5)
    assert isinstance(response, AckMessageResponse)
    assert [each.receipt_handle for each in response.entries] == list(handles)
    return response


@pytest.mark.parametrize(
    ("answers", "code", "requests"),
    [
        ([answer()], Code.OK, 1),
        ([answer(ResponseCode.NO_MESSAGE, "ended before")], Code.INVALID_RECEIPT_HANDLE, 1),
        ([RemotingClosedError("closed"), answer(ResponseCode.NO_MESSAGE)], Code.OK, 2),
        ([answer(ResponseCode.NO_PERMISSION, "you may not")], Code.FORBIDDEN, 1),
    ],
)
async def test_one_acknowledgement_is_begun_at_once(answers: list[Any], code: Code, requests: int) -> None:
    async with producing() as producer:
        producer.cluster.script(RequestCode.ACK_MESSAGE, *answers)
        response = await acknowledged(producer, str(handle()))
        assert (response.status.code, response.entries[0].status.code) == (code, code)
        assert len(producer.cluster.at_once) == 1
        asked = producer.cluster.requests(RequestCode.ACK_MESSAGE)
        assert len(asked) == requests
        assert asked[0].ext_fields["extraInfo"] == response.entries[0].receipt_handle
        assert asked[0].ext_fields["LEDGERMQ_GRPC_HOST"] == "127.0.0.1"


async def test_without_an_open_connection_an_acknowledgement_waits_for_one() -> None:
    async with producing() as producer:
        producer.cluster.is_connected = False
        response = await acknowledged(producer, str(handle()))
        assert response.entries[0].status.code == Code.OK
        assert not producer.cluster.at_once
        assert len(producer.cluster.requests(RequestCode.ACK_MESSAGE)) == 1


@pytest.mark.parametrize("text", ["no handle", str(handle(pop_time_ms=1))])
async def test_a_handle_that_is_none_is_named_in_the_answer(text: str) -> None:
    async with producing() as producer:
        response = await acknowledged(producer, text)
        assert response.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
        assert producer.cluster.requests(RequestCode.ACK_MESSAGE) == []


async def test_several_acknowledgements_end_each_for_itself() -> None:
    async with producing() as producer:
        producer.cluster.script(RequestCode.ACK_MESSAGE, answer(), answer(ResponseCode.NO_MESSAGE))
        response = await acknowledged(producer, str(handle()), str(handle(offset=8)))
        assert response.status.code == Code.MULTIPLE_RESULTS
        found = [each.status.code for each in response.entries]
        assert found == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


async def test_the_answer_of_a_caller_who_has_gone_is_dropped() -> None:
    async with producing() as producer:
        is_free = asyncio.Event()

        async def hold(*_: object) -> RemotingCommand:
            await is_free.wait()
            return stored(7)

        producer.cluster.invoke = hold  # type: ignore[assignment,method-assign]
        under_way = producer.call(request(), metadata=METADATA, timeout=5)
        await until(lambda: len(producer.cluster.at_once) == 1)
        assert producer.figures.open == 1
        under_way.cancel()
        await until(lambda: producer.figures.open == 0)
        (sent,) = producer.cluster.at_once
        assert sent.is_dropped
        is_free.set()
        await sent.answer
        assert producer.figures.ended == {Code.OK: 1, CANCELLED: 1}


async def test_a_deadline_ends_a_send_that_waits() -> None:
    async with producing() as producer:

        async def hold(*_: object) -> RemotingCommand:
            await asyncio.Event().wait()
            raise AssertionError("nothing sets it")

        producer.cluster.invoke = hold  # type: ignore[assignment,method-assign]
        with pytest.raises(aio.AioRpcError) as ended:
            await producer.call(request(), metadata=METADATA, timeout=0.2)
        assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: producer.cluster.at_once[0].is_dropped)
        assert producer.figures.open == 0
        producer.cluster.at_once[0].answer.cancel()
