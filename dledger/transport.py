"""Replication messages between the members of a group, over TCP.

Each node connects to every peer and sends on that connection only; it receives on the connections that its
peers opened. The first frame names group, node and protocol version: a connection of another group or version
is closed before it can send anything else. Messages are frames of `dledger.codec`.

With credentials the bytes go through TLS, and both ends have certificates: what comes over a connection is of
the member that the certificate names (`dledger.credentials`), and a process without one can send nothing.
Certificates are checked while a connection is made, so no connection grows old: the dialling side makes its
successor in time, and the last bytes of the old one arrive before the first of the new one, which costs no
message and no election.

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
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from dledger.codec import (
    HANDSHAKE_TYPES,
    PROTOCOL_VERSION,
    FrameDecoder,
    Handshake,
    Hello,
    PeerProtocolError,
    encode_frame,
)
from dledger.core.messages import Message
from dledger.core.output import Envelope
from dledger.credentials import MemberCredentials, PeerStream, member_uri
from dledger.writer import DirectAck
from sockets.dialled import is_usable_transport
from sockets.listening import listening
from sockets.tls import HANDSHAKE_FIRST_BYTE, PeerNames, TlsError

logger = logging.getLogger(__name__)

Address = tuple[str, int]
_REPLACED_AT: Final = (0.5, 0.75)
"""Of the age limit: between these a connection gets its successor."""
_DAY_S: Final = 86_400
_WARNED_BEFORE_S: Final = 30 * _DAY_S
_JOINED_BYTES_MAX: Final = 256 * 1024
"""More bytes are encrypted buffer by buffer: the copy would cost more than the calls that it saves."""

ENCRYPTED_BYTES_MAX: Final = 2 * 1024 * 1024
"""For one peer in one turn of the loop: 2 ms. What is left leaves in the next turns."""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of one node's replication connections.

    connect_timeout_ms: for the connection and, with certificates, its TLS. handshake_timeout_ms: a
    connection without a handshake by then is closed; TLS is a part of it. handshake_bytes_max: a connection
    that sent more bytes than this without a handshake is closed. handshakes_max: connections without a
    handshake yet; a further one closes the oldest. strangers_per_s: with certificates, connections a second
    from addresses of no member, whose handshakes cost time; further ones are closed at once.
    closed_log_interval_ms: closed connections are logged at most this often. unacknowledged_timeout_ms:
    TCP_USER_TIMEOUT, after which the kernel aborts a connection whose bytes the peer's machine does not
    acknowledge.
    """

    frame_bytes_max: int = 32 * 1024 * 1024
    unsent_bytes_max: int = 128 * 1024 * 1024
    connect_timeout_ms: int = 1_000
    reconnect_delay_ms: int = 200
    handshake_timeout_ms: int = 3_000
    handshake_bytes_max: int = 64 * 1024
    handshakes_max: int = 256
    strangers_per_s: int = 20
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
        credentials: MemberCredentials | None = None,
    ) -> None:
        """`credentials`: None for connections without TLS, whose peers are believed whatever they say."""
        self.hello = hello
        self.sink = sink
        self.limits = limits or TransportLimits()
        self.credentials = credentials
        self.peers = {peer: address for peer, address in peers.items() if peer != hello.node_id}
        self.client_addresses: dict[str, str] = {}
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._dialers = {peer: _Dialer(self, peer, address) for peer, address in self.peers.items()}
        self._inbound: dict[str, _Inbound] = {}
        self._lost: set[str] = set()
        self._hosts = {address[0] for address in self.peers.values()}
        self._stranger_second = self._strangers = 0
        self._warned_s: dict[str, float] = {}
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
        if self.credentials is not None and inbound.host not in self._hosts and self._are_too_many():
            inbound.refuse(f"over {self.limits.strangers_per_s} connections a second of no member's address")
            return
        if len(self._unidentified) > self.limits.handshakes_max:
            oldest = next(iter(self._unidentified))
            del self._unidentified[oldest]
            oldest.refuse(f"{self.limits.handshakes_max} newer connections wait for their handshake")

    def _are_too_many(self) -> bool:
        """Counts a connection of no member's address. The handshakes of many such connections would take the
        time of the event loop; those of members do not compete with them.
        """
        second = int(asyncio.get_running_loop().time())
        if second != self._stranger_second:
            self._stranger_second, self._strangers = second, 0
        self._strangers += 1
        return self._strangers > self.limits.strangers_per_s

    def identified(self, inbound: "_Inbound", hello: Hello) -> None:
        """The handshake of a peer. Its newest connection counts, the one before is closed: after a power
        failure the old one may look open for a long time.
        """
        self._unidentified.pop(inbound, None)
        self._lost.discard(hello.node_id)
        previous = self._inbound.get(hello.node_id)
        self._inbound[hello.node_id] = inbound
        self.client_addresses[hello.node_id] = hello.client_address
        if previous is not None:
            previous.close()
        self.sink.on_peer_connected(hello.node_id)

    def lost(self, inbound: "_Inbound") -> None:
        self._open.pop(inbound, None)
        self._unidentified.pop(inbound, None)
        peer = inbound.peer or inbound.certified
        if peer is None:
            return
        if self._inbound.get(peer) is inbound:
            del self._inbound[peer]
            self._lost.add(peer)
        # A member that replaces its connection ends the old one before the new one's handshake: it is not
        # gone, and its followers need no election.
        if peer in self._lost and all(other.certified != peer for other in self._unidentified):
            self._lost.remove(peer)
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

    def warn_of_end(self, peer: str, names: PeerNames) -> None:
        """Logs once a day that a member's certificate ends soon: those of a group mostly end together, and
        then no member hears another.
        """
        now_s = time.time()
        if names.ends_at_s is None or names.ends_at_s - now_s > _WARNED_BEFORE_S:
            return
        if now_s - self._warned_s.get(peer, 0) >= _DAY_S:
            self._warned_s[peer] = now_s
            days = max(0, int((names.ends_at_s - now_s) // _DAY_S))
            logger.warning("the certificate of %s for replication ends in %d days: renew it", peer, days)

    def refusal(self, hello: Hello) -> str | None:
        """The reason to refuse the peer of this handshake; None when it is accepted."""
        if hello.version != PROTOCOL_VERSION:
            return f"speaks replication protocol {hello.version}, this node {PROTOCOL_VERSION}"
        if hello.group != self.hello.group:
            return f"is of group {hello.group!r}, this node of {self.hello.group!r}"
        if hello.node_id not in self.peers:
            return f"calls itself {hello.node_id!r}, which is not another member of the group"
        return None

    def member_in(self, names: PeerNames) -> str | None:
        """The peer that a certificate names; None when it is not of another member of this group."""
        return next((peer for peer in self.peers if self.uri_of(peer) in names.uris), None)

    def uri_of(self, peer: str) -> str:
        return member_uri(self.hello.group, peer)


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
        self.connection.drop()

    async def _dial_forever(self) -> None:
        limits = self._owner.limits
        while True:
            made = _Outbound(self._owner, self._peer)
            if not self.connection.is_open:
                self.connection = made
            is_due = False
            try:
                async with asyncio.timeout(limits.connect_timeout_ms / 1000):
                    await self._dial(made)
                await self._succeed(made)
                is_due = await self._is_due(made)
            except OSError:  # TimeoutError is one; a peer that is down is ordinary
                pass
            except Exception as error:  # noqa: BLE001 (whatever a loop raises there: the next attempt follows)
                self._owner.log_closed(self._peer, f"connecting to it failed: {error!r}")
            finally:
                # A time-out may come after `connection_made`, and uvloop then calls no `connection_lost`.
                if not is_due:
                    made.drop()
            if not is_due:
                await asyncio.sleep(limits.reconnect_delay_ms / 1000)

    async def _dial(self, connection: "_Outbound") -> None:
        await asyncio.get_running_loop().create_connection(lambda: connection, *self._address)
        if self._owner.credentials is not None:
            await connection.established()

    async def _succeed(self, made: "_Outbound") -> None:
        """Send on this connection from now on. If another one is open, its last bytes arrive first: a message
        that was lost between the two would be sent again only after a time-out.
        """
        previous = self.connection
        if previous is not made:
            # The peer knows by then that this connection has its certificate, and the end of the other one
            # is no failure (`Transport.lost`). The other one works meanwhile.
            await asyncio.sleep(self.successor_delay_ms / 1000)
            self.connection = made
            await previous.end()
        made.greet()

    async def _is_due(self, connection: "_Outbound") -> bool:
        """Waits until the connection is closed, or so old that it needs a successor: then it returns True."""
        if self._owner.credentials is None:
            await connection.closed.wait()
            return False
        # Not all connections of a group at once, which began at the same time.
        first, last = _REPLACED_AT
        link = zlib.crc32(f"{self._owner.hello.node_id} {self._peer}".encode()) % 100
        try:
            async with asyncio.timeout(self._age_max_ms / 1000 * (first + (last - first) * link / 100)):
                await connection.closed.wait()
        except TimeoutError:
            return True
        return False

    @property
    def successor_delay_ms(self) -> float:
        """Long enough for the handshake to reach the peer, and shorter than it waits for a Hello."""
        return min(self._owner.limits.reconnect_delay_ms, self._age_max_ms / 50)

    @property
    def _age_max_ms(self) -> int:
        assert self._owner.credentials is not None
        return self._owner.credentials.connection_age_max_ms


class _Outbound(asyncio.Protocol):
    """One outgoing connection. Once it is dropped, later callbacks of the event loop have no effect.

    No method raises: delivery is best effort, and an error of its transport ends this connection only.
    """

    def __init__(self, owner: Transport, peer: str) -> None:
        self.closed = asyncio.Event()
        self._owner = owner
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._stream: PeerStream | None = None
        self._is_certified = owner.credentials is None
        self._has_greeted = False
        self._established = asyncio.Event()
        self._age_limit: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        self._direct_ack: DirectAck | None = None
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        self._is_flush_due = False

    @property
    def is_open(self) -> bool:
        """Whether messages may reach the peer: with certificates only after its own was checked."""
        return self._transport is not None and self._is_certified and not self._transport.is_closing()

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
        if self._owner.credentials is None:
            self.greet()
        else:
            self._stream = self._owner.credentials.dialling.stream()
            self._stream.start()
            transport.write(self._stream.take_outgoing())
        transport.set_write_buffer_limits(high=0)  # a push leaves at once, whatever else the turn does
        connected = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # without a descriptor the writer thread sends nothing
            self._fd = None if connected is None else os.dup(connected.fileno())
        if self._fd is not None:
            set_tcp_user_timeout(self._fd, self._owner.limits.unacknowledged_timeout_ms)

    def greet(self) -> None:
        """Say who this node is. What was sent before that leaves now."""
        if not self._has_greeted:
            self._has_greeted = True
            self._write(list(encode_frame(self._owner.hello)))
            self.flush()

    # -- TLS

    async def established(self) -> None:
        """Returns when the peer has shown who it is. Raises ConnectionError when the connection ends
        instead.
        """
        await self._established.wait()
        if not self.is_open:
            raise ConnectionAbortedError("the connection ended before the TLS handshake was complete")

    def data_received(self, data: bytes) -> None:
        """A peer answers on its own connection; here is only its part of TLS."""
        stream, transport = self._stream, self._transport
        if stream is None or transport is None:
            return
        try:
            stream.receive(data)
            if stream.is_established and not self._is_certified:
                self._certify(stream.peer_names())
        except (TlsError, PeerProtocolError) as error:
            self._owner.log_closed(self._peer, str(error))
            transport.write(stream.take_outgoing())  # the alert, with which its log can say why
            transport.close()
            self._established.set()
            return
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)
            return
        if outgoing := stream.take_outgoing():
            transport.write(outgoing)
        if stream.is_at_end:
            self.drop()

    def _certify(self, names: PeerNames) -> None:
        """Raises PeerProtocolError when who answers is not the peer that was dialled."""
        expected = self._owner.uri_of(self._peer)
        if expected not in names.uris:
            raise PeerProtocolError(f"its certificate names {_listed(names)}, not {expected}")
        self._owner.warn_of_end(self._peer, names)
        assert self._owner.credentials is not None
        age_max_s = self._owner.credentials.connection_age_max_ms / 1000
        self._age_limit = asyncio.get_running_loop().call_later(age_max_s, self.drop)
        self._is_certified = True
        self._established.set()

    async def end(self) -> None:
        """Returns when the peer has read everything, or took too long; then the connection is dropped."""
        while self._outbox and self._has_greeted:
            self._flush_part()
        if self._stream is not None and self._transport is not None:
            self._stream.end()
            self._transport.write(self._stream.take_outgoing())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._owner.limits.connect_timeout_ms / 1000):
                await self.closed.wait()
        self.drop()

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
        age_limit, self._age_limit = self._age_limit, None
        if age_limit is not None:
            age_limit.cancel()
        self._end_direct_ack()
        fd, self._fd = self._fd, None
        with contextlib.suppress(OSError):
            if fd is not None:
                os.close(fd)
        self._outbox.clear()
        self._outbox_bytes = 0
        self.closed.set()
        self._established.set()
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
        if self._outbox and self._has_greeted and not self._is_flush_due:
            self._flush_part()

    def _flush_part(self) -> None:
        self._is_flush_due = False
        if not self._outbox:
            return  # dropped meanwhile
        self._end_direct_ack()  # two writers would interleave their frames
        outbox, self._outbox = self._outbox, []
        if self._stream is not None and self._outbox_bytes > ENCRYPTED_BYTES_MAX:
            outbox, self._outbox = _split(outbox, ENCRYPTED_BYTES_MAX)
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_part)
        self._outbox_bytes = sum(map(len, self._outbox))
        self._write(outbox)

    def direct_ack(self, message: Message) -> DirectAck | None:
        """A DirectAck, if the loop has nothing unsent on this connection: frames must not overtake each
        other.

        The thread writes to a duplicate of the descriptor: when the loop closes the connection, the system
        may reuse the original's number for another one. `flush` ends the DirectAck before the loop writes
        again.
        """
        # With TLS the loop alone can make the bytes that are sent.
        if self._stream is not None or self._outbox or self._unsent_bytes() or self._fd is None:
            return None
        if not self.is_open:
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
            if self._stream is not None:
                buffers = [self._encrypted(self._stream, buffers)]
            self._transport.writelines(buffers)
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)

    @staticmethod
    def _encrypted(stream: PeerStream, buffers: list[bytes | memoryview]) -> bytes:
        """Small buffers share a record of TLS, and a call. Raises TlsError."""
        is_small = sum(map(len, buffers)) <= _JOINED_BYTES_MAX
        stream.encrypt([b"".join(buffers)] if is_small else buffers)
        return stream.take_outgoing()


def _split(
    buffers: list[bytes | memoryview], size: int
) -> tuple[list[bytes | memoryview], list[bytes | memoryview]]:
    """The first `size` bytes, and the rest."""
    for number, buffer in enumerate(buffers):
        if len(buffer) > size:
            cut = memoryview(buffer)
            return [*buffers[:number], cut[:size]], [cut[size:], *buffers[number + 1 :]]
        size -= len(buffer)
    return buffers, []


class _Inbound(asyncio.Protocol):
    """An incoming connection: TLS if there are certificates, the handshake, then messages."""

    def __init__(self, owner: Transport) -> None:
        self.peer: str | None = None
        self.certified: str | None = None
        """The member that its certificate names, from the end of the TLS handshake on."""
        credentials = owner.credentials
        self._stream = None if credentials is None else credentials.accepting.stream()
        self._owner = owner
        self._decoder = FrameDecoder(owner.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self.host = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._unidentified_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self._address = str(address)
        self.host = address[0] if address else ""
        delay = self._owner.limits.handshake_timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().call_later(delay, self._no_handshake)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        try:
            if self.peer is None:
                self._check_first_byte(data)
            messages = self._decoder.feed(data if stream is None else self._decrypt(stream, data))
            if self.peer is None and messages:
                self._identify(messages.pop(0))
            elif self.peer is None:
                self._count_unidentified(data)
            self._deliver(messages)
        except PeerProtocolError as error:
            self.refuse(str(error))
        else:
            if stream is not None and stream.is_at_end:
                self.close()

    def _check_first_byte(self, data: bytes) -> None:
        """A sentence for the log where one member has certificates and the other has none."""
        is_tls = data[0] == HANDSHAKE_FIRST_BYTE
        if self._stream is None and is_tls and not self._unidentified_bytes:
            raise PeerProtocolError("it speaks TLS, and this node has no certificates for replication")
        if self._stream is not None and not is_tls and not self._unidentified_bytes:
            raise PeerProtocolError("it does not speak TLS; every member needs the group's certificates")

    def _decrypt(self, stream: PeerStream, data: bytes) -> bytes:
        """The plain bytes in what came. Raises PeerProtocolError."""
        assert self._transport is not None
        try:
            plain = stream.receive(data)
        except TlsError as error:
            self._transport.write(stream.take_outgoing())  # the alert, with which the peer's log can say why
            raise PeerProtocolError(str(error)) from None
        if outgoing := stream.take_outgoing():
            self._transport.write(outgoing)
        if stream.is_established and self.certified is None:
            self.certified = self._owner.member_in(stream.peer_names())
            if self.certified is None:
                names = _listed(stream.peer_names())
                raise PeerProtocolError(f"its certificate names {names}: no other member of the group")
        return plain

    def _count_unidentified(self, data: bytes) -> None:
        self._unidentified_bytes += len(data)
        if self._unidentified_bytes > self._owner.limits.handshake_bytes_max:
            raise PeerProtocolError(f"no handshake within {self._unidentified_bytes} bytes")

    def _identify(self, first: Message | Handshake) -> None:
        if not isinstance(first, Hello):
            raise PeerProtocolError("the first frame is not a handshake")
        refusal = self._owner.refusal(first)
        if refusal is not None:
            raise PeerProtocolError(f"the peer {refusal}")
        if (
            self._stream is not None
            and self._owner.uri_of(first.node_id) not in self._stream.peer_names().uris
        ):
            raise PeerProtocolError(
                f"the peer calls itself {first.node_id!r}, its certificate {self.certified!r}"
            )
        self.peer = first.node_id
        self._cancel_deadline()
        if self._owner.credentials is not None:
            age_max_s = self._owner.credentials.connection_age_max_ms / 1000
            self._deadline = asyncio.get_running_loop().call_later(age_max_s, self._too_old)
        self._owner.identified(self, first)

    def _deliver(self, messages: list[Message | Handshake]) -> None:
        if not messages or self.peer is None:
            return
        if not HANDSHAKE_TYPES.isdisjoint(map(type, messages)):
            raise PeerProtocolError("a second handshake")
        self._owner.sink.on_messages(self.peer, cast("list[Message]", messages))

    def _no_handshake(self) -> None:
        self.refuse("no handshake")

    def _too_old(self) -> None:
        self.refuse("the peer made no new connection in time")

    def refuse(self, reason: str) -> None:
        """Closes it, and logs why."""
        self._owner.log_closed(self.peer or self._address, reason)
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
        self._cancel_deadline()
        self._owner.lost(self)
        if self._transport is not None:
            with contextlib.suppress(Exception):  # there is nothing left that it could end
                self._transport.close()


def _listed(names: PeerNames) -> str:
    """The URIs of a certificate for a line of the log; a stranger may have chosen them."""
    return ", ".join(names.uris)[:200] or f"no URI ({names.common_name[:100]!r})"
