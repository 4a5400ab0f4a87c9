"""Whether ports are free, asked by binding them."""

import socket
from collections.abc import Mapping

from ledgermq.cluster_file import HOST
from ledgermq.errors import UserError


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(ports: Mapping[int, str]) -> None:
    """Raises: UserError naming every port that is taken and what it is for."""
    taken = [f"port {port} for {purpose}" for port, purpose in ports.items() if not is_free(port)]
    if taken:
        verb = "is" if len(taken) == 1 else "are"
        raise UserError(
            f"{', '.join(taken)} {verb} in use on {HOST}; choose other ports, or stop what listens there."
        )
