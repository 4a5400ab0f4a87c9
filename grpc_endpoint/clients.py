"""The connected clients: their settings, their streams of commands, and their heartbeats to the brokers
(GrpcClientSettingsManager, GrpcChannelManager, ClientActivity's registrations).

Each client is registered at every node of every broker under its own id, as a producer of the topics that it
publishes to or as a consumer that pops. So operators see gRPC clients where they see all others, and a broker
that asks a producer about its transaction asks here.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from broker.state.groups import DEFAULT_RETRY_POLICY, EXPONENTIAL, GroupRetryPolicy
from broker.state.topics import ConfigFormatError
from grpc_endpoint.brokers import Brokers
from grpc_endpoint.call import PROOF, Call
from grpc_endpoint.messaging_pb2 import (
    ClientType,
    Code,
    ExponentialBackoff,
    FilterType,
    RetryPolicy,
    Settings,
    SubscriptionEntry,
    TelemetryCommand,
)
from grpc_endpoint.status import StatusError, refused_right
from grpc_endpoint.validation import BODY_BYTES_MAX
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.headers.consume import UnregisterClientRequestHeader

BEAT_S: Final = 20.0
SILENT_S: Final = 120.0
"""A client that has sent no heartbeat for this long has gone (channelExpiredTimeout)."""
GROUP_S: Final = 3.0
"""So long a new client's group may be missing before the client is refused."""
GROUP_PAUSE_S: Final = 0.1
CLIENTS_MAX: Final = 50_000
VERSION_CHARS_MAX: Final = 64
SETTINGS_BYTES_MAX: Final = 1024 * 1024
"""Of one client: thousands of subscriptions have room."""
ALL_SETTINGS_BYTES_MAX: Final = 128 * 1024 * 1024
BEAT_LIMIT_S: Final = 3.0
COMMANDS_MAX: Final = 1_000
"""Commands that wait for a client to read them; beyond it further ones are dropped."""
RECEIVE_BATCH: Final = 32
LONG_POLLING_S: Final = 20
REQUEST_TIMEOUT_S: Final = 3.0
PRODUCER_ATTEMPTS: Final = 3
PRODUCER_BACKOFF: Final = ExponentialBackoff(multiplier=2.0)
PRODUCER_BACKOFF.initial.FromMilliseconds(10)
PRODUCER_BACKOFF.max.FromMilliseconds(1_000)
RETRY_MAX: Final = 16
CONSUMERS: Final = frozenset({ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a group consumes."""

    in_order: bool = False
    attempts_max: int = RETRY_MAX + 1
    retries: GroupRetryPolicy = DEFAULT_RETRY_POLICY

    def to_settings(self) -> RetryPolicy:
        """As clients get it, who then change the invisible time of a message that failed."""
        retries = self.retries
        made = RetryPolicy(max_attempts=self.attempts_max)
        if retries.kind == EXPONENTIAL:
            made.exponential_backoff.initial.FromMilliseconds(retries.initial_ms)
            made.exponential_backoff.max.FromMilliseconds(retries.max_ms)
            made.exponential_backoff.multiplier = retries.multiplier
            return made
        for pause_ms in retries.pauses_ms:
            made.customized_backoff.next.add().FromMilliseconds(pause_ms)
        return made


def policy_of(config: Mapping[str, Any] | None) -> Policy:
    """Of a SubscriptionGroupConfig; of none, or of what a stock broker has and makes no sense, RocketMQ's
    defaults.
    """
    if config is None:
        return Policy()
    try:
        retries = GroupRetryPolicy.from_json(config.get("groupRetryPolicy"))
    except ConfigFormatError as error:
        logger.warning("the retry policy of %s is passed over: %s", config.get("groupName"), error)
        retries = DEFAULT_RETRY_POLICY
    attempts_max = int(config.get("retryMaxTimes", RETRY_MAX)) + 1
    return Policy(config.get("consumeMessageOrderly") is True, attempts_max, retries)


class CommandStream:
    """What the endpoint sends a client on its Telemetry stream, in order."""

    def __init__(self) -> None:
        self._commands: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue()

    def send(self, command: TelemetryCommand) -> bool:
        """Whether there was room."""
        if self._commands.qsize() >= COMMANDS_MAX:
            return False
        self._commands.put_nowait(command)
        return True

    def end(self) -> None:
        self._commands.put_nowait(None)

    async def next(self) -> TelemetryCommand | None:
        """The next command; None at the end."""
        return await self._commands.get()


@dataclass(slots=True)
class Client:
    """One client as its last settings showed it."""

    client_id: str
    language: str
    version: str
    host: str
    settings: Settings
    last_beat_s: float
    stream: CommandStream | None = None
    settings_bytes: int = 0
    settings_ms: int = 0
    """When the settings came."""
    context: Context = field(default_factory=copy_context)
    """Of the call that brought the settings: with the client's proof."""
    groups: set[str] = field(default_factory=set)
    """Consumer groups, of the settings and of heartbeats."""
    refusal: StatusError | None = None
    """Why a broker has refused its last registration: it has not the rights."""

    @property
    def is_consumer(self) -> bool:
        return self.settings.client_type in CONSUMERS

    @property
    def producer_groups(self) -> list[str]:
        """RocketMQ's proxy registers a producer under the name of each topic."""
        if self.is_consumer:
            return []
        return sorted({topic.name for topic in self.settings.publishing.topics})


class Clients:
    """`on_gone` is called with the id of a client that has left or was silent for too long."""

    def __init__(self, brokers: Brokers, on_gone: Callable[[str], None]) -> None:
        self._brokers = brokers
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._clients: dict[str, Client] = {}
        self._producers: dict[str, dict[str, None]] = {}
        """The ids of the clients of each producer group."""
        self._settings_bytes = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._clients

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def request_timeout_s(self, client_id: str) -> float:
        client = self._clients.get(client_id)
        if client is None or not client.settings.HasField("request_timeout"):
            return REQUEST_TIMEOUT_S
        return client.settings.request_timeout.ToMilliseconds() / 1000

    async def policy(self, group: str) -> Policy:
        """How the group consumes. Raises StatusError."""
        return policy_of(await self._brokers.group_config(group))

    async def pause_ms(self, group: str, attempts: int) -> int:
        """Raises StatusError."""
        return (await self.policy(group)).retries.pause_ms(attempts)

    async def put(self, call: Call, settings: Settings, stream: CommandStream) -> Settings:
        """The client's settings, and with the endpoint's part what it is to use. Raises StatusError."""
        await self._brokers.check_client()  # who is a producer here gets its topics' half messages
        client = self._clients.get(call.client_id)
        size_bytes = self._checked_size(settings, 0 if client is None else client.settings_bytes)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise StatusError(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected")
            version, now_s = call.version[:VERSION_CHARS_MAX], self._loop.time()
            client = Client(call.client_id, call.language, version, call.host, settings, now_s, stream)
            self._clients[call.client_id] = client
        self._unlink(client)
        client.settings, client.stream, client.host = settings, stream, call.host
        self._settings_bytes += size_bytes - client.settings_bytes
        client.settings_bytes = size_bytes
        client.context = copy_context()
        client.settings_ms = time.time_ns() // 1_000_000
        client.last_beat_s = self._loop.time()
        group = settings.subscription.group.name
        if client.is_consumer and group:
            client.groups.add(group)
        for name in client.producer_groups:
            self._producers.setdefault(name, {})[client.client_id] = None
        await self._register(client)
        if client.is_consumer:
            try:
                await self._wait_for_group(client, group)
            except StatusError as error:
                if error.code == Code.ILLEGAL_CONSUMER_GROUP:
                    client.stream = None  # which is to end with the error
                    await self.remove(client.client_id)
                raise
        return await self.merged(settings)

    def _checked_size(self, settings: Settings, replaced_bytes: int) -> int:
        """Bytes of the settings, which are kept as long as the client. Raises StatusError."""
        size_bytes = settings.ByteSize()
        if size_bytes > SETTINGS_BYTES_MAX:
            raise StatusError(Code.BAD_REQUEST, f"the settings have more than {SETTINGS_BYTES_MAX} bytes")
        if self._settings_bytes - replaced_bytes + size_bytes > ALL_SETTINGS_BYTES_MAX:
            message = f"the settings of all clients have {ALL_SETTINGS_BYTES_MAX} bytes"
            raise StatusError(Code.TOO_MANY_REQUESTS, message)
        return size_bytes

    def _unlink(self, client: Client) -> None:
        for name in client.producer_groups:
            members = self._producers.get(name, {})
            members.pop(client.client_id, None)
            if not members:
                self._producers.pop(name, None)

    async def merged(self, settings: Settings) -> Settings:
        """The settings with what the server decides. Raises StatusError."""
        made = Settings()
        made.CopyFrom(settings)
        made.metric.on = False
        made.metric.ClearField("endpoints")
        if made.HasField("publishing"):
            made.publishing.validate_message_type = True
            made.publishing.max_body_size = BODY_BYTES_MAX
            policy = RetryPolicy(max_attempts=PRODUCER_ATTEMPTS, exponential_backoff=PRODUCER_BACKOFF)
            made.backoff_policy.CopyFrom(policy)
            return made
        found = policy_of(await self._brokers.group_config(made.subscription.group.name))
        made.subscription.fifo = found.in_order
        made.subscription.receive_batch_size = RECEIVE_BATCH
        made.subscription.long_polling_timeout.FromSeconds(LONG_POLLING_S)
        made.backoff_policy.CopyFrom(found.to_settings())
        return made

    def stream_ended(self, client_id: str, stream: CommandStream) -> None:
        """The client may open another; until its heartbeats stop it is not gone."""
        client = self._clients.get(client_id)
        if client is not None and client.stream is stream:
            client.stream = None

    async def heard(self, client: Client, group: str | None) -> None:
        """The client has sent a heartbeat. Raises StatusError."""
        await self._brokers.check_client()
        client.last_beat_s = self._loop.time()
        is_new = group is not None and client.is_consumer and group not in client.groups
        if is_new and group is not None:
            client.groups.add(group)
        if is_new or client.refusal is not None:
            await self._register(client)
        if client.is_consumer and group is not None:
            await self._check_group(group)

    async def _wait_for_group(self, client: Client, group: str) -> None:
        """A leader that was just elected has not made the group yet, or has registered after the nodes' list
        was read: Go's client never opens another stream after a refusal. Raises StatusError.
        """
        end_s = self._loop.time() + GROUP_S
        while True:
            try:
                return await self._check_group(group)
            except StatusError as error:
                if error.code != Code.ILLEGAL_CONSUMER_GROUP or self._loop.time() >= end_s:
                    raise
            await asyncio.sleep(GROUP_PAUSE_S)
            with suppress(StatusError):  # no name server answers: the known nodes must do
                await self._brokers.cluster(is_fresh=True)
            await self._register(client)

    async def _check_group(self, group: str) -> None:
        """A registration makes the group where brokers may. Raises StatusError: there is none."""
        if await self._brokers.group_config(group) is None:
            raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {group}")

    async def leave(self, client_id: str) -> None:
        """The client says that it goes. Raises StatusError."""
        await self._brokers.check_client()
        await self.remove(client_id)

    async def remove(self, client_id: str) -> Client | None:
        """The client has gone; None when it was not known."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return None
        self._settings_bytes -= client.settings_bytes
        self._unlink(client)
        if client.stream is not None:
            client.stream.end()
        self._on_gone(client_id)
        leaving = [("", group) for group in client.groups] + [(name, "") for name in client.producer_groups]
        for producer_group, consumer_group in leaving:
            header = UnregisterClientRequestHeader(client_id, producer_group, consumer_group)
            await self._send_to_all(
                RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext_fields=header.ext_fields())
            )
        return client

    def producer(self, group: str) -> Client | None:
        """One of the group's connected producers after the other."""
        ids = self._producers.get(group, {})
        usable = [client for each in ids if (client := self._clients.get(each)) and client.stream]
        if not usable:
            return None
        self._turn += 1
        return usable[self._turn % len(usable)]

    async def run(self) -> None:
        """Send the clients' heartbeats on, and remove those that have gone, until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = self._loop.time()
            for client in tuple(self._clients.values()):
                if now_s - client.last_beat_s > SILENT_S:
                    await self.remove(client.client_id)
                else:
                    await self._loop.create_task(self.beat(client), context=client.context)

    async def _register(self, client: Client) -> None:
        """Raises StatusError: a broker says that it has not the rights."""
        await self.beat(client)
        if client.refusal is not None:
            raise client.refusal

    async def beat(self, client: Client) -> None:
        """Register the client at every node."""
        body = orjson.dumps(
            {
                "clientID": client.client_id,
                "producerDataSet": [{"groupName": name} for name in client.producer_groups],
                "consumerDataSet": [_consumer(client, group) for group in sorted(client.groups)],
            }
        )
        command = RemotingCommand(RequestCode.HEART_BEAT, body=body, language=client.language)
        refusals = [
            refused_right(answer.remark)
            for answer in await self._send_to_all(command)
            if answer.code == ResponseCode.NO_PERMISSION
        ]
        client.refusal = refusals[0] if refusals else None

    async def _send_to_all(self, command: RemotingCommand) -> list[RemotingCommand]:
        """The answers of the nodes that answer."""
        try:
            nodes = await self._brokers.nodes()
        except StatusError as error:
            logger.warning("clients cannot be registered: %s", error)
            return []
        answers = await asyncio.gather(*(self._send(address, command) for address in nodes))
        return [answer for answer in answers if answer is not None]

    async def _send(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        proof = PROOF.get()
        fields = command.ext_fields | ({} if proof is None else proof.ext_fields())
        own = RemotingCommand(command.code, ext_fields=fields, body=command.body, language=command.language)
        try:
            answer = await self._brokers.client.invoke(address, own, BEAT_LIMIT_S)
        except RemotingError as error:
            logger.debug("%s does not answer: %s", address, error)
            return None
        if answer.code != 0:
            logger.warning("%s refuses a heartbeat: %s", address, answer.remark)
        return answer


def _consumer(client: Client, group: str) -> dict[str, Any]:
    entries = client.settings.subscription.subscriptions
    return {
        "groupName": group,
        "consumeType": "CONSUME_POP",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [_subscription(entry, client.settings_ms) for entry in entries],
        "unitMode": False,
    }


def _subscription(entry: SubscriptionEntry, version_ms: int) -> dict[str, Any]:
    return {
        "topic": entry.topic.name,
        "subString": entry.expression.expression or "*",
        "expressionType": "SQL92" if entry.expression.type == FilterType.SQL else "TAG",
        "subVersion": version_ms,
    }
