"""The asyncio server: accepts connections, and passes the requests of each loop turn to the router."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count, takewhile

from remoting import limits
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.epoll_io import EpollIo
from remoting.fair_shares import FairShares
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.memory_limit import MemoryLimit
from remoting.quotas import QuotaRules
from remoting.router import Inbox, Router
from remoting.tls import ServerTls, TlsLayer
from sockets.listening import listening

__all__ = ["Connection", "RemotingServer"]

_log = logging.getLogger(__name__)
_STOP_GRACE_S = 1.0


class RemotingServer:
    """Listens on one address until stopped. With `port` 0 the system chooses one; `port` has it after
    `start`. With `tls` clients may speak TLS, or must. `shares`: the quotas of its clients.
    """

    def __init__(
        self,
        router: Router,
        host: str,
        port: int,
        limits: RemotingLimits = DEFAULT_LIMITS,
        tls: ServerTls | None = None,
        shares: FairShares | None = None,
    ) -> None:
        self._router = router
        self._shares = shares or FairShares(QuotaRules(), router)
        self._shares.serve(lambda: self.connections)
        self._host = host
        self._port = port
        self._limits = limits
        self._tls = tls
        self._ids = count(1)
        self._connections: dict[Connection, None] = {}
        self._silent: dict[Connection, None] = {}
        self._connections_max = limits.connections_max
        self._memory_limit = MemoryLimit(limits.held_bytes_max, lambda: self.connections)
        self._close_listeners: list[Callable[[Connection], None]] = []
        self._inbox: Inbox | None = None
        self._epoll: EpollIo | None = None
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._refused = 0
        self._evicted = 0

    @property
    def port(self) -> int:
        """The port listened on; before `start`, the requested one."""
        return self._port

    @property
    def connections(self) -> Iterator[Connection]:
        """The open connections, as they are now."""
        return iter(tuple(self._connections))

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    @property
    def turned_away(self) -> int:
        """Connections that were refused at the bound, or had to make room there, since the start."""
        return self._refused + self._evicted

    def on_connection_closed(self, listener: Callable[[Connection], None]) -> None:
        """Call `listener` once for every connection that has closed, whichever side closed it."""
        self._close_listeners.append(listener)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._inbox = Inbox(self._router)
        self._epoll = EpollIo(self._limits)
        # Files of the store are opened later: without this reserve, connections could take all descriptors.
        room = limits.room(self._limits.connections_max)
        self._connections_max = room.connections_max
        self._server = await listening(
            lambda: loop.create_server(self._make_connection, self._host, self._port, backlog=room.backlog),
            self._host,
            self._port,
        )
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._arm()

    async def stop(self) -> None:
        """Stop listening, cancel running handlers, write the collected answers and close, within 1 s."""
        if self._server is None:
            return
        self._server.close()
        if self._timer is not None:
            self._timer.cancel()
        # Handlers are cancelled before connections close, so that none uses a closed connection.
        await self._router.close()
        self._all_closed.clear()
        for connection in self.connections:
            connection.close()
        if self._connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), _STOP_GRACE_S)
            except TimeoutError:
                for connection in self.connections:
                    connection.abort()
        await self._server.wait_closed()
        self._server = None
        if self._epoll is not None:
            self._epoll.close()

    def connection_opened(self, connection: Connection) -> None:
        """ConnectionOwner: add it, unless its address has too many; at the bound of all connections it
        replaces a silent one, or is refused.
        """
        if not self._shares.opened(connection):
            connection.abort()
            return
        if len(self._connections) < self._connections_max or self._make_room():
            self._connections[connection] = None
            self._silent[connection] = None
            return
        if not self._refused:
            _log.warning("%d connections are open; further ones are refused", len(self._connections))
        self._refused += 1
        self._shares.leave(connection)
        connection.abort()

    def _make_room(self) -> bool:
        """Abort the connection that has been silent the longest since it was opened, if there is one: stock
        clients connect when they have something to ask.
        """
        if not self._silent:
            return False
        if not self._evicted:
            _log.warning("%d connections are open; silent ones make room", len(self._connections))
        self._evicted += 1
        oldest = next(iter(self._silent))
        # Removed first: its place is free at once, and listeners are not notified, as it sent no request.
        self._remove(oldest)
        oldest.abort()
        return True

    def _remove(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._silent.pop(connection, None)
        self._shares.leave(connection)

    def connection_closed(self, connection: Connection) -> None:
        """ConnectionOwner: remove it and notify the listeners, unless it was refused."""
        if connection not in self._connections:
            return
        self._remove(connection)
        for listener in self._close_listeners:
            listener(connection)
        if not self._connections:
            self._all_closed.set()

    def requests_received(self, connection: Connection, requests: list[RemotingCommand], code: int) -> None:
        """ConnectionOwner: add them to the requests of this turn."""
        assert self._inbox is not None, "a connection before start"
        if self._silent:
            self._silent.pop(connection, None)
        if connection.usage is not None:
            requests = self._shares.admit(connection, connection.usage, requests)
        if requests:
            self._inbox.add((connection, requests, code))

    def _make_connection(self) -> Connection:
        tls = None if self._tls is None else TlsLayer(self._tls)
        return Connection(self, next(self._ids), self._limits, self._memory_limit, self._epoll, tls)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.check_interval_ms / 1000, self._check_connections)

    def _check_connections(self) -> None:
        now_s = asyncio.get_running_loop().time()
        opened_before_s = now_s - self._limits.frame_timeout_ms / 1000
        for connection in takewhile(lambda silent: silent.opened_s < opened_before_s, tuple(self._silent)):
            connection.abort()
        for connection in self.connections:
            connection.check(now_s)
        self._arm()
