"""Whether something listens where a broker gives no answer, and on this machine (Linux) which process."""

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_LISTENS: Final = "0A"
_LINES_MAX: Final = 200_000
_WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Listener:
    """What takes connections at an address. `pid` is None where it runs elsewhere, or is another user's."""

    pid: int | None = None
    is_stopped: bool = False


async def listener_at(address: str, limit_s: float) -> Listener | None:
    """Connects: a process that hangs keeps its ports, and the system takes connections for it. None: nothing
    takes one within the limit.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, OverflowError, ValueError, TimeoutError):
        return None
    remote: Ip = ipaddress.ip_address(writer.get_extra_info("peername")[0])
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return await asyncio.to_thread(_listener, remote, int(port))


def _listener(ip: Ip, port: int) -> Listener:
    if not _is_of_this_machine(ip):
        return Listener()
    pid = next(_pids_of({f"socket:[{inode}]" for inode in _inodes(ip, port)}), None)
    return Listener(pid, pid is not None and _is_stopped(pid))


def _is_of_this_machine(ip: Ip) -> bool:
    """Whether a socket can have the address."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family) as probe:
        try:
            probe.bind((str(ip), 0))
        except OSError:
            return False
    return True


def _inodes(ip: Ip, port: int) -> Iterator[str]:
    """Of the sockets that listen there, on this address or on all."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:_LINES_MAX]:
                fields = line.split()
                host, _, at = fields[1].partition(":")
                if fields[3] == _LISTENS and int(at, 16) == port and _takes(_address(host), ip):
                    yield fields[9]


def _address(text: str) -> Ip:
    """The kernel writes words of four bytes in the machine's own order."""
    data = bytes.fromhex(text)
    words = [data[at : at + _WORD_BYTES] for at in range(0, len(data), _WORD_BYTES)]
    return ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))


def _takes(listening: Ip, ip: Ip) -> bool:
    mapped = listening.ipv4_mapped if isinstance(listening, ipaddress.IPv6Address) else None
    return listening.is_unspecified or ip in (listening, mapped)


def _pids_of(links: set[str]) -> Iterator[int]:
    """Of the processes that have one of these sockets open; those of other users show nothing."""
    if not links:
        return
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(file.readlink()) in links for file in (process / "fd").iterdir()):
                yield int(process.name)


def _is_stopped(pid: int) -> bool:
    """By a SIGSTOP or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
