"""What a node tells of itself. Unknown is None, never 0."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    """A leader's view of one peer; a follower knows none of it. match_index is None until compared."""

    id: str
    push_state: PushState | None
    match_index: int | None
    next_index: int | None
    lag_entries: int | None
    lag_bytes: int | None
    last_contact_ms_ago: int | None
    is_throttled: bool | None = None
    """Whether it gets less than all that is there: it is far behind, and others are not to wait for that."""


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
    """A leader's first entry of its own; -1 for others."""
    epochs: tuple[Epoch, ...]
    peers: tuple[PeerStatus, ...]
    watermarks_by_term: Mapping[int, Mapping[str, int]]
    """Leader: under its term, up to where each member's disk is known to hold its log; else empty."""
    elections: tuple[ElectionRecord, ...]
    impairment: str | None = None
    """Why this node does not vote or is not to lead; None when it is sound."""
    elections_total: int = 0
    """Changes of leader that this node saw since it started."""


def unknown_peers(peers: Iterable[str]) -> tuple[PeerStatus, ...]:
    """What a node that does not lead knows of its peers' progress: nothing."""
    return tuple(PeerStatus(peer, None, None, None, None, None, None) for peer in peers)
