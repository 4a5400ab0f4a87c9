"""A name server and brokers, each on a loopback port of its own, that keep what they get in memory. What a
code is answered can be scripted.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.headers.send import SendMessageRequestHeader, SequencedSendRequestHeader
from remoting.route import BrokerData, QueueData, TopicRoute, format_topic_route
from remoting.router import Router
from remoting.server import RemotingServer

TOPIC = "orders"
CLUSTER = "DefaultCluster"
Scripted = tuple[int, str] | Callable[[RemotingCommand, Connection], object]


@dataclass(slots=True)
class Kept:
    """A message that a broker got."""

    queue_id: int
    body: bytes
    header: SendMessageRequestHeader | SequencedSendRequestHeader


@dataclass(slots=True, eq=False)
class FakeLeader:
    """The node of one broker name. `scripted`: answers to the next requests of a code, which are not carried
    out; a function is called instead, and may close the connection.
    """

    name: str
    kept: list[Kept] = field(default_factory=list)
    requests: list[RemotingCommand] = field(default_factory=list)
    connections: dict[Connection, None] = field(default_factory=dict)
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    scripted: dict[int, deque[Scripted]] = field(default_factory=dict)
    address: str = ""
    server: RemotingServer | None = None

    def script(self, code: RequestCode, *answers: Scripted) -> None:
        self.scripted.setdefault(code, deque()).extend(answers)

    def of(self, code: RequestCode) -> list[RemotingCommand]:
        """The requests of this code."""
        return [each for each in self.requests if each.code == code]

    def router(self) -> Router:
        router = Router()
        router.register_fallback(self._handle)
        return router

    async def _handle(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        self.requests.append(request)
        self.connections[connection] = None
        waiting = self.scripted.get(request.code)
        if waiting:
            scripted = waiting.popleft()
            if isinstance(scripted, tuple):
                return error_response(request, *scripted)
            scripted(request, connection)
            return None
        if request.is_oneway:
            return None
        match request.code:
            case (
                RequestCode.SEND_MESSAGE_V2
                | RequestCode.SEND_BATCH_MESSAGE
                | RequestCode.SEND_REPLY_MESSAGE_V2
            ):
                return self._keep(request)
            case RequestCode.LEDGERMQ_SEND_SEQUENCED:
                return self._keep_numbered(request)
            case _:
                return success_response(request)

    def _keep(self, request: RemotingCommand) -> RemotingCommand:
        header = SendMessageRequestHeader.parse(request.ext_fields)
        offset = sum(each.queue_id == header.queue_id for each in self.kept)
        bodies = parts_of(request.body) if header.is_batch else [request.body]
        self.kept += [Kept(header.queue_id, body, header) for body in bodies]
        ids = ",".join(f"{offset + number:032X}" for number in range(len(bodies)))
        return success_response(
            request, {"msgId": ids, "queueId": str(header.queue_id), "queueOffset": str(offset)}
        )

    def _keep_numbered(self, request: RemotingCommand) -> RemotingCommand:
        header = SequencedSendRequestHeader.parse(request.ext_fields)
        bodies = parts_of(request.body)
        key = (header.writer_id, header.partition)
        expected = self.numbers.get(key, 0)
        if header.sequence > expected:
            return error_response(request, ResponseCode.LEDGERMQ_SEQUENCE_GAP, "a gap")
        repeats = min(expected - header.sequence, len(bodies))
        offset = len(self.kept)
        self.kept += [Kept(-1, body, header) for body in bodies[repeats:]]
        self.numbers[key] = max(expected, header.sequence + len(bodies))
        return success_response(request, {"queueOffset": str(offset), "repeats": str(repeats)})


def parts_of(body: bytes) -> list[bytes]:
    """The bodies of the messages of a batch."""
    bodies, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        body_size = int.from_bytes(body[at + 16 : at + 20], "big")
        bodies.append(body[at + 20 : at + 20 + body_size])
        at += size
    return bodies


class FakeCluster:
    """`names` of brokers with TOPIC in `queues` queues each. `leaders` says who has one now."""

    def __init__(self, *names: str, queues: int = 2) -> None:
        self.brokers = {name: FakeLeader(name) for name in names or ("broker-a",)}
        self.topics = {TOPIC: queues, f"{CLUSTER}_REPLY_TOPIC": 1, "TBW102": 8}
        self.leaderless: set[str] = set()
        self.perm = 6
        self.route_asks: list[str] = []
        self.namesrv = ""

    @property
    def kept(self) -> list[Kept]:
        return [each for broker in self.brokers.values() for each in broker.kept]

    def router(self) -> Router:
        router = Router()
        router.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        return router

    def _route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        self.route_asks.append(topic)
        if topic not in self.topics:
            return error_response(request, ResponseCode.TOPIC_NOT_EXIST, "no route")
        count = self.topics[topic]
        brokers = [
            BrokerData(CLUSTER, name, {1 if name in self.leaderless else 0: broker.address})
            for name, broker in self.brokers.items()
        ]
        queues = [QueueData(name, count, count, self.perm) for name in self.brokers]
        return success_response(request, body=format_topic_route(TopicRoute(tuple(queues), tuple(brokers))))


@asynccontextmanager
async def running(cluster: FakeCluster) -> AsyncIterator[FakeCluster]:
    servers = []
    try:
        for broker in cluster.brokers.values():
            broker.server = RemotingServer(broker.router(), "127.0.0.1", 0)
            servers.append(broker.server)
            await broker.server.start()
            broker.address = f"127.0.0.1:{broker.server.port}"
        name_server = RemotingServer(cluster.router(), "127.0.0.1", 0)
        servers.append(name_server)
        await name_server.start()
        cluster.namesrv = f"127.0.0.1:{name_server.port}"
        yield cluster
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


def close_connection(_: RemotingCommand, connection: Connection) -> None:
    """As a broker that dies: the request is not answered."""
    connection.abort()
