"""How clients announce themselves, stay and go; which of them are refused, and how their streams end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from grpc_endpoint import clients
from grpc_endpoint.clients import CommandStream
from grpc_endpoint.endpoint import Endpoint
from grpc_endpoint.handles import TransactionId
from grpc_endpoint.messaging_pb2 import (
    ClientType,
    Code,
    HeartbeatRequest,
    LiteSubscriptionAction,
    MessageType,
    NotifyClientTerminationRequest,
    Resource,
    Settings,
    Status,
    SubscriptionEntry,
    SyncLiteSubscriptionRequest,
    TelemetryCommand,
    ThreadStackTrace,
    VerifyMessageResult,
)
from grpc_endpoint.rpc import GrpcStatus, RpcError
from grpc_endpoint.status import StatusError, StreamRefusedError
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.unit.grpc_endpoint.cluster import BROKER, NAMESRV, NEW, OLD, answer
from tests.unit.grpc_endpoint.test_calls import (
    BILLING,
    ORDERS,
    FakeClient,
    call,
    commands,
    consumer_settings,
    served,
    unary,
)
from tests.unit.grpc_endpoint.test_messages import encoded


def settings_of(kind: int, *, consumes: bool) -> Settings:
    settings = Settings(client_type=kind)  # type: ignore[arg-type]
    if consumes:
        settings.subscription.group.CopyFrom(BILLING)
        settings.subscription.subscriptions.append(SubscriptionEntry(topic=ORDERS))
    else:
        settings.publishing.topics.append(ORDERS)
    return settings


async def announced(cluster: FakeClient, settings: Settings) -> list[TelemetryCommand]:
    method = served(cluster)["Telemetry"]
    assert method.stream is not None
    sent = commands(TelemetryCommand(settings=settings))
    return [each async for each in method.stream(call(), sent)]


async def test_a_stream_ends_when_the_servers_part_of_the_settings_is_not_to_be_had() -> None:
    """The client opens another a second later; one that stayed open would never get its settings."""
    cluster = FakeClient()
    cluster.script(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, answer(ResponseCode.SYSTEM_ERROR, "no disk"))
    with pytest.raises(RpcError, match="no disk") as ended:
        await announced(cluster, consumer_settings())
    assert ended.value.status is GrpcStatus.INTERNAL


async def test_a_new_leader_has_time_to_make_a_consumers_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "GROUP_PAUSE_S", 0)
    cluster = FakeClient()
    missing = answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    cluster.script(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, missing, missing)
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    await endpoint.clients.put(call(), consumer_settings(), CommandStream())
    assert len(cluster.requests(RequestCode.HEART_BEAT)) == 3, "it is registered again"


async def test_a_leader_that_has_just_joined_makes_a_consumers_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of nodes was read before it had registered; only a leader makes groups."""
    monkeypatch.setattr(clients, "GROUP_PAUSE_S", 0)
    cluster = FakeClient()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    assert await endpoint.brokers.nodes() == [OLD]
    cluster.leader = NEW
    missing = answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    cluster.script(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, missing)
    await endpoint.clients.put(call(), consumer_settings(), CommandStream())
    beats = [address for address, command in cluster.asked if command.code == RequestCode.HEART_BEAT]
    assert beats == [OLD, NEW]


async def test_a_consumer_of_a_group_that_may_not_be_made_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "GROUP_S", 0)
    cluster = FakeClient()
    cluster.group = None
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    with pytest.raises(StatusError, match="group not found: billing") as refused:
        await endpoint.clients.put(call(), consumer_settings(), CommandStream())
    assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP
    assert "client-1" not in endpoint.clients, "no operator sees it in a group that is not there"
    assert len(cluster.requests(RequestCode.UNREGISTER_CLIENT)) == 1
    with pytest.raises(StreamRefusedError, match="group not found: billing"):
        await announced(cluster, consumer_settings())


async def test_settings_are_bounded_in_bytes_for_one_client_and_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size_bytes = consumer_settings().ByteSize()
    monkeypatch.setattr(clients, "SETTINGS_BYTES_MAX", size_bytes)
    monkeypatch.setattr(clients, "ALL_SETTINGS_BYTES_MAX", 2 * size_bytes)
    known = Endpoint(cast("RemotingClient", FakeClient()), NAMESRV).clients
    larger = consumer_settings()
    larger.user_agent.hostname = "h"
    with pytest.raises(StatusError, match=f"more than {size_bytes} bytes") as refused:
        await known.put(call(), larger, CommandStream())
    assert refused.value.code == Code.BAD_REQUEST
    callers = [replace(call(), client_id=f"client-{number}") for number in range(3)]
    for caller in (*callers[:2], callers[1]):  # who comes again replaces what it sent before
        await known.put(caller, consumer_settings(), CommandStream())
    with pytest.raises(StatusError, match="the settings of all clients") as refused:
        await known.put(callers[2], consumer_settings(), CommandStream())
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    await known.remove("client-0")
    await known.put(callers[2], consumer_settings(), CommandStream())


async def test_a_heartbeat_for_a_group_that_is_gone_says_so() -> None:
    cluster = FakeClient()
    endpoint = Endpoint(cast("RemotingClient", cluster), NAMESRV)
    await endpoint.clients.put(call(), consumer_settings(), CommandStream())
    cluster.group = None
    endpoint.brokers.forget_group("billing")
    heartbeat = endpoint.methods()["Heartbeat"].unary
    assert heartbeat is not None
    with pytest.raises(StatusError, match="group not found: billing"):
        await heartbeat(call(), HeartbeatRequest(group=BILLING))
    cluster.group = {}
    assert (await heartbeat(call(), HeartbeatRequest(group=BILLING))).status.code == Code.OK


@pytest.mark.parametrize("kind", [ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER])
async def test_a_lite_consumer_is_told_that_its_group_is_none_of_lite_topics(kind: int) -> None:
    with pytest.raises(StreamRefusedError, match="regular group cannot use LITE mode: billing"):
        await announced(FakeClient(), settings_of(kind, consumes=True))


@pytest.mark.parametrize("kind", [ClientType.PRODUCER, ClientType.CLIENT_TYPE_UNSPECIFIED])
async def test_only_consumers_subscribe(kind: int) -> None:
    with pytest.raises(StreamRefusedError, match="is no consumer"):
        await announced(FakeClient(), settings_of(kind, consumes=True))


async def test_a_client_of_no_known_type_is_refused() -> None:
    """Its type has no name to show operators."""
    with pytest.raises(StreamRefusedError, match="no client type 99"):
        await announced(FakeClient(), settings_of(99, consumes=False))


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Heartbeat", HeartbeatRequest(group=BILLING)),
        ("NotifyClientTermination", NotifyClientTerminationRequest(group=BILLING)),
    ],
)
async def test_a_client_that_says_not_what_it_is_is_not_recognized(name: str, request_: Any) -> None:
    methods = served(FakeClient())
    telemetry, method = methods["Telemetry"].stream, methods[name].unary
    assert telemetry is not None
    assert method is not None
    settings = settings_of(ClientType.CLIENT_TYPE_UNSPECIFIED, consumes=False)
    stream = telemetry(call(), commands(TelemetryCommand(settings=settings)))
    await anext(stream)
    with pytest.raises(StatusError, match="CLIENT_TYPE_UNSPECIFIED") as refused:
        await method(call(), request_)
    assert refused.value.code == Code.UNRECOGNIZED_CLIENT_TYPE
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_consumer_names_its_group_when_it_goes() -> None:
    methods = served(FakeClient())
    telemetry, leave = methods["Telemetry"].stream, methods["NotifyClientTermination"].unary
    assert telemetry is not None
    assert leave is not None
    stream = telemetry(call(), commands(TelemetryCommand(settings=consumer_settings())))
    await anext(stream)
    with pytest.raises(StatusError) as refused:
        await leave(call(), NotifyClientTerminationRequest())
    assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP
    with pytest.raises(StatusError) as gone:
        await leave(call(), NotifyClientTerminationRequest(group=BILLING))
    assert gone.value.code == Code.UNRECOGNIZED_CLIENT_TYPE, "it has gone all the same"
    await stream.aclose()  # type: ignore[attr-defined]


async def from_queue(said: asyncio.Queue[TelemetryCommand]) -> AsyncIterator[TelemetryCommand]:
    while True:
        yield await said.get()


async def asked_by_an_operator(
    cluster: FakeClient, request: RemotingCommand, answering: Callable[[TelemetryCommand], TelemetryCommand]
) -> RemotingCommand:
    """What an operator gets whose request becomes a command for a consumer."""
    method = served(cluster)["Telemetry"]
    assert method.stream is not None
    said: asyncio.Queue[TelemetryCommand] = asyncio.Queue()
    stream = method.stream(call(), from_queue(said))
    said.put_nowait(TelemetryCommand(settings=consumer_settings()))
    await anext(stream)
    answered = asyncio.ensure_future(cluster.handler(request, None))
    said.put_nowait(answering(await anext(stream)))
    try:
        found: RemotingCommand = await answered
        return found
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


async def threads_of(cluster: FakeClient, code: Code) -> RemotingCommand:
    """What an operator gets whose question for its threads a client answers with this status."""

    def answering(command: TelemetryCommand) -> TelemetryCommand:
        nonce = command.print_thread_stack_trace_command.nonce
        trace = ThreadStackTrace(nonce=nonce, thread_stack_trace="threads")
        return TelemetryCommand(status=Status(code=code), thread_stack_trace=trace)

    asked = {"consumerGroup": "billing", "clientId": "client-1", "jstackEnable": "true"}
    request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=asked)
    return await asked_by_an_operator(cluster, request, answering)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED, ResponseCode.NO_PERMISSION),
        (Code.INTERNAL_ERROR, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_an_operator_is_told_that_a_client_has_shown_no_threads(code: Code, expected: int) -> None:
    with pytest.raises(RequestError) as refused:
        await threads_of(FakeClient(), code)
    assert refused.value.code == expected


async def test_an_operator_sees_the_threads_that_a_client_shows() -> None:
    assert orjson.loads((await threads_of(FakeClient(), Code.OK)).body)["jstack"] == "threads"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (SyncLiteSubscriptionRequest(topic=Resource(name="a b"), group=BILLING), Code.ILLEGAL_TOPIC),
        (SyncLiteSubscriptionRequest(topic=ORDERS), Code.ILLEGAL_CONSUMER_GROUP),
        (
            SyncLiteSubscriptionRequest(topic=ORDERS, group=BILLING, lite_topic_set=["a b"]),
            Code.ILLEGAL_LITE_TOPIC,
        ),
        (
            SyncLiteSubscriptionRequest(
                topic=ORDERS,
                group=BILLING,
                lite_topic_set=["a b"],
                action=LiteSubscriptionAction.COMPLETE_ADD,
            ),
            Code.NOT_IMPLEMENTED,
        ),
        (
            SyncLiteSubscriptionRequest(topic=ORDERS, group=BILLING, lite_topic_set=["a-b_1"]),
            Code.NOT_IMPLEMENTED,
        ),
    ],
)
async def test_the_names_of_a_lite_subscription_are_checked(
    request_: SyncLiteSubscriptionRequest, code: Code
) -> None:
    response = await unary(FakeClient(), "SyncLiteSubscription", request_)
    assert response.status.code == code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (Code.INTERNAL_ERROR, "CR_THROW_EXCEPTION"),
    ],
)
async def test_a_consumer_takes_a_message_that_an_operator_sends_it(code: Code, expected: str) -> None:
    cluster = FakeClient()
    asked = {"consumerGroup": "billing", "clientId": "client-1", "msgId": "01AB", "brokerName": BROKER}
    request = RemotingCommand(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=asked, body=encoded(b"TAGS\x01A\x02")
    )

    def answering(command: TelemetryCommand) -> TelemetryCommand:
        verify = command.verify_message_command
        assert (verify.message.body, verify.message.system_properties.tag) == (b"body", "A")
        return TelemetryCommand(
            status=Status(code=code), verify_message_result=VerifyMessageResult(nonce=verify.nonce)
        )

    shown = orjson.loads((await asked_by_an_operator(cluster, request, answering)).body)
    assert shown["consumeResult"] == expected


async def test_a_producer_is_asked_how_its_transaction_ends() -> None:
    cluster = FakeClient("TRANSACTION")
    telemetry = served(cluster)["Telemetry"].stream
    assert telemetry is not None
    said: asyncio.Queue[TelemetryCommand] = asyncio.Queue()
    stream = telemetry(call(), from_queue(said))
    said.put_nowait(TelemetryCommand(settings=settings_of(ClientType.PRODUCER, consumes=False)))
    await anext(stream)
    fields = {"commitLogOffset": "4711", "tranStateTableOffset": "9", "msgId": "01AB", "offsetMsgId": "0"}
    host, _, port = cluster.leader.rpartition(":")
    properties = b"UNIQ_KEY\x0101AB\x02PGROUP\x01orders\x02TRAN_MSG\x01true\x02"
    request = RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE, ext_fields=fields, body=encoded(properties)
    )
    assert cluster.handler(request, SimpleNamespace(remote_host=host, remote_port=int(port))) is None
    asked = (await anext(stream)).recover_orphaned_transaction_command
    assert TransactionId.parse(asked.transaction_id) == TransactionId(9, 4_711, BROKER, "01AB")
    assert asked.message.system_properties.message_type == MessageType.TRANSACTION
    await stream.aclose()  # type: ignore[attr-defined]
