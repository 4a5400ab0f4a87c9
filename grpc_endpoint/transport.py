"""The connections of the endpoint's port: TLS and plain text, reading and writing, and what ends them.

A connection's answers of one turn of the event loop are written at once. It is read no more while its peer
does not read, or while received bytes wait for their turn.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from grpc_endpoint.http2.connection import Http2Connection, Http2Limits, Stream
from grpc_endpoint.http2.hpack import Field
from remoting.limits import room
from remoting.memory_limit import MemoryLimit
from remoting.quotas import holder_of
from remoting.tls import ServerTls, TlsLayer
from sockets.listening import listening
from sockets.tls import TlsError

CONNECTIONS_MAX: Final = 10_000
ADDRESS_CONNECTIONS_MAX: Final = 4_000
"""Of one client address, as brokers have it; this machine's clients have no such bound."""
REFUSAL_LOG_S: Final = 60.0
IDLE_S: Final = 120.0
"""A connection without calls is closed after this time (grpcClientIdleTimeMills)."""
FIRST_BYTES_S: Final = 10.0
"""The handshake and the preface come within this time."""
SILENT_S: Final = 60.0
"""A peer that has calls under way and sends nothing is asked whether it is there."""
ANSWER_S: Final = 20.0
"""It says so within this time."""
STALL_S: Final = 30.0
"""A peer that does not read is given up after this time."""
CHECK_S: Final = 5.0
WRITE_BUFFER_BYTES: Final = 256 * 1024
HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""Unfinished requests and unread answers of all connections; beyond it the largest are closed."""
REPORT_STEP_BYTES: Final = 256 * 1024

logger = logging.getLogger(__name__)
OnRequest = Callable[["ServerConnection", Stream, list[Field] | None, bool], None]


class ServerConnection(asyncio.Protocol):
    """One client's connection. `host`: where the client is, `host:port`."""

    def __init__(self, owner: "Listener", tls: TlsLayer | None) -> None:
        self.host = ""
        self.holder: str | None = None
        """Whose connection it is, for the bound of one address; None: it has none."""
        self.request_bytes = 0
        """Of requests that are not complete yet."""
        self._owner = owner
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self.http2 = Http2Connection(self._on_request, self._on_output, owner.limits, now_s)
        self._transport: asyncio.Transport | None = None
        self._opened_s = self._busy_s = self._received_s = now_s
        self._asked_s: float | None = None
        self._stalled_s: float | None = None
        self._reported_bytes = 0
        self._is_continuing = False
        self._is_over = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        host, port = transport.get_extra_info("peername")[:2]
        self.host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.holder = holder_of(host)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if not self._owner.opened(self):
            self.abort()
        elif self._tls is None:
            self.http2.start()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._received_s = self._loop.time()
        self._asked_s = None
        if self._tls is not None:
            if self._tls.waits(data, self._shake_hands):
                return
            data = self._decrypted(self._tls, data)
            if not data:
                return
        self._receive(data)

    def pause_writing(self) -> None:
        self._stalled_s = self._loop.time()
        self.http2.is_write_paused = True
        self._balance_reading()

    def resume_writing(self) -> None:
        self._stalled_s = None
        self.http2.is_write_paused = False
        self.http2.pump()
        self._balance_reading()
        self.report()

    def eof_received(self) -> bool:
        return False  # HTTP/2 has no use for half a connection

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self.http2.abandon()
        self._owner.closed(self)
        self._owner.memory.add(-self._reported_bytes)
        self._reported_bytes = 0

    # -- reading

    def _shake_hands(self) -> None:
        if not self._is_over:
            self.data_received(b"")

    def _decrypted(self, tls: TlsLayer, data: bytes) -> bytes:
        try:
            was_open, plain = tls.is_open, tls.receive(data)
        except TlsError as error:
            logger.info("%s: TLS ended: %s", self.host, error)
            self.close()
            return b""
        if tls.is_plain:
            self._tls = None
            self.http2.start()
        elif (outgoing := tls.take_outgoing()) and self._transport is not None:
            self._transport.write(outgoing)
        if tls.is_open and not was_open:
            self.http2.start()
        if tls.is_at_end:
            self._loop.call_soon(self.close)
        return plain

    def _receive(self, data: bytes) -> None:
        http2 = self.http2
        http2.receive(data, self._received_s)
        if http2.failure is not None:
            logger.warning("%s: the connection is closed: %s", self.host, http2.failure)
            self.close()
        elif http2.has_more and not self._is_continuing:
            self._is_continuing = True
            self._balance_reading()
            self._loop.call_soon(self._go_on)
        self.report()

    def _go_on(self) -> None:
        self._is_continuing = False
        if not self._is_over:
            self._receive(b"")
            self._balance_reading()

    def _balance_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._stalled_s is not None or self._is_continuing:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _on_request(self, stream: Stream, fields: list[Field] | None, is_end: bool) -> None:
        self._owner.on_request(self, stream, fields, is_end)

    # -- writing

    def _on_output(self) -> None:
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was collected."""
        out, transport = self.http2.take_output(), self._transport
        if not out or transport is None or transport.is_closing():
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        if self._tls is not None:
            try:
                data = self._tls.encrypt(data)
            except TlsError as error:
                logger.info("%s: TLS ended: %s", self.host, error)
                self.abort()
                return
        transport.write(data)

    # -- memory

    def measure(self) -> int:
        """Holder: the bytes that it holds."""
        self._reported_bytes = self._held_bytes()
        return self._reported_bytes

    def evict(self) -> None:
        """Holder: free them."""
        logger.warning("%s holds %d bytes: the connection is aborted", self.host, self._reported_bytes)
        self.abort()

    def _held_bytes(self) -> int:
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self.request_bytes + self.http2.unsent_bytes + self.http2.buffered_bytes + unsent

    def report(self) -> None:
        """Tell the owner how much is held, when that has changed much."""
        grown = (
            self.request_bytes + self.http2.unsent_bytes + self.http2.buffered_bytes - self._reported_bytes
        )
        if abs(grown) >= REPORT_STEP_BYTES:
            grown = self._held_bytes() - self._reported_bytes
            self._reported_bytes += grown
            self._owner.memory.add(grown)

    # -- the end

    def check(self, now_s: float) -> None:
        """End it where its time is over. Called every CHECK_S."""
        if self._stalled_s is not None:
            if now_s - self._stalled_s > STALL_S:
                logger.warning("%s does not read: the connection is aborted", self.host)
                self.abort()
            return
        if not self.http2.has_preface:
            if now_s - self._opened_s > FIRST_BYTES_S:
                self.abort()
            return
        if self._asked_s is not None:
            if now_s - self._asked_s > ANSWER_S:
                logger.info("%s has gone without a word", self.host)
                self.abort()
            return
        if self.http2.streams:
            self._busy_s = now_s
            if now_s - self._received_s > SILENT_S:
                self._asked_s = now_s
                self.http2.ping()
        elif now_s - max(self._busy_s, self._received_s) > IDLE_S:
            self.http2.refuse_new()
            self.close()

    def close(self) -> None:
        """Close it once everything is written."""
        self.flush()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if self._tls is not None and (last := self._tls.end()):
                transport.write(last)
            transport.close()
            self._loop.call_later(STALL_S, self._abort_unread)

    def _abort_unread(self) -> None:
        if not self._is_over:
            self.abort()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()


class Listener:
    """The port and its connections. `on_request`: see Http2Connection."""

    def __init__(
        self,
        on_request: OnRequest,
        limits: Http2Limits,
        tls: ServerTls | None,
        connections_max: int = CONNECTIONS_MAX,
        address_connections_max: int = ADDRESS_CONNECTIONS_MAX,
    ) -> None:
        self.on_request = on_request
        self.limits = limits
        self.memory = MemoryLimit(HELD_BYTES_MAX, lambda: self.connections)
        self._tls = tls
        self._room = room(connections_max)
        self._address_connections_max = address_connections_max
        self._open: dict[ServerConnection, None] = {}
        self._holders: Counter[str] = Counter()
        """How many connections each has."""
        self.refused = {"all": 0, "address": 0}
        """Connections, by the bound that they exceeded."""
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._logged_s = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    @property
    def connections(self) -> tuple[ServerConnection, ...]:
        return tuple(self._open)

    async def listen(self, host: str, port: int, *, shares_port: bool = False) -> int:
        """Begin; return the port. With `shares_port` other processes of this user may listen there as well:
        the kernel gives each new connection to one of them. Raises OSError.
        """
        loop = asyncio.get_running_loop()
        backlog, shared = self._room.backlog, shares_port or None
        self._server = await listening(
            lambda: loop.create_server(self._connection, host, port, backlog=backlog, reuse_port=shared),
            host,
            port,
        )
        self._arm()
        return int(self._server.sockets[0].getsockname()[1])

    def _connection(self) -> ServerConnection:
        return ServerConnection(self, None if self._tls is None else TlsLayer(self._tls))

    def opened(self, connection: ServerConnection) -> bool:
        """Whether there is room for one more, of its address too."""
        holder = connection.holder
        if len(self._open) >= self._room.connections_max:
            self._refuse("all", f"{len(self._open)} are open")
            return False
        if holder is not None and self._holders[holder] >= self._address_connections_max:
            self._refuse("address", f"{holder} has {self._holders[holder]}")
            return False
        self._open[connection] = None
        if holder is not None:
            self._holders[holder] += 1
        return True

    def _refuse(self, bound: str, why: str) -> None:
        """Count it; log it at times."""
        self.refused[bound] += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= REFUSAL_LOG_S:
            self._logged_s = now_s
            logger.warning("connections are refused: %s", why)

    def closed(self, connection: ServerConnection) -> None:
        holder = connection.holder
        if connection not in self._open:
            return  # it was refused
        del self._open[connection]
        if holder is not None:
            self._holders[holder] -= 1
            if not self._holders[holder]:
                del self._holders[holder]

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connection in self.connections:
            connection.check(now_s)
        self._arm()

    def drain(self) -> None:
        """Listen no more, and ask clients to send new calls elsewhere."""
        if self._server is not None:
            self._server.close()
        for connection in self._open:
            connection.http2.announce_end()

    async def close(self) -> None:
        """Close what is left."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in self.connections:
            connection.http2.refuse_new()
            connection.close()
        for _ in range(100):
            if not self._open:
                return
            await asyncio.sleep(0.01)
        for connection in self.connections:
            connection.abort()
