"""A connection until its TLS handshake is over.

asyncio tells a server of a TLS connection only when the handshake is done: one that never ends is in no count
and has a minute. Here the connection is taken as it comes and counted, and given its TLS then.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, MutableMapping, MutableSet
from contextlib import suppress
from typing import Any, Protocol, cast

from admin_api.settings import Settings

_log = logging.getLogger(__name__)


class Waiting(Protocol):
    """A connection on which nobody has to be answered."""

    def give_up(self) -> None:
        """Drops it."""


class TlsDoor(asyncio.Protocol):
    """What `make_inside` makes is told of the connection once there is TLS around it.

    `connections` and `waiting` are the server's: all open ones, and those without a request, oldest first.
    """

    def __init__(
        self,
        make_inside: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        limits: Settings,
        connections: MutableSet[Any],
        waiting: MutableMapping[Waiting, None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_inside = make_inside
        self._context = context
        self._limits = limits
        self._connections = connections
        self._waiting = waiting
        self._connected: socket.socket | None = None
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection from its transport, which would read what belongs to the handshake."""
        make_room(self._connections, self._waiting, self._limits.connections_max)
        try:
            self._connected = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # too many files are open, or the client has left
            _log.warning("a connection is dropped: %s", error)
            return
        finally:
            cast("asyncio.Transport", transport).abort()
        self._connected.setblocking(False)
        self._connections.add(self)
        self._waiting[self] = None
        self._handshake = self._loop.create_task(self._shake_hands(self._connected))

    def give_up(self) -> None:
        """Ends it in the middle of the handshake, which then fails by itself."""
        self._leave()
        if self._connected is not None:
            with suppress(OSError):  # it ended by itself
                self._connected.shutdown(socket.SHUT_RDWR)

    shutdown = give_up
    """uvicorn's word for it, at the end of the process."""

    def _leave(self) -> None:
        self._connections.discard(self)
        self._waiting.pop(self, None)

    async def _shake_hands(self, connected: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._step_in,
                connected,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.head_timeout_ms / 1000,
            )
        except OSError as error:  # what TLS does not like, and a handshake that took too long, too
            _log.debug("a TLS handshake failed: %s", error)
        finally:
            self._leave()

    def _step_in(self) -> asyncio.Protocol:
        return _Threshold(self._make_inside(), self._leave)


def make_room(
    connections: MutableSet[Any], waiting: MutableMapping[Waiting, None], connections_max: int
) -> None:
    """For one more connection: where all are taken, the one that has waited longest goes."""
    if len(connections) >= connections_max and waiting:
        next(iter(waiting)).give_up()


class _Threshold(asyncio.Protocol):
    """Leaves the door in the moment in which the protocol inside is told: one connection is counted once."""

    def __init__(self, inside: asyncio.Protocol, leave: Callable[[], None]) -> None:
        self._inside = inside
        self._leave = leave

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._leave()
        transport.set_protocol(self._inside)
        self._inside.connection_made(transport)
