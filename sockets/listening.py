"""Ports to listen on: waiting for one that is about to be free, and naming who holds one that is not."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

WAIT_S: Final = 3.0
"""For a port that only a connection holds: one that led to itself is dropped by its process at once."""
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 1.0
"""To look for the process: there may be many, with many files each."""
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_TABLE_BYTES_MAX: Final = 32 << 20
_LISTEN: Final = "0A"
_NO_INODE: Final = "0"
_WORD_CHARS_MAX: Final = 60

_T = TypeVar("_T")
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


class PortInUseError(OSError):
    """Another socket has the port, `is_listening` or a connection's.

    `by` says whose, as ` by …`, and is empty when that cannot be seen.
    """

    def __init__(self, port: int, by: str, *, is_listening: bool) -> None:
        super().__init__(errno.EADDRINUSE, f"port {port} is in use{by}")
        self.by = by
        self.is_listening = is_listening

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the system's table of TCP sockets."""

    near: _Ip
    far: str
    state: str
    user_id: str
    inode: str

    @property
    def is_listening(self) -> bool:
        return self.state == _LISTEN


async def listening(start: Callable[[], Awaitable[_T]], host: str, port: int) -> _T:
    """What `start` gives, which binds the port: tried again for a while as long as only connections hold it.

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
    """A socket that is bound, and listens not yet; else as `listening`.

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
    """As `bound`, without a wait or a look at who has the port. Raises OSError."""
    there = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        there.bind((host, port))
    except BaseException:
        there.close()
        raise
    return there


def _require_passing(error: OSError, host: str, port: int, may_wait: bool) -> None:
    """Raises: the error, in better words, unless it may be over soon."""
    if error.errno != errno.EADDRINUSE:
        raise error
    entries = _entries(host, port)
    is_listening = any(entry.is_listening for entry in entries)
    if is_listening or not may_wait:
        raise PortInUseError(port, _by(entries), is_listening=is_listening) from error


def _by(entries: list[_Entry]) -> str:
    """Who holds the port: a listener before the connections that it has accepted."""
    if not entries:
        return ""
    entry = min(entries, key=lambda entry: (not entry.is_listening, entry.inode == _NO_INODE))
    if entry.inode == _NO_INODE:
        return " by a connection that has ended, for a minute at most"
    process = _process_with(entry.inode) or f"a process of user {entry.user_id}"
    return f" by {process}" if entry.is_listening else f" by a connection of {process} to {entry.far}"


def _entries(host: str, port: int) -> list[_Entry]:
    """The sockets that have the port at this address; none where the system has no such table."""
    wanted = _address(host)
    return [
        entry
        for table in _TABLES
        for entry in _entries_in(table, port)
        if wanted is None or wanted.is_unspecified or entry.near.is_unspecified or entry.near == wanted
    ]


def _address(host: str) -> _Ip | None:
    """None for a name, which may be any address of this machine."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _entries_in(table: Path, port: int) -> Iterator[_Entry]:
    wanted = f":{port:04X}"
    with contextlib.suppress(OSError), table.open("rb") as file:
        for line in file.read(_TABLE_BYTES_MAX).decode("ascii", "replace").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[1].endswith(wanted):
                yield _entry(words)


def _entry(words: list[str]) -> _Entry:
    near, _, _ = words[1].partition(":")
    far, _, far_port = words[2].partition(":")
    far_ip = _ip(far)
    far_shown = f"[{far_ip}]" if far_ip.version == 6 else f"{far_ip}"
    return _Entry(_ip(near), f"{far_shown}:{int(far_port, 16)}", words[3], words[7], words[9])


def _ip(text: str) -> _Ip:
    """The kernel writes words of 4 bytes, each as the machine has it in memory."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _process_with(inode: str) -> str | None:
    """`process 4711 (python3 -m broker)`; None when it is gone, another user's, or not found in time."""
    end_s = time.monotonic() + _LOOK_S
    wanted = f"socket:[{inode}]"
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            for file in _open_files(process):
                if time.monotonic() > end_s:
                    return None
                if file == wanted:
                    return f"process {process.name} ({_program(process)})"
    return None


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for each in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(each.readlink())


def _program(process: Path) -> str:
    """What runs, without its options: some of them are secrets."""
    try:
        words = (process / "cmdline").read_bytes()[:4096].decode("utf-8", "replace").split("\0")
    except OSError:
        return "ended"
    shown = [Path(words[0]).name or "?"]
    if shown[0].startswith("python") and "-m" in words[:-1]:
        shown += ["-m", words[words.index("-m") + 1]]
    elif words[1:] and words[1] and not words[1].startswith("-"):
        shown.append(Path(words[1]).name)
    return " ".join(_printable(word) for word in shown)


def _printable(word: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in word)[:_WORD_CHARS_MAX]
