"""The handshake turns strangers away, and a broken peer costs one connection."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from dledger.codec import PROTOCOL_VERSION, Hello, encode_frame
from dledger.core.messages import Message
from dledger.transport import Transport, TransportLimits

WAIT_S = 5.0
HANDSHAKES_MAX = 8


@dataclass
class Sink:
    messages: list[tuple[str, Message]] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    disconnected: list[str] = field(default_factory=list)

    def on_messages(self, sender: str, messages: list[Message]) -> None:
        self.messages.extend((sender, message) for message in messages)

    def on_peer_connected(self, peer: str) -> None:
        self.connected.append(peer)

    def on_peer_disconnected(self, peer: str) -> None:
        self.disconnected.append(peer)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Listener:
    port: int
    sink: Sink


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    port, sink = free_port(), Sink()
    nobody = ("127.0.0.1", free_port())
    transport = Transport(
        Hello("g", "n0", PROTOCOL_VERSION, "127.0.0.1:1"),
        ("127.0.0.1", port),
        {"n1": nobody},
        sink,
        TransportLimits(
            frame_bytes_max=1 << 16,
            handshake_timeout_ms=200,
            handshake_bytes_max=4096,
            handshakes_max=HANDSHAKES_MAX,
            complaint_interval_ms=60_000,
        ),
    )
    await transport.start()
    yield Listener(port, sink)
    await transport.stop()


async def is_closed_by_peer(listener: Listener, data: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        writer.write(data)
        async with asyncio.timeout(WAIT_S):
            return await reader.read(1) == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()


def frame(hello: Hello) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode_frame(hello))


@pytest.mark.parametrize(
    "hello",
    [
        Hello("other", "n1", PROTOCOL_VERSION, ""),
        Hello("g", "n9", PROTOCOL_VERSION, ""),
        Hello("g", "n0", PROTOCOL_VERSION, ""),
        Hello("g", "n1", PROTOCOL_VERSION + 1, ""),
    ],
)
async def test_stranger_is_turned_away(listener: Listener, hello: Hello) -> None:
    assert await is_closed_by_peer(listener, frame(hello))
    assert listener.sink.connected == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x00" * 64])
async def test_garbage_closes_the_connection(listener: Listener, data: bytes) -> None:
    assert await is_closed_by_peer(listener, data)


async def test_silence_is_closed_after_the_handshake_time(listener: Listener) -> None:
    assert await is_closed_by_peer(listener, b"")


async def test_second_handshake_closes_the_connection(listener: Listener) -> None:
    hello = frame(Hello("g", "n1", PROTOCOL_VERSION, "127.0.0.1:2"))
    assert await is_closed_by_peer(listener, hello + hello)


async def test_peer_is_announced_and_missed(listener: Listener) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(frame(Hello("g", "n1", PROTOCOL_VERSION, "127.0.0.1:2")))
    async with asyncio.timeout(WAIT_S):
        while not listener.sink.connected:
            await asyncio.sleep(0.005)
        writer.close()
        while not listener.sink.disconnected:
            await asyncio.sleep(0.005)
    assert (listener.sink.connected, listener.sink.disconnected) == (["n1"], ["n1"])


async def test_stranger_that_sends_without_end_is_closed_early(
    listener: Listener,
) -> None:
    """The length says 60,000 bytes, which a member may send; only a member."""
    assert await is_closed_by_peer(listener, struct.pack(">II", 60_000, 50) + bytes(10_000))


async def test_flood_of_strangers_costs_the_oldest_their_place_and_members_nothing(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    strangers = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(HANDSHAKES_MAX)]
    _, member = await asyncio.open_connection("127.0.0.1", listener.port)
    member.write(frame(Hello("g", "n1", PROTOCOL_VERSION, "127.0.0.1:2")))
    async with asyncio.timeout(WAIT_S):
        assert await strangers[0][0].read(1) == b""
        while not listener.sink.connected:
            await asyncio.sleep(0.005)
        for reader, _ in strangers:
            assert await reader.read(1) == b""  # by the handshake's time-out
    assert listener.sink.disconnected == []
    assert len([record for record in caplog.records if "closing" in record.message]) == 1
    for writer in (member, *(writer for _, writer in strangers)):
        writer.close()
