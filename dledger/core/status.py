"""The status of a node as it reports it. Unknown values are None, never 0."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dledger.core.membership import ConfigurationEntry
from dledger.core.types import Epoch, PushState, Role


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """One change of leader as this node saw it, at at_ms of the clock it is driven by."""

    at_ms: int
    term: int
    leader_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A leader's view of one peer; on a follower all is None. match_index is None until it was compared."""

    id: str
    push_state: PushState | None
    match_index: int | None
    next_index: int | None
    lag_entries: int | None
    lag_bytes: int | None
    last_contact_ms_ago: int | None
    is_throttled: bool | None = None
    """Whether it is far behind and gets less than all entries that it lacks, so that producers do not have to
    wait for its catching up.
    """
    held_bytes: int | None = None
    """Bytes of the leader's log that its disk has, of held_bytes + lag_bytes."""
    bytes_per_s: int | None = None
    """How fast its disk gets the log, over the last seconds; None unless it is far behind."""
    caught_up_in_ms: int | None = None
    """When it has caught up at this speed, while the log grows as it does; None: unknown, or not at all."""
    pushed_bytes: int | None = None
    """Bytes of entries that this leader has pushed to it, repeated ones too."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    role: Role
    term: int
    leader_id: str | None
    begin_index: int
    end_index: int
    commit_index: int
    persisted_index: int
    term_start_index: int
    """A leader's first entry of its term; -1 on other nodes."""
    epochs: tuple[Epoch, ...]
    peers: tuple[PeerStatus, ...]
    watermarks_by_term: Mapping[int, Mapping[str, int]]
    """On a leader: under its term, the index up to which each member's disk has its log. Else empty."""
    elections: tuple[ElectionRecord, ...]
    impairment: str | None = None
    """Why this node does not vote or must not lead; None when it is sound."""
    elections_total: int = 0
    """Changes of leader that this node saw since it started."""
    configuration: ConfigurationEntry | None = None
    """The newest one in this node's log."""
    is_configuration_committed: bool = False


def unknown_peers(peers: Iterable[str]) -> tuple[PeerStatus, ...]:
    """The peers of a node that does not lead: it knows nothing of their progress."""
    return tuple(PeerStatus(peer, None, None, None, None, None, None) for peer in peers)
