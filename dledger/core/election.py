"""DLedgerLeaderElector: when a node starts an election, who may have a vote, and the count of one ballot.

Raft 5.2 and 5.4.1, with pre-vote (thesis 9.6) and the leader's lease (thesis 4.2.3).
"""

from collections.abc import Collection
from dataclasses import dataclass

from dledger.core.config import Config
from dledger.core.messages import VoteRequest, VoteResponse, VoteResult
from dledger.core.ports import Rng


@dataclass(frozen=True, slots=True)
class Voter:
    """All that a node's answer to a VoteRequest depends on."""

    term: int
    voted_for: str | None
    last_index: int
    last_term: int
    has_live_leader: bool
    is_impaired: bool = False


def can_grant_vote(request: VoteRequest, candidate: str, voter: Voter) -> VoteResult:
    """The answer, in the order in which the reasons against are looked for.

    A live leader comes first: a request it stands against must not raise this node's term either.
    """
    if voter.has_live_leader and not request.is_transfer and request.ballot_term >= voter.term:
        return VoteResult.REJECT_ALREADY_HAS_LEADER
    if request.ballot_term < voter.term or (request.is_pre_vote and request.ballot_term == voter.term):
        return VoteResult.REJECT_EXPIRED_VOTE_TERM
    if voter.is_impaired:
        return VoteResult.REJECT_IMPAIRED
    if request.last_term < voter.last_term:
        return VoteResult.REJECT_EXPIRED_LEDGER_TERM
    if request.last_term == voter.last_term and request.last_index < voter.last_index:
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    has_voted = request.ballot_term == voter.term and voter.voted_for not in (None, candidate)
    return VoteResult.REJECT_ALREADY_VOTED if has_voted else VoteResult.ACCEPT


class Ballot:
    """One round of asking: pre-votes for, or votes in, ballot_term."""

    def __init__(self, config: Config, ballot_term: int, is_pre_vote: bool, is_transfer: bool) -> None:
        self.ballot_term = ballot_term
        self.is_pre_vote = is_pre_vote
        self.is_transfer = is_transfer
        self._config = config
        self._answers: dict[str, bool] = {config.self_id: True}

    def request(self, term: int, last_index: int, last_term: int) -> VoteRequest:
        return VoteRequest(term, self.ballot_term, last_index, last_term, self.is_pre_vote, self.is_transfer)

    def is_answered_by(self, response: VoteResponse) -> bool:
        return (response.ballot_term, response.is_pre_vote) == (self.ballot_term, self.is_pre_vote)

    def count(self, peer: str, is_granted: bool) -> None:
        """The first answer of a peer holds."""
        self._answers.setdefault(peer, is_granted)

    @property
    def is_won(self) -> bool:
        return sum(self._answers.values()) >= self._config.quorum

    def is_lost(self, unreachable: Collection[str]) -> bool:
        """No answer that could still come would make it a majority."""
        outstanding = [
            peer for peer in self._config.others if peer not in self._answers and peer not in unreachable
        ]
        return sum(self._answers.values()) + len(outstanding) < self._config.quorum


def retry_delay_range_ms(config: Config, lost_rounds: int) -> tuple[int, int]:
    """When to ask again after `lost_rounds` rounds in a row that all who could answer refused.

    Soon at first, since a split vote or a refusal by one who has not yet missed the leader is over in a
    moment; then doubling up to an ordinary election time-out.
    """
    delay_max_ms = config.disconnect_election_delay_max_ms << min(lost_rounds, 16)
    if delay_max_ms >= config.election_timeout_max_ms:
        return config.election_timeout_min_ms, config.election_timeout_max_ms
    return delay_max_ms // 2, delay_max_ms


class ElectionTimer:
    """The lease ends election_timeout_min_ms after the leader's last word, or with its connection."""

    def __init__(self, config: Config, rng: Rng, now_ms: int) -> None:
        self._config = config
        self._rng = rng
        self._timeout_ms = self._draw_ms()
        self._leader_heard_ms: int | None = None
        self._lost_rounds = 0
        self._unreachable: set[str] = set()
        self.deadline_ms = now_ms + self._timeout_ms if config.others else now_ms
        """When to ask for pre-votes. A group of one does not wait."""

    def _draw_ms(self) -> int:
        return self._rng.between(self._config.election_timeout_min_ms, self._config.election_timeout_max_ms)

    def restart(self, now_ms: int) -> None:
        """A whole time-out from now on."""
        self.deadline_ms = now_ms + self._timeout_ms

    def follow(self) -> None:
        """A new leader: a new time-out, so that members do not stay in step."""
        self._timeout_ms = self._draw_ms()
        self._lost_rounds = 0

    def leader_heard(self, now_ms: int) -> None:
        self._leader_heard_ms = now_ms
        self.deadline_ms = now_ms + self._timeout_ms

    def leader_left(self, now_ms: int) -> None:
        """Its connection closed: the lease is void, and pre-votes are asked for soon."""
        self._leader_heard_ms = None
        delay_ms = self._rng.between(1, self._config.disconnect_election_delay_max_ms)
        self.deadline_ms = min(self.deadline_ms, now_ms + delay_ms)

    def end_lease(self) -> None:
        self._leader_heard_ms = None

    def has_live_leader(self, now_ms: int) -> bool:
        heard_ms = self._leader_heard_ms
        return heard_ms is not None and now_ms - heard_ms < self._config.election_timeout_min_ms

    def round_started(self, now_ms: int) -> None:
        """If not enough answers come, the next round begins after an ordinary time-out."""
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
