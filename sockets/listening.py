"""Ports to listen on: waits for a port that will soon be free, and names the process that uses a port."""

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sockets.holders import Entry, entries_of, pid_with, program

WAIT_S: Final = 3.0
"""Time to wait for a port that only a connection uses. A connection to itself is closed at once."""
_PAUSE_S: Final = 0.05

_T = TypeVar("_T")


class PortInUseError(OSError):
    """Another socket uses the port: one that listens (`is_listening`), or a connection.

    `by` names its process, as ` by …`; it is empty if the process is unknown.
    """

    def __init__(self, port: int, by: str, *, is_listening: bool) -> None:
        super().__init__(errno.EADDRINUSE, f"port {port} is in use{by}")
        self.by = by
        self.is_listening = is_listening

    def __str__(self) -> str:
        return str(self.strerror)


async def listening(start: Callable[[], Awaitable[_T]], host: str, port: int) -> _T:
    """Call `start`, which binds the port, and return its result. While only connections use the port, it is
    retried for WAIT_S.

    Raises: PortInUseError, OSError.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + WAIT_S
    while True:
        try:
            return await start()
        except OSError as error:
            _require_passing(error, host, port, loop.time() < end_s)
        await asyncio.sleep(_PAUSE_S)


def bound(host: str, port: int, wait_s: float = WAIT_S) -> socket.socket:
    """A bound socket that does not listen yet; waits as `listening` does.

    Raises: PortInUseError, OSError.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return bound_now(host, port)
        except OSError as error:
            _require_passing(error, host, port, time.monotonic() < end_s)
        time.sleep(_PAUSE_S)


def bound_now(host: str, port: int) -> socket.socket:
    """As `bound`, but without waiting or searching for the process. Raises OSError."""
    there = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        there.bind((host, port))
    except BaseException:
        there.close()
        raise
    return there


def _require_passing(error: OSError, host: str, port: int, may_wait: bool) -> None:
    """Raises: PortInUseError or OSError, unless the port may soon be free and the caller may wait."""
    if error.errno != errno.EADDRINUSE:
        raise error
    entries = entries_of(host, port)
    is_listening = any(entry.is_listening for entry in entries)
    if is_listening or not may_wait:
        raise PortInUseError(port, _by(entries), is_listening=is_listening) from error


def _by(entries: list[Entry]) -> str:
    """The process that uses the port; a listening socket is preferred to connections that it accepted."""
    if not entries:
        return ""
    entry = min(entries, key=lambda entry: (not entry.is_listening, entry.has_ended))
    if entry.has_ended:
        return " by a connection that has ended, for a minute at most"
    pid = pid_with({entry.inode})
    process = f"a process of user {entry.user_id}" if pid is None else f"process {pid} ({program(pid)})"
    return f" by {process}" if entry.is_listening else f" by a connection of {process} to {entry.far}"
