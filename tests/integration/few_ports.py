"""`python -m tests.integration.few_ports FOLDER`: a killed node comes back though others dial
from its ports.

To be run in a network namespace of its own: so few ports are left for outgoing connections that each of them
is soon used.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

from ledgermq.local.plan import REPLICATION_PORT_STEP
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for

PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
DIALLED_S: Final = 5.0
"""Two peers, five dials a second each: several times what it takes to try each port of the range."""
DIALLED_LIMIT_S: Final = 20.0
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


def main() -> None:
    _bring_up_loopback()
    cluster = Cluster(Path(sys.argv[1]))
    node = cluster.broker_port + 10
    PORT_RANGE.write_text(f"{node - 2} {node + REPLICATION_PORT_STEP + 10}")
    try:
        cluster.start()
        cluster.kill("n1")
        time.sleep(DIALLED_S)
        cluster.restart("n1")
        wait_for("every node dialled by its leader", lambda: all_are_dialled(cluster), DIALLED_LIMIT_S)
    finally:
        cluster.stop()


def all_are_dialled(cluster: Cluster) -> bool:
    leader = next((status for status in cluster.statuses().values() if status["role"] == "LEADER"), None)
    return leader is not None and all(peer["isConnected"] for peer in leader["peers"])


def _bring_up_loopback() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


if __name__ == "__main__":
    main()
