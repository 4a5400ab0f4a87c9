"""Events of the core, for logs and golden traces. No decision depends on them."""

from dataclasses import dataclass

from dledger.core.membership import Configuration
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
    """A peer that is far behind got its quota of this second; more is pushed at until_ms."""

    peer: str
    lag_bytes: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class PushFellBehind:
    """A push brought entries that this node has already: its acknowledgement may have been lost."""

    first_index: int
    last_index: int
    end_index: int
    is_equal: bool


@dataclass(frozen=True, slots=True)
class PushMisplaced:
    """The next entries, but their bytes name another position; they are refused. The leader's files have
    another size, or it is broken.
    """

    leader_id: str
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class PushWaitedInVain:
    """A push waited too long for an earlier one; the answer makes the leader compare ("fast forward")."""

    first_index: int
    end_index: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    from_index: int
    old_end_index: int


@dataclass(frozen=True, slots=True)
class LogReset:
    """Everything was dropped: the leader's retention removed the entries that would continue this log."""

    begin_index: int
    old_begin_index: int
    old_end_index: int


@dataclass(frozen=True, slots=True)
class TruncationRefused:
    """A leader lacks entries that are committed here: the group has lost a disk that it counted on."""

    leader: str
    truncate_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class EntryDamaged:
    """Entries that a peer needs can't be read here; they are pushed once they are repaired."""

    first_index: int
    last_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Impaired:
    """This node started without a vote."""

    reason: str


@dataclass(frozen=True, slots=True)
class Healed:
    """This node votes again."""

    reason: str


@dataclass(frozen=True, slots=True)
class AppendTimedOut:
    """Proposed entries were not committed in time. They may still be committed later."""

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
class ConfigurationChanged:
    """The newest configuration in this node's log is another one, committed or not."""

    index: int
    configuration: Configuration
    reason: str


@dataclass(frozen=True, slots=True)
class Removed:
    """A leader says that this node is no member: it asks for no votes until a leader sends it entries."""

    sender: str
    index: int


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
    | ConfigurationChanged
    | Removed
    | MessageIgnored
)
