"""dledger.core.node: what a single node does with inputs that a well-run cluster does not give it."""

from typing import Any

import pytest

from dledger.core.config import Config
from dledger.core.events import MessageIgnored, RoleChanged
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareResponse,
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.node import Node
from dledger.core.output import Completion, Output, Proposal, Rejection
from dledger.core.types import Epoch, HardState, LogState, ResponseCode, Role
from tests.support.memory_log import MemoryLog


class LowRng:
    """Always the lowest."""

    def between(self, low: int, high: int) -> int:
        assert low <= high
        return low


class Bench:
    """Node n0 of three on an empty memory log."""

    def __init__(self, members: int = 3, log: LogState | None = None, **limits: Any) -> None:
        names = tuple(f"n{number}" for number in range(members))
        self.store = MemoryLog()
        self.now_ms = 0
        state = log or self.store.log_state()
        hard_state = HardState(state.epochs[-1].term if state.epochs else 0, None)
        self.node = Node(Config("g", "n0", names, **limits), hard_state, state, self.store, LowRng(), 0)

    def receive(self, sender: str, message: Message) -> None:
        self.node.receive(sender, message, self.now_ms)

    def take(self) -> Output:
        self.lay_out_term_start()
        output = self.node.take_output(self.now_ms)
        self.node.check_invariants()
        return output

    def lay_out_term_start(self) -> None:
        start = self.node.take_term_start()
        if start is not None:
            self.store.append_bodies(start.first_index, start.term, [b"start"])

    def tick(self, wait_ms: int) -> Output:
        self.now_ms += wait_ms
        self.node.tick(self.now_ms)
        return self.take()

    def win(self) -> Output:
        """Its election time-out is over and n1 votes for it."""
        self.tick(1500)
        term = self.node.term + 1
        self.receive("n1", VoteResponse(term - 1, term, True, VoteResult.ACCEPT))
        self.receive("n1", VoteResponse(term, term, False, VoteResult.ACCEPT))
        assert self.node.role is Role.LEADER
        return self.take()

    def propose(self, count: int) -> Proposal | Rejection:
        proposal = self.node.propose(count, self.now_ms)
        if isinstance(proposal, Proposal):
            self.store.append_bodies(proposal.first_index, proposal.term, [b"x"] * count)
        return proposal


def ignored(output: Output) -> list[MessageIgnored]:
    return [event for event in output.events if isinstance(event, MessageIgnored)]


def test_start_is_follower_without_leader() -> None:
    bench = Bench()
    assert (bench.node.role, bench.node.leader_id, bench.node.term_start_index) == (Role.FOLLOWER, None, -1)
    assert bench.node.deadline_ms() == 900
    assert bench.take().is_empty


def test_commit_index_of_the_checkpoint_is_fitted_to_the_log() -> None:
    log = LogState(5, 9, (Epoch(2, 5),), 99)
    assert Bench(log=log).node.commit_index == 9
    assert Bench(log=LogState(5, 9, (Epoch(2, 5),), -1)).node.commit_index == 4


def test_messages_of_itself_are_ignored() -> None:
    bench = Bench()
    bench.receive("n0", HeartbeatRequest(7, 3))
    assert ignored(bench.take()) == [MessageIgnored("n0", "HeartbeatRequest", "not a peer")]
    assert bench.node.term == 0


def test_a_leader_may_be_a_node_that_this_log_does_not_name() -> None:
    bench = Bench()
    bench.receive("n9", HeartbeatRequest(7, 3))
    assert (bench.node.term, bench.node.leader_id) == (7, "n9")


def test_fetches_are_answered_by_the_host_and_not_by_the_node() -> None:
    bench = Bench()
    bench.receive("n1", FetchRequest(1, 0, 3))
    assert ignored(bench.take()) == [MessageIgnored("n1", "FetchRequest", "not for a node")]


def test_retention_of_a_follower_moves_the_begin_of_its_log_only() -> None:
    bench = Bench()
    bench.node.log_begins_at(0)
    output = bench.take()
    assert (output.send_now, output.send_after_persist, output.log_ops) == ((), (), ())


def test_second_leader_of_a_term_is_ignored() -> None:
    bench = Bench()
    bench.receive("n1", HeartbeatRequest(3, -1))
    bench.receive("n2", HeartbeatRequest(3, -1))
    assert ignored(bench.take()) == [MessageIgnored("n2", "HeartbeatRequest", "n1 leads term 3")]
    assert bench.node.leader_id == "n1"


def test_vote_request_of_impossible_terms_is_ignored() -> None:
    bench = Bench()
    for request in (VoteRequest(3, 5, 9, 2, False, False), VoteRequest(3, 3, 9, 2, True, False)):
        bench.receive("n1", request)
        output = bench.take()
        assert len(ignored(output)) == 1
        assert not output.send_now
        assert not output.send_after_persist
    assert bench.node.voted_for is None


def test_impossible_answers_of_a_peer_are_ignored() -> None:
    bench = Bench()
    bench.win()
    bench.receive("n1", CompareResponse(1, ResponseCode.SUCCESS, -1, 5, 2, 1, 2, 1))
    bench.receive("n1", CompareResponse(1, ResponseCode.SUCCESS, -1, 0, -1, 0, -1, 0))
    bench.take()
    bench.receive("n1", AppendResponse(1, ResponseCode.SUCCESS, 0, 77, 77))
    assert ignored(bench.take()) == [MessageIgnored("n1", "AppendResponse", "impossible numbers")]
    assert bench.node.commit_index == -1


def test_answers_of_an_older_term_are_not_counted() -> None:
    bench = Bench(log=LogState(0, -1, (), -1))
    bench.win()
    bench.receive("n1", CompareResponse(1, ResponseCode.SUCCESS, -1, 0, -1, 0, -1, 0))
    bench.take()
    bench.node.persisted(0, 1, bench.now_ms)
    bench.receive("n1", AppendResponse(0, ResponseCode.SUCCESS, 0, 0, 0))
    assert bench.node.commit_index == -1
    bench.receive("n1", AppendResponse(1, ResponseCode.SUCCESS, 0, 0, 0))
    assert bench.node.commit_index == 0


def test_follower_ignores_answers() -> None:
    bench = Bench()
    bench.receive("n1", HeartbeatResponse(0, 5))
    assert bench.take().is_empty


def test_vote_for_another_ends_its_own_round() -> None:
    """A pre-candidate that is asked for a vote in its own term gives it and waits again."""
    bench = Bench()
    bench.receive("n2", HeartbeatRequest(3, -1))
    bench.take()
    bench.tick(1500)
    assert bench.node.role is Role.CANDIDATE
    bench.receive("n1", VoteRequest(3, 3, -1, 0, False, False))
    output = bench.take()
    assert [type(envelope.message) for envelope in output.send_after_persist] == [VoteResponse]
    assert (bench.node.role, bench.node.voted_for) == (Role.FOLLOWER, "n1")
    assert output.hard_state == HardState(3, "n1")


def test_repeated_vote_request_gets_the_same_answer() -> None:
    bench = Bench()
    for expected in (HardState(2, "n1"), None):
        bench.receive("n1", VoteRequest(2, 2, -1, 0, False, False))
        output = bench.take()
        assert output.hard_state == expected
        assert output.send_after_persist[0].message == VoteResponse(2, 2, False, VoteResult.ACCEPT)


def test_round_is_lost_when_the_last_who_could_answer_disconnects() -> None:
    bench = Bench()
    bench.tick(1500)
    bench.receive("n1", VoteResponse(0, 1, True, VoteResult.REJECT_ALREADY_HAS_LEADER))
    assert bench.node.deadline_ms() == 1500 + 900
    bench.node.peer_disconnected("n2", bench.now_ms)
    assert bench.node.deadline_ms() == 1500 + 25


def test_connection_of_a_node_that_is_no_member_sends_nothing() -> None:
    bench = Bench()
    bench.win()
    bench.node.peer_connected("n9", bench.now_ms)
    bench.node.peer_disconnected("n9", bench.now_ms)
    assert bench.take().send_now == ()


def test_persisted_of_an_entry_that_no_longer_stands_is_ignored() -> None:
    bench = Bench(members=1)
    bench.tick(0)
    bench.node.persisted(0, 0, 0)
    bench.node.persisted(5, 1, 0)
    assert (bench.node.persisted_index, bench.node.commit_index) == (-1, -1)
    bench.node.persisted(0, 1, 0)
    assert (bench.node.persisted_index, bench.node.commit_index) == (0, 0)


def test_leader_is_not_ready_before_its_first_entry() -> None:
    bench = Bench(members=1)
    bench.node.tick(0)
    assert bench.node.check_append(1) is ResponseCode.LEADER_NOT_READY
    assert bench.node.propose(1, 0) == Rejection(ResponseCode.LEADER_NOT_READY, "n0")
    assert bench.node.transfer_leadership("n1", 0) is ResponseCode.UNKNOWN_MEMBER
    assert bench.node.deadline_ms() == 0
    bench.take()
    assert bench.node.check_append(1) is ResponseCode.SUCCESS
    assert bench.node.deadline_ms() > 10**15


def test_leader_that_was_follower_a_moment_ago_waits_for_its_log_operations() -> None:
    """A push is taken and an election won in one turn: the host's log does not hold the push yet."""
    bench = Bench()
    source = MemoryLog()
    source.append_bodies(0, 1, [b"a"])
    from_leader = source.read_range(0, 0, 1 << 20)
    bench.receive("n1", HeartbeatRequest(1, -1))
    bench.take()
    bench.tick(1500)
    bench.receive("n1", AppendRequest(1, -1, 0, from_leader))
    bench.now_ms += 1500
    bench.node.tick(bench.now_ms)
    bench.receive("n2", VoteResponse(1, 2, True, VoteResult.ACCEPT))
    bench.receive("n2", VoteResponse(2, 2, False, VoteResult.ACCEPT))
    assert bench.node.role is Role.LEADER
    assert bench.node.take_term_start() is None
    assert bench.node.transfer_leadership("n1", bench.now_ms) is ResponseCode.LEADER_NOT_READY
    bench.receive("n2", HeartbeatResponse(2, -1))
    output = bench.node.take_output(bench.now_ms)
    assert len(output.log_ops) == 1
    assert bench.node.deadline_ms() == bench.now_ms
    assert bench.node.take_term_start() == Proposal(1, 1, 2)


def test_proposals_end_with_term_changed_when_leadership_is_lost() -> None:
    bench = Bench()
    bench.win()
    assert bench.propose(3) == Proposal(1, 3, 1)
    bench.receive("n2", HeartbeatRequest(4, -1))
    output = bench.take()
    assert output.completions == (Completion(1, 3, ResponseCode.TERM_CHANGED),)
    assert output.hard_state == HardState(4, None)
    assert bench.propose(1) == Rejection(ResponseCode.NOT_LEADER, "n2")


def test_transfer_is_given_up_at_its_deadline() -> None:
    bench = Bench(heartbeat_interval_ms=400, transfer_timeout_ms=300)
    bench.win()
    bench.receive("n1", CompareResponse(1, ResponseCode.SUCCESS, -1, 0, -1, 0, -1, 0))
    bench.take()
    assert bench.node.transfer_leadership("n1", bench.now_ms) is ResponseCode.SUCCESS
    assert bench.node.deadline_ms() == bench.now_ms + 300
    assert bench.node.check_append(1) is ResponseCode.LEADER_TRANSFERRING
    bench.tick(300)
    assert bench.node.check_append(1) is ResponseCode.SUCCESS


def test_leader_has_the_lease_while_a_majority_answered_lately_and_it_transfers_nothing() -> None:
    bench = Bench(election_timeout_min_ms=900, transfer_timeout_ms=300)
    assert not bench.node.has_lease(0)
    bench.win()
    bench.receive("n1", CompareResponse(1, ResponseCode.SUCCESS, -1, 0, -1, 0, -1, 0))
    bench.take()
    assert bench.node.has_lease(bench.now_ms + 450)
    assert not bench.node.has_lease(bench.now_ms + 451)
    bench.now_ms += 500
    bench.receive("n1", HeartbeatResponse(1, -1))
    assert bench.node.has_lease(bench.now_ms)
    bench.node.transfer_leadership("n1", bench.now_ms)
    assert not bench.node.has_lease(bench.now_ms)
    bench.tick(300)
    assert bench.node.has_lease(bench.now_ms)


def test_group_of_one_has_the_lease() -> None:
    bench = Bench(members=1)
    bench.node.tick(0)
    assert bench.node.has_lease(10**9)


def test_retention_beyond_the_commit_index_is_a_broken_invariant() -> None:
    bench = Bench()
    bench.win()
    with pytest.raises(AssertionError, match="retention to 1, commit -1"):
        bench.node.log_begins_at(1)


def test_status_of_leader_and_follower() -> None:
    bench = Bench()
    follower = bench.node.status(0)
    assert follower.watermarks_by_term == {}
    assert [(peer.id, peer.match_index, peer.push_state) for peer in follower.peers] == [
        ("n1", None, None),
        ("n2", None, None),
    ]
    bench.win()
    bench.node.persisted(0, 1, bench.now_ms)
    leader = bench.node.status(bench.now_ms + 5)
    assert leader.watermarks_by_term == {1: {"n0": 0, "n1": -1, "n2": -1}}
    assert (leader.role, leader.term_start_index, leader.epochs) == (Role.LEADER, 0, (Epoch(1, 0),))
    assert [record.leader_id for record in leader.elections] == ["n0"]
    assert leader.peers[0].last_contact_ms_ago is None


def test_history_of_elections_is_bounded_and_a_role_is_reported_once() -> None:
    bench = Bench()
    reported = []
    for term in range(1, 50):
        for _ in range(2):
            bench.receive("n1", HeartbeatRequest(term, -1))
        reported += [event for event in bench.take().events if isinstance(event, RoleChanged)]
    assert len(bench.node.status(0).elections) == 32
    assert bench.node.status(0).elections_total == 49
    assert len(reported) == len(set(reported)) == 98
