"""What happened in the core, for logs, golden traces and the admin page. Nothing depends on them."""

from dataclasses import dataclass

from dledger.core.messages import VoteResult
from dledger.core.types import PushState, ResponseCode, Role


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Role, term or known leader changed."""

    role: Role
    term: int
    leader_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ElectionStarted:
    ballot_term: int
    is_pre_vote: bool
    reason: str


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    candidate: str
    ballot_term: int
    is_pre_vote: bool
    result: VoteResult


@dataclass(frozen=True, slots=True)
class PushStateChanged:
    """The dispatcher of one peer moved. index: compare index, truncate index or last matching index."""

    peer: str
    old: PushState
    new: PushState
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class PushRepeated:
    """The first unacknowledged push timed out and was sent again."""

    peer: str
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class PushRefused:
    """A peer answered a push with neither SUCCESS nor INCONSISTENT_STATE."""

    peer: str
    first_index: int
    code: ResponseCode


@dataclass(frozen=True, slots=True)
class PushThrottled:
    """A peer far behind has had its bytes of this second; more goes at until_ms."""

    peer: str
    lag_bytes: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class PushFellBehind:
    """A push brought entries this node has: the leader may have missed the acknowledgement."""

    first_index: int
    last_index: int
    end_index: int
    is_equal: bool


@dataclass(frozen=True, slots=True)
class PushMisplaced:
    """Entries that come next, but their bytes say that they stand elsewhere; they are refused. The files
    of the leader have other sizes, or it is not sound.
    """

    leader_id: str
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class PushWaitedInVain:
    """A push waited too long for an earlier one; the leader is told to compare ("fast forward")."""

    first_index: int
    end_index: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    from_index: int
    old_end_index: int


@dataclass(frozen=True, slots=True)
class LogReset:
    """Everything was dropped, since the leader no longer has what this log would need."""

    begin_index: int
    old_begin_index: int
    old_end_index: int


@dataclass(frozen=True, slots=True)
class TruncationRefused:
    """A leader without entries that are committed here: the group has lost a disk it counted on."""

    leader: str
    truncate_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class EntryDamaged:
    """Entries a peer needs can't be read here; pushing them waits until they are repaired."""

    first_index: int
    last_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Impaired:
    """This node takes part without a vote from its start on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Healed:
    """It votes again."""

    reason: str


@dataclass(frozen=True, slots=True)
class AppendTimedOut:
    """Proposed entries were not committed in time. They may be later."""

    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class TransferStarted:
    transferee: str
    lag_entries: int


@dataclass(frozen=True, slots=True)
class TransferEnded:
    transferee: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    sender: str
    kind: str
    reason: str


Event = (
    RoleChanged
    | ElectionStarted
    | VoteAnswered
    | PushStateChanged
    | PushRepeated
    | PushRefused
    | PushThrottled
    | PushFellBehind
    | PushMisplaced
    | PushWaitedInVain
    | LogTruncated
    | LogReset
    | TruncationRefused
    | EntryDamaged
    | Impaired
    | Healed
    | AppendTimedOut
    | TransferStarted
    | TransferEnded
    | MessageIgnored
)
