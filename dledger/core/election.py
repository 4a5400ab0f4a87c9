"""Elections: who may have a vote, and the count of one ballot.

Raft 5.2 and 5.4.1, with pre-vote (thesis 9.6) and the leader's lease (thesis 4.2.3).
"""

from collections.abc import Collection
from dataclasses import dataclass

from dledger.core.config import Config
from dledger.core.messages import VoteRequest, VoteResponse, VoteResult


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
