"""The path of one request through the product: which functions are called, in which files.

`python -m tests.walks` prints the paths.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from httpx import ASGITransport, AsyncClient

from admin_api.app import create_app
from admin_api.settings import Settings
from broker.app import Broker
from broker.config import BrokerConfig, config_from
from namesrv.config import NameServerConfig
from namesrv.server import NameServer
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from tests.unit.broker.test_app import free_ports

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "admin_api",
    "broker",
    "commitlog",
    "dledger",
    "namesrv",
    "native",
    "remoting",
    "sockets",
    "telemetry",
)
PRODUCT = tuple(f"{ROOT / package}/" for package in PACKAGES)
QUIET_MS = 600_000
"""Longer than a test: nothing periodic runs beside a request."""
LIMIT_S = 20.0
AGREEING = 5
TRIES_MIN = 12
TRIES_MAX = 60
PROPERTIES = "UNIQ_KEY\x01AC11000100002A9F4C6B5D1E0F2A0000\x02WAIT\x01true\x02"
"""As every stock client sets them."""
SEND_FIELDS = dict(
    zip("abcdefghi", ("p", "walked", "TBW102", "4", "0", "0", "1", "0", PROPERTIES), strict=True)
)


@dataclass(frozen=True, slots=True)
class Walk:
    """The Python functions that were called, in order, as `file:function`. Comprehensions are not counted."""

    calls: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """The files of these functions, in the order in which they are first entered."""
        return list(dict.fromkeys(call.split(":")[0] for call in self.calls))

    def __str__(self) -> str:
        return "\n".join(self.calls) + f"\n{len(self.files)} files, {len(self.calls)} calls"


async def walk(request: Callable[[], Awaitable[object]]) -> Walk:
    """What this thread calls of the product until the request is answered."""
    calls: list[str] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT) and not code.co_name.startswith("<"):
            calls.append(f"{code.co_filename[len(str(ROOT)) + 1 :]}:{code.co_qualname}")

    sys.setprofile(on_event)
    try:
        await request()
    finally:
        sys.setprofile(None)
    return Walk(tuple(calls))


async def _nothing() -> None:
    pass


async def usual_walk(
    request: Callable[[], Awaitable[object]], undo: Callable[[], Awaitable[object]] = _nothing
) -> Walk:
    """The shortest path that five of several tries took: the answer of the disk may come in the same turn
    of the loop or in a later one. The first tries fill caches. `undo` runs after each, not counted.
    On a busy machine requests interleave in many ways: then it is the fifth shortest.
    """
    for _ in range(AGREEING):
        await request()
        await undo()
    walks: list[Walk] = []
    for _ in range(TRIES_MAX):
        walks.append(await walk(request))
        await undo()
        counts = Counter(len(each.calls) for each in walks)
        usual = min((length for length, times in counts.items() if times >= AGREEING), default=None)
        if usual is not None and len(walks) >= TRIES_MIN:
            # Of these one beside which no timer ran.
            return min((each for each in walks if len(each.calls) == usual), key=lambda each: len(each.files))
    return sorted(walks, key=lambda each: len(each.calls))[AGREEING - 1]


class Wire:
    """One connection to a node that uses nothing of the product while a request is on its way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, frame: bytes) -> bytes:
        """The answer's frame without its length."""
        self._writer.write(frame)
        length = int.from_bytes(await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    def request(self, code: RequestCode, body: bytes = b"", /, **ext: str) -> Callable[[], Awaitable[None]]:
        """A request that is made ready now. An answer other than SUCCESS fails."""
        frame = encode_command(RemotingCommand(code, 7, ext_fields=ext, body=body))

        async def ask() -> None:
            answer = await self.ask(frame)
            assert b'"code":0,' in answer, answer

        return ask


class Node:
    """A name server, a replica group of one node, and the admin service: in this process."""

    def __init__(self, admin: AsyncClient, wire: Wire) -> None:
        self.admin, self.wire = admin, wire

    async def produce(self) -> Walk:
        return await usual_walk(self.wire.request(RequestCode.SEND_MESSAGE_V2, b"hello", **SEND_FIELDS))

    async def pull(self) -> Walk:
        fields = {
            "consumerGroup": "g",
            "topic": "walked",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "1",
        } | {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*"}
        ask = self.wire.request(RequestCode.PULL_MESSAGE, b"", **fields, subVersion="0", expressionType="TAG")
        return await usual_walk(ask)

    async def create_topic(self) -> Walk:
        fields = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        code = RequestCode.UPDATE_AND_CREATE_TOPIC

        def creation(name: str) -> Callable[[], Awaitable[object]]:
            return self.wire.request(code, topic=name, **fields)

        return await self._walk_of_creation(creation)

    async def post_topic(self) -> Walk:
        def creation(name: str) -> Callable[[], Awaitable[object]]:
            async def ask() -> None:
                answer = await self.admin.post("/topics", json={"name": name})
                assert answer.status_code == 200, answer.text

            return ask

        async def show_brokers() -> None:
            answer = await self.admin.get("/brokers")
            assert answer.status_code == 200, answer.text

        return await self._walk_of_creation(creation, show_brokers)

    async def _walk_of_creation(
        self,
        creation: Callable[[str], Callable[[], Awaitable[object]]],
        before: Callable[[], Awaitable[object]] = _nothing,
    ) -> Walk:
        """Each try creates a topic of another name, as usual: one that was deleted goes a longer way. What is
        done `before` is not counted: the admin service knows its brokers for half a second, and a try on a
        busy machine takes longer.
        """
        names = (f"made{number}" for number in range(TRIES_MAX + AGREEING + 1))
        name = next(names)
        create = creation(name)

        async def undo() -> None:
            nonlocal name, create
            await self.wire.request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)()
            name = next(names)
            create = creation(name)
            await before()

        return await usual_walk(lambda: create(), undo)


def _config(root: Path, namesrv: str) -> BrokerConfig:
    listen, replication = free_ports(2)
    return config_from(
        {
            "storePathRootDir": str(root),
            "listenPort": listen,
            "namesrvAddr": namesrv,
            "dLegerPeers": f"n0-127.0.0.1:{replication}",
            "heartbeatIntervalMs": 20,
            "electionTimeoutMinMs": 50,
            "electionTimeoutMaxMs": 60,
            "mappedFileSizeCommitLog": 8 * 1024 * 1024,
        }
    )


@asynccontextmanager
async def running_node(root: Path, *, is_registered: bool = True) -> AsyncIterator[Node]:
    """A node that takes messages, with the topic `walked` and its first message. A topic's creation is
    answered after the name servers know it: `is_registered=False` is the broker by itself.
    """
    server = NameServer(NameServerConfig(port=0, expiry_check_interval_ms=QUIET_MS))
    await server.start()
    namesrv = f"127.0.0.1:{server.port}"
    broker = Broker(_config(root, namesrv if is_registered else ""))
    app = create_app(Settings(namesrv, history_interval_ms=QUIET_MS))
    await broker.start()
    host, port = broker.config.broker_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    own = {"X-LedgerMQ-Request": "1"}
    async with (
        app.router.lifespan_context(app),
        AsyncClient(
            transport=ASGITransport(app), base_url="http://127.0.0.1:8080/api/v1", headers=own
        ) as admin,
    ):
        try:
            await _first_message(Wire(reader, writer))
            yield Node(admin, Wire(reader, writer))
        finally:
            writer.close()
            await broker.stop()
            await server.stop()


async def _first_message(wire: Wire) -> None:
    """Until the node leads, a send is refused."""
    send = encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 7, ext_fields=SEND_FIELDS, body=b"hi"))
    async with asyncio.timeout(LIMIT_S):
        while b'"code":0,' not in await wire.ask(send):
            await asyncio.sleep(0.05)
