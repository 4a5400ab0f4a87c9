"""What passes a relay, what a partition holds back, and how connections end."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger.codec import Hello, Welcome, encode_frame
from ledgermq.local.plan import HOST, NodePlan
from ledgermq.testing.homes import plan_in
from ledgermq.testing.relay import HELLO_BYTES_MAX, INNER_HOST, Relays
from tests.support.polling import loop_turns, until

LIMIT_S = 10


@dataclass
class FakeNode:
    """A node behind its relay: it keeps what comes, and answers each chunk with its id."""

    plan: NodePlan
    received: bytes = b""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    ended: int = 0
    server: asyncio.Server | None = None

    async def serve(self) -> None:
        self.server = await asyncio.start_server(self._take, INNER_HOST, self.plan.replication_port)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while data := await reader.read(1 << 16):
            self.received += data
            writer.write(self.plan.id.encode())
        self.ended += 1
        writer.close()

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        for writer in self.writers:
            writer.close()


def hello(node_id: str) -> bytes:
    return b"".join(encode_frame(Hello("group", node_id, 3, "127.0.0.1:1")))


@dataclass
class Dialled:
    """A connection of one node to another's relay."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readexactly(size)

    async def has_ended(self) -> bool:
        async with asyncio.timeout(LIMIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


class Net:
    """Three nodes and their relays."""

    def __init__(self, folder: Path) -> None:
        plan = plan_in(folder, 3, None)
        self.nodes = {node.id: FakeNode(node) for node in plan.nodes}
        self.relays = Relays(plan.nodes)
        self._dialled: list[Dialled] = []

    async def dial(self, target: str, first: bytes) -> Dialled:
        port = self.nodes[target].plan.replication_port
        dialled = Dialled(*await asyncio.open_connection(HOST, port))
        self._dialled.append(dialled)
        dialled.writer.write(first)
        return dialled

    async def stop(self) -> None:
        for dialled in self._dialled:
            dialled.writer.close()
        for node in self.nodes.values():
            node.stop()
        await self.relays.stop()
        await loop_turns()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Net]:
    net = Net(folder)
    try:
        for node in net.nodes.values():
            await node.serve()
        await net.relays.start()
        yield net
    finally:
        await net.stop()


async def test_both_directions_pass_byte_for_byte(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        connection = await net.dial("n1", hello("n0") + b"behind it")
        assert await connection.read(2) == b"n1"
        body = bytes(range(256)) * 4_000
        connection.writer.write(body)
        await until(lambda: net.nodes["n1"].received == hello("n0") + b"behind it" + body)


async def test_a_hello_in_pieces_is_one(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        first, rest = hello("n0")[:5], hello("n0")[5:]
        connection = await net.dial("n1", first)
        await loop_turns()
        connection.writer.write(rest)
        assert await connection.read(2) == b"n1"


async def test_a_partition_holds_bytes_back_until_it_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        connection = await net.dial("n1", hello("n0"))
        assert await connection.read(2) == b"n1"
        before = net.nodes["n1"].received
        net.relays.cut(["n0"])
        connection.writer.write(b"held back")
        among_others = await net.dial("n1", hello("n2"))
        assert await among_others.read(2) == b"n1", "the other side of the partition goes on"
        assert net.nodes["n1"].received == before + hello("n2")
        net.relays.cut([])
        assert await connection.read(2) == b"n1"
        assert net.nodes["n1"].received == before + hello("n2") + b"held back"


async def test_answers_are_held_back_too(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        connection = await net.dial("n1", hello("n0"))
        assert await connection.read(2) == b"n1"
        net.relays.cut(["n1"])
        net.nodes["n1"].writers[0].write(b"answer")
        reading = asyncio.create_task(connection.read(6))
        among_others = await net.dial("n2", hello("n0"))
        assert await among_others.read(2) == b"n2", "what could pass has passed by then"
        assert not reading.done()
        net.relays.cut([])
        assert await reading == b"answer"


async def test_a_connection_made_in_a_partition_begins_at_its_end(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        net.relays.cut(["n0"])
        connection = await net.dial("n1", hello("n0"))
        reached = await net.dial("n1", hello("n2"))
        assert await reached.read(2) == b"n1"
        assert len(net.nodes["n1"].writers) == 1, "the node knows of one connection"
        net.relays.cut(["n2"])
        assert await connection.read(2) == b"n1"


async def test_nodes_on_the_same_side_reach_each_other(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        net.relays.cut(["n0", "n1"])
        assert await (await net.dial("n1", hello("n0"))).read(2) == b"n1"


async def test_the_end_of_one_side_ends_the_other(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        left, kept = await net.dial("n1", hello("n0")), await net.dial("n1", hello("n2"))
        for connection in (left, kept):
            assert await connection.read(2) == b"n1"
        left.writer.close()
        await until(lambda: net.nodes["n1"].ended == 1)
        for writer in net.nodes["n1"].writers:
            writer.close()
        assert await kept.has_ended()


async def test_a_dead_node_refuses_through_its_relay(tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        net.nodes["n1"].stop()
        assert await (await net.dial("n1", hello("n0"))).has_ended()


@pytest.mark.parametrize(
    "first",
    [
        b"\x16\x03\x01 TLS, or any other protocol",
        b"".join(encode_frame(Welcome(3, "n0", 3, 0, "0.2.0"))),
        (HELLO_BYTES_MAX + 1).to_bytes(4, "big") + b"\0" * 4,
    ],
    ids=["no frame", "another frame", "too long"],
)
async def test_what_begins_otherwise_is_closed_and_reaches_no_node(first: bytes, tmp_path: Path) -> None:
    async with running(tmp_path) as net:
        assert await (await net.dial("n1", first)).has_ended()
        assert net.nodes["n1"].writers == []


def test_the_inner_address_is_of_this_machine() -> None:
    with socket.socket() as there:
        there.bind((INNER_HOST, 0))
