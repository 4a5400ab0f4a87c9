"""The asyncio client: one connection per address, opened when needed and again after it closed.

The broker uses it towards name servers; the admin API, the command line and tools use it towards both.
"""

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from remoting.client.protocol import split_address
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import (
    ConnectFailedError,
    RemotingClosedError,
    RequestTimeoutError,
)
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.router import Handler, Inbox, Router
from sockets.dialled import is_usable_transport, nothing_listens

if TYPE_CHECKING:
    from remoting.acl import Signer

_CLOSE_GRACE_S = 1.0


class RemotingClient:
    """Sends requests to any number of addresses. Made and used on one running loop.

    A connection is closed when a request on it times out and nothing was received meanwhile: the peer's
    machine may be down, and the next request should find that out at once.

    `signer` signs each request for brokers whose access control is on.
    """

    def __init__(self, limits: RemotingLimits = DEFAULT_LIMITS, signer: "Signer | None" = None) -> None:
        self._limits = limits
        self._signer = signer
        self._loop = asyncio.get_running_loop()
        self._router = Router()
        self._inbox = Inbox(self._router)
        self._ids = count(1)
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._is_closed = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Send a request to `host:port` and return the answer, whatever its code.

        The time-out covers connecting too. The command's opaque and flag are set here.

        Raises:
            ConnectFailedError: nothing was sent.
            RequestTimeoutError, RemotingClosedError: the peer may or may not have acted.
            PendingRequestsFullError: too many requests to this address wait; nothing was sent.
        """
        start_s = self._loop.time()
        connection = await self.connect(address, timeout_s)
        sent_s = self._loop.time()
        if self._signer is not None:
            self._signer.sign(command)
        try:
            return await connection.request(command, max(0.0, timeout_s - (sent_s - start_s)))
        except RequestTimeoutError:
            if connection.last_received_s < sent_s:
                connection.abort()
            raise

    async def connect(self, address: str, timeout_s: float = 3.0) -> Connection:
        """Return the open connection to `host:port`, made now if there is none. Callers share one attempt.

        Raises:
            ConnectFailedError: refused, unreachable, not in time, or the address is no address.
            RemotingClosedError: the client is closed.
        """
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        if self._is_closed:
            raise RemotingClosedError("the client is closed")
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = self._loop.create_task(self._make_connection(address))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda done: self._end_attempt(address, done))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise ConnectFailedError(f"{address}: no connection within {timeout_s} s") from None
        except asyncio.CancelledError:
            if attempt.cancelled():  # by `close`; otherwise the caller is the one who was cancelled
                raise RemotingClosedError("the client is closed") from None
            raise

    def on_request(self, handler: Handler) -> None:
        """Have `handler` answer every request that a peer sends us (a broker's 39, 40, 220, 307, 309 …)."""
        self._router.register_fallback(handler)

    async def close(self) -> None:
        """Close every connection, within 1 s; requests that wait fail with RemotingClosedError."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for attempt in tuple(self._connecting.values()):
            attempt.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        await self._router.close()
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            try:
                async with asyncio.timeout(_CLOSE_GRACE_S):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in tuple(self._open):
                    connection.abort()

    async def _make_connection(self, address: str) -> Connection:
        host, port = split_address(address)
        connection = Connection(self, next(self._ids), self._limits)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_ms / 1000):
                transport, _ = await self._loop.create_connection(lambda: connection, host, port)
            if not is_usable_transport(transport):
                raise nothing_listens()
            self._connections[address] = connection
        except (OSError, OverflowError, UnicodeError, RuntimeError) as error:  # TimeoutError is an OSError
            raise ConnectFailedError(f"{address}: {str(error) or type(error).__name__}") from None
        finally:
            # An attempt may be cancelled after `connection_made`; uvloop does not report that it closes it.
            if self._connections.get(address) is not connection:
                connection.abort()
        return connection

    def _end_attempt(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        del self._connecting[address]
        if not attempt.cancelled():
            attempt.exception()  # read, so that asyncio does not report it when every caller has left

    # ConnectionOwner

    def connection_opened(self, connection: Connection) -> None:
        """ConnectionOwner: add it; the first one starts the timer that checks for idle connections."""
        self._open[connection] = None
        self._all_closed.clear()
        if self._timer is None:
            self._arm()

    def connection_closed(self, connection: Connection) -> None:
        """ConnectionOwner: remove it; the next request to its address connects again."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_closed.set()
        for address, known in tuple(self._connections.items()):
            if known is connection:
                del self._connections[address]

    def requests_received(self, connection: Connection, requests: list[RemotingCommand], code: int) -> None:
        """ConnectionOwner: add requests of the peer to those of this turn."""
        self._inbox.add((connection, requests, code))

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._limits.check_interval_ms / 1000, self._check_connections)

    def _check_connections(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for connection in tuple(self._open):
            connection.check(now_s)
        if self._open and not self._is_closed:
            self._arm()
