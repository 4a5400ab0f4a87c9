"""Telemetry, Heartbeat and NotifyClientTermination: how clients announce themselves, and what brokers ask of
them through the endpoint (ClientActivity, GrpcClientChannel).

A broker sends its questions over the endpoint's connection: for a consumer's threads (307), or to consume one
message at once (309). Each becomes a command on the client's stream.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any, Final

import orjson

from grpc_endpoint.call import Call
from grpc_endpoint.clients import CONSUMERS, Client, Clients, CommandStream
from grpc_endpoint.messaging_pb2 import (
    ClientType,
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    PrintThreadStackTraceCommand,
    Settings,
    TelemetryCommand,
    VerifyMessageCommand,
)
from grpc_endpoint.properties import message_of, unpack
from grpc_endpoint.receiving import read_filter
from grpc_endpoint.rpc import GrpcStatus, RpcError
from grpc_endpoint.status import StatusError, StreamRefusedError, ok
from grpc_endpoint.validation import group_of, topic_of
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.admin import GrpcClientsRequestHeader
from remoting.headers.consume import CallConsumerRequestHeader
from remoting.record import CorruptRecordError, decode_record

ANSWER_S: Final = 9.0
"""A client's answer to a command; the broker waits 10 s."""
WAITING_MAX: Final = 1_000
SUBSCRIPTIONS_MAX: Final = 4_096
LISTED_MAX: Final = 100
"""Clients of one answer, of each so many names."""
NAMES_MAX: Final = 20
NAME_CHARS_MAX: Final = 255
_CONSUME_RESULTS: Final = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class Telemetry:
    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._waiting: dict[str, asyncio.Future[TelemetryCommand]] = {}
        """Commands that a client has to answer, by their nonce."""

    # -- calls

    async def telemetry(
        self, call: Call, commands: AsyncIterator[TelemetryCommand]
    ) -> AsyncIterator[TelemetryCommand]:
        """The client's stream: it lasts as long as the client. Raises StreamRefusedError, RpcError."""
        stream = CommandStream()
        reading = asyncio.ensure_future(self._read(call, commands, stream))
        reading.add_done_callback(lambda _: stream.end())
        try:
            while (command := await stream.next()) is not None:
                yield command
            if reading.done() and not reading.cancelled():
                reading.result()
        finally:
            reading.cancel()
            self._clients.stream_ended(call.client_id, stream)

    async def _read(
        self, call: Call, commands: AsyncIterator[TelemetryCommand], stream: CommandStream
    ) -> None:
        async for command in commands:
            kind = command.WhichOneof("command")
            if kind == "settings":
                await self._settings(call, command.settings, stream)
            elif kind == "thread_stack_trace":
                self._answered(command.thread_stack_trace.nonce, command)
            elif kind == "verify_message_result":
                self._answered(command.verify_message_result.nonce, command)

    async def _settings(self, call: Call, settings: Settings, stream: CommandStream) -> None:
        """Raises StreamRefusedError, and RpcError when the endpoint is to blame: the client comes again."""
        try:
            _check_settings(settings)
            merged = await self._clients.put(call, settings, stream)
        except StatusError as error:
            message = f"process client telemetryCommand failed. {error.message}"
            if Code.BAD_REQUEST <= error.code < Code.INTERNAL_ERROR:
                raise StreamRefusedError(message) from error
            raise RpcError(GrpcStatus.INTERNAL, message) from error
        stream.send(TelemetryCommand(status=ok(), settings=merged))

    def _answered(self, nonce: str, command: TelemetryCommand) -> None:
        waiting = self._waiting.pop(nonce, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    async def heartbeat(self, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        client = self._known(call)
        _check_kind(client)
        group = group_of(request.group) if client.is_consumer else None
        await self._clients.heard(client, group)
        return HeartbeatResponse(status=ok())

    async def notify_client_termination(
        self, call: Call, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Whatever its request says, the client has gone."""
        client = self._known(call)
        await self._clients.leave(call.client_id)
        _check_kind(client)
        if client.is_consumer:
            group_of(request.group)
        return NotifyClientTerminationResponse(status=ok())

    def _known(self, call: Call) -> Client:
        client = self._clients.get(call.client_id)
        if client is None:
            raise StatusError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return client

    # -- what brokers ask

    async def ask_client(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """307 and 309: answered by the consumer itself."""
        header = CallConsumerRequestHeader.parse(request.ext_fields)
        client = self._clients.get(header.client_id)
        if client is None or client.stream is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{header.client_id[:255]} is not connected here")
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return await self._running_info(request, client)
        return await self._consume_directly(request, client, header.consumer_group)

    def list_clients(self, request: RemotingCommand) -> RemotingCommand:
        """65007: some of the clients, in the order in which they came."""
        header = GrpcClientsRequestHeader.parse(request.ext_fields)
        skipped, count = max(0, header.skipped), min(max(0, header.count), LISTED_MAX)
        rows = [_row(client) for client in islice(self._clients, skipped, skipped + count)]
        return success_response(request, body=orjson.dumps({"total": len(self._clients), "clients": rows}))

    async def _running_info(self, request: RemotingCommand, client: Client) -> RemotingCommand:
        stack = ""
        if request.ext_fields.get("jstackEnable") == "true":
            nonce = secrets.token_hex(16)
            command = TelemetryCommand(
                print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce)
            )
            stack = _stack_of(await self._asked(client, nonce, command))
        try:
            settings = await self._clients.merged(client.settings)
        except StatusError:  # no broker says how the group consumes
            settings = client.settings
        subscriptions = [
            {"topic": entry.topic.name, "subString": entry.expression.expression}
            for entry in client.settings.subscription.subscriptions
        ]
        info = {
            "jstack": stack,
            "mqTable": {},
            "properties": {
                "PROP_CONSUME_TYPE": "CONSUME_POP",
                "PROP_CLIENT_VERSION": "gRPC",
                **_shown(client.host, settings),
            },
            "statusTable": {},
            "subscriptionSet": subscriptions,
        }
        return success_response(request, body=orjson.dumps(info))

    async def _consume_directly(
        self, request: RemotingCommand, client: Client, group: str
    ) -> RemotingCommand:
        try:
            record = decode_record(request.body)
        except CorruptRecordError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        unpack([record])
        nonce = secrets.token_hex(16)
        verify = VerifyMessageCommand(nonce=nonce, message=message_of(record, group))
        answer = await self._asked(client, nonce, TelemetryCommand(verify_message_command=verify))
        result = {
            "consumeResult": _CONSUME_RESULTS.get(answer.status.code, "CR_THROW_EXCEPTION"),
            "order": client.settings.subscription.fifo,
            "remark": "from gRPC client",
            "spentTimeMills": 0,
        }
        return success_response(request, body=orjson.dumps(result))

    async def _asked(self, client: Client, nonce: str, command: TelemetryCommand) -> TelemetryCommand:
        """Raises RequestError."""
        waiting: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= WAITING_MAX or client.stream is None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many commands wait for clients")
        self._waiting[nonce] = waiting
        try:
            client.stream.send(command)
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the client does not answer") from None
        finally:
            self._waiting.pop(nonce, None)


def _stack_of(answer: TelemetryCommand) -> str:
    """Raises RequestError: the client has shown none."""
    if answer.status.code == Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
        raise RequestError(ResponseCode.NO_PERMISSION, "the client may not show its threads")
    if answer.status.code != Code.OK:
        remark = answer.status.message[:255] or "no reason given"
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the client has shown no threads: {remark}")
    return answer.thread_stack_trace.thread_stack_trace


def _check_kind(client: Client) -> None:
    """Raises StatusError: the settings do not say what the client is."""
    kind = client.settings.client_type
    if not client.is_consumer and kind != ClientType.PRODUCER:
        raise StatusError(Code.UNRECOGNIZED_CLIENT_TYPE, ClientType.Name(kind))


def _row(client: Client) -> dict[str, Any]:
    """A client as operators see it in a list; of many topics or groups the first ones."""
    settings = client.settings
    wanted = settings.subscription
    is_producer = settings.WhichOneof("pub_sub") == "publishing"
    named = settings.publishing.topics if is_producer else [each.topic for each in wanted.subscriptions]
    namespaces = (each.resource_namespace for each in (wanted.group, *named))
    return {
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
        "clientType": ClientType.Name(settings.client_type),
        "address": client.host,
        "namespace": next(filter(None, namespaces), "")[:NAME_CHARS_MAX],
        "groups": sorted(client.groups)[:NAMES_MAX],
        "topics": [each.name for each in named[:NAMES_MAX]],
        "topicCount": len(named),
        "requestTimeoutMs": settings.request_timeout.ToMilliseconds(),
        "settingsAtMs": client.settings_ms,
        "isConnected": client.stream is not None,
    }


def _shown(host: str, settings: Settings) -> dict[str, str]:
    """A consumer's settings as operators read them."""
    wanted, retries = settings.subscription, settings.backoff_policy
    pauses = list(retries.customized_backoff.next)
    if retries.WhichOneof("strategy") == "exponential_backoff":
        pauses = [retries.exponential_backoff.initial, retries.exponential_backoff.max]
    return {
        "address": host,
        "clientType": ClientType.Name(settings.client_type),
        "fifo": str(wanted.fifo).lower(),
        "longPollingTimeoutMs": str(wanted.long_polling_timeout.ToMilliseconds()),
        "maxAttempts": str(retries.max_attempts),
        "receiveBatchSize": str(wanted.receive_batch_size),
        "requestTimeoutMs": str(settings.request_timeout.ToMilliseconds()),
        "retryPausesMs": " ".join(str(each.ToMilliseconds()) for each in pauses),
    }


def _check_settings(settings: Settings) -> None:
    """Raises StatusError."""
    kind = settings.WhichOneof("pub_sub")
    if settings.client_type not in ClientType.values():  # protobuf keeps numbers that have no name
        raise StatusError(Code.UNRECOGNIZED_CLIENT_TYPE, f"there is no client type {settings.client_type}")
    if kind is None:
        message = "there is no publishing or subscription data in settings"
        raise StatusError(Code.BAD_REQUEST, message)
    if kind == "publishing":
        topics = settings.publishing.topics
        if len(topics) > SUBSCRIPTIONS_MAX:
            raise StatusError(Code.BAD_REQUEST, f"more than {SUBSCRIPTIONS_MAX} topics")
        for topic in topics:
            topic_of(topic)
        return
    group = group_of(settings.subscription.group)
    if settings.client_type in (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER):
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {group}")
    if settings.client_type not in CONSUMERS:
        message = f"a client of the type {ClientType.Name(settings.client_type)} is no consumer"
        raise StatusError(Code.UNRECOGNIZED_CLIENT_TYPE, message)
    entries = settings.subscription.subscriptions
    if len(entries) > SUBSCRIPTIONS_MAX:
        raise StatusError(Code.BAD_REQUEST, f"more than {SUBSCRIPTIONS_MAX} subscriptions")
    for entry in entries:
        topic_of(entry.topic)
        read_filter(entry.expression)
