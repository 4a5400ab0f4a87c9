"""One TCP connection of the Remoting protocol, on a server's or a client's side.

Frames are decoded as they arrive: an answer completes the request it belongs to, requests are passed to the
owner. Outgoing frames are collected and written once per loop turn. The connection applies back-pressure: it
stops reading while the peer leaves answers unread or has too many open requests, and closes when that lasts.
"""

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import socket
import sys
import termios
from typing import Any, Final, Protocol, cast

from remoting.client.protocol import RequestTable
from remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, answers_in, encode_head
from remoting.command_reader import CommandReader
from remoting.epoll_io import JOINED_BYTES_MAX, EpollEntry, EpollIo
from remoting.errors import (
    CommandError,
    FrameError,
    PendingRequestsFullError,
    RemotingClosedError,
    RequestTimeoutError,
)
from remoting.headers.send import SendRequest
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.memory_limit import HeldMemory, MemoryLimit
from remoting.quotas import Usage
from remoting.tls import TlsLayer
from sockets.tls import PeerNames, TlsError

_log = logging.getLogger(__name__)
_WARNINGS_MAX = 32
_EXPIRY_STEP_S: Final = 0.05
HEAD_BYTES: Final = 256
"""Of a request: about what all but body and properties take."""


class ConnectionOwner(Protocol):
    """The server or client that the connection belongs to. Called on the loop's thread."""

    def connection_opened(self, connection: "Connection") -> None: ...

    def connection_closed(self, connection: "Connection") -> None: ...

    def requests_received(self, connection: "Connection", requests: list[RemotingCommand], code: int) -> None:
        """The requests that one read completed, in order; `code` is the one that all have, or -1."""


class PendingRequests(RequestTable[asyncio.Future[RemotingCommand]]):
    """Requests sent on one connection that wait for the peer's answers. One timer serves all time-outs; it is
    armed while any request waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.peer = ""
        """The peer's address, for messages."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, opaque: int, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """A future of the answer, or of RequestTimeoutError or RemotingClosedError."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_s
        self.add(opaque, future, deadline_s)
        self._expire_at(deadline_s)
        return future

    def receive(self, answer: RemotingCommand) -> None:
        """Give an answer to its request; it is dropped when its request has timed out."""
        future = self.settle(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self, reason: Exception | None) -> None:
        """Fail all requests: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for future in self.clear():
            if not future.done():
                future.set_exception(
                    RemotingClosedError(f"connection to {self.peer} closed: {reason or 'by the peer'}")
                )

    def _expire_at(self, when_s: float) -> None:
        if self._timer is not None and self._timer.when() > when_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(when_s, self._fail_overdue)

    def _fail_overdue(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for future in self.expire(now_s):
            if not future.done():
                future.set_exception(RequestTimeoutError(f"{self.peer} did not answer in time"))
        next_s = self.next_deadline_s()
        if next_s is not None:
            self._expire_at(max(next_s, now_s + _EXPIRY_STEP_S))


class Connection(asyncio.Protocol):
    """A connection to a peer. All methods belong to the loop's thread.

    Every request that is not oneway must be answered once with `send`: the open requests are counted, and at
    the bound the connection is no longer read.

    connection_id: unique among the connections of one owner.
    born_host: the peer as message records hold it: 4 bytes IPv4 address, 4 bytes port.
    attributes: what handlers store about the peer.
    usage: what it uses of the quotas of its address and its user; None: it has none.
    opened_s, last_received_s: the loop's times of the opening and of the last bytes read.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        connection_id: int = 0,
        limits: RemotingLimits = DEFAULT_LIMITS,
        memory_limit: MemoryLimit | None = None,
        epoll: EpollIo | None = None,
        tls: TlsLayer | None = None,
    ) -> None:
        self.connection_id = connection_id
        self.remote_host = ""
        self.remote_port = 0
        self.born_host = bytes(8)
        self.attributes: dict[str, Any] = {}
        self.usage: Usage | None = None
        self.opened_s = 0.0
        self.last_received_s = 0.0
        self._owner = owner
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._reader = CommandReader(limits.frame_bytes_max, limits.header_bytes_max)
        self._frame_since_s: float | None = None
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._tls = tls
        self._epoll = epoll
        self._entry: EpollEntry | None = None
        self._last_sent_s = 0.0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unanswered = 0
        self._held = HeldMemory(self._loop, memory_limit, self._balance_reading)
        self._is_limited = memory_limit is not None
        self._is_reading_paused = False
        self._stalled_since_s: float | None = None
        self._slowed_until_s: float | None = None
        self._pending = PendingRequests(self._loop)
        self._warnings: set[str] = set()

    @property
    def remote_address(self) -> str:
        """`host:port` of the peer."""
        return f"{self.remote_host}:{self.remote_port}"

    @property
    def is_open(self) -> bool:
        """Whether sending is still possible."""
        return self._transport is not None and not self._is_over and not self._transport.is_closing()

    @property
    def peer_names(self) -> PeerNames:
        """The names in the peer's verified certificate; none over plain text, or without a certificate."""
        return PeerNames() if self._tls is None else self._tls.peer_names()

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads slower than we write."""
        return self._stalled_since_s is not None

    @property
    def unanswered(self) -> int:
        """The number of the peer's requests that are not answered yet."""
        return self._unanswered

    @property
    def pending(self) -> int:
        """The number of our requests that the peer has not answered yet."""
        return len(self._pending)

    def send(self, command: RemotingCommand) -> None:
        """Write at the end of this loop turn; on a closed connection nothing happens.

        Raises:
            CommandError: the command does not fit into a frame; nothing was sent.
        """
        head = encode_head(command)
        if command.flag & RESPONSE_FLAG:
            self._count_answers(1)
            if self.usage is not None and self.usage.has_open:
                self.usage.answered(command.opaque, len(head) + len(command.body))
        self._write(head, command.body)

    def send_bytes(self, data: bytes, answers: int = 1) -> None:
        """Write encoded frames that contain so many answers to the peer's requests."""
        self._count_answers(answers)
        if self.usage is not None and self.usage.has_open:
            for opaque, size_bytes in answers_in(data):
                self.usage.answered(opaque, size_bytes)
        self._write(data)

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request without an answer; its opaque and flag are set here."""
        command.opaque = self._pending.next_opaque()
        command.flag = ONEWAY_FLAG
        self.send(command)

    def start_request(self, command: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """Send a request of ours; its opaque and flag are set here.

        The future holds the peer's answer, whatever its code, or RequestTimeoutError or RemotingClosedError.
        Its time-out is kept to within 50 ms.

        Raises:
            RemotingClosedError, PendingRequestsFullError, CommandError: nothing was sent.
        """
        if not self.is_open:
            why = f": {self._tls.failure}" if self._tls is not None and self._tls.failure else ""
            raise RemotingClosedError(f"connection to {self.remote_address} is closed{why}")
        if len(self._pending) >= self._limits.requests_pending_max:
            raise PendingRequestsFullError(f"{len(self._pending)} requests to {self.remote_address} wait")
        command.opaque = self._pending.next_opaque()
        command.flag = 0
        self.send(command)
        return self._pending.wait_for(command.opaque, timeout_s)

    async def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Send a request and return its answer, as by `start_request`. Cancelling it drops the answer."""
        future = self.start_request(command, timeout_s)
        opaque = command.opaque
        try:
            return await future
        finally:
            self.drop(opaque)

    def drop(self, opaque: int) -> None:
        """No one waits for the answer to this request of ours any more."""
        self._pending.settle(opaque)

    async def secured(self) -> None:
        """Return once requests can be sent: at once over plain text, else after the TLS handshake.

        Raises:
            RemotingClosedError: the handshake failed, or the connection is closed; the text says why.
        """
        if self._tls is None:
            return
        await self._tls.settled.wait()
        if not self._tls.is_open:
            raise RemotingClosedError(f"no TLS: {self._tls.failure or 'the peer closed the connection'}")

    @property
    def is_slowed(self) -> bool:
        """Whether it is not read because of `slow`."""
        return self._slowed_until_s is not None

    def slow(self, pause_s: float) -> None:
        """Read nothing for so long; of several pauses the one that ends last counts."""
        until_s = self._loop.time() + pause_s
        if self._is_over or (self._slowed_until_s is not None and self._slowed_until_s >= until_s):
            return
        if self._slowed_until_s is None:
            self._loop.call_at(until_s, self._read_again)
        self._slowed_until_s = until_s
        self._balance_reading()

    def _read_again(self) -> None:
        until_s = self._slowed_until_s
        if until_s is not None and until_s > self._loop.time():
            self._loop.call_at(until_s, self._read_again)
            return
        self._slowed_until_s = None
        self._balance_reading()

    def unread_bytes(self) -> int:
        """What the kernel has received and this side has not read."""
        connected = None if self._transport is None else self._transport.get_extra_info("socket")
        if connected is None:
            return 0
        try:
            return int.from_bytes(fcntl.ioctl(connected.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
        except OSError:
            return 0  # closed meanwhile

    def close(self) -> None:
        """Write what is collected, then close. The peer may read it slowly; a stalled peer is aborted."""
        if self._transport is None or self._transport.is_closing():
            return
        self.flush(self._loop.time())
        if self._tls is not None and (ending := self._tls.end()):
            self._write_to_transport(self._transport, [ending])
        # A closing transport waits until the peer has read everything: from now on `stall_ms` applies.
        self._stalled_since_s = self._stalled_since_s or self._loop.time()
        # Before the transport closes the descriptor: the system may give its number to the next connection.
        self._leave_epoll()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; unwritten bytes are lost."""
        self._leave_epoll()
        self._abort_transport()
        # uvloop does not call connection_lost for a cancelled connection attempt.
        self._loop.call_soon(self._end, None)

    def check(self, now_s: float) -> None:
        """Close an idle connection; abort one that stalls or does not complete a frame. Called by the owner's
        timer.
        """
        stalled_since_s = self._stalled_since_s
        if stalled_since_s is not None:
            if now_s - stalled_since_s > self._limits.stall_ms / 1000:
                self.warn_once("stalled", "leaves its answers unread; aborted")
                self.abort()
        elif self._is_frame_overdue(now_s):
            self.warn_once("slow", f"has not ended a frame in {self._limits.frame_timeout_ms} ms; aborted")
            self.abort()
        elif now_s - max(self.last_received_s, self._last_sent_s) > self._limits.idle_ms / 1000:
            _log.info("connection %s is idle; closed", self.remote_address)
            self.close()

    def measure(self) -> int:
        """Holder: the bytes held from and for the peer."""
        self._measure_unsent()
        return self._held.measure()

    def evict(self) -> None:
        """Holder: abort, since all connections together hold too much and this one the most."""
        self.warn_once("evicted", f"holds {self._held.reported_bytes} bytes; aborted")
        self.abort()

    def warn_once(self, kind: str, text: str) -> None:
        """Log a fault of the peer, once per kind and connection, so that no peer can fill the log."""
        if kind not in self._warnings and len(self._warnings) < _WARNINGS_MAX:
            self._warnings.add(kind)
            _log.warning("connection %d from %s: %s", self.connection_id, self.remote_address, text)

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_over:
            self._abort_transport()
            return
        try:
            self._begin(self._transport)
        except Exception as error:  # noqa: BLE001  the loop would only log it, and never read the connection
            self._fail(error)

    def _begin(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self._limits.write_buffer_high_bytes)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.remote_host, self.remote_port = str(peer[0]), int(peer[1])
            self.born_host = born_host(self.remote_host, self.remote_port)
            self._pending.peer = self.remote_address
        self.opened_s = self.last_received_s = self._last_sent_s = self._loop.time()
        self._owner.connection_opened(self)
        if self._tls is None:
            self._join_epoll_soon()
        elif greeting := self._tls.start():
            transport.write(greeting)

    def data_received(self, data: bytes) -> None:
        if self._is_over:  # aborted by another one that was read in the same turn
            return
        now_s = self.last_received_s = self._loop.time()
        if self.usage is not None:
            self.usage.size_bytes += len(data)
        if self._tls is not None and self._tls.waits(data, self._continue_handshake):
            self._held.partial_bytes = self.partial_bytes
            self._report_held()
            return
        try:
            received = self._reader.feed(data if self._tls is None else self._decrypt(self._tls, data))
        except (FrameError, TlsError) as error:
            self._end_unreadable(error)
        else:
            commands = received.commands
            partial_bytes = self.partial_bytes
            # All that the frame may grow to, from its first bytes on: what has been promised to many
            # connections could not be taken back from any when they all send it.
            self._held.partial_bytes = max(partial_bytes, self._reader.announced_bytes)
            # The time of a frame runs from its first byte. Further bytes do not restart it, or a peer that
            # sends one byte at a time could hold the connection for ever. A TLS record counts as one: its
            # end alone, as of a handshake's, need not complete a command.
            if commands or not partial_bytes or self._frame_since_s is None:
                self._frame_since_s = now_s if partial_bytes else None
            for place, size_bytes in received.large:
                self._held.watch(commands[place], size_bytes)
            if received.has_answers:
                commands = self._settle_answers(commands)
            if commands:
                self._unanswered += received.open_count
                self._owner.requests_received(self, commands, received.code)
            if received.error is not None:
                self._end_unreadable(received.error)
            if self._entry is not None:
                self._entry.expect(partial_bytes)
        if self._unanswered > self._limits.unanswered_max or self._held.large_bytes:
            self._balance_reading()
        self._report_held()

    def requests_read(
        self, requests: list[RemotingCommand], open_count: int, code: int, now_s: float
    ) -> None:
        """EpollConnection: complete requests, none of them large, were read."""
        # One call reads many connections. Handling an earlier one may have closed this one meanwhile.
        if self._entry is None:
            return
        self.last_received_s = now_s
        self._unanswered += open_count
        if self.usage is not None:
            self.usage.size_bytes += sum(map(size_of, requests))
        self._owner.requests_received(self, requests, code)
        if self._unanswered > self._limits.unanswered_max or self._held.large_bytes:
            self._balance_reading()

    @property
    def partial_bytes(self) -> int:
        """The bytes received of a frame that is not complete yet, and of a TLS record."""
        of_record = 0 if self._tls is None else self._tls.partial_bytes
        return self._reader.partial_bytes + of_record

    def _continue_handshake(self) -> None:
        if not self._is_over:
            self.data_received(b"")

    def _decrypt(self, tls: TlsLayer, data: bytes) -> bytes:
        """The plain bytes in what was received. Raises TlsError."""
        was_open = tls.is_open
        plain = tls.receive(data)
        if tls.is_plain:
            self._tls = None
            self._join_epoll_soon()
        elif (outgoing := tls.take_outgoing()) and self._transport is not None:
            self._write_to_transport(self._transport, [outgoing])
        if tls.is_open != was_open or tls.is_plain:
            self._flush_now()  # what waited until it was known how to send it
        if tls.is_at_end:
            self._loop.call_soon(self.close)  # later: what came before the end is handed over first
        return plain

    def _join_epoll_soon(self) -> None:
        connected = None if self._transport is None else self._transport.get_extra_info("socket")
        if self._epoll is not None and connected is not None:
            # A new transport starts reading in a callback after connection_made; _join_epoll runs after it.
            self._loop.call_soon(self._join_epoll, connected)

    def _join_epoll(self, connected: socket.socket) -> None:
        transport = self._transport
        if self._epoll is None or transport is None or transport.is_closing() or self._is_reading_paused:
            return
        # One reader at a time: with two, chunks of one stream could be joined in the wrong order.
        transport.pause_reading()
        try:
            self._entry = self._epoll.register(self, connected, self.partial_bytes)
        except (OSError, ValueError) as error:
            _log.warning("%s is read by the loop: %s", self.remote_address, error)
        if self._entry is None:
            transport.resume_reading()

    def return_to_loop(self) -> None:
        """EpollConnection: the loop's own reading finds how the stream ended."""
        if self._entry is not None and self._transport is not None:
            self._leave_epoll()
            if not self._is_reading_paused:
                self._transport.resume_reading()

    def _leave_epoll(self) -> None:
        if self._entry is not None:
            self._entry.unregister()
            self._entry = None

    def _end_unreadable(self, error: FrameError | CommandError | TlsError) -> None:
        what = "TLS ended" if isinstance(error, TlsError) else "unreadable input"
        self.warn_once("unreadable", f"{what}, closed: {error}")
        self.close()

    def pause_writing(self) -> None:
        self._stalled_since_s = self._loop.time()
        self._balance_reading()

    def resume_writing(self) -> None:
        if self.is_open:
            self._stalled_since_s = None
        self._balance_reading()
        self._measure_unsent()
        self._report_held()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, reason: Exception | None) -> None:
        """Runs once, at the first sign that the connection has ended."""
        if self._is_over:
            return
        self._is_over = True  # first: the calls below may end the connection again
        self._abort_transport()
        self._leave_epoll()
        self._out.clear()
        self._reader.clear()
        self._held.close()
        if self._tls is not None:
            self._tls.settled.set()
            reason = reason or (RemotingClosedError(self._tls.failure) if self._tls.failure else None)
        self._pending.close(reason)
        self._owner.connection_closed(self)

    def _abort_transport(self) -> None:
        with contextlib.suppress(Exception):  # the connection is closed already
            if self._transport is not None:
                self._transport.abort()

    def _fail(self, error: Exception) -> None:
        """An error of the transport ends this connection only."""
        self.warn_once("broken", f"cannot be used any more; aborted: {error!r}")
        self.abort()

    # Writing and back-pressure

    def _write(self, data: bytes, body: bytes = b"") -> None:
        if not self._out:
            if self._epoll is None:
                self._loop.call_soon(self._flush_now)
            else:
                self._epoll.flush_later(self)
        self._out.append(data)
        if body:
            self._out.append(body)
        self._out_bytes += len(data) + len(body)
        # Collected bytes are not in the transport's buffer, whose bounds stop a slow reader: hand them over
        # early, so that one turn with many large answers meets those bounds.
        if self._out_bytes > self._limits.write_buffer_high_bytes:
            self._flush_now()

    def _flush_now(self) -> None:
        self.flush(self._loop.time())

    def flush(self, now_s: float) -> None:
        """Write what is collected; what the kernel does not accept is left to the loop."""
        if self._tls is not None and not self._tls.is_open:
            return
        parts, size_bytes, self._out, self._out_bytes = self._out, self._out_bytes, [], 0
        transport = self._transport
        if not parts or transport is None or transport.is_closing():
            return
        self._last_sent_s = now_s
        if self.usage is not None:
            self.usage.size_bytes += size_bytes
        # asyncio's writelines may join the parts itself, so the transport gets one. sendmsg takes several:
        # there, joining pays only for small parts.
        if len(parts) > 1 and (size_bytes < JOINED_BYTES_MAX * len(parts) or self._entry is None):
            parts = [b"".join(parts)]
        if self._tls is not None:
            parts = [self._tls.encrypt(parts[0])]
        unsent: list[bytes | memoryview] = [*parts]
        # Bytes that the transport still holds come first: sending past it would put frames out of order.
        if self._entry is not None and not transport.get_write_buffer_size():
            unsent = self._entry.send(parts, size_bytes)
            if not unsent:
                if self._held.unsent_bytes:
                    self._measure_unsent()
                    self._report_held()
                return
        self._write_to_transport(transport, unsent)

    def _write_to_transport(self, transport: asyncio.Transport, unsent: list[bytes | memoryview]) -> None:
        """Write; a peer that leaves too much unread is aborted."""
        try:
            transport.writelines(unsent)
        except Exception as error:  # noqa: BLE001  uvloop raises RuntimeError where asyncio would drop the bytes
            self._fail(error)
        if self._measure_unsent() > self._limits.write_buffer_bytes_max:
            self.warn_once("unread", "does not read its answers; aborted")
            self.abort()
        self._report_held()

    def _report_held(self) -> None:
        if self._is_limited:  # an outgoing connection has no limit with others
            self._held.report()

    def _measure_unsent(self) -> int:
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._held.unsent_bytes = unsent_bytes
        return unsent_bytes

    def _count_answers(self, answers: int) -> None:
        self._unanswered = max(0, self._unanswered - answers)
        if self._is_reading_paused:
            self._balance_reading()

    def _balance_reading(self) -> None:
        """Read only while the peer reads, is not slowed, and its open requests are below the bound; a paused
        connection is read again below half of it.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # Two bounds: with one, a connection at the bound would be paused and resumed with every answer.
        part = 2 if self._is_reading_paused else 1
        is_paused = (
            self._stalled_since_s is not None
            or self._slowed_until_s is not None
            or self._unanswered > self._limits.unanswered_max // part
            # Only with open requests: a handler that keeps a request after its answer must not stop reading.
            or (self._unanswered > 0 and self._held.large_bytes > self._limits.unanswered_bytes_max // part)
        )
        if is_paused == self._is_reading_paused:
            return
        self._is_reading_paused = self._held.wants_freed = is_paused
        # The peer could not complete its frame while this side did not read: its time starts again.
        if not is_paused and self._frame_since_s is not None:
            self._frame_since_s = self._loop.time()
        try:
            if self._entry is not None:
                self._entry.pause(is_paused)
            elif is_paused:
                transport.pause_reading()
            else:
                transport.resume_reading()
        except Exception as error:  # noqa: BLE001  as in flush
            self._fail(error)

    def _is_frame_overdue(self, now_s: float) -> bool:
        if self._frame_since_s is None or self._is_reading_paused:
            return False
        return now_s - self._frame_since_s > self._limits.frame_timeout_ms / 1000

    def _settle_answers(self, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        """Give answers to their requests; return the other commands, which are the peer's requests."""
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                self._pending.receive(command)
        return [command for command in commands if not command.flag & RESPONSE_FLAG]


def size_of(request: RemotingCommand) -> int:
    """About the bytes of an ordinary request's frame, which is read without its length being kept."""
    properties = request.header.properties if type(request) is SendRequest else None
    return HEAD_BYTES + len(request.body) + len(properties or "")


def born_host(host: str, port: int) -> bytes:
    """IPv4 address and port; records have no room for any other address, so those become 0.0.0.0."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or ipaddress.IPv4Address(0)
    return address.packed + port.to_bytes(4, "big")
