"""DLedgerLeaderElector: when a node starts an election, who may have a vote, and the count of one ballot.

Raft 5.2 and 5.4.1, with pre-vote (thesis 9.6) and the leader's lease (thesis 4.2.3).
"""

from collections.abc import Collection
from dataclasses import dataclass

from dledger.core.config import Config
from dledger.core.membership import ConfigurationLog
from dledger.core.messages import VoteRequest, VoteResponse, VoteResult
from dledger.core.ports import Rng


@dataclass(frozen=True, slots=True)
class Voter:
    """What a node's answer to a VoteRequest depends on."""

    term: int
    voted_for: str | None
    last_index: int
    last_term: int
    has_live_leader: bool
    is_impaired: bool = False


def can_grant_vote(request: VoteRequest, candidate: str, voter: Voter) -> VoteResult:
    """The answer. The order of the checks decides which reason is given."""
    # The lease (thesis 4.2.3) comes first: a request that it refuses must not raise this node's term either.
    # A transfer is exempt, since the leader itself asked for it (thesis 3.10).
    if voter.has_live_leader and not request.is_transfer and request.ballot_term >= voter.term:
        return VoteResult.REJECT_ALREADY_HAS_LEADER
    # Raft 5.1: a lower term is outdated. In a pre-vote the ballot term is the candidate's term + 1, so
    # equality means that the candidate's term is below this node's.
    if request.ballot_term < voter.term or (request.is_pre_vote and request.ballot_term == voter.term):
        return VoteResult.REJECT_EXPIRED_VOTE_TERM
    if voter.is_impaired:
        return VoteResult.REJECT_IMPAIRED
    # Raft 5.4.1: the candidate's log must be at least as up to date, by its last term first, then by length.
    # The majority that committed an entry and the majority that votes share a member, which refuses a
    # candidate without that entry: so every leader has all committed entries (Leader Completeness).
    if request.last_term < voter.last_term:
        return VoteResult.REJECT_EXPIRED_LEDGER_TERM
    if request.last_term == voter.last_term and request.last_index < voter.last_index:
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    # Raft 5.2: one vote a term. The same candidate gets the same answer again, since its first may be lost.
    has_voted = request.ballot_term == voter.term and voter.voted_for not in (None, candidate)
    return VoteResult.REJECT_ALREADY_VOTED if has_voted else VoteResult.ACCEPT


class Ballot:
    """The count of one round: pre-votes for ballot_term, or votes in it. The own vote is the first.

    The voters are those of the candidate's newest configuration, committed or not (thesis 4.1); it may be
    none of them.
    """

    def __init__(
        self, self_id: str, members: ConfigurationLog, ballot_term: int, is_pre_vote: bool, is_transfer: bool
    ) -> None:
        self.ballot_term = ballot_term
        self.is_pre_vote = is_pre_vote
        self.is_transfer = is_transfer
        self._voters = members.voters
        self._quorum = members.quorum
        self._answers: dict[str, bool] = {}
        self.count(self_id, True)

    def request(self, term: int, last_index: int, last_term: int) -> VoteRequest:
        return VoteRequest(term, self.ballot_term, last_index, last_term, self.is_pre_vote, self.is_transfer)

    def is_answered_by(self, response: VoteResponse) -> bool:
        return (response.ballot_term, response.is_pre_vote) == (self.ballot_term, self.is_pre_vote)

    def count(self, peer: str, is_granted: bool) -> None:
        """Only the first answer of a peer counts: a repeated one must not change the result. Learners answer
        too, and are not counted.
        """
        if peer in self._voters:
            self._answers.setdefault(peer, is_granted)

    @property
    def is_won(self) -> bool:
        return sum(self._answers.values()) >= self._quorum

    def is_lost(self, unreachable: Collection[str]) -> bool:
        """No answer that could still come would make it a majority."""
        outstanding = [peer for peer in self._voters if peer not in self._answers and peer not in unreachable]
        return sum(self._answers.values()) + len(outstanding) < self._quorum


def retry_delay_range_ms(config: Config, lost_rounds: int) -> tuple[int, int]:
    """Bounds of the random delay before the next round, after `lost_rounds` lost rounds in a row.

    Short at first: a split vote (Raft 5.2), or a voter whose lease has not ended yet, is a matter of
    milliseconds. Then doubled each time up to an ordinary election time-out, so that candidates that can't
    win do not flood the group.
    """
    delay_max_ms = config.disconnect_election_delay_max_ms << min(lost_rounds, 16)
    if delay_max_ms >= config.election_timeout_max_ms:
        return config.election_timeout_min_ms, config.election_timeout_max_ms
    return delay_max_ms // 2, delay_max_ms


class ElectionTimer:
    """When this node starts an election (Raft 5.2), and whether it still holds to its leader's lease.

    The lease (thesis 4.2.3) ends election_timeout_min_ms after the leader's last message, or when the
    connection to it closes. The time-out is never shorter than the lease: a node whose own lease has not
    ended starts no election, unless the connection closed.
    """

    def __init__(self, config: Config, rng: Rng, now_ms: int, is_alone: bool) -> None:
        self._config = config
        self._rng = rng
        self._timeout_ms = self._draw_ms()
        self._leader_heard_ms: int | None = None
        self._lost_rounds = 0
        self._unreachable: set[str] = set()
        self.deadline_ms = now_ms if is_alone else now_ms + self._timeout_ms
        """When to ask for pre-votes. The only voter of a group has no leader to wait for."""

    def _draw_ms(self) -> int:
        return self._rng.between(self._config.election_timeout_min_ms, self._config.election_timeout_max_ms)

    def restart(self, now_ms: int) -> None:
        """A whole time-out from now on, with the same random length."""
        self.deadline_ms = now_ms + self._timeout_ms

    def leader_changed(self) -> None:
        """Draws another time-out, so that two members with close time-outs do not stay in step (Raft 5.2)."""
        self._timeout_ms = self._draw_ms()
        self._lost_rounds = 0

    def leader_heard(self, now_ms: int) -> None:
        self._leader_heard_ms = now_ms
        self.deadline_ms = now_ms + self._timeout_ms

    def leader_disconnected(self, now_ms: int) -> None:
        """Ends the lease, and asks for pre-votes soon.

        The random delay keeps followers that lost the same leader from asking at the same moment.
        """
        self._leader_heard_ms = None
        delay_ms = self._rng.between(1, self._config.disconnect_election_delay_max_ms)
        self.deadline_ms = min(self.deadline_ms, now_ms + delay_ms)

    def end_lease(self) -> None:
        self._leader_heard_ms = None

    def has_live_leader(self, now_ms: int) -> bool:
        heard_ms = self._leader_heard_ms
        return heard_ms is not None and now_ms - heard_ms < self._config.election_timeout_min_ms

    def round_started(self, now_ms: int) -> None:
        """The next round begins after an ordinary time-out if too few answers arrive."""
        self.deadline_ms = now_ms + self._draw_ms()

    def round_won(self) -> None:
        self._lost_rounds = 0

    def is_lost(self, ballot: Ballot) -> bool:
        """No answer that could still come would make it a majority."""
        return ballot.is_lost(self._unreachable)

    def round_lost(self, now_ms: int) -> None:
        low_ms, high_ms = retry_delay_range_ms(self._config, self._lost_rounds)
        self._lost_rounds += 1
        self.deadline_ms = now_ms + self._rng.between(low_ms, high_ms)

    def peer_connected(self, peer: str) -> None:
        self._unreachable.discard(peer)

    def peer_disconnected(self, peer: str) -> None:
        self._unreachable.add(peer)
