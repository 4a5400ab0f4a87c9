"""A transport without a socket and an owner that remembers: a `Connection` under the test's hand."""

import asyncio
from typing import Any

from remoting.command import FrameDecoder, RemotingCommand, decode_command
from remoting.connection import Connection
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.router import Arrived
from remoting.tls import TlsLayer


class FakeTransport(asyncio.Transport):
    """Keeps each write; `buffered` plays the bytes that the peer has not read."""

    def __init__(self, peer: tuple[object, ...] = ("10.0.0.2", 50000)) -> None:
        super().__init__()
        self.peer = peer
        self.writes: list[bytes] = []
        self.buffered = 0
        self.is_closed = False
        self.is_aborted = False
        self.is_reading_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def sent(self) -> list[RemotingCommand]:
        """The commands written so far."""
        return [decode_command(payload) for payload in FrameDecoder().feed(b"".join(self.writes))]


class FakeOwner:
    """Keeps what its connections report."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        self.requests: list[RemotingCommand] = []

    def connection_opened(self, connection: Connection) -> None:
        self.opened.append(connection)

    def connection_closed(self, connection: Connection) -> None:
        self.closed.append(connection)

    def requests_received(self, connection: Connection, requests: list[RemotingCommand], code: int) -> None:
        assert {request.code for request in requests} == {code} or code == -1
        self.requests += requests


def connect(
    limits: RemotingLimits = DEFAULT_LIMITS,
    transport: FakeTransport | None = None,
    tls: TlsLayer | None = None,
) -> tuple[Connection, FakeTransport, FakeOwner]:
    """An open connection; needs a running loop."""
    owner = FakeOwner()
    transport = transport or FakeTransport()
    connection = Connection(owner, 1, limits, tls=tls)
    connection.connection_made(transport)
    return connection, transport, owner


def arrived(connection: Connection, *requests: RemotingCommand) -> Arrived:
    """What a connection hands to a router, requests with one code or several."""
    codes = {request.code for request in requests}
    return connection, list(requests), codes.pop() if len(codes) == 1 else -1


async def turn() -> None:
    """Let the loop do what was scheduled for its next turns."""
    for _ in range(4):
        await asyncio.sleep(0)
