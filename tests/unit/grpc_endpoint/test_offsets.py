"""Reading a queue by its offsets, and a group's progress in it."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from grpc_endpoint.messaging_pb2 import (
    Broker,
    Code,
    FilterExpression,
    GetOffsetRequest,
    MessageQueue,
    PullMessageRequest,
    QueryOffsetPolicy,
    QueryOffsetRequest,
    UpdateOffsetRequest,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.unit.grpc_endpoint.cluster import BROKER, answer
from tests.unit.grpc_endpoint.test_calls import BILLING, ORDERS, FakeClient, call, served, unary
from tests.unit.grpc_endpoint.test_messages import encoded

QUEUE = MessageQueue(topic=ORDERS, id=3, broker=Broker(name=BROKER))


async def pulled(cluster: FakeClient, **fields: Any) -> list[Any]:
    request = PullMessageRequest(**{"group": BILLING, "message_queue": QUEUE, "offset": 7, **fields})
    method = served(cluster)["PullMessage"]
    assert method.stream is not None
    return [each async for each in method.stream(call(30.0), request)]


def a_pull(body: bytes = b"", code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    return answer(code, body=body, nextBeginOffset=8)


async def test_pulled_messages_come_between_the_status_and_the_next_offset() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.PULL_MESSAGE, a_pull(encoded(b"TAGS\x01A\x02")))
    status, message, end = await pulled(cluster, long_polling_timeout=Duration(seconds=60), batch_size=99)
    assert (status.status.code, message.message.system_properties.tag, end.next_offset) == (Code.OK, "A", 8)
    (sent,) = cluster.requests(RequestCode.PULL_MESSAGE)
    wanted = {"topic": "orders", "consumerGroup": "billing", "queueId": "3", "queueOffset": "7"}
    bounds = {"maxMsgNums": "32", "suspendTimeoutMillis": "20000", "subscription": "*", "sysFlag": "6"}
    assert sent.ext_fields.items() >= (wanted | bounds).items()


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (a_pull(code=ResponseCode.PULL_NOT_FOUND), Code.MESSAGE_NOT_FOUND),
        (a_pull(code=ResponseCode.PULL_RETRY_IMMEDIATELY), Code.MESSAGE_NOT_FOUND),
        (a_pull(encoded(b"TAGS\x01A\x02")), Code.MESSAGE_NOT_FOUND),
        (a_pull(code=ResponseCode.PULL_OFFSET_MOVED), Code.ILLEGAL_OFFSET),
    ],
)
async def test_a_pull_without_a_message_says_where_to_read_on(found: RemotingCommand, code: Code) -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.PULL_MESSAGE, found)
    status, end = await pulled(cluster, filter_expression=FilterExpression(expression="B"))
    assert (status.status.code, end.next_offset) == (code, 8)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": -1}, Code.ILLEGAL_OFFSET),
        ({"group": None}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": MessageQueue(topic=ORDERS, broker=Broker(name="broker-z"))}, Code.BAD_REQUEST),
        ({"filter_expression": FilterExpression(expression="||")}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_a_pull_that_makes_no_sense_has_its_code(fields: dict[str, Any], code: Code) -> None:
    cluster = FakeClient()
    (refused,) = await pulled(cluster, **fields)
    assert refused.status.code == code
    assert cluster.requests(RequestCode.PULL_MESSAGE) == []


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (QueryOffsetPolicy.BEGINNING, RequestCode.GET_MIN_OFFSET),
        (QueryOffsetPolicy.END, RequestCode.GET_MAX_OFFSET),
        (QueryOffsetPolicy.TIMESTAMP, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
    ],
)
async def test_an_offset_is_found_by_a_policy(policy: QueryOffsetPolicy, asked: RequestCode) -> None:
    cluster = FakeClient()
    cluster.script(asked, answer(offset=5))
    request = QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=policy)
    request.timestamp.FromMilliseconds(1_700_000_000_000)
    response = await unary(cluster, "QueryOffset", request)
    assert (response.status.code, response.offset) == (Code.OK, 5)
    (sent,) = cluster.requests(asked)
    assert sent.ext_fields.get("timestamp") == (
        "1700000000000" if policy == QueryOffsetPolicy.TIMESTAMP else None
    )


async def test_the_policy_of_a_time_needs_one() -> None:
    request = QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=QueryOffsetPolicy.TIMESTAMP)
    assert (await unary(FakeClient(), "QueryOffset", request)).status.code == Code.BAD_REQUEST


async def test_a_groups_progress_is_kept_and_shown() -> None:
    cluster = FakeClient()
    update = UpdateOffsetRequest(group=BILLING, message_queue=QUEUE, offset=9)
    assert (await unary(cluster, "UpdateOffset", update)).status.code == Code.OK
    (sent,) = cluster.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert sent.ext_fields["commitOffset"] == "9"
    get = GetOffsetRequest(group=BILLING, message_queue=QUEUE)
    cluster.script(
        RequestCode.QUERY_CONSUMER_OFFSET, answer(offset=9), answer(ResponseCode.QUERY_NOT_FOUND, "none")
    )
    found = await unary(cluster, "GetOffset", get)
    assert (found.status.code, found.offset) == (Code.OK, 9)
    assert (await unary(cluster, "GetOffset", get)).status.code == Code.OFFSET_NOT_FOUND


async def test_no_group_continues_before_a_queues_beginning() -> None:
    request = UpdateOffsetRequest(group=BILLING, message_queue=QUEUE, offset=-1)
    assert (await unary(FakeClient(), "UpdateOffset", request)).status.code == Code.ILLEGAL_OFFSET
