"""Reads all connections of a server in one pass of a loop turn, and writes to them in another. Both use
compiled code; without it, each connection is read and written by the event loop.

The event loop opens and closes each connection, and writes what the kernel does not accept at once. Only
reading is done here: one compiled call returns the ordinary requests of all readable connections; other input
is read by the connection itself. At the end of a stream, or at its first error, the connection returns to the
loop's own reading, which finds the same end or error and reports it.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from native import function
from remoting.command import LANGUAGES, OTHER_LANGUAGE, RemotingCommand
from remoting.command_reader import LARGE_BYTES
from remoting.headers.send import SendMessageRequestHeader, SendRequest
from remoting.limits import RemotingLimits

_log = logging.getLogger(__name__)
READ_AT_ONCE: Final = 256
"""Connections read in one pass; their requests are handled before more are read, so that no client waits for
all the others.
"""

TURN_S_MAX: Final = 0.01
"""Of one turn, for handing over what was read. What is left waits for the next turns."""

JOINED_BYTES_MAX: Final = 32 * 1024
"""Parts smaller than this, on average, are copied into one for sending; larger ones are sent as they are."""

_make_reader = function("_remoting", "FrameReader")
_make_poller = function("_remoting", "Poller")


def _unsent(parts: Sequence[bytes], sent: int) -> list[bytes | memoryview]:
    """The parts without their first `sent` bytes."""
    for number, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[number + 1 :]]
        sent -= len(part)
    return []


class EpollConnection(Protocol):
    """A connection, as seen here."""

    def requests_read(
        self, requests: list[RemotingCommand], open_count: int, code: int, now_s: float
    ) -> None:
        """Complete requests were read, and nothing else."""

    def data_received(self, data: bytes) -> None: ...

    @property
    def partial_bytes(self) -> int: ...

    def return_to_loop(self) -> None:
        """The loop reads this connection from now on."""

    def flush(self, now_s: float) -> None: ...

    def abort(self) -> None: ...


Collected = tuple[EpollConnection, "list[RemotingCommand] | bytes | None", int, int]
"""What was read of a connection: requests, other bytes, or nothing more; how many of the requests want an
answer; the code that all of them have, or -1.
"""


class EpollIo:
    """Reads and writes the connections of one server, on the thread of the loop that it is made on."""

    def __init__(self, limits: RemotingLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._poller: Any = None
        self._collected: deque[Collected] = deque()
        self._continuing: asyncio.Handle | None = None
        self._unflushed: list[EpollConnection] = []

    def register(
        self, connection: EpollConnection, connected: socket.socket, partial_bytes: int
    ) -> "EpollEntry | None":
        """Read this connection from now on; the loop must not. None without compiled code."""
        if self._poller is None:
            self._open()
        if self._poller is None:
            return None
        entry = EpollEntry(self._poller, connection, connected.fileno())
        self._poller.add(entry.fd, connection, partial_bytes > 0)
        return entry

    def flush_later(self, connection: EpollConnection) -> None:
        """`flush` it at the end of this turn."""
        # Callbacks run in the order of call_soon. This one comes after all that are scheduled already, so
        # their answers leave in the same write.
        if not self._unflushed:
            self._loop.call_soon(self._flush_all)
        self._unflushed.append(connection)

    def close(self) -> None:
        """Stop reading."""
        if self._poller is not None:
            self._loop.remove_reader(self._poller.fileno())
            self._poller.close()
            self._poller = None
            self._collected.clear()
        if self._continuing is not None:
            self._continuing.cancel()

    def _open(self) -> None:
        if _make_reader is None or _make_poller is None:
            return
        classes = (RemotingCommand, SendRequest, SendMessageRequestHeader)
        sizes = (self._limits.frame_bytes_max, self._limits.header_bytes_max, LARGE_BYTES)
        reader = _make_reader(*classes, LANGUAGES, LANGUAGES[OTHER_LANGUAGE], *sizes)
        self._poller = _make_poller(reader, READ_AT_ONCE)
        self._loop.add_reader(self._poller.fileno(), self._read)

    def _read(self) -> None:
        # epoll is level-triggered: the loop calls this again while a connection is readable. So connections
        # beyond READ_AT_ONCE are read in the next turn, after the handlers of this one.
        if self._continuing is not None:
            self._continuing.cancel()  # the loop has called this first
            self._continuing = None
        if not self._collected:
            self._collected.extend(self._poller.collect())
        now_s = self._loop.time()
        end_s = now_s + TURN_S_MAX
        while self._collected:
            connection, found, open_count, code = self._collected.popleft()
            try:
                if isinstance(found, list):
                    connection.requests_read(found, open_count, code, now_s)
                elif found is None:
                    connection.return_to_loop()
                else:
                    connection.data_received(found)
            except Exception:  # noqa: BLE001  a fault of one connection must not stop the others
                _log.exception("reading a connection failed; it is aborted")
                connection.abort()
            if self._collected and self._loop.time() > end_s:
                self._continuing = self._loop.call_soon(self._read)
                return

    def _flush_all(self) -> None:
        # A new list first: what is written during these flushes belongs to the next turn.
        unflushed, self._unflushed = self._unflushed, []
        now_s = self._loop.time()
        for connection in unflushed:
            try:
                connection.flush(now_s)
            except Exception:  # noqa: BLE001  as in _read
                _log.exception("writing to a connection failed; it is aborted")
                connection.abort()


class EpollEntry:
    """One registered connection."""

    __slots__ = ("_connection", "_poller", "fd")

    def __init__(self, poller: Any, connection: EpollConnection, fd: int) -> None:
        self._poller = poller
        self._connection = connection
        self.fd = fd

    def pause(self, is_paused: bool) -> None:
        self._poller.pause(self.fd, self._connection, is_paused)

    def expect(self, partial_bytes: int) -> None:
        """Whether the next bytes continue a frame that has begun."""
        self._poller.expect(self.fd, self._connection, partial_bytes > 0)

    def send(self, parts: list[bytes], size_bytes: int) -> list[bytes | memoryview]:
        """Returns what the kernel did not accept of so many bytes; the loop writes it, and reports errors."""
        # The compiled call never waits. It returns 0 for a full socket buffer and for an error alike: the
        # loop writes the rest, meets the same error, and reports it.
        sent: int = self._poller.send(self.fd, self._connection, parts)
        return [] if sent == size_bytes else _unsent(parts, sent)

    def unregister(self) -> None:
        """Stop reading this connection."""
        self._poller.remove(self.fd, self._connection)
