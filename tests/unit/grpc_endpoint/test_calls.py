"""Each method's own rules, against a cluster of made-up answers."""

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from grpc_endpoint.call import Call, call_of
from grpc_endpoint.clients import VERSION_CHARS_MAX
from grpc_endpoint.endpoint import Endpoint, Method
from grpc_endpoint.handles import TransactionId
from grpc_endpoint.messaging_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    Broker,
    ChangeInvisibleDurationRequest,
    ClientType,
    Code,
    Encoding,
    EndTransactionRequest,
    FilterExpression,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    HeartbeatRequest,
    Message,
    MessageQueue,
    MessageType,
    NotifyClientTerminationRequest,
    QueryAssignmentRequest,
    QueryRouteRequest,
    ReceiveMessageRequest,
    Resource,
    SendMessageRequest,
    Settings,
    SubscriptionEntry,
    SystemProperties,
    TelemetryCommand,
    TransactionResolution,
)
from grpc_endpoint.status import StatusError, StreamRefusedError
from grpc_endpoint.telemetry import NAMES_MAX
from grpc_endpoint.validation import BODY_BYTES_MAX
from remoting.acl import GrpcProof
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError
from remoting.headers.send import SendMessageRequestHeader
from remoting.pop_receipts import ReceiptHandle
from remoting.route import DEFAULT_TOPIC
from tests.unit.grpc_endpoint.cluster import BROKER, NAMESRV, FakeCluster, answer
from tests.unit.grpc_endpoint.test_messages import encoded

ORDERS, BILLING = Resource(name="orders"), Resource(name="billing")
QUEUE = MessageQueue(topic=ORDERS, broker=Broker(name=BROKER))


class FakeClient(FakeCluster):
    """Also takes the handler of brokers' requests."""

    def on_request(self, handler: Any) -> None:
        self.handler = handler


def served(cluster: FakeClient) -> dict[str, Method]:
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    return dict(endpoint.methods())


def call(remaining_s: float = 10.0, version: str = "5.1.0") -> Call:
    metadata = {"x-mq-client-id": "client-1", "x-mq-client-version": version, "x-mq-language": "JAVA"}
    return call_of(metadata, "10.0.0.7:40000", remaining_s)


async def unary(cluster: FakeClient, name: str, request: Any) -> Any:
    method = served(cluster)[name]
    assert method.unary is not None
    try:
        return await method.unary(call(), request)
    except StatusError as error:
        return method.refusal(error)


def handle(**changes: Any) -> ReceiptHandle:
    now_ms = time.time_ns() // 1_000_000
    known = {
        "start_offset": 5,
        "pop_time_ms": now_ms,
        "invisible_ms": 60_000,
        "revive_queue_id": 0,
        "mark": "0",
    }
    known |= {"broker_name": BROKER, "queue_id": 3, "offset": 7, "position": 4_711}
    return ReceiptHandle(**known | changes)  # type: ignore[arg-type]


def popped(**changes: object) -> RemotingCommand:
    now_ms = time.time_ns() // 1_000_000
    known = {"popTime": now_ms, "invisibleTime": 60_000, "reviveQid": 0, "startOffsetInfo": "0 3 5"}
    found = answer(body=encoded(b"TAGS\x01A\x02"))
    found.ext_fields = {name: str(value) for name, value in (known | changes).items()}
    return found


async def received(
    cluster: FakeClient, remaining_s: float = 30.0, expression: str = "*", **fields: Any
) -> list[Any]:
    request = ReceiveMessageRequest(
        group=BILLING,
        message_queue=QUEUE,
        batch_size=16,
        filter_expression=FilterExpression(type=FilterType.TAG, expression=expression),
        **fields,
    )
    if not request.auto_renew and not request.HasField("invisible_duration"):
        request.invisible_duration.FromSeconds(30)
    method = served(cluster)["ReceiveMessage"]
    assert method.stream is not None
    return [each async for each in method.stream(call(remaining_s), request)]


def test_every_method_of_the_interface_is_served() -> None:
    async def check() -> dict[str, Method]:
        return served(FakeClient())

    methods = asyncio.run(check())
    assert len(methods) == 17
    assert all((each.unary is None) != (each.stream is None) for each in methods.values())


async def test_a_call_needs_a_client_id() -> None:
    with pytest.raises(StatusError) as refused:
        call_of({}, "10.0.0.7:40000", 3.0)
    assert refused.value.code == Code.CLIENT_ID_REQUIRED


async def test_a_call_without_a_deadline_gets_one() -> None:
    metadata = {"x-mq-client-id": "client-1"}
    assert 6 < call_of(metadata, "10.0.0.7:40000", None, default_s=7).remaining_s <= 7
    assert call_of(metadata, "10.0.0.7:40000", 3.0, default_s=7).remaining_s <= 3


SIGNED = {
    "x-mq-client-id": "client-1",
    "x-mq-date-time": "20260131T050000Z",
    "authorization": "MQv2-HMAC-SHA1 Credential=alice/eu/RocketMQ, SignedHeaders=x-mq-date-time, Signature="
    + "A" * 40,
}


@pytest.mark.parametrize(
    "text", ["", "Basic abc", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x, Signature=1"]
)
async def test_where_brokers_have_access_control_a_call_must_be_signed(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        call_of(SIGNED | {"authorization": text}, "10.0.0.7:40000", 3.0, needs_proof=True)
    assert refused.value.code == Code.UNAUTHORIZED


async def test_brokers_get_the_address_of_a_client_that_signs_nothing() -> None:
    """Quotas count by it, where the broker trusts the endpoint."""
    cluster = FakeClient()
    call_of(SIGNED, "[fd00::7]:40000", 3.0).enter()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    await endpoint.brokers.check_client()
    assert cluster.requests(RequestCode.CHECK_CLIENT_CONFIG) == []
    end_s = asyncio.get_running_loop().time() + 1
    await endpoint.brokers.ask(BROKER, RemotingCommand(RequestCode.GET_MAX_OFFSET), end_s)
    (sent,) = cluster.requests(RequestCode.GET_MAX_OFFSET)
    assert sent.ext_fields == {"LEDGERMQ_GRPC_HOST": "fd00::7", "LEDGERMQ_GRPC_PORT": "40000"}


async def test_brokers_get_the_clients_proof_and_its_address() -> None:
    cluster = FakeClient()
    call_of(SIGNED, "10.0.0.7:40000", 3.0, needs_proof=True).enter()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV, needs_proof=True)
    end_s = asyncio.get_running_loop().time() + 1
    cluster.script(RequestCode.SEND_MESSAGE, answer(ResponseCode.NO_PERMISSION, "you may not"))
    with pytest.raises(StatusError) as refused:
        await endpoint.brokers.ask(BROKER, RemotingCommand(RequestCode.SEND_MESSAGE), end_s, topic="orders")
    assert refused.value.code == Code.UNAUTHORIZED
    (sent,) = cluster.requests(RequestCode.SEND_MESSAGE)
    proof = GrpcProof("alice", "20260131T050000Z", "A" * 40, "10.0.0.7", "40000")
    assert sent.ext_fields == proof.ext_fields()
    await endpoint.brokers.topic_config("orders")
    (own,) = cluster.requests(RequestCode.GET_TOPIC_CONFIG)
    assert own.ext_fields == {"topic": "orders"}, "it asks for itself"


def signed_call() -> Call:
    found = call_of(SIGNED, "10.0.0.7:40000", 10.0, needs_proof=True)
    found.enter()
    return found


OTHER = {"x-mq-client-id": "client-2", "x-mq-language": "GOLANG"}


async def test_routes_are_for_clients_whose_signature_a_broker_has_verified() -> None:
    cluster = FakeClient()
    methods = served(cluster)
    requests = {
        "QueryRoute": QueryRouteRequest(topic=ORDERS),
        "QueryAssignment": QueryAssignmentRequest(topic=ORDERS, group=BILLING),
    }
    wrong = [answer(ResponseCode.NO_PERMISSION, "check signature failed.")] * len(requests)
    cluster.script(RequestCode.CHECK_CLIENT_CONFIG, *wrong)
    for name, request in requests.items():
        with pytest.raises(StatusError, match="check signature failed") as refused:
            await methods[name].unary(signed_call(), request)  # type: ignore[misc]
        assert refused.value.code == Code.UNAUTHORIZED
    for name, request in requests.items():
        response = await methods[name].unary(signed_call(), request)  # type: ignore[misc]
        assert response.status.code == Code.OK
    shown = cluster.requests(RequestCode.CHECK_CLIENT_CONFIG)
    assert len(shown) == len(requests) + 1, "one that was verified is not shown again"
    assert all(each.ext_fields["LEDGERMQ_GRPC_USER"] == "alice" for each in shown)


async def test_settings_are_for_clients_whose_signature_a_broker_has_verified() -> None:
    """A producer by its settings would be sent the half messages of its topics."""
    cluster = FakeClient()
    methods = served(cluster)
    refusal = answer(ResponseCode.NO_PERMISSION, "check signature failed.")
    cluster.script(RequestCode.CHECK_CLIENT_CONFIG, refusal, answer(), refusal, refusal)
    telemetry = methods["Telemetry"].stream
    assert telemetry is not None
    settings = TelemetryCommand(settings=consumer_settings())
    with pytest.raises(StreamRefusedError, match="check signature failed"):
        _ = [each async for each in telemetry(signed_call(), commands(settings))]
    stream = telemetry(signed_call(), commands(settings))
    assert (await anext(stream)).status.code == Code.OK
    for name, request in (
        ("Heartbeat", HeartbeatRequest(group=BILLING)),
        ("NotifyClientTermination", NotifyClientTerminationRequest(group=BILLING)),
    ):
        other = call_of(SIGNED | {"x-mq-date-time": "other"}, "10.0.0.8:1", 10.0, needs_proof=True)
        other.enter()
        with pytest.raises(StatusError, match="check signature failed"):
            await methods[name].unary(other, request)  # type: ignore[misc]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_consumer_without_the_right_is_told_so_until_it_has_it() -> None:
    cluster = FakeClient()
    methods = served(cluster)
    words = "User:alice has no permission to access Group:billing"
    cluster.script(RequestCode.HEART_BEAT, *[answer(ResponseCode.NO_PERMISSION, words)] * 2)
    telemetry, heartbeat = methods["Telemetry"].stream, methods["Heartbeat"].unary
    assert telemetry is not None
    assert heartbeat is not None
    with pytest.raises(StreamRefusedError, match=words):
        _ = [
            each
            async for each in telemetry(
                signed_call(), commands(TelemetryCommand(settings=consumer_settings()))
            )
        ]
    with pytest.raises(StatusError, match=words) as refused:
        await heartbeat(signed_call(), HeartbeatRequest(group=BILLING))
    assert refused.value.code == Code.UNAUTHORIZED
    assert (await heartbeat(signed_call(), HeartbeatRequest(group=BILLING))).status.code == Code.OK
    before = len(cluster.requests(RequestCode.HEART_BEAT))
    assert (await heartbeat(signed_call(), HeartbeatRequest(group=BILLING))).status.code == Code.OK
    assert len(cluster.requests(RequestCode.HEART_BEAT)) == before, "it is registered"


async def test_routes_name_the_endpoints_of_the_request_and_the_topics_type() -> None:
    request = QueryRouteRequest(topic=ORDERS)
    request.endpoints.addresses.add(host="endpoint", port=8081)
    response = await unary(FakeClient("FIFO"), "QueryRoute", request)
    assert [queue.id for queue in response.message_queues] == [0, 1, 2, 3]
    assert all(queue.broker.endpoints == request.endpoints for queue in response.message_queues)
    assert {tuple(queue.accept_message_types) for queue in response.message_queues} == {(MessageType.FIFO,)}


async def test_a_group_in_order_is_assigned_each_queue() -> None:
    cluster = FakeClient()
    request = QueryAssignmentRequest(topic=ORDERS, group=BILLING)
    response = await unary(cluster, "QueryAssignment", request)
    assert [each.message_queue.id for each in response.assignments] == [-1]
    cluster.group = {"consumeMessageOrderly": True}
    response = await unary(cluster, "QueryAssignment", request)
    assert [each.message_queue.id for each in response.assignments] == [0, 1, 2, 3]


async def test_a_transaction_gets_an_id_that_names_its_half_message() -> None:
    cluster = FakeClient("TRANSACTION")
    stored = answer(queueOffset=9, queueId=0, msgId="7F00000100002A9F0000000000001267")
    cluster.script(RequestCode.SEND_MESSAGE_V2, stored)
    system = SystemProperties(message_id="01AB", message_type=MessageType.TRANSACTION)
    message = Message(topic=ORDERS, system_properties=system, body=b"x")
    response = await unary(cluster, "SendMessage", SendMessageRequest(messages=[message]))
    (entry,) = response.entries
    assert (response.status.code, entry.status.code, entry.message_id) == (Code.OK, Code.OK, "01AB")
    assert TransactionId.parse(entry.transaction_id) == TransactionId(9, 4_711, BROKER, "01AB")
    (sent,) = cluster.requests(RequestCode.SEND_MESSAGE_V2)
    header = SendMessageRequestHeader.parse(sent.ext_fields)
    assert (header.topic, header.producer_group, header.default_topic) == ("orders", "orders", DEFAULT_TOPIC)
    assert (header.sys_flag, header.default_topic_queue_nums, header.is_batch) == (4, 4, False)
    request = EndTransactionRequest(
        topic=ORDERS, transaction_id=entry.transaction_id, resolution=TransactionResolution.COMMIT
    )
    assert (await unary(cluster, "EndTransaction", request)).status.code == Code.OK
    (ended,) = cluster.requests(RequestCode.END_TRANSACTION)
    assert ended.ext_fields["commitLogOffset"] == "4711"
    assert ended.ext_fields["tranStateTableOffset"] == "9"
    assert ended.ext_fields["commitOrRollback"] == "8"


@pytest.mark.parametrize(
    ("accepted", "system"),
    [
        ("NORMAL", {"message_group": "g"}),
        ("FIFO", {}),
        ("DELAY", {}),
        ("TRANSACTION", {}),
        ("NORMAL", {"message_type": MessageType.TRANSACTION}),
        ("NORMAL", {"lite_topic": "chat"}),
    ],
)
async def test_a_message_must_be_of_its_topics_type(accepted: str, system: dict[str, Any]) -> None:
    cluster = FakeClient(accepted)
    message = Message(topic=ORDERS, system_properties=SystemProperties(message_id="1", **system), body=b"x")
    response = await unary(cluster, "SendMessage", SendMessageRequest(messages=[message]))
    assert response.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert not cluster.requests(RequestCode.SEND_MESSAGE_V2)


async def test_a_send_whose_message_was_born_at_no_time_takes_the_present() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.SEND_MESSAGE_V2, answer(queueOffset=9, queueId=0, msgId="0" * 32))
    system = SystemProperties(message_id="1", born_timestamp=Timestamp(seconds=2**60))
    message = Message(topic=ORDERS, system_properties=system, body=b"x")
    before_ms = time.time_ns() // 1_000_000
    assert (
        await unary(cluster, "SendMessage", SendMessageRequest(messages=[message]))
    ).status.code == Code.OK
    (sent,) = cluster.requests(RequestCode.SEND_MESSAGE_V2)
    assert SendMessageRequestHeader.parse(sent.ext_fields).born_timestamp_ms >= before_ms


def packed(body: bytes) -> bytes:
    """The same bytes whenever it is called: gzip's header has the time otherwise."""
    return gzip.compress(body, mtime=0)


@pytest.mark.parametrize(
    ("body", "stored", "sys_flag"),
    [
        (packed(b"text"), b"text", 0),
        (zlib.compress(b"text"), zlib.compress(b"text"), 1),
        (packed(b"text")[:-1], packed(b"text")[:-1], 1),
        (packed(b"text") + b"x", packed(b"text") + b"x", 1),
        (packed(b""), packed(b""), 1),
        (packed(bytes(BODY_BYTES_MAX + 1)), packed(bytes(BODY_BYTES_MAX + 1)), 1),
        (b"\x1f\x8bno gzip", b"\x1f\x8bno gzip", 1),
    ],
    ids=["gzip", "zlib", "cut off", "more behind it", "nothing in it", "too large", "no gzip"],
)
async def test_a_body_is_stored_so_that_remoting_clients_can_read_it(
    body: bytes, stored: bytes, sys_flag: int
) -> None:
    """They know zlib; a message that is packed by gzip is passed over by Java's without a word."""
    cluster = FakeClient()
    cluster.script(RequestCode.SEND_MESSAGE_V2, answer(queueOffset=9, queueId=0, msgId="0" * 32))
    system = SystemProperties(message_id="1", body_encoding=Encoding.GZIP)
    message = Message(topic=ORDERS, system_properties=system, body=body)
    await unary(cluster, "SendMessage", SendMessageRequest(messages=[message]))
    (sent,) = cluster.requests(RequestCode.SEND_MESSAGE_V2)
    assert sent.body == stored
    assert SendMessageRequestHeader.parse(sent.ext_fields).sys_flag == sys_flag


def batch(*packed: tuple[Encoding, bytes]) -> SendMessageRequest:
    return SendMessageRequest(
        messages=[
            Message(
                topic=ORDERS,
                system_properties=SystemProperties(message_id="1", body_encoding=encoding),
                body=body,
            )
            for encoding, body in packed
        ]
    )


async def test_the_bodies_of_a_batch_are_packed_alike() -> None:
    cluster = FakeClient()
    request = batch((Encoding.IDENTITY, b"text"), (Encoding.GZIP, gzip.compress(b"text")))
    response = await unary(cluster, "SendMessage", request)
    assert response.status.code == Code.MESSAGE_CORRUPTED
    assert not cluster.requests(RequestCode.SEND_BATCH_MESSAGE)


@pytest.mark.parametrize(("size", "sys_flag"), [(10, 0), (BODY_BYTES_MAX // 2 + 1, 1)])
async def test_what_the_bodies_of_a_batch_unpack_to_is_bounded(size: int, sys_flag: int) -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.SEND_BATCH_MESSAGE, answer(queueOffset=9, queueId=0, msgId="0" * 32))
    response = await unary(cluster, "SendMessage", batch(*[(Encoding.GZIP, gzip.compress(bytes(size)))] * 2))
    assert response.status.code == Code.OK
    (sent,) = cluster.requests(RequestCode.SEND_BATCH_MESSAGE)
    assert SendMessageRequestHeader.parse(sent.ext_fields).sys_flag == sys_flag


async def test_a_send_without_messages_or_with_two_topics_is_corrupted() -> None:
    other = Message(topic=Resource(name="other"), body=b"x")
    for messages in ([], [Message(topic=ORDERS, body=b"x"), other]):
        response = await unary(FakeClient(), "SendMessage", SendMessageRequest(messages=messages))
        assert response.status.code == Code.MESSAGE_CORRUPTED


async def test_received_messages_come_after_the_status_and_before_the_time() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.POP_MESSAGE, popped())
    answers = await received(cluster)
    assert [each.WhichOneof("content") for each in answers] == ["status", "message", "delivery_timestamp"]
    assert answers[0].status.code == Code.OK
    (pop,) = cluster.requests(RequestCode.POP_MESSAGE)
    assert (pop.ext_fields["queueId"], pop.ext_fields["invisibleTime"]) == ("-1", "30000")


async def test_nothing_received_is_not_found() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.POP_MESSAGE, answer(ResponseCode.POLLING_TIMEOUT))
    answers = await received(cluster)
    assert [each.WhichOneof("content") for each in answers] == ["status", "delivery_timestamp"]
    assert answers[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_another_tag_with_the_same_hash_is_acknowledged_and_not_delivered() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.POP_MESSAGE, popped())
    answers = await received(cluster, expression="B")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
    assert len(cluster.requests(RequestCode.ACK_MESSAGE)) == 1


async def test_what_was_tried_too_often_becomes_a_dead_letter() -> None:
    cluster = FakeClient()
    cluster.group = {"retryMaxTimes": 1, "consumeMessageOrderly": True}
    cluster.script(RequestCode.POP_MESSAGE, popped(orderCountInfo="0 qo3%7 2;0 3 2"))
    answers = await received(cluster)
    for _ in range(10):
        await asyncio.sleep(0)
    assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
    (sent_back,) = cluster.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert sent_back.ext_fields["delayLevel"] == "-1"
    assert len(cluster.requests(RequestCode.ACK_MESSAGE)) == 1


@pytest.mark.parametrize(
    ("fields", "remaining_s", "code"),
    [
        ({"invisible_duration": 9}, 30.0, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": 13 * 3_600}, 30.0, Code.ILLEGAL_INVISIBLE_TIME),
        ({}, 4.0, Code.ILLEGAL_POLLING_TIME),
    ],
)
async def test_times_of_a_receive_out_of_bounds(
    fields: dict[str, Any], remaining_s: float, code: Code
) -> None:
    request_fields = dict(fields)
    if "invisible_duration" in fields:
        from google.protobuf.duration_pb2 import Duration

        request_fields["invisible_duration"] = Duration(seconds=fields["invisible_duration"])
    answers = await received(FakeClient(), remaining_s, **request_fields)
    assert answers[0].status.code == code


async def test_what_a_caller_that_has_gone_would_have_got_is_visible_again() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.POP_MESSAGE, popped())
    cluster.script(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, answer(popTime=1, invisibleTime=1_000, reviveQid=0)
    )
    method = served(cluster)["ReceiveMessage"]
    assert method.stream is not None
    request = ReceiveMessageRequest(group=BILLING, message_queue=QUEUE, batch_size=1)
    request.invisible_duration.FromSeconds(30)
    stream = cast("Any", method.stream(call(30.0), request))
    await anext(stream)
    await stream.aclose()
    for _ in range(5):
        await asyncio.sleep(0)
    (changed,) = cluster.requests(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert changed.ext_fields["invisibleTime"] == "1000"


async def test_each_handle_is_acknowledged_by_itself() -> None:
    cluster = FakeClient()
    cluster.script(RequestCode.ACK_MESSAGE, answer(), answer(ResponseCode.NO_MESSAGE, "not valid"))
    entries = [AckMessageEntry(message_id=str(n), receipt_handle=str(handle(offset=n))) for n in range(2)]
    entries.append(AckMessageEntry(message_id="2", receipt_handle="nonsense"))
    entries.append(AckMessageEntry(message_id="3", receipt_handle=str(handle(invisible_ms=0))))
    request = AckMessageRequest(group=BILLING, topic=ORDERS, entries=entries)
    response = await unary(cluster, "AckMessage", request)
    assert response.status.code == Code.MULTIPLE_RESULTS
    assert [each.status.code for each in response.entries] == [Code.OK, *[Code.INVALID_RECEIPT_HANDLE] * 3]
    assert [each.message_id for each in response.entries] == ["0", "1", "2", "3"]


async def test_an_acknowledgement_whose_answer_was_lost_is_found_done() -> None:
    cluster = FakeClient()
    cluster.script(
        RequestCode.ACK_MESSAGE, RemotingClosedError("closed"), answer(ResponseCode.NO_MESSAGE, "ended")
    )
    entry = AckMessageEntry(message_id="0", receipt_handle=str(handle()))
    response = await unary(
        cluster, "AckMessage", AckMessageRequest(group=BILLING, topic=ORDERS, entries=[entry])
    )
    assert response.status.code == Code.OK


async def test_a_changed_invisible_time_has_a_new_handle() -> None:
    cluster = FakeClient()
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    cluster.script(code, answer(popTime=1_800_000_000_000, invisibleTime=10_000, reviveQid=1))
    request = ChangeInvisibleDurationRequest(
        group=BILLING, topic=ORDERS, receipt_handle=str(handle(mark="2")), message_id="0"
    )
    request.invisible_duration.FromSeconds(10)
    response = await unary(cluster, "ChangeInvisibleDuration", request)
    assert ReceiptHandle.parse(response.receipt_handle).visible_at_ms == 1_800_000_010_000
    (changed,) = cluster.requests(code)
    assert changed.ext_fields["topic"] == "%RETRY%billing+orders"


async def test_a_dead_letter_needs_the_position_of_its_message() -> None:
    request = ForwardMessageToDeadLetterQueueRequest(
        group=BILLING, topic=ORDERS, receipt_handle=str(handle(position=-1)), message_id="0"
    )
    response = await unary(FakeClient(), "ForwardMessageToDeadLetterQueue", request)
    assert response.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_client_without_settings_is_not_recognized() -> None:
    for name, request in (
        ("Heartbeat", HeartbeatRequest(group=BILLING)),
        ("NotifyClientTermination", NotifyClientTerminationRequest(group=BILLING)),
    ):
        response = await unary(FakeClient(), name, request)
        assert response.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


async def commands(*sent: TelemetryCommand) -> AsyncIterator[TelemetryCommand]:
    for each in sent:
        yield each


def consumer_settings() -> Settings:
    settings = Settings(client_type=ClientType.PUSH_CONSUMER)
    settings.subscription.group.CopyFrom(BILLING)
    settings.subscription.subscriptions.append(SubscriptionEntry(topic=ORDERS))
    return settings


async def test_settings_come_back_with_the_servers_part() -> None:
    cluster = FakeClient()
    cluster.group = {"retryMaxTimes": 3, "consumeMessageOrderly": True}
    method = served(cluster)["Telemetry"]
    assert method.stream is not None
    sent = commands(TelemetryCommand(settings=consumer_settings()))
    (merged,) = [each async for each in method.stream(call(), sent)]
    assert merged.status.code == Code.OK
    assert merged.settings.backoff_policy.max_attempts == 4
    assert merged.settings.backoff_policy.customized_backoff.next[0].seconds == 1
    assert merged.settings.subscription.fifo
    assert merged.settings.subscription.long_polling_timeout.seconds == 20
    (beat,) = cluster.requests(RequestCode.HEART_BEAT)
    assert b'"groupName":"billing"' in beat.body
    assert beat.language == "JAVA"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"type": "EXPONENTIAL"}, {"initial": "5s", "max": "7200s", "multiplier": 2.0}),
        (
            {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 100, "max": 2_500, "multiplier": 3},
            },
            {"initial": "0.100s", "max": "2.500s", "multiplier": 3.0},
        ),
        ({"customizedRetryPolicy": {"next": [1_000, 20_000]}}, {"next": ["1s", "20s"]}),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "soon"}}, None),
    ],
)
async def test_a_groups_own_retry_policy_is_in_its_consumers_settings(
    policy: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    cluster = FakeClient()
    cluster.group = {"retryMaxTimes": 3, "groupRetryPolicy": policy}
    method = served(cluster)["Telemetry"]
    assert method.stream is not None
    sent = commands(TelemetryCommand(settings=consumer_settings()))
    (merged,) = [each async for each in method.stream(call(), sent)]
    backoff = MessageToDict(merged.settings.backoff_policy)
    assert backoff.pop("maxAttempts") == 4
    (kind,) = backoff
    if expected is None:
        assert len(backoff["customizedBackoff"]["next"]) == 18, "RocketMQ's default"
    else:
        assert backoff == {kind: expected}
        assert kind.startswith("customized" if "next" in expected else "exponential")


async def test_operators_see_a_consumers_settings() -> None:
    cluster = FakeClient()
    cluster.group = {
        "retryMaxTimes": 3,
        "groupRetryPolicy": {"customizedRetryPolicy": {"next": [1_000, 5_000]}},
    }
    method = served(cluster)["Telemetry"]
    assert method.stream is not None
    stream = method.stream(call(), commands(TelemetryCommand(settings=consumer_settings())))
    await anext(stream)
    asked = {"consumerGroup": "billing", "clientId": "client-1", "jstackEnable": "false"}
    request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=asked)
    shown = orjson.loads((await cluster.handler(request, None)).body)
    assert shown["subscriptionSet"] == [{"topic": "orders", "subString": ""}]
    assert (
        shown["properties"].items()
        >= {
            "address": "10.0.0.7:40000",
            "clientType": "PUSH_CONSUMER",
            "fifo": "false",
            "longPollingTimeoutMs": "20000",
            "maxAttempts": "4",
            "receiveBatchSize": "32",
            "retryPausesMs": "1000 5000",
        }.items()
    )
    await stream.aclose()  # type: ignore[attr-defined]


async def listed(cluster: FakeClient, **fields: str) -> Any:
    request = RemotingCommand(RequestCode.LEDGERMQ_GRPC_CLIENTS, ext_fields={"address": "h:1", **fields})
    return orjson.loads(cluster.handler(request, None).body)


async def test_operators_get_a_list_of_the_clients_with_their_settings() -> None:
    cluster = FakeClient()
    methods = served(cluster)
    assert await listed(cluster) == {"total": 0, "clients": []}
    producer = Settings(client_type=ClientType.PRODUCER)
    producer.publishing.topics.extend(Resource(name=f"t{number}") for number in range(NAMES_MAX + 5))
    producer.request_timeout.FromSeconds(3)
    of_group = consumer_settings()
    of_group.subscription.group.resource_namespace = "n" * 300
    method = methods["Telemetry"]
    assert method.stream is not None
    streams = []
    for settings, who in (
        (of_group, call(version="5" * 100)),
        (producer, call_of(OTHER, "[fd00::1]:5", 3.0)),
    ):
        streams.append(method.stream(who, commands(TelemetryCommand(settings=settings))))
        await anext(streams[-1])
    found = await listed(cluster)
    consumer, other = found["clients"]
    assert found["total"] == 2
    assert consumer.pop("settingsAtMs") > 0
    assert consumer == {
        "clientId": "client-1",
        "language": "JAVA",
        "version": "5" * VERSION_CHARS_MAX,
        "clientType": "PUSH_CONSUMER",
        "address": "10.0.0.7:40000",
        "namespace": "n" * 255,
        "groups": ["billing"],
        "topics": ["orders"],
        "topicCount": 1,
        "requestTimeoutMs": 0,
        "isConnected": True,
    }
    assert (other["clientId"], other["language"], other["clientType"]) == ("client-2", "GO", "PRODUCER")
    assert (other["topics"], other["topicCount"]) == ([f"t{n}" for n in range(NAMES_MAX)], NAMES_MAX + 5)
    assert (other["groups"], other["namespace"], other["requestTimeoutMs"]) == ([], "", 3_000)
    await streams[-1].aclose()  # type: ignore[attr-defined]
    (second,) = (await listed(cluster, skipped="1", count="5"))["clients"]
    assert (second["clientId"], second["isConnected"]) == ("client-2", False)
    for odd in ({"skipped": "2"}, {"count": "0"}, {"count": "-1"}):
        assert (await listed(cluster, **odd)) == {"total": 2, "clients": []}
    assert len((await listed(cluster, skipped="-7", count="2147483647"))["clients"]) == 2
    await streams[0].aclose()  # type: ignore[attr-defined]


async def test_a_kind_of_client_that_is_not_known_is_refused() -> None:
    """It has no name, which metrics and lists show."""
    settings = consumer_settings()
    settings.client_type = cast("ClientType", 99)
    method = served(FakeClient())["Telemetry"]
    assert method.stream is not None
    with pytest.raises(StreamRefusedError):
        [each async for each in method.stream(call(), commands(TelemetryCommand(settings=settings)))]


async def test_every_node_knows_the_endpoint() -> None:
    cluster = FakeClient()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    cluster.script(
        RequestCode.LEDGERMQ_GRPC_ENDPOINT, answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), answer()
    )
    for _ in range(2):
        assert await endpoint.brokers.announce("10.0.0.5:8081"), "a stock broker does not know the request"
    sent = cluster.requests(RequestCode.LEDGERMQ_GRPC_ENDPOINT)
    assert [each.ext_fields for each in sent] == [{"address": "10.0.0.5:8081"}] * 2
    cluster.script(RequestCode.LEDGERMQ_GRPC_ENDPOINT, RemotingClosedError("gone"))
    assert not await endpoint.brokers.announce("10.0.0.5:8081")
    cluster.script(RequestCode.GET_BROKER_CLUSTER_INFO, RemotingClosedError("gone"))
    another = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    assert not await another.brokers.announce("10.0.0.5:8081")


@pytest.mark.parametrize("topic", [None, "with blank"])
async def test_settings_that_make_no_sense_end_the_stream(topic: str | None) -> None:
    settings = Settings(client_type=ClientType.PRODUCER)
    if topic is not None:
        settings.publishing.topics.append(Resource(name=topic))
    method = served(FakeClient())["Telemetry"]
    assert method.stream is not None
    with pytest.raises(StreamRefusedError):
        [each async for each in method.stream(call(), commands(TelemetryCommand(settings=settings)))]
