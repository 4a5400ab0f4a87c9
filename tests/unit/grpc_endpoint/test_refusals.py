"""What calls that name things that are not there are answered, and that nobody waits for it."""

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from broker.timer.recalls import encode_handle
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
)
from remoting.codes import RequestCode, ResponseCode
from tests.unit.grpc_endpoint.cluster import answer
from tests.unit.grpc_endpoint.test_calls import (
    BILLING,
    ORDERS,
    QUEUE,
    FakeClient,
    handle,
    popped,
    received,
    unary,
)

GONE = str(handle(broker_name="broker-z"))


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        (
            "ChangeInvisibleDuration",
            ChangeInvisibleDurationRequest(group=BILLING, topic=ORDERS, receipt_handle=GONE),
        ),
        (
            "ForwardMessageToDeadLetterQueue",
            ForwardMessageToDeadLetterQueueRequest(group=BILLING, topic=ORDERS, receipt_handle=GONE),
        ),
        (
            "AckMessage",
            AckMessageRequest(group=BILLING, topic=ORDERS, entries=[AckMessageEntry(receipt_handle=GONE)]),
        ),
    ],
)
async def test_a_handle_of_a_broker_that_is_not_there_is_invalid(name: str, request_: Any) -> None:
    cluster = FakeClient()
    response = await unary(cluster, name, request_)
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
