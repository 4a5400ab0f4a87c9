"""Consumers for operators: requests that the broker forwards to a running consumer (223 its offsets, 307 its
state, 309 consume this message now), lists of groups and topics (300, 343, 345), and all producers (328); and
the clients of gRPC endpoints (65006, 65007).

A client that does not answer within the limit is reported as such; it does not delay other requests.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from broker.config import BrokerConfig
from broker.consume.clients import Client, ClientConnection, ClientRegistry, ConsumerGroup, Member
from broker.responses import json_answer
from broker.state.state import ReplicatedState
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import CommandError, RemotingError, RequestError, RequestTimeoutError
from remoting.fastjson import FastjsonError, list_in_steps, loads_request, object_key_map
from remoting.headers.admin import (
    GroupRequestHeader,
    GroupTopicRequestHeader,
    GrpcClientsRequestHeader,
    GrpcEndpointRequestHeader,
)
from remoting.headers.consume import CallConsumerRequestHeader, ConsumerStatusRequestHeader
from remoting.headers.topics import TopicRequestHeader
from remoting.router import Handlers
from remoting.slices import Steps

STATUS_LIMIT_S: Final = 5.0
CALL_LIMIT_S: Final = 10.0
"""Broker2Client's limits."""
ENDPOINT_LIMIT_S: Final = 2.0
"""An endpoint answers from memory; who asks the broker waits for 3 s."""
ENDPOINTS_MAX: Final = 1_000
WORKERS_MAX: Final = 64
"""Of one endpoint."""
CLIENTS_MAX: Final = 100
"""Of one answer."""
CLIENTS_BYTES_MAX: Final = 2 * 1024 * 1024
ENDPOINT_CHARS_MAX: Final = 300
ASKED_AT_ONCE_MAX: Final = 64
MESSAGE_ID_CHARS: Final = 32
"""Of an offsetMsgId: address and port, and 16 digits of the position."""


class GrpcEndpoints:
    """The gRPC endpoints that are connected, and what they answer about their clients."""

    def __init__(self) -> None:
        self._connections: dict[str, dict[Connection, None]] = {}
        """By the address to which their clients connect, which several workers may share."""

    def handlers(self) -> Handlers:
        return {
            RequestCode.LEDGERMQ_GRPC_ENDPOINT: self.announced,
            RequestCode.LEDGERMQ_GRPC_CLIENTS: self.clients,
        }

    def announced(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65006: the endpoint, or one of its workers, can be asked over this connection."""
        address = GrpcEndpointRequestHeader.parse(request.ext_fields).address
        if not address or len(address) > ENDPOINT_CHARS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no address: {address[:80]!r}")
        if address not in self._connections and len(self._connections) >= ENDPOINTS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{ENDPOINTS_MAX} gRPC endpoints are connected")
        workers = self._connections.setdefault(address, {})
        if connection not in workers and len(workers) >= WORKERS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{WORKERS_MAX} workers of {address} are connected")
        workers[connection] = None
        return success_response(request)

    def connection_closed(self, connection: Connection) -> None:
        for address in [each for each, workers in self._connections.items() if connection in workers]:
            del self._connections[address][connection]
            if not self._connections[address]:
                del self._connections[address]

    async def clients(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65007: what the endpoint's workers answer, one after the other."""
        header = GrpcClientsRequestHeader.parse(request.ext_fields)
        workers = tuple(self._connections.get(header.address, ()))
        if not workers:
            remark = f"the gRPC endpoint {header.address[:80]} is not connected to this node"
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, remark)
        wanted = min(max(0, header.count), CLIENTS_MAX)
        total, rows = 0, list[object]()
        try:
            async with asyncio.timeout(ENDPOINT_LIMIT_S):
                for worker in workers:
                    rest = replace(header, skipped=max(0, header.skipped - total), count=wanted - len(rows))
                    its_total, its_rows = await _clients_of(worker, rest)
                    total, rows = total + its_total, rows + its_rows
        except (RemotingError, CommandError, TimeoutError, ValueError, KeyError, TypeError) as error:
            remark = f"the gRPC endpoint {header.address[:80]} gives no answer: {error or 'not in time'}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error
        return success_response(request, body=orjson.dumps({"total": total, "clients": rows}))


async def _clients_of(worker: Connection, header: GrpcClientsRequestHeader) -> tuple[int, list[object]]:
    """How many clients it has, and the wanted rows. Raises RemotingError, CommandError; ValueError, KeyError
    and TypeError where the answer cannot be read.
    """
    command = RemotingCommand(RequestCode.LEDGERMQ_GRPC_CLIENTS, ext_fields=header.ext_fields())
    answer = await worker.request(command, ENDPOINT_LIMIT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise ValueError(f"code {answer.code}, {answer.remark or 'no remark'}")
    if len(answer.body) > CLIENTS_BYTES_MAX:
        raise ValueError(f"a list of {len(answer.body)} bytes")
    found = orjson.loads(answer.body)
    return int(found["total"]), list(found["clients"])[: header.count]


class ConsumerAdmin:
    """Requests of running clients, and lists of them."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clients: ClientRegistry,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._log = log
        self._clock = clock
        self._now_ms = now_ms
        self._clients = clients
        self._state = state

    def handlers(self) -> Handlers:
        return {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    async def status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """223: the offsets of each consumer that answers."""
        header = ConsumerStatusRequestHeader.parse(request.ext_fields)
        group = self._clients.consumer_groups.get(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group[:255]}]"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        wanted = header.client_addr
        members = [each for each in group.members.values() if not wanted or each.client.client_id == wanted]
        gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        asked = [self._ask_offsets(each.client, header, gate) for each in members]
        answered = [rows for rows in await asyncio.gather(*asked) if rows is not None]
        return json_answer(request, {"consumerTable": dict(answered)})

    async def _ask_offsets(
        self, client: Client, header: ConsumerStatusRequestHeader, gate: asyncio.Semaphore
    ) -> tuple[str, orjson.Fragment] | None:
        ext = {"topic": header.topic, "group": header.group}
        command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=ext)
        try:
            async with gate:
                answer = await client.connection.request(command, STATUS_LIMIT_S)
            table = loads_request(answer.body)["messageQueueTable"] if answer.code == 0 else {}
            rows = [(orjson.loads(queue), offset) for queue, offset in table.items()]
        except (RemotingError, FastjsonError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return None
        return client.client_id, object_key_map(rows)

    async def running_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """307: the client's own answer."""
        header = CallConsumerRequestHeader.parse(request.ext_fields)
        return await self._call(request, header, request.ext_fields, request.body)

    async def consume_directly(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """309: the client gets the record and consumes it at once."""
        header = CallConsumerRequestHeader.parse(request.ext_fields)
        record = self._record(header.msg_id)
        ext = {**request.ext_fields, "brokerName": self._config.broker_name}
        topic = self._state.topics.get(header.topic)
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._state.groups.get(header.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        return await self._call(request, header, ext, record)

    def _record(self, message_id: str) -> bytes:
        try:
            position = int(bytes.fromhex(message_id)[-8:].hex(), 16)
            record = self._log.record_at(position) if len(message_id) == MESSAGE_ID_CHARS else None
        except (ValueError, DamagedRecordError):
            record = None
        if record is None:
            remark = f"can not find message by the id {message_id[:64]}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        return record

    async def _call(
        self,
        request: RemotingCommand,
        header: CallConsumerRequestHeader,
        ext: Mapping[str, str],
        body: bytes,
    ) -> RemotingCommand:
        who = f"<{header.consumer_group[:255]}> <{header.client_id[:255]}>"
        command = RemotingCommand(request.code, ext_fields=dict(ext), body=body)
        try:
            answer = await self._connection(header, who).request(command, CALL_LIMIT_S)
        except RequestTimeoutError as error:
            raise RequestError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {who} Timeout: {error}"
            ) from error
        except (RemotingError, CommandError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"invoke consumer {who}: {error}") from error
        return success_response(request, answer.ext_fields, answer.body, answer.remark, answer.code)

    def _connection(self, header: CallConsumerRequestHeader, who: str) -> ClientConnection:
        group = self._clients.consumer_groups.get(header.consumer_group)
        member = None if group is None else group.members.get(header.client_id)
        if member is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
        return member.client.connection

    def groups_of_topic(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """300: the groups that subscribe to the topic, or have offsets in it."""
        topic = TopicRequestHeader.parse(request.ext_fields).topic
        offline = yield from self._state.offsets.groups_of(topic)
        online = (name for name, each in self._clients.consumer_groups.items() if topic in each.subscriptions)
        return json_answer(request, {"groupList": sorted({*online, *offline})})

    def topics_of_group(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """343: what the group has consumed."""
        group = GroupRequestHeader.parse(request.ext_fields).group
        topics = yield from self._state.offsets.topics_of(group)
        return json_answer(request, {"brokerAddr": self._config.broker_address, "topicList": topics})

    def subscription(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """345: how the group's consumers are subscribed to the topic; none when they are not."""
        header = GroupTopicRequestHeader.parse(request.ext_fields)
        group: ConsumerGroup | None = self._clients.consumer_groups.get(header.group)
        found = None if group is None else group.subscriptions.get(header.topic)
        answer: dict[str, Any] = {"group": header.group, "topic": header.topic}
        if found is not None:
            answer["subscriptionData"] = found.to_json()
        return json_answer(request, answer)

    def all_producers(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """328"""
        boot_ms = self._clock() - self._now_ms()
        groups = {}
        for name in sorted(self._clients.producer_groups):
            members = list(self._clients.producer_groups.get(name, {}).values())
            groups[name] = yield from list_in_steps(_row(each, boot_ms) for each in members)
            yield
        return json_answer(request, {"data": groups})


def _row(member: Member, boot_ms: int) -> dict[str, Any]:
    """`boot_ms` is what the wall clock showed when the monotonic one showed 0."""
    client = member.client
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": boot_ms + member.last_beat_ms,
        "remoteIP": f"{client.connection.remote_host}:{client.connection.remote_port}",
        "version": client.version,
    }
