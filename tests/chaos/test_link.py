"""The proxies hold back, delay, cut and reset connections on request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.chaos.link import Link, Quality
from tests.chaos.network import Network

LIMIT_S = 10.0
NOT_COMING_S = 0.2


class Echo:
    """A server that sends back what it gets, and counts the bytes that reached it."""

    def __init__(self) -> None:
        self.received = 0
        self.port = 0
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            while data := await reader.read(1 << 16):
                self.received += len(data)
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)
            self._open -= 1

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        while self._open:  # the links are gone, so each connection ends by itself
            await asyncio.sleep(0.001)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def link(echo: Echo) -> AsyncIterator[Link]:
    made = Link("n0", "n1", ("127.0.0.1", echo.port), random.Random(1))
    await made.start()
    yield made
    await made.stop()


async def exchange(link: Link, data: bytes) -> bytes:
    """What comes back of the bytes on a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        writer.write(data)
        async with asyncio.timeout(LIMIT_S):
            return await reader.readexactly(len(data))
    finally:
        writer.transport.abort()


async def test_open_link_carries_everything_in_order(link: Link) -> None:
    data = random.Random(2).randbytes(1 << 20)
    assert await exchange(link, data) == data


async def test_lossy_slow_link_carries_everything_in_order(link: Link) -> None:
    link.forward.quality = Quality(delay_ms=1, jitter_ms=5, loss=0.05, bytes_per_s=10e6)
    data = random.Random(3).randbytes(1 << 20)
    assert await exchange(link, data) == data


async def test_cut_link_holds_the_bytes_and_mended_delivers_them(link: Link, echo: Echo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    link.cut()
    writer.write(b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(3), NOT_COMING_S)
    assert echo.received == 3
    link.mend()
    async with asyncio.timeout(LIMIT_S):
        assert await reader.readexactly(3) == b"two"
    writer.transport.abort()


async def test_one_direction_cut_lets_the_other_pass(link: Link, echo: Echo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    link.backward.cut()
    writer.write(b"question")
    async with asyncio.timeout(LIMIT_S):
        while echo.received < len(b"question"):
            await asyncio.sleep(0.001)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), NOT_COMING_S)
    writer.transport.abort()


async def test_cut_link_takes_new_connections_that_nothing_passes(link: Link, echo: Echo) -> None:
    link.cut()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"hello")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), NOT_COMING_S)
    assert echo.received == 0
    writer.transport.abort()


async def test_reset_ends_the_connection_and_the_next_one_works(link: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"one")
    await reader.readexactly(3)
    link.reset()
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(LIMIT_S):
            await reader.readexactly(1)
    assert await exchange(link, b"two") == b"two"


async def test_refusing_link_closes_new_connections_only(link: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"one")
    await reader.readexactly(3)
    link.refuses = True
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await exchange(link, b"two")
    writer.write(b"still")
    assert await reader.readexactly(5) == b"still"
    writer.transport.abort()


async def test_shapes_cut_the_links_they_name(echo: Echo) -> None:
    nodes = [f"n{number}" for number in range(5)]
    network = Network(nodes, random.Random(4))
    for source in nodes:
        for target in nodes:
            if source != target:
                await network.add(source, target, ("127.0.0.1", echo.port))

    def cut() -> set[str]:
        return {f"{a[1]}{b[1]}" for (a, b), link in network.links.items() if link.forward.is_cut}

    network.split([["n0", "n1"], ["n2", "n3", "n4"]])
    assert cut() == {f"{a}{b}" for a in "01" for b in "234"} | {f"{b}{a}" for a in "01" for b in "234"}
    network.mend()
    network.split([["n0", "n1", "n2"], ["n2", "n3", "n4"]])  # n2 is the bridge
    assert not any("2" in pair for pair in cut())
    assert {"03", "30", "14"} <= cut()
    network.mend()
    network.isolate("n3")
    assert cut() == {f"3{a}" for a in "0124"} | {f"{a}3" for a in "0124"}
    network.mend()
    network.majority_ring()
    assert all(sum(pair[0] == node[1] for pair in cut()) == 2 for node in nodes)
    network.mend()
    network.silence("n1", "n0")
    assert cut() == {"10"}
    await network.stop()
