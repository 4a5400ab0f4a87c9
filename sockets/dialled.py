"""What every connection needs that a process of ours has dialled, so that it stands in no server's way.

The system gives a connection its own port, out of a range in which a server's port may be, too. While the
server is down two things can happen to that port, and both keep the server from coming back:

- A dial to it is given that very port: TCP then connects the socket to itself, with nothing listening.
- A connection to somewhere else is given it, and keeps it for as long as it lives, and a minute more.
"""

import contextlib
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    import asyncio  # not every command of the command line needs it

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: a close sends a reset, and the port is free at once."""


class Dialled(Protocol):
    """A connected socket, or what an asyncio transport shows of its own."""

    def getsockname(self) -> Any: ...
    def getpeername(self) -> Any: ...
    def setsockopt(self, level: int, option: int, value: Any, /) -> None: ...


def leads_to_itself(connected: Dialled) -> bool:
    """Whether both ends are one address. Not so for a connection that is gone already, and has no ends."""
    try:
        near, far = connected.getsockname(), connected.getpeername()
    except OSError:
        return False
    return isinstance(near, tuple) and near[:2] == far[:2]


def is_usable(connected: Dialled) -> bool:
    """To be asked once of each connection, as soon as it is made; one of no use is to be closed at once.

    One of use lets servers listen on its port, also after its end.
    """
    if leads_to_itself(connected):
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return False
    if os.name == "posix":  # the same option lets others steal a port elsewhere
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True


def is_usable_transport(transport: "asyncio.BaseTransport") -> bool:
    """As `is_usable`; one of no use is aborted. A transport without a socket is taken as it is."""
    connected = transport.get_extra_info("socket")
    if connected is None or is_usable(connected):
        return True
    cast("asyncio.WriteTransport", transport).abort()
    return False


def dial(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """A blocking connection. Raises OSError, ConnectionRefusedError when it would lead to itself."""
    connected = socket.create_connection(address, timeout_s)
    if is_usable(connected):
        return connected
    connected.close()
    raise nothing_listens()


def nothing_listens() -> ConnectionRefusedError:
    """What a connection to itself is to its owner."""
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused: nothing listens there")
