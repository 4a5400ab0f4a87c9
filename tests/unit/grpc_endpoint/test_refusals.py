"""Calls about things and clients that are not there, or not any more."""

import asyncio
from typing import Any, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from grpc_endpoint.clients import CommandStream
from grpc_endpoint.endpoint import Endpoint
from grpc_endpoint.handles import TransactionId
from grpc_endpoint.messaging_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    Code,
    EndTransactionRequest,
    ForwardMessageToDeadLetterQueueRequest,
    QueryOffsetPolicy,
    QueryOffsetRequest,
    RecallMessageRequest,
    ReceiveMessageRequest,
)
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.recall_handle import encode_handle
from tests.support.polling import until
from tests.unit.grpc_endpoint.cluster import NAMESRV, answer
from tests.unit.grpc_endpoint.test_calls import (
    BILLING,
    ORDERS,
    QUEUE,
    FakeClient,
    call,
    consumer_settings,
    handle,
    popped,
    received,
    unary,
)


def with_handle(name: str, receipt_handle: str) -> Any:
    """The request of this method for one message."""
    if name == "AckMessage":
        entries = [AckMessageEntry(receipt_handle=receipt_handle)]
        return AckMessageRequest(group=BILLING, topic=ORDERS, entries=entries)
    made = {
        "ChangeInvisibleDuration": ChangeInvisibleDurationRequest,
        "ForwardMessageToDeadLetterQueue": ForwardMessageToDeadLetterQueueRequest,
    }[name]
    return made(group=BILLING, topic=ORDERS, receipt_handle=receipt_handle)


@pytest.mark.parametrize("name", ["ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue", "AckMessage"])
async def test_a_handle_of_a_broker_that_is_not_there_is_invalid(name: str) -> None:
    cluster = FakeClient()
    response = await unary(cluster, name, with_handle(name, str(handle(broker_name="broker-z"))))
    assert response.status.code == Code.INVALID_RECEIPT_HANDLE
    assert len(cluster.requests(RequestCode.GET_BROKER_CLUSTER_INFO)) == 1, "it is not waited for"


async def test_a_transaction_of_a_broker_that_is_not_there_is_invalid() -> None:
    request = EndTransactionRequest(
        topic=ORDERS, transaction_id=str(TransactionId(9, 4_711, "broker-z", "01AB"))
    )
    response = await unary(FakeClient(), "EndTransaction", request)
    assert response.status.code == Code.INVALID_TRANSACTION_ID


async def test_nothing_is_recalled_from_a_broker_that_is_not_there() -> None:
    request = RecallMessageRequest(
        topic=ORDERS, recall_handle=encode_handle("orders", "broker-z", 1_800_000_000_000, "01AB")
    )
    response = await unary(FakeClient("DELAY"), "RecallMessage", request)
    assert response.status.code == Code.BAD_REQUEST


async def test_a_change_that_came_too_soon_keeps_its_handle() -> None:
    cluster = FakeClient()
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    cluster.script(
        code, *[answer(ResponseCode.SYSTEM_BUSY, "busy"), answer(ResponseCode.NO_MESSAGE, "ended")]
    )
    request = ChangeInvisibleDurationRequest(group=BILLING, topic=ORDERS, receipt_handle=str(handle()))
    response = await unary(cluster, "ChangeInvisibleDuration", request)
    assert (response.status.code, response.receipt_handle) == (Code.TOO_MANY_REQUESTS, request.receipt_handle)
    response = await unary(cluster, "ChangeInvisibleDuration", request)
    assert (response.status.code, response.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, "")


async def test_messages_that_do_not_match_are_told_from_none() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.POP_MESSAGE, popped())
    assert (await received(cluster, expression="B"))[0].status.message == "no match message"
    cluster.script(RequestCode.POP_MESSAGE, answer(ResponseCode.POLLING_TIMEOUT))
    assert (await received(cluster, expression="B"))[0].status.message == "no new message"


async def test_an_offset_of_no_time_is_a_bad_request() -> None:
    request = QueryOffsetRequest(
        message_queue=QUEUE,
        query_offset_policy=QueryOffsetPolicy.TIMESTAMP,
        timestamp=Timestamp(seconds=2**60),
    )
    response = await unary(FakeClient(), "QueryOffset", request)
    assert response.status.code == Code.BAD_REQUEST


async def pushed(cluster: FakeClient, endpoint: Endpoint) -> list[Any]:
    """The answers to a receive whose messages the endpoint is to renew."""
    request = ReceiveMessageRequest(group=BILLING, message_queue=QUEUE, batch_size=1, auto_renew=True)
    method = endpoint.methods()["ReceiveMessage"]
    assert method.stream is not None
    return [each async for each in method.stream(call(30.0), request)]


async def test_messages_for_a_client_that_left_while_it_waited_are_visible_again() -> None:
    """Nobody would end them, and they would be renewed for hours."""
    cluster = FakeClient()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    await endpoint.clients.put(call(), consumer_settings(), CommandStream())
    leaving: list[asyncio.Task[Any]] = []

    def late(_: RemotingCommand) -> RemotingCommand:
        leaving.append(asyncio.ensure_future(endpoint.clients.remove("client-1")))
        return popped()

    cluster.script(RequestCode.POP_MESSAGE, late)
    changed = answer(popTime=1, invisibleTime=1_000, reviveQid=0)
    cluster.script(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, changed)
    status, _ = await pushed(cluster, endpoint)
    assert status.status.code == Code.MESSAGE_NOT_FOUND
    await until(lambda: bool(cluster.requests(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)))
    assert len(endpoint.renewals) == 0


@pytest.mark.parametrize("is_known", [True, False])
async def test_messages_are_renewed_for_clients_that_have_announced_themselves(is_known: bool) -> None:
    """Another one, of an endpoint that has just started, gets them and they come again after a minute."""
    cluster = FakeClient()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    if is_known:
        await endpoint.clients.put(call(), consumer_settings(), CommandStream())
    cluster.script(RequestCode.POP_MESSAGE, popped())
    answers = await pushed(cluster, endpoint)
    assert [each.WhichOneof("content") for each in answers] == ["status", "message", "delivery_timestamp"]
    assert len(endpoint.renewals) == is_known
