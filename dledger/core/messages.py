"""The messages between members of a group. Each that a Node sees carries its sender's term.

Requests of a leader also carry its commit index. An `XRequest` is answered by an `XResponse`; COMMIT, and
any leader request of an old term, is answered by a HeartbeatResponse.
"""

import enum
from dataclasses import dataclass

from dledger.core.membership import ConfigurationEntry
from dledger.core.types import EntryRange, ResponseCode


class VoteResult(enum.IntEnum):
    """VoteResponse.RESULT, by DLedger's names."""

    ACCEPT = 1
    REJECT_EXPIRED_VOTE_TERM = 4
    REJECT_ALREADY_VOTED = 5
    REJECT_ALREADY_HAS_LEADER = 6
    REJECT_EXPIRED_LEDGER_TERM = 9
    REJECT_SMALL_LEDGER_END_INDEX = 10
    REJECT_IMPAIRED = 100
    """Not in DLedger: the voter may have forgotten what it promised."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Raft's RequestVote: asks for a vote in `ballot_term`. A pre-vote asks only whether it would be given
    (thesis 9.6); its ballot term is the candidate's term + 1.
    """

    term: int
    ballot_term: int
    last_index: int
    last_term: int
    is_pre_vote: bool
    is_transfer: bool
    """The leader itself asked for this election (thesis 3.10): its lease does not refuse it."""


@dataclass(frozen=True, slots=True)
class VoteResponse:
    term: int
    ballot_term: int
    is_pre_vote: bool
    result: VoteResult


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """PushEntryRequest.Type.COMMIT: the idle leader's commit index."""

    term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """end_index is the end in memory, no promise about the disk.

    is_impaired: log or vote is damaged, so that leadership must not be transferred to this node.
    """

    term: int
    end_index: int
    is_impaired: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries, and the term of the entry before them: prevLogTerm of Raft's AppendEntries (UNKNOWN_TERM if
    that entry was removed and no epoch names it).
    """

    term: int
    commit_index: int
    prev_term: int
    entries: EntryRange


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """SUCCESS: this node's disk has the leader's log up to last_index."""

    term: int
    code: ResponseCode
    first_index: int
    last_index: int
    end_index: int


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Does the follower hold the entry (compare_index, compare_term)?"""

    term: int
    commit_index: int
    compare_index: int
    compare_term: int


@dataclass(frozen=True, slots=True)
class CompareResponse:
    """SUCCESS or INCONSISTENT_STATE, and the follower's log: where it begins and ends.

    end_term is the term of its last entry. With INCONSISTENT_STATE, (conflict_index, conflict_term) is its
    last entry not after compare_index whose term is not above compare_term: no later one can match.
    """

    term: int
    code: ResponseCode
    compare_index: int
    begin_index: int
    end_index: int
    end_term: int
    conflict_index: int
    conflict_term: int


@dataclass(frozen=True, slots=True)
class TruncateRequest:
    """Drop the entries from truncate_index on, or with is_reset everything, and begin there.

    Valid only for a log that still ends with (end_index, end_term): what the follower said in its
    CompareResponse. Two logs that end with the same entry are the same log, so a request that comes late or
    twice can't drop an entry pushed meanwhile. prev_term is the term before truncate_index, position the
    leader's position of it. base: with is_reset, the configuration that is in force before truncate_index;
    only groups whose log may have configurations send it.
    """

    term: int
    commit_index: int
    truncate_index: int
    prev_term: int
    position: int
    is_reset: bool
    end_index: int
    end_term: int
    base: ConfigurationEntry | None = None


@dataclass(frozen=True, slots=True)
class TruncateResponse:
    term: int
    code: ResponseCode
    truncate_index: int
    end_index: int


@dataclass(frozen=True, slots=True)
class TakeLeadershipRequest:
    """Leadership transfer (thesis 3.10, TimeoutNow): the receiver has the whole log and campaigns at once."""

    term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """An impaired node asks a member for its state; repair_id names the impairment."""

    term: int
    repair_id: int


@dataclass(frozen=True, slots=True)
class RepairResponse:
    """The member's term, whether it leads in it, and the end of its log in memory (-1: the log is empty).

    configuration: the newest one in its log. Only members of groups whose log may have one send it.
    """

    term: int
    repair_id: int
    is_leader: bool
    end_index: int
    configuration: ConfigurationEntry | None = None


@dataclass(frozen=True, slots=True)
class MembershipNotice:
    """A leader's committed configuration, to a node that asks for votes and is no member."""

    term: int
    configuration: ConfigurationEntry


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Asks for entries that are damaged on the sender's disk. `term` is that of the entries: index and term
    name an entry (Raft 5.3).
    """

    term: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """The entries from the first one asked for on, as many as fit; only with SUCCESS."""

    term: int
    code: ResponseCode
    entries: EntryRange | None


PushRequest = AppendRequest | CompareRequest | TruncateRequest
LeaderRequest = HeartbeatRequest | CommitRequest | PushRequest | TakeLeadershipRequest
PeerResponse = HeartbeatResponse | AppendResponse | CompareResponse | TruncateResponse
FetchMessage = FetchRequest | FetchResponse
"""Between the drivers; a Node ignores them."""
Message = (
    VoteRequest
    | VoteResponse
    | LeaderRequest
    | PeerResponse
    | RepairRequest
    | RepairResponse
    | MembershipNotice
    | FetchMessage
)
