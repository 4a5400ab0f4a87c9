"""Outgoing connections that do not occupy a server's port.

The system gives an outgoing connection a local port from a range that may contain a server's port. While the
server is down, its port can be taken in two ways. In both the server cannot start:

- A connection attempt to the server gets this same port: TCP then connects the socket to itself.
- A connection to another address gets the port, and keeps it until a minute after it was closed.
"""

import contextlib
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    import asyncio  # some commands of the command line do not need asyncio

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with 0 s: a close sends a reset, and the port is free at once."""


class Dialled(Protocol):
    """A connected socket, or the one that an asyncio transport exposes."""

    def getsockname(self) -> Any: ...
    def getpeername(self) -> Any: ...
    def setsockopt(self, level: int, option: int, value: Any, /) -> None: ...


def leads_to_itself(connected: Dialled) -> bool:
    """Whether both ends have the same address; False for a connection that is closed already."""
    try:
        near, far = connected.getsockname(), connected.getpeername()
    except OSError:
        return False
    return isinstance(near, tuple) and near[:2] == far[:2]


def is_usable(connected: Dialled) -> bool:
    """Call it once for each new connection; the caller closes one that is not usable.

    It sets an option of a usable connection that lets servers listen on its port, even after its end.
    """
    if leads_to_itself(connected):
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return False
    if os.name == "posix":  # on other systems this option lets other users take a port
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True


def is_usable_transport(transport: "asyncio.BaseTransport") -> bool:
    """As `is_usable`; a transport that is not usable is aborted. One without a socket is usable."""
    connected = transport.get_extra_info("socket")
    if connected is None or is_usable(connected):
        return True
    cast("asyncio.WriteTransport", transport).abort()
    return False


def dial(address: tuple[str, int], timeout_s: float, source: str = "") -> socket.socket:
    """Open a blocking connection, from the address `source` where it is given. Raises OSError;
    ConnectionRefusedError for a connection to itself.
    """
    connected = socket.create_connection(address, timeout_s, (source, 0) if source else None)
    if is_usable(connected):
        return connected
    connected.close()
    raise nothing_listens()


def nothing_listens() -> ConnectionRefusedError:
    """The error of a connection to itself."""
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused: nothing listens there")
