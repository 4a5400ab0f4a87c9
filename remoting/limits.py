"""Bounds of the transport, what happens at each, and how many connections the process may have open.

Each connection needs a file descriptor, and enough must remain for the node's own files.
"""

import contextlib
import resource
from dataclasses import dataclass
from typing import Final

DESCRIPTORS_WANTED = 65_536
FILES_MAX = 1_024
"""Descriptors kept for files, pipes and outgoing connections, where there are enough."""
BACKLOG_MAX = 256
"""All connections that wait are accepted in one turn of the event loop, a tenth of a millisecond each."""


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """One connection's bounds, and those of the server that holds many.

    frame_bytes_max: a longer frame closes the connection (`NettyDecoder`'s 16 MiB).
    header_bytes_max: a longer header closes it too: a header of many small fields needs many times its bytes
        in memory when it is read.
    frame_timeout_ms: a frame that has begun must be complete after this, and a connection to a server must
        have sent its first one; else it is aborted. The time does not run while we do not read.
    unanswered_max: requests of one connection not answered yet; beyond it no more is read from it until half
        are. Held pulls count, so this is far above the number of queues that a client may have.
    unanswered_bytes_max: the bytes of the larger ones of these; beyond it no more is read until half are
        freed.
    write_buffer_high_bytes: beyond it nothing more is read from a peer that does not read its answers.
    write_buffer_bytes_max: beyond it the connection is aborted at once.
    stall_ms: a connection whose write buffer stays high, or that does not finish closing, is aborted after
        this.
    idle_ms: a connection with neither read nor write is closed after this (both ends of RocketMQ do it at 120
        s).
    check_interval_ms: period of the one timer that checks for idle and stalled connections.
    requests_pending_max: our own unanswered requests on one connection; beyond it PendingRequestsFullError.
    connections_max: connections of one server, fewer where the system lets the process open fewer files. For
        a further one the longest open of those that have never sent a request is aborted, or else itself.
    held_bytes_max: what all connections of a server hold together: unfinished frames with the length that
        they announce, larger requests not answered, answers not read. Beyond it those that hold the most are
        aborted.
    connect_timeout_ms: a client gives up on a connection after this.
    """

    frame_bytes_max: int = 16 * 1024 * 1024
    header_bytes_max: int = 1024 * 1024
    frame_timeout_ms: int = 60_000
    unanswered_max: int = 16_384
    unanswered_bytes_max: int = 64 * 1024 * 1024
    write_buffer_high_bytes: int = 4 * 1024 * 1024
    write_buffer_bytes_max: int = 64 * 1024 * 1024
    stall_ms: int = 30_000
    idle_ms: int = 120_000
    check_interval_ms: int = 5_000
    requests_pending_max: int = 65_536
    connections_max: int = 10_000
    held_bytes_max: int = 512 * 1024 * 1024
    connect_timeout_ms: int = 3_000


DEFAULT_LIMITS: Final = RemotingLimits()
CLIENT_LIMITS: Final = RemotingLimits(idle_ms=90_000)
"""Our clients close an idle connection before the server does: a request that crosses the server's end would
fail, though both processes are well.
"""


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
