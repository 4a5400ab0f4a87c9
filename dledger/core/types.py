"""The basic types of the replication core: roles, codes, entry ranges, the state of a log and of a node.

Three numbers are never mixed: an *index* counts entries of the log from 0, a *position* counts its bytes,
an *offset* (unknown here) counts messages of a queue.
"""

import enum
from dataclasses import dataclass

from dledger.core.membership import ConfigurationHistory

NO_INDEX = -1
"""No entry."""

NO_TERM = 0
"""The term before the first election; also the term "of" the place before entry 0."""

UNKNOWN_TERM = -1
"""The term of an entry that retention removed, when no epoch names it any more."""

LONG_AGO_MS = -(1 << 62)
"""Earlier than every time."""

NEVER_DUE_MS = 1 << 62
"""Later than every time."""


class CorruptRangeError(ValueError):
    """Entry bytes that contradict what is stated with them: index, term, size, position or CRC."""


class DamagedEntryError(ValueError):
    """Entries of this log whose bytes on the disk are not what was written.

    `reason` describes the damage, without the indexes.
    """

    def __init__(self, first_index: int, last_index: int, reason: str) -> None:
        super().__init__(f"entries {first_index}..{last_index}: {reason}")
        self.first_index = first_index
        self.last_index = last_index
        self.reason = reason


class Role(enum.Enum):
    """MemberState.Role (Raft 5.1). A node that asks for pre-votes is a CANDIDATE
    already: it knows no leader.
    """

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"


class PushState(enum.Enum):
    """A leader's state of replication to one peer (PushEntryRequest.Type; COMMIT is only a heartbeat)."""

    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"


class ResponseCode(enum.IntEnum):
    """What is used of DLedgerResponseCode, by DLedger's names and numbers."""

    UNKNOWN = -1
    SUCCESS = 200
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    NOT_LEADER = 404
    INCONSISTENT_STATE = 406
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506
    CONFIGURATION_PENDING = 600
    """Not in DLedger, as the next: an earlier change of the members, or the term's first entry, is not
    committed."""
    ILLEGAL_CONFIGURATION = 601


@dataclass(frozen=True, slots=True)
class Epoch:
    """One leader epoch: the entries from first_index on, up to the next epoch, are of this term."""

    term: int
    first_index: int


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must never forget: the newest term it knows, its vote in it (Raft Figure 2), the
    configurations of its log, which are durable before their entries (None: the log never had one), and the
    generation whose members it takes messages of, which its log may not name yet.
    """

    term: int
    voted_for: str | None
    configurations: ConfigurationHistory | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Contiguous whole entries of one term and one data file, as the bytes they are in the log."""

    first_index: int
    last_index: int
    term: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class LogState:
    """What the host found on its disk. The end of an empty log is begin_index - 1
    (begin 0, end -1 when new).
    """

    begin_index: int
    end_index: int
    epochs: tuple[Epoch, ...]
    commit_index: int


@dataclass(frozen=True, slots=True)
class Impairment:
    """This node may have forgotten what it promised, and has no vote until it is healed.

    `repair_id` is new for each impairment and not negative, so that answers to an earlier one do not count.
    `is_vote_lost`: not only entries were lost, but term and vote too.
    """

    repair_id: int
    is_vote_lost: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """One step of reading the log's files again: the damage found in it, and whether
    the last file is done.
    """

    read_bytes: int
    damaged: tuple[DamagedEntryError, ...]
    is_round_done: bool
