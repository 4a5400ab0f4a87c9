"""Whether a process listens at an address that does not answer, and on this machine (Linux) which one."""

import asyncio
import ipaddress
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sockets.dialled import is_usable_transport
from sockets.holders import Ip, entries_of, pid_with


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
    if not is_usable_transport(writer.transport):
        return None
    remote: Ip = ipaddress.ip_address(writer.get_extra_info("peername")[0])
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return await asyncio.to_thread(_listener, remote, int(port))


def _listener(ip: Ip, port: int) -> Listener:
    if not _is_of_this_machine(ip):
        return Listener()
    pid = pid_with({entry.inode for entry in entries_of(str(ip), port) if entry.is_listening})
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


def _is_stopped(pid: int) -> bool:
    """By a SIGSTOP or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
