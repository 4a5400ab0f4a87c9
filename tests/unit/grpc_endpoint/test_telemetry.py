"""How clients announce themselves, stay and go; which of them are refused, and how their streams end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from grpc_endpoint.messaging_pb2 import (
    ClientType,
    Code,
    HeartbeatRequest,
    LiteSubscriptionAction,
    NotifyClientTerminationRequest,
    Resource,
    Settings,
    Status,
    SubscriptionEntry,
    SyncLiteSubscriptionRequest,
    TelemetryCommand,
    ThreadStackTrace,
)
from grpc_endpoint.rpc import GrpcStatus, RpcError
from grpc_endpoint.status import StatusError, StreamRefusedError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.unit.grpc_endpoint.cluster import answer
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


async def test_a_consumer_of_a_group_that_may_not_be_made_is_refused() -> None:
    cluster = FakeClient()
    cluster.group = None
    with pytest.raises(StreamRefusedError, match="group not found: billing"):
        await announced(cluster, consumer_settings())


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


async def threads_of(cluster: FakeClient, code: Code) -> RemotingCommand:
    """What an operator gets whose question for its threads a client answers with this status."""
    method = served(cluster)["Telemetry"]
    assert method.stream is not None
    said: asyncio.Queue[TelemetryCommand] = asyncio.Queue()

    async def client() -> AsyncIterator[TelemetryCommand]:
        while True:
            yield await said.get()

    stream = method.stream(call(), client())
    said.put_nowait(TelemetryCommand(settings=consumer_settings()))
    await anext(stream)
    asked = {"consumerGroup": "billing", "clientId": "client-1", "jstackEnable": "true"}
    request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=asked)
    answering = asyncio.ensure_future(cluster.handler(request, None))
    nonce = (await anext(stream)).print_thread_stack_trace_command.nonce
    trace = ThreadStackTrace(nonce=nonce, thread_stack_trace="threads")
    said.put_nowait(TelemetryCommand(status=Status(code=code), thread_stack_trace=trace))
    try:
        answered: RemotingCommand = await answering
        return answered
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


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
