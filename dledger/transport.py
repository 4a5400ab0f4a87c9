"""Replication messages between the members of a group, over TCP.

Each node connects to every peer and sends on that connection only; it receives on the connections that its
peers opened. The first frame names group, node and protocol version: a connection of another group or version
is closed before it can send anything else. Messages are frames of `dledger.codec`.

Delivery is best effort, as Raft assumes (5.1: "Servers retry RPCs"). A message for a peer that is not
connected, or whose connection has too many unsent bytes, is dropped: the core sends again after its own
time-outs, and a queue here would only deliver outdated messages later.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from dledger.codec import PROTOCOL_VERSION, FrameDecoder, Hello, PeerProtocolError, encode_frame
from dledger.core.messages import Message
from dledger.core.output import Envelope
from dledger.writer import DirectAck
from sockets.dialled import is_usable_transport
from sockets.listening import listening

logger = logging.getLogger(__name__)

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of one node's replication connections.

    handshake_timeout_ms: a connection without a handshake by then is closed. handshake_bytes_max: a
    connection that sent more bytes than this without a handshake is closed. handshakes_max: connections
    without a handshake yet; a further one closes the oldest. closed_log_interval_ms: closed connections are
    logged at most this often. unacknowledged_timeout_ms: TCP_USER_TIMEOUT, after which the kernel aborts a
    connection whose bytes the peer's machine does not acknowledge.
    """

    frame_bytes_max: int = 32 * 1024 * 1024
    unsent_bytes_max: int = 128 * 1024 * 1024
    connect_timeout_ms: int = 1_000
    reconnect_delay_ms: int = 200
    handshake_timeout_ms: int = 3_000
    handshake_bytes_max: int = 64 * 1024
    handshakes_max: int = 256
    closed_log_interval_ms: int = 1_000
    unacknowledged_timeout_ms: int = 10_000


class MessageSink(Protocol):
    """The receiver of messages. Called on the event loop."""

    def on_messages(self, sender: str, messages: list[Message]) -> None:
        """Raises PeerProtocolError for impossible values: then none of the messages counts, and the
        connection is closed.
        """

    def on_peer_connected(self, peer: str) -> None: ...
    def on_peer_disconnected(self, peer: str) -> None: ...


class Transport:
    """All replication connections of one node."""

    def __init__(
        self,
        hello: Hello,
        listen: Address,
        peers: Mapping[str, Address],
        sink: MessageSink,
        limits: TransportLimits | None = None,
    ) -> None:
        self.hello = hello
        self.sink = sink
        self.limits = limits or TransportLimits()
        self.peers = {peer: address for peer, address in peers.items() if peer != hello.node_id}
        self.client_addresses: dict[str, str] = {}
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._dialers = {peer: _Dialer(self, peer, address) for peer, address in self.peers.items()}
        self._inbound: dict[str, _Inbound] = {}
        self._encoded: Message | None = None
        self._frame: Sequence[bytes | memoryview] = ()
        self._open: dict[_Inbound, None] = {}
        self._unidentified: dict[_Inbound, None] = {}
        self._closed_unlogged = 0
        self._closed_logged_s: float | None = None

    async def start(self) -> None:
        """Listens and starts connecting. Raises OSError when the address can't be bound."""
        host, port = self._listen
        loop = asyncio.get_running_loop()
        self._server = await listening(
            lambda: loop.create_server(lambda: _Inbound(self), host, port), host, port
        )
        for dialer in self._dialers.values():
            dialer.start()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(dialer.stop() for dialer in self._dialers.values()))
        for inbound in list(self._open):
            inbound.close()

    def send(self, peer: str, message: Message) -> None:
        """Queues the message for this turn's flush, or drops it. A message to several
        peers is encoded once.
        """
        if message is not self._encoded:
            self._encoded, self._frame = message, encode_frame(message)
        self._dialers[peer].connection.send(self._frame)

    def flush(self) -> None:
        """Writes what `send` queued: one write for each peer."""
        for dialer in self._dialers.values():
            dialer.connection.flush()
        self._encoded, self._frame = None, ()

    def send_all(self, envelopes: Iterable[Envelope]) -> None:
        """Sends each and flushes."""
        for envelope in envelopes:
            self.send(envelope.to, envelope.message)
        self.flush()

    def direct_ack(self, envelope: Envelope) -> DirectAck | None:
        """Prepares this message to be sent by the writer thread; None when the event loop has to send it."""
        return self._dialers[envelope.to].connection.direct_ack(envelope.message)

    def is_connected(self, peer: str) -> bool:
        """Whether messages can reach the peer now."""
        return self._dialers[peer].connection.is_open

    def opened(self, inbound: "_Inbound") -> None:
        """A new connection, not identified yet. Their number is bounded, and the newest are kept: a member
        sends its handshake at once, so a flood of other connections can't keep it out.
        """
        self._open[inbound] = None
        self._unidentified[inbound] = None
        if len(self._unidentified) > self.limits.handshakes_max:
            oldest = next(iter(self._unidentified))
            del self._unidentified[oldest]
            oldest.refuse(f"{self.limits.handshakes_max} newer connections wait for their handshake")

    def identified(self, inbound: "_Inbound", hello: Hello) -> None:
        """The handshake of a peer. Its newest connection counts, the one before is closed: after a power
        failure the old one may look open for a long time.
        """
        self._unidentified.pop(inbound, None)
        previous = self._inbound.get(hello.node_id)
        self._inbound[hello.node_id] = inbound
        self.client_addresses[hello.node_id] = hello.client_address
        if previous is not None:
            previous.close()
        self.sink.on_peer_connected(hello.node_id)

    def lost(self, inbound: "_Inbound") -> None:
        self._open.pop(inbound, None)
        self._unidentified.pop(inbound, None)
        peer = inbound.peer
        if peer is not None and self._inbound.get(peer) is inbound:
            del self._inbound[peer]
            self.sink.on_peer_disconnected(peer)

    def log_closed(self, name: str, reason: str) -> None:
        """Logs why a connection is closed, at a bounded rate: anyone can open connections."""
        now_s = asyncio.get_running_loop().time()
        interval_s = self.limits.closed_log_interval_ms / 1000
        if self._closed_logged_s is not None and now_s - self._closed_logged_s < interval_s:
            self._closed_unlogged += 1
            return
        more = f" ({self._closed_unlogged} more since the last logged one)" if self._closed_unlogged else ""
        logger.warning("closing the replication connection of %s: %s%s", name, reason, more)
        self._closed_logged_s, self._closed_unlogged = now_s, 0

    def refusal(self, hello: Hello) -> str | None:
        """The reason to refuse the peer of this handshake; None when it is accepted."""
        if hello.version != PROTOCOL_VERSION:
            return f"speaks replication protocol {hello.version}, this node {PROTOCOL_VERSION}"
        if hello.group != self.hello.group:
            return f"is of group {hello.group!r}, this node of {self.hello.group!r}"
        if hello.node_id not in self.peers:
            return f"calls itself {hello.node_id!r}, which is not another member of the group"
        return None


def set_tcp_user_timeout(fd: int, timeout_ms: int) -> None:
    """Makes the kernel end a connection whose other machine is gone (tcp(7), TCP_USER_TIMEOUT; Linux).

    By default the kernel retransmits for a quarter of an hour, with pauses of up to two minutes: a peer that
    lost power for a while would wait that long for its leader.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


class _Dialer:
    """Keeps a connection to one peer: each attempt to connect has a new `_Outbound`, until it is stopped."""

    def __init__(self, owner: Transport, peer: str, address: Address) -> None:
        self._owner = owner
        self._peer = peer
        self._address = address
        self.connection = _Outbound(owner, peer)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._dial_forever(), name=f"dial {self._peer}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _dial_forever(self) -> None:
        limits = self._owner.limits
        while True:
            self.connection = connection = _Outbound(self._owner, self._peer)
            try:
                async with asyncio.timeout(limits.connect_timeout_ms / 1000):
                    await self._dial(connection)
                await connection.closed.wait()
            except OSError:  # TimeoutError is one; a peer that is down is ordinary
                pass
            except Exception as error:  # noqa: BLE001 (whatever a loop raises there: the next attempt follows)
                self._owner.log_closed(self._peer, f"connecting to it failed: {error!r}")
            finally:
                # A time-out may come after `connection_made`, and uvloop then calls no `connection_lost`.
                connection.drop()
            await asyncio.sleep(limits.reconnect_delay_ms / 1000)

    async def _dial(self, connection: "_Outbound") -> None:
        await asyncio.get_running_loop().create_connection(lambda: connection, *self._address)


class _Outbound(asyncio.Protocol):
    """One outgoing connection. Once it is dropped, later callbacks of the event loop have no effect.

    No method raises: delivery is best effort, and an error of its transport ends this connection only.
    """

    def __init__(self, owner: Transport, peer: str) -> None:
        self.closed = asyncio.Event()
        self._owner = owner
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._fd: int | None = None
        self._direct_ack: DirectAck | None = None
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed.is_set():
            self.drop()
            return
        try:
            self._begin(self._transport)
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)

    def _begin(self, transport: asyncio.Transport) -> None:
        if not is_usable_transport(transport):
            self.drop()  # the peer is down; `_Dialer` connects again
            return
        transport.writelines(encode_frame(self._owner.hello))
        transport.set_write_buffer_limits(high=0)  # a push leaves at once, whatever else the turn does
        connected = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # without a descriptor the writer thread sends nothing
            self._fd = None if connected is None else os.dup(connected.fileno())
        if self._fd is not None:
            set_tcp_user_timeout(self._fd, self._owner.limits.unacknowledged_timeout_ms)

    def eof_received(self) -> None:
        """The peer has closed its side. `drop` aborts: an ordinary close would wait until the peer received
        the unsent bytes.
        """
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop()

    def drop(self) -> None:
        """Ends the connection in any state. A second call has no effect."""
        # First the transport: ending the direct acknowledgement must not write the rest of its frame there.
        transport, self._transport = self._transport, None
        self._end_direct_ack()
        fd, self._fd = self._fd, None
        with contextlib.suppress(OSError):
            if fd is not None:
                os.close(fd)
        self._outbox.clear()
        self._outbox_bytes = 0
        self.closed.set()
        if transport is not None:
            with contextlib.suppress(Exception):  # there is nothing left that it could end
                transport.abort()

    def _fail(self, error: Exception) -> None:
        self._owner.log_closed(self._peer, f"it cannot be written to: {error!r}")
        self.drop()

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        if not self.is_open:
            return
        size = sum(map(len, buffers))
        # A peer that does not read must not fill this node's memory; the core sends again after a time-out.
        if self._unsent_bytes() + self._outbox_bytes + size > self._owner.limits.unsent_bytes_max:
            return
        self._outbox.extend(buffers)
        self._outbox_bytes += size

    def flush(self) -> None:
        if not self._outbox:
            return
        self._end_direct_ack()  # two writers would interleave their frames
        outbox, self._outbox, self._outbox_bytes = self._outbox, [], 0
        self._write(outbox)

    def direct_ack(self, message: Message) -> DirectAck | None:
        """A DirectAck, if the loop has nothing unsent on this connection: frames must not overtake each
        other.

        The thread writes to a duplicate of the descriptor: when the loop closes the connection, the system
        may reuse the original's number for another one. `flush` ends the DirectAck before the loop writes
        again.
        """
        if self._outbox or self._unsent_bytes() or self._fd is None or not self.is_open:
            return None
        self._end_direct_ack()
        self._direct_ack = DirectAck(
            self._fd, b"".join(encode_frame(message)), lambda rest: self._write([rest])
        )
        return self._direct_ack

    def _end_direct_ack(self) -> None:
        if self._direct_ack is not None:
            self._direct_ack.stop()
            self._direct_ack = None

    def _unsent_bytes(self) -> int:
        try:
            return self._transport.get_write_buffer_size() if self._transport is not None else 0
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)
            return 0

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._transport.writelines(buffers)
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)


class _Inbound(asyncio.Protocol):
    """An incoming connection: handshake first, then messages."""

    def __init__(self, owner: Transport) -> None:
        self.peer: str | None = None
        self._owner = owner
        self._decoder = FrameDecoder(owner.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self._deadline: asyncio.TimerHandle | None = None
        self._unidentified_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._address = str(transport.get_extra_info("peername"))
        delay = self._owner.limits.handshake_timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().call_later(delay, self._no_handshake)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
            if self.peer is None and messages:
                self._identify(messages.pop(0))
            elif self.peer is None:
                self._count_unidentified(data)
            self._deliver(messages)
        except PeerProtocolError as error:
            self.refuse(str(error))

    def _count_unidentified(self, data: bytes) -> None:
        self._unidentified_bytes += len(data)
        if self._unidentified_bytes > self._owner.limits.handshake_bytes_max:
            raise PeerProtocolError(f"no handshake within {self._unidentified_bytes} bytes")

    def _identify(self, first: Message | Hello) -> None:
        if not isinstance(first, Hello):
            raise PeerProtocolError("the first frame is not a handshake")
        refusal = self._owner.refusal(first)
        if refusal is not None:
            raise PeerProtocolError(f"the peer {refusal}")
        self.peer = first.node_id
        self._cancel_deadline()
        self._owner.identified(self, first)

    def _deliver(self, messages: list[Message | Hello]) -> None:
        if not messages or self.peer is None:
            return
        if Hello in map(type, messages):
            raise PeerProtocolError("a second handshake")
        self._owner.sink.on_messages(self.peer, cast("list[Message]", messages))

    def _no_handshake(self) -> None:
        self.refuse("no handshake")

    def refuse(self, reason: str) -> None:
        """Closes it, and logs why."""
        self._owner.log_closed(self.peer or self._address, reason)
        self._cancel_deadline()
        self.close()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._owner.lost(self)

    def close(self) -> None:
        """Closes it. It counts as lost from now on, whether the loop calls `connection_lost` or not."""
        self._owner.lost(self)
        if self._transport is not None:
            with contextlib.suppress(Exception):  # there is nothing left that it could end
                self._transport.close()
