"""The handshake turns strangers away, and a broken peer costs one connection."""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from dledger.codec import (
    PROTOCOL_VERSION,
    FrameDecoder,
    Hello,
    Introduction,
    PeerProtocolError,
    encode_frame,
)
from dledger.core.messages import AppendResponse, HeartbeatResponse, Message
from dledger.core.output import Envelope
from dledger.core.types import ResponseCode
from dledger.transport import Transport, TransportLimits
from dledger.writer import DirectAck
from tests.support.polling import loop_turns, until
from tests.support.self_dialled import SelfDialler, self_connected

WAIT_S = 5.0
HANDSHAKES_MAX = 8


@dataclass
class Sink:
    messages: list[tuple[str, Message]] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    disconnected: list[str] = field(default_factory=list)
    introduced: list[tuple[str, Introduction]] = field(default_factory=list)

    def on_messages(self, sender: str, messages: list[Message]) -> None:
        self.messages.extend((sender, message) for message in messages)

    def on_peer_connected(self, peer: str) -> None:
        self.connected.append(peer)

    def on_peer_disconnected(self, peer: str) -> None:
        self.disconnected.append(peer)

    def on_peer_introduced(self, peer: str, introduction: Introduction) -> None:
        self.introduced.append((peer, introduction))


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
            closed_log_interval_ms=60_000,
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
            await reader.read()  # a Welcome or the reason may come first
            return True
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


async def test_what_no_member_can_mean_closes_the_connection(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sender: str, messages: list[Message]) -> None:
        raise PeerProtocolError(f"{sender} says {messages}")

    monkeypatch.setattr(listener.sink, "on_messages", refuse)
    beat = b"".join(bytes(buffer) for buffer in encode_frame(HeartbeatResponse(1, 5)))
    assert await is_closed_by_peer(listener, frame(Hello("g", "n1", PROTOCOL_VERSION, "127.0.0.1:2")) + beat)
    assert (listener.sink.connected, listener.sink.disconnected) == (["n1"], ["n1"])


async def test_peer_is_announced_and_missed(listener: Listener) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(frame(Hello("g", "n1", PROTOCOL_VERSION, "127.0.0.1:2")))
    async with asyncio.timeout(WAIT_S):
        await until(lambda: listener.sink.connected)
        writer.close()
        await until(lambda: listener.sink.disconnected)
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
        await until(lambda: listener.sink.connected)
        for reader, _ in strangers:
            assert await reader.read(1) == b""  # by the handshake's time-out
    assert listener.sink.disconnected == []
    assert len([record for record in caplog.records if "closing" in record.message]) == 1
    for writer in (member, *(writer for _, writer in strangers)):
        writer.close()


ACK = AppendResponse(1, ResponseCode.SUCCESS, 0, 5, 5)
BEAT = HeartbeatResponse(1, 5)


class Peer:
    """The node that the transport dials, and what it read."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(1 << 16)
        self._found: list[Any] = []
        self.reader: asyncio.StreamReader | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writers.append(writer)

    async def read(self, count: int) -> list[Any]:
        """So many messages, the handshake not counted."""
        async with asyncio.timeout(WAIT_S):
            await until(lambda: self.reader is not None)
            assert self.reader is not None
            while len(self._found) <= count:
                self._found += self._decoder.feed(await self.reader.read(1 << 16))
        return self._found[1:]


@pytest.fixture
async def dialled() -> AsyncIterator[tuple[Transport, Peer]]:
    """A transport that is connected to n1 and has said who it is."""
    peer = Peer()
    server = await asyncio.start_server(peer.accept, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    hello = Hello("g", "n0", PROTOCOL_VERSION, "")
    transport = Transport(hello, ("127.0.0.1", free_port()), {"n1": address}, Sink())
    await transport.start()
    await peer.read(0)
    yield transport, peer
    await transport.stop()
    server.close()
    for writer in peer.writers:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def direct_ack_of(transport: Transport) -> DirectAck:
    direct_ack = transport.direct_ack(Envelope("n1", ACK))
    assert direct_ack is not None
    return direct_ack


async def test_the_writer_thread_may_send_the_frame_of_a_direct_ack(dialled: tuple[Transport, Peer]) -> None:
    transport, peer = dialled
    direct_ack = direct_ack_of(transport)
    assert os.write(direct_ack.fd, direct_ack.frame) == len(direct_ack.frame)
    direct_ack.begin(lambda: len(direct_ack.frame))
    direct_ack.stop()
    assert direct_ack.is_sent
    assert await peer.read(1) == [ACK]


async def test_the_loop_stops_a_direct_ack_before_it_writes(dialled: tuple[Transport, Peer]) -> None:
    transport, peer = dialled
    direct_ack = direct_ack_of(transport)
    asked: list[str] = []

    def cancel() -> int:
        asked.append("cancelled")
        return 0

    direct_ack.begin(cancel)
    transport.flush()
    assert asked == []
    transport.send("n1", BEAT)
    transport.flush()
    assert asked == ["cancelled"]
    assert not direct_ack.is_sent
    direct_ack.stop()
    assert asked == ["cancelled"]
    assert await peer.read(1) == [BEAT]


async def test_the_rest_of_a_frame_that_was_begun_goes_first(dialled: tuple[Transport, Peer]) -> None:
    transport, peer = dialled
    direct_ack = direct_ack_of(transport)
    os.write(direct_ack.fd, direct_ack.frame[:7])
    direct_ack.begin(lambda: 7)
    transport.send("n1", BEAT)
    transport.flush()
    assert direct_ack.is_sent
    assert await peer.read(2) == [ACK, BEAT]


async def test_nothing_is_lent_while_the_loop_has_something_to_send(dialled: tuple[Transport, Peer]) -> None:
    transport, peer = dialled
    transport.send("n1", BEAT)
    assert transport.direct_ack(Envelope("n1", ACK)) is None
    transport.flush()
    assert await peer.read(1) == [BEAT]
    direct_ack_of(transport)


async def test_a_direct_ack_ends_with_its_connection(dialled: tuple[Transport, Peer]) -> None:
    transport, _ = dialled
    direct_ack = direct_ack_of(transport)
    ended = asyncio.Event()

    def cancel() -> int:
        os.fstat(direct_ack.fd)  # it is still open
        ended.set()
        return 0

    direct_ack.begin(cancel)
    transport._dialers["n1"].connection._transport.abort()  # type: ignore[union-attr]
    async with asyncio.timeout(WAIT_S):
        await ended.wait()
    assert transport.direct_ack(Envelope("n1", ACK)) is None


async def test_a_peer_that_reads_no_more_is_dialled_anew_whatever_is_unsent(
    dialled: tuple[Transport, Peer],
) -> None:
    transport, peer = dialled
    transport._dialers["n1"].connection.send([bytes(32 << 20)])
    transport.flush()
    peer.writers[0].write_eof()
    await until(lambda: len(peer.writers) >= 2)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has this option")
async def test_a_machine_that_acknowledges_nothing_is_given_up(dialled: tuple[Transport, Peer]) -> None:
    transport, _ = dialled
    fd = transport._dialers["n1"].connection._fd
    assert fd is not None
    with socket.socket(fileno=os.dup(fd)) as connected:
        timeout_ms = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout_ms == TransportLimits().unacknowledged_timeout_ms


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_dial_that_reaches_itself_leaves_the_peer_its_port(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(reach_itself_then_the_peer())


async def reach_itself_then_the_peer() -> None:
    """The system makes it happen while the peer is down, where its port is one for outgoing connections."""
    address = ("127.0.0.1", free_port())
    hello = Hello("g", "n0", PROTOCOL_VERSION, "")
    transport = Transport(hello, ("127.0.0.1", free_port()), {"n1": address}, Sink())
    peer = Peer()
    with pytest.MonkeyPatch.context() as patch:
        dialler = SelfDialler(patch)
        await transport.start()
        await until(lambda: dialler.count >= 2)
        assert not transport.is_connected("n1")
    server = await asyncio.start_server(peer.accept, *address)
    assert await peer.read(0) == []
    assert transport.is_connected("n1")
    await transport.stop()
    server.close()
    for writer in peer.writers:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_a_node_waits_for_its_port_while_a_connection_that_will_end_has_it() -> None:
    held = self_connected()
    listen = held.getsockname()
    transport = Transport(Hello("g", "n0", PROTOCOL_VERSION, ""), listen, {}, Sink())
    starting = asyncio.create_task(transport.start())
    await loop_turns()
    assert not starting.done()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    held.close()
    async with asyncio.timeout(WAIT_S):
        await starting
    await transport.stop()
