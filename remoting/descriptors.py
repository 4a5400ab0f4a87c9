"""How many connections the process may have open. Each needs a file descriptor, and enough must remain for
the node's own files.
"""

import contextlib
import resource
from dataclasses import dataclass

DESCRIPTORS_WANTED = 65_536
FILES_MAX = 1_024
"""Descriptors kept for files, pipes and outgoing connections, where there are enough."""
BACKLOG_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Room:
    """What a server may accept. `backlog`: connections that the system completes before they are accepted; as
    many can be open beyond the bound for a moment, until they are closed.
    """

    connections_max: int
    backlog: int


def raise_limit() -> None:
    """Raise the limit of open files, whose default is often 1,024, as far as DESCRIPTORS_WANTED."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower bound than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room(connections_max: int) -> Room:
    """What is possible under the present limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return room_within(DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft, connections_max)


def room_within(descriptors: int, connections_max: int) -> Room:
    """A quarter of few descriptors is for files, an eighth for connections about to be refused."""
    backlog = max(1, min(BACKLOG_MAX, descriptors // 8))
    possible = descriptors - min(FILES_MAX, descriptors // 4) - backlog
    return Room(max(1, min(connections_max, possible)), backlog)
