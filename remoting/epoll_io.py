"""Reads all connections of a server in one pass of a turn, and writes to them in another, where there is
compiled code for it.

A connection stays one of its event loop, which opens and closes it, and writes what the kernel does not take
at once. Only reading is taken over: ordinary requests come out of one compiled call for all connections that
are readable, and what is not ordinary is read by the connection itself. At the end of a stream, or its first
error, the connection is handed back to the loop, which finds the same and says what it is.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol

from native import function
from remoting.command import LANGUAGES, OTHER_LANGUAGE, RemotingCommand
from remoting.command_reader import LARGE_BYTES
from remoting.headers.send import SendMessageRequestHeader, SendRequest
from remoting.limits import RemotingLimits

_log = logging.getLogger(__name__)
READ_AT_ONCE: Final = 256
"""Connections read in one go; then their requests are handled before more are read, so that those who wait
for answers get some while others are served.
"""

JOINED_BYTES_MAX: Final = 32 * 1024
"""Parts smaller than this, on the average, are copied into one to be sent; larger ones go as they are."""

_make_reader = function("_remoting", "FrameReader")
_make_poller = function("_remoting", "Poller")


def _behind(parts: Sequence[bytes], sent: int) -> list[bytes | memoryview]:
    """What is left of the parts behind the first bytes of them all."""
    for number, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[number + 1 :]]
        sent -= len(part)
    return []


class Linked(Protocol):
    """A connection, as its links see it."""

    def take_requests(
        self, requests: list[RemotingCommand], open_count: int, code: int, now_s: float
    ) -> None:
        """Whole requests came in, and nothing else."""

    def data_received(self, data: bytes) -> None: ...

    @property
    def partial_bytes(self) -> int: ...

    def give_back(self) -> None:
        """The loop is to read it from now on."""

    def flush(self, now_s: float) -> None: ...

    def abort(self) -> None: ...


class Links:
    """Of one server, on the loop that it is made on."""

    def __init__(self, limits: RemotingLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._poller: Any = None
        self._unflushed: list[Linked] = []

    def link(self, connection: Linked, connected: socket.socket, partial_bytes: int) -> "Link | None":
        """Read this connection from now on; the loop must not. None where there is no compiled code."""
        if self._poller is None:
            self._open()
        if self._poller is None:
            return None
        link = Link(self._poller, connection, connected.fileno())
        self._poller.add(link.fd, connection, partial_bytes > 0)
        return link

    def flush_later(self, connection: Linked) -> None:
        """`flush` it at the end of this turn."""
        if not self._unflushed:
            self._loop.call_soon(self._flush_all)
        self._unflushed.append(connection)

    def close(self) -> None:
        """Read nothing any more."""
        if self._poller is not None:
            self._loop.remove_reader(self._poller.fileno())
            self._poller.close()
            self._poller = None

    def _open(self) -> None:
        if _make_reader is None or _make_poller is None:
            return
        classes = (RemotingCommand, SendRequest, SendMessageRequestHeader)
        sizes = (self._limits.frame_bytes_max, self._limits.header_bytes_max, LARGE_BYTES)
        reader = _make_reader(*classes, LANGUAGES, LANGUAGES[OTHER_LANGUAGE], *sizes)
        self._poller = _make_poller(reader, READ_AT_ONCE)
        self._loop.add_reader(self._poller.fileno(), self._read)

    def _read(self) -> None:
        now_s = self._loop.time()
        for connection, found, open_count, code in self._poller.collect():
            try:
                if type(found) is list:
                    connection.take_requests(found, open_count, code, now_s)
                elif found is None:
                    connection.give_back()
                else:
                    connection.data_received(found)
            except Exception:  # noqa: BLE001  what one connection does must not keep others from being read
                _log.exception("reading a connection failed; it is aborted")
                connection.abort()

    def _flush_all(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        now_s = self._loop.time()
        for connection in unflushed:
            try:
                connection.flush(now_s)
            except Exception:  # noqa: BLE001  as in _read: the others' answers must leave
                _log.exception("writing to a connection failed; it is aborted")
                connection.abort()


class Link:
    """One connection's place among them."""

    __slots__ = ("_connection", "_poller", "fd")

    def __init__(self, poller: Any, connection: Linked, fd: int) -> None:
        self._poller = poller
        self._connection = connection
        self.fd = fd

    def pause(self, is_paused: bool) -> None:
        self._poller.pause(self.fd, self._connection, is_paused)

    def expect(self, partial_bytes: int) -> None:
        """Whether the bytes to come go on with a frame that has begun."""
        self._poller.expect(self.fd, self._connection, partial_bytes > 0)

    def send(self, parts: list[bytes]) -> list[bytes | memoryview]:
        """What the kernel did not take; the loop writes it, and finds what is wrong."""
        sent: int = self._poller.send(self.fd, self._connection, parts)
        return _behind(parts, sent)

    def leave(self) -> None:
        """Not read from now on."""
        self._poller.remove(self.fd, self._connection)
