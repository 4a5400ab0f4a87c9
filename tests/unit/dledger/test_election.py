"""dledger.core.election: who gets a vote, when a round is won or lost, when the next one begins."""

import pytest

from dledger.core.config import Config
from dledger.core.election import Ballot, Voter, can_grant_vote, retry_delay_range_ms
from dledger.core.membership import Configuration, ConfigurationLog, first_configuration
from dledger.core.messages import VoteRequest, VoteResponse, VoteResult

VOTER = Voter(term=5, voted_for=None, last_index=9, last_term=4, has_live_leader=False)


def config(members: int) -> Config:
    names = tuple(f"n{number}" for number in range(members))
    return Config("g", "n0", names)


def request(
    ballot_term: int = 5,
    last_index: int = 9,
    last_term: int = 4,
    is_pre_vote: bool = False,
    is_transfer: bool = False,
) -> VoteRequest:
    term = ballot_term - is_pre_vote
    return VoteRequest(term, ballot_term, last_index, last_term, is_pre_vote, is_transfer)


@pytest.mark.parametrize(
    ("asked", "voter", "result"),
    [
        (request(), VOTER, "ACCEPT"),
        (request(last_index=10), VOTER, "ACCEPT"),
        (request(last_index=0, last_term=5), VOTER, "ACCEPT"),
        (request(4), VOTER, "REJECT_EXPIRED_VOTE_TERM"),
        (request(5, is_pre_vote=True), VOTER, "REJECT_EXPIRED_VOTE_TERM"),
        (request(6, is_pre_vote=True), VOTER, "ACCEPT"),
        (request(last_index=99, last_term=3), VOTER, "REJECT_EXPIRED_LEDGER_TERM"),
        (request(last_index=8), VOTER, "REJECT_SMALL_LEDGER_END_INDEX"),
        (request(last_index=9 + (1 << 31)), VOTER, "ACCEPT"),
        (request(last_index=9 + (1 << 32)), VOTER, "ACCEPT"),
        (request(), Voter(5, None, 9 + (1 << 31), 4, False), "REJECT_SMALL_LEDGER_END_INDEX"),
        (request(), Voter(5, None, 8 + (1 << 32), 4, False), "REJECT_SMALL_LEDGER_END_INDEX"),
        (request(), Voter(5, "n1", 9, 4, False), "ACCEPT"),
        (request(), Voter(5, "n2", 9, 4, False), "REJECT_ALREADY_VOTED"),
        (request(6, is_pre_vote=True), Voter(5, "n2", 9, 4, False), "ACCEPT"),
        (request(6), Voter(5, "n2", 9, 4, True), "REJECT_ALREADY_HAS_LEADER"),
        (request(6, is_pre_vote=True), Voter(5, "n2", 9, 4, True), "REJECT_ALREADY_HAS_LEADER"),
        (request(6, is_transfer=True), Voter(6, None, 9, 4, True), "ACCEPT"),
        (request(4), Voter(5, "n2", 9, 4, True), "REJECT_EXPIRED_VOTE_TERM"),
    ],
)
def test_can_grant_vote(asked: VoteRequest, voter: Voter, result: str) -> None:
    assert can_grant_vote(asked, "n1", voter) is VoteResult[result]


def ballot_of(members: int, ballot_term: int, *, is_pre_vote: bool, is_transfer: bool) -> Ballot:
    voters = Configuration.of_voters(f"n{number}" for number in range(members))
    log = ConfigurationLog("n0", first_configuration(voters))
    return Ballot("n0", log, ballot_term, is_pre_vote, is_transfer)


@pytest.mark.parametrize(("members", "needed"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_ballot_is_won_by_a_majority(members: int, needed: int) -> None:
    ballot = ballot_of(members, 1, is_pre_vote=False, is_transfer=False)
    for number in range(1, needed + 1):
        assert not ballot.is_won
        ballot.count(f"n{number}", True)
    assert ballot.is_won


def test_only_voters_count() -> None:
    ballot = ballot_of(3, 1, is_pre_vote=False, is_transfer=False)
    ballot.count("n9", True)
    assert not ballot.is_won
    ballot.count("n1", True)
    assert ballot.is_won


def test_first_answer_of_a_peer_holds() -> None:
    ballot = ballot_of(3, 1, is_pre_vote=False, is_transfer=False)
    ballot.count("n1", False)
    ballot.count("n1", True)
    assert not ballot.is_won


def test_ballot_is_lost_when_no_majority_can_come() -> None:
    ballot = ballot_of(5, 1, is_pre_vote=False, is_transfer=False)
    ballot.count("n1", False)
    ballot.count("n2", True)
    assert not ballot.is_lost(())
    assert not ballot.is_lost({"n3"})
    assert ballot.is_lost({"n3", "n4"})
    ballot.count("n3", False)
    ballot.count("n4", False)
    assert ballot.is_lost(())


def test_ballot_knows_its_answers() -> None:
    ballot = ballot_of(3, 7, is_pre_vote=True, is_transfer=False)
    assert ballot.is_answered_by(VoteResponse(6, 7, True, VoteResult.ACCEPT))
    assert not ballot.is_answered_by(VoteResponse(7, 7, False, VoteResult.ACCEPT))
    assert not ballot.is_answered_by(VoteResponse(6, 6, True, VoteResult.ACCEPT))


def test_retry_delay_doubles_up_to_an_election_timeout() -> None:
    ranges = [retry_delay_range_ms(config(3), lost_rounds) for lost_rounds in range(7)]
    assert ranges == [(25, 50), (50, 100), (100, 200), (200, 400), (400, 800), (900, 1500), (900, 1500)]
    assert retry_delay_range_ms(config(3), 10**6) == (900, 1500)
