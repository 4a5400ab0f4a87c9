"""TLS and plain text on one port, as RocketMQ's proxy has them: grpc's server wants a port for each, so that
both listen on loopback, and a forwarder before them looks at the first byte of each connection.

It hands bytes on and reads none of them. Where only one of the two is served, there is no forwarder.
"""

import asyncio
import logging
from typing import Final, cast

from remoting.limits import room

TLS_FIRST_BYTE: Final = 0x16
"""Of a ClientHello; HTTP/2 in plain text begins with `PRI`."""
FIRST_BYTE_S: Final = 10.0
CONNECTIONS_MAX: Final = 10_000
BUFFER_BYTES_MAX: Final = 256 * 1024
"""Bytes that wait for a slow reader before its peer is read no more."""
_INNER: Final = "127.0.0.1"

logger = logging.getLogger(__name__)


class Forwarder:
    """Listens on one port; `plain_port` and `tls_port` are those of the servers on loopback."""

    def __init__(self, plain_port: int, tls_port: int, connections_max: int = CONNECTIONS_MAX) -> None:
        self._ports = {False: plain_port, True: tls_port}
        self._server: asyncio.Server | None = None
        self._open: set[_Outer] = set()
        self._hosts: dict[str, str] = {}
        self._room = room(connections_max * 2).connections_max // 2

    async def listen(self, host: str, port: int) -> int:
        """Begin; return the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Outer(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def __len__(self) -> int:
        """The open connections."""
        return len(self._open)

    def host_of(self, inner: str) -> str:
        """The client's address behind a connection that the server saw."""
        return self._hosts.get(inner, inner)

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """End every connection."""
        self.stop_listening()
        for outer in tuple(self._open):
            outer.abort()

    def opened(self, outer: "_Outer") -> bool:
        """Whether there is room for one more connection."""
        if len(self._open) >= self._room:
            logger.warning("a connection is refused: %d are open", len(self._open))
            return False
        self._open.add(outer)
        return True

    def closed(self, outer: "_Outer") -> None:
        self._open.discard(outer)
        self._hosts.pop(outer.inner_name, None)

    async def connect(self, outer: "_Outer", is_tls: bool) -> None:
        """Connect it with the server of its kind."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(lambda: outer.inner, _INNER, self._ports[is_tls])
        except OSError as error:
            logger.warning("a connection cannot be forwarded: %s", error)
            outer.abort()
            return
        host, port = transport.get_extra_info("sockname")[:2]
        outer.inner_name = f"{host}:{port}"
        self._hosts[outer.inner_name] = outer.host
        outer.connected()


class _Side(asyncio.Protocol):
    """One of the two connections of a pair: what it receives goes to the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.transport.set_write_buffer_limits(BUFFER_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is not None and other.transport is not None:
            other.transport.write(data)

    def eof_received(self) -> bool:
        return False  # HTTP/2 has no use for half a connection

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Outer(_Side):
    """A client's connection."""

    def __init__(self, owner: Forwarder) -> None:
        super().__init__()
        self._owner = owner
        self.inner = _Side()
        self.inner.other = self  # from the first byte on: an HTTP/2 server speaks before it was asked
        self.inner_name = ""
        self.host = ""
        self._first = b""
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = transport.get_extra_info("peername")[:2]
        self.host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._owner.opened(self):
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._first += data
        if self._connecting is None:
            assert self.transport is not None, "a connection without a transport has received data"
            self.transport.pause_reading()  # bounds what is kept until the server is connected
            is_tls = self._first[0] == TLS_FIRST_BYTE
            connecting = self._owner.connect(self, is_tls)
            self._connecting = asyncio.get_running_loop().create_task(connecting)

    def connected(self) -> None:
        """The server's side is there."""
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is None or self.transport.is_closing() or self.inner.transport is None:
            self.inner.abort()
            self.abort()
            return
        self.other = self.inner
        first, self._first = self._first, b""
        self.inner.transport.write(first)
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)
        self._owner.closed(self)

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().abort()
