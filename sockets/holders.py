"""The system's table of TCP sockets and their processes (Linux; on other systems it finds nothing)."""

import contextlib
import ipaddress
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

_SEARCH_S: Final = 3.0
"""Time limit for the search: there may be many processes, each with many open files."""
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_TABLE_BYTES_MAX: Final = 32 << 20
_LISTEN: Final = "0A"
_NO_INODE: Final = "0"
_WORD_CHARS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """One socket: its own address, the other end as `host:port`, and its user."""

    near: Ip
    far: str
    state: str
    user_id: str
    inode: str

    @property
    def is_listening(self) -> bool:
        return self.state == _LISTEN

    @property
    def has_ended(self) -> bool:
        """No process has the socket open; the system keeps it for late segments."""
        return self.inode == _NO_INODE


def entries_of(host: str, port: int) -> list[Entry]:
    """The sockets with this address and port; a host name means any address of this machine."""
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        wanted = None
    return [
        entry
        for table in _TABLES
        for entry in _entries_in(table, port)
        if wanted is None or wanted.is_unspecified or entry.near.is_unspecified or entry.near == wanted
    ]


def _entries_in(table: Path, port: int) -> Iterator[Entry]:
    wanted = f":{port:04X}"
    with contextlib.suppress(OSError), table.open("rb") as file:
        for line in file.read(_TABLE_BYTES_MAX).decode("ascii", "replace").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[1].endswith(wanted):
                yield _entry(words)


def _entry(words: list[str]) -> Entry:
    near, _, _ = words[1].partition(":")
    far, _, far_port = words[2].partition(":")
    far_ip = _ip(far)
    far_shown = f"[{far_ip}]" if far_ip.version == 6 else f"{far_ip}"
    return Entry(_ip(near), f"{far_shown}:{int(far_port, 16)}", words[3], words[7], words[9])


def _ip(text: str) -> Ip:
    """The kernel writes words of 4 bytes, each in the byte order of the machine."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def pid_with(inodes: Collection[str]) -> int | None:
    """A process with one of these sockets; None if it ended, is another user's, or was not found in time."""
    end_s = time.monotonic() + _SEARCH_S
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        for file in _open_files(process):
            if time.monotonic() > end_s:
                return None
            if file in wanted:
                return int(process.name)
    return None


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
        for each in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(each.readlink())


def program(pid: int) -> str:
    """The program of a process, without options, since some of them are secrets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].decode("utf-8", "replace").split("\0")
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
