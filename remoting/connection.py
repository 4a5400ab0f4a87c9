"""One TCP connection of the Remoting protocol, on a server's or a client's side.

Frames in are decoded at once: answers settle our own requests, requests go to the owner. Frames out are
gathered and leave in one write per loop turn. A connection owns its back-pressure: it stops reading while the
peer leaves answers unread or has too many requests open, and it dies when that lasts.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from typing import Any, Protocol, cast

from remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_head
from remoting.command_reader import CommandReader
from remoting.epoll_io import JOINED_BYTES_MAX, Link, Links
from remoting.errors import CommandError, FrameError, PendingRequestsFullError, RemotingClosedError
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.memory_limit import ByteBudget, Holdings
from remoting.pending_requests import PendingRequests

_log = logging.getLogger(__name__)
_WARNINGS_MAX = 32


class ConnectionOwner(Protocol):
    """Who made the connection and hears of it, always on the loop's thread."""

    def connection_opened(self, connection: "Connection") -> None: ...

    def connection_closed(self, connection: "Connection") -> None: ...

    def requests_received(self, connection: "Connection", requests: list[RemotingCommand], code: int) -> None:
        """The requests that one read completed, in order; `code` is the one that all have, or -1."""


class Connection(asyncio.Protocol):
    """A connection to a peer. All methods belong to the loop's thread.

    Every request that is not oneway has to be answered once with `send`, sooner or later: the requests still
    open are counted, and at the bound the connection is no longer read.

    connection_id: unique among the connections of one owner.
    born_host: the peer as message records hold it: 4 bytes IPv4 address, 4 bytes port.
    attributes: whatever the handlers want to remember of the peer.
    opened_s, last_received_s: the loop's time of the opening and of the last bytes read.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        connection_id: int = 0,
        limits: RemotingLimits = DEFAULT_LIMITS,
        budget: ByteBudget | None = None,
        links: Links | None = None,
    ) -> None:
        self.connection_id = connection_id
        self.remote_host = ""
        self.remote_port = 0
        self.born_host = bytes(8)
        self.attributes: dict[str, Any] = {}
        self.opened_s = 0.0
        self.last_received_s = 0.0
        self._owner = owner
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._reader = CommandReader(limits.frame_bytes_max, limits.header_bytes_max)
        self._frame_since_s: float | None = None
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._links = links
        self._link: Link | None = None
        self._last_sent_s = 0.0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unanswered = 0
        self._holdings = Holdings(self._loop, budget, self._balance_reading)
        self._is_reading_paused = False
        self._stalled_since_s: float | None = None
        self._pending = PendingRequests(self._loop)
        self._warnings: set[str] = set()

    @property
    def remote_address(self) -> str:
        """`host:port` of the peer."""
        return f"{self.remote_host}:{self.remote_port}"

    @property
    def is_open(self) -> bool:
        """Whether what is sent now can still leave."""
        return self._transport is not None and not self._is_over and not self._transport.is_closing()

    @property
    def is_congested(self) -> bool:
        """Whether the peer does not read as fast as is written."""
        return self._stalled_since_s is not None

    @property
    def unanswered(self) -> int:
        """Requests of the peer that wait for an answer of ours."""
        return self._unanswered

    @property
    def pending(self) -> int:
        """Requests of ours that wait for an answer of the peer."""
        return len(self._pending)

    def send(self, command: RemotingCommand) -> None:
        """Write at the end of this loop turn; on a closed connection nothing happens.

        Raises:
            CommandError: the command does not fit into a frame; nothing was sent.
        """
        head = encode_head(command)
        if command.flag & RESPONSE_FLAG:
            self._count_answers(1)
        self._write(head)
        if command.body:
            self._write(command.body)

    def send_bytes(self, data: bytes, answers: int = 1) -> None:
        """Write whole frames that are encoded already and hold so many answers to the peer's requests."""
        self._count_answers(answers)
        self._write(data)

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request of ours that wants no answer; its opaque and flag are set here."""
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
            raise RemotingClosedError(f"connection to {self.remote_address} is closed")
        if len(self._pending) >= self._limits.requests_pending_max:
            raise PendingRequestsFullError(f"{len(self._pending)} requests to {self.remote_address} wait")
        command.opaque = self._pending.next_opaque()
        command.flag = 0
        self.send(command)
        return self._pending.wait_for(command.opaque, timeout_s)

    async def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """`start_request`, waited for. Cancelling it forgets the request."""
        future = self.start_request(command, timeout_s)
        opaque = command.opaque
        try:
            return await future
        finally:
            self._pending.settle(opaque)

    def close(self) -> None:
        """Write what is gathered, then close. The peer may take it slowly; it is aborted when it stalls."""
        if self._transport is None or self._transport.is_closing():
            return
        self.flush(self._loop.time())
        self._stalled_since_s = self._stalled_since_s or self._loop.time()
        self._leave_link()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what is not written is lost."""
        self._leave_link()
        self._abort_transport()
        self._loop.call_soon(
            self._end, None
        )  # the loop may not say so: of a dial that uvloop gave up, it does not

    def check(self, now_s: float) -> None:
        """Close the connection if it is idle, abort it if it stalls or does not end a frame. Called by the
        owner's timer.
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
        """Holder: what it holds of its peer's bytes and of those for its peer."""
        self._look_at_unsent()
        return self._holdings.take_report()

    def shed(self) -> None:
        """Holder: end it, since all connections together hold too much and this one the most."""
        self.warn_once("shed", f"holds {self._holdings.reported_bytes} bytes; aborted")
        self.abort()

    def warn_once(self, kind: str, text: str) -> None:
        """Log what the peer does wrong, once per kind and connection: no peer may fill the log."""
        if kind not in self._warnings and len(self._warnings) < _WARNINGS_MAX:
            self._warnings.add(kind)
            _log.warning("connection %d from %s: %s", self.connection_id, self.remote_address, text)

    # What asyncio calls

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
        if self._links is not None and connected is not None:
            self._loop.call_soon(self._join_links, connected)  # the loop begins to read only after this call

    def data_received(self, data: bytes) -> None:
        now_s = self.last_received_s = self._loop.time()
        try:
            received = self._reader.feed(data)
        except FrameError as error:
            self._end_unreadable(error)
        else:
            commands = received.commands
            partial_bytes = self._holdings.partial_bytes = self._reader.partial_bytes
            if commands or self._frame_since_s is None:
                self._frame_since_s = now_s if partial_bytes else None
            for place, size_bytes in received.large:
                self._holdings.watch(commands[place], size_bytes)
            if received.has_answers:
                commands = self._settle_answers(commands)
            if commands:
                self._unanswered += received.open_count
                self._owner.requests_received(self, commands, received.code)
            if received.error is not None:
                self._end_unreadable(received.error)
            if self._link is not None:
                self._link.expect(partial_bytes)
        if self._unanswered > self._limits.unanswered_max or self._holdings.large_bytes:
            self._balance_reading()
        self._holdings.report()

    def take_requests(
        self, requests: list[RemotingCommand], open_count: int, code: int, now_s: float
    ) -> None:
        """Linked: as `data_received`, but whole frames of requests, none of them large, read already."""
        if self._link is None:
            return
        self.last_received_s = now_s
        self._unanswered += open_count
        self._owner.requests_received(self, requests, code)
        if self._unanswered > self._limits.unanswered_max or self._holdings.large_bytes:
            self._balance_reading()

    @property
    def partial_bytes(self) -> int:
        """What has come of a frame that is not whole yet."""
        return self._reader.partial_bytes

    def _join_links(self, connected: socket.socket) -> None:
        transport = self._transport
        if self._links is None or transport is None or transport.is_closing() or self._is_reading_paused:
            return
        transport.pause_reading()
        try:
            self._link = self._links.link(self, connected, self.partial_bytes)
        except (OSError, ValueError) as error:
            _log.warning("%s is read by the loop: %s", self.remote_address, error)
        if self._link is None:
            transport.resume_reading()

    def give_back(self) -> None:
        """Linked: the loop's own reading finds how the stream ended."""
        if self._link is not None and self._transport is not None:
            self._leave_link()
            if not self._is_reading_paused:
                self._transport.resume_reading()

    def _leave_link(self) -> None:
        if self._link is not None:
            self._link.leave()
            self._link = None

    def _end_unreadable(self, error: FrameError | CommandError) -> None:
        self.warn_once("unreadable", f"unreadable input, closed: {error}")
        self.close()

    def pause_writing(self) -> None:
        self._stalled_since_s = self._loop.time()
        self._balance_reading()

    def resume_writing(self) -> None:
        if self.is_open:
            self._stalled_since_s = None
        self._balance_reading()
        self._look_at_unsent()
        self._holdings.report()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, reason: Exception | None) -> None:
        """Once, whoever finds it first."""
        if self._is_over:
            return
        self._is_over = True
        self._abort_transport()
        self._leave_link()
        self._out.clear()
        self._holdings.close()
        self._pending.close(reason)
        self._owner.connection_closed(self)

    def _abort_transport(self) -> None:
        with contextlib.suppress(Exception):  # there is nothing left that it could end
            if self._transport is not None:
                self._transport.abort()

    def _fail(self, error: Exception) -> None:
        """What a transport raises costs its connection only."""
        self.warn_once("broken", f"cannot be used any more; aborted: {error!r}")
        self.abort()

    # Writing and back-pressure

    def _write(self, data: bytes) -> None:
        if not self._out:
            if self._links is None:
                self._loop.call_soon(self._flush_now)
            else:
                self._links.flush_later(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > self._limits.write_buffer_high_bytes:
            self._flush_now()

    def _flush_now(self) -> None:
        self.flush(self._loop.time())

    def flush(self, now_s: float) -> None:
        """Linked: give what is gathered to the kernel, and what it does not take to the loop."""
        parts, size_bytes, self._out, self._out_bytes = self._out, self._out_bytes, [], 0
        transport = self._transport
        if not parts or transport is None or transport.is_closing():
            return
        self._last_sent_s = now_s
        if len(parts) > 1 and (size_bytes < JOINED_BYTES_MAX * len(parts) or self._link is None):
            parts = [b"".join(parts)]
        unsent: list[bytes | memoryview] = [*parts]
        if self._link is not None and not transport.get_write_buffer_size():
            unsent = self._link.send(parts)
            if not unsent:
                if self._holdings.unsent_bytes:
                    self._look_at_unsent()
                    self._holdings.report()
                return
        try:
            transport.writelines(unsent)
        except Exception as error:  # noqa: BLE001  uvloop raises RuntimeError where asyncio would drop the bytes
            self._fail(error)
        if self._look_at_unsent() > self._limits.write_buffer_bytes_max:
            self.warn_once("unread", "does not read its answers; aborted")
            self.abort()
        self._holdings.report()

    def _look_at_unsent(self) -> int:
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._holdings.unsent_bytes = unsent_bytes
        return unsent_bytes

    def _count_answers(self, answers: int) -> None:
        self._unanswered = max(0, self._unanswered - answers)
        if self._is_reading_paused:
            self._balance_reading()

    def _balance_reading(self) -> None:
        """Read only while the peer reads, and while its open requests are below the bound (half of it to go
        on).
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        part = 2 if self._is_reading_paused else 1
        is_paused = (
            self._stalled_since_s is not None
            or self._unanswered > self._limits.unanswered_max // part
            or (
                self._unanswered > 0
                and self._holdings.large_bytes > self._limits.unanswered_bytes_max // part
            )
        )
        if is_paused == self._is_reading_paused:
            return
        self._is_reading_paused = self._holdings.wants_forgotten = is_paused
        if not is_paused and self._frame_since_s is not None:
            self._frame_since_s = self._loop.time()
        try:
            if self._link is not None:
                self._link.pause(is_paused)
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
        """The others, which are the peer's requests."""
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                self._pending.receive(command)
        return [command for command in commands if not command.flag & RESPONSE_FLAG]


def born_host(host: str, port: int) -> bytes:
    """IPv4 address and port; records have no room for any other address, so those become 0.0.0.0."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or ipaddress.IPv4Address(0)
    return address.packed + port.to_bytes(4, "big")
