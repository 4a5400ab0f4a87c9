"""Whether ports are free, asked by binding them."""

import time
from collections.abc import Mapping

from ledgermq.cluster_file import HOST
from ledgermq.errors import UserError
from sockets.listening import WAIT_S, PortInUseError, bound, bound_now


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of 127.0.0.1 now."""
    try:
        bound_now(HOST, port).close()
    except OSError:
        return False
    return True


def require_free(ports: Mapping[int, str]) -> None:
    """Waits for a port that a connection holds for a moment only.

    Raises: UserError naming every port that is taken, what it is for and who has it.
    """
    end_s = time.monotonic() + WAIT_S
    taken = []
    for port, purpose in ports.items():
        try:
            bound(HOST, port, end_s - time.monotonic()).close()
        except PortInUseError as error:
            taken.append(f"port {port} for {purpose} is in use on {HOST}{error.by}")
        except OSError as error:
            taken.append(f"port {port} for {purpose} cannot be used on {HOST}: {error.strerror}")
    if taken:
        raise UserError(f"{'; '.join(taken)}. Choose other ports, or end what holds them.")
