"""Any sequence of well-typed messages, however absurd, leaves a node standing with its invariants whole."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.membership import ConfigurationEntry
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CommitRequest,
    CompareRequest,
    CompareResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    RepairRequest,
    RepairResponse,
    TakeLeadershipRequest,
    TruncateRequest,
    TruncateResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.node import Node
from dledger.core.output import Append, Completion, Output, Proposal, Reset, TruncateFrom
from dledger.core.types import EntryRange, HardState, Impairment, LogState, ResponseCode, Role
from tests.support.long_runs import examples

PEERS = ("n1", "n2")
indexes = st.integers(-1, 12)
terms = st.integers(-1, 6)
codes = st.sampled_from(ResponseCode)


@st.composite
def entry_ranges(draw: st.DrawFn) -> EntryRange:
    first_index = draw(st.integers(0, 12))
    last_index = first_index + draw(st.integers(0, 4))
    return EntryRange(first_index, last_index, draw(st.integers(0, 6)), b"entries")


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(VoteRequest, terms, terms, indexes, terms, st.booleans(), st.booleans()),
    st.builds(VoteResponse, terms, terms, st.booleans(), st.sampled_from(VoteResult)),
    st.builds(HeartbeatRequest, terms, indexes),
    st.builds(HeartbeatResponse, terms, indexes, st.booleans()),
    st.builds(CommitRequest, terms, indexes),
    st.builds(AppendRequest, terms, indexes, terms, entry_ranges()),
    st.builds(AppendResponse, terms, codes, indexes, indexes, indexes),
    st.builds(CompareRequest, terms, indexes, indexes, terms),
    st.builds(CompareResponse, terms, codes, indexes, indexes, indexes, terms, indexes, terms),
    st.builds(TruncateRequest, terms, indexes, indexes, terms, indexes, st.booleans(), indexes, terms),
    st.builds(TruncateResponse, terms, codes, indexes, indexes),
    st.builds(TakeLeadershipRequest, terms, indexes),
    st.builds(RepairRequest, terms, st.integers(0, 2)),
    st.builds(RepairResponse, terms, st.integers(0, 2), st.booleans(), indexes),
)


class ModelLog:
    """A host's log that holds terms only, and checks that the operations it is given fit."""

    def __init__(self) -> None:
        self.shape = EpochCache(LogState(0, -1, (), -1))

    @property
    def end_position(self) -> int:
        return self.shape.end_index + 1

    def position_of(self, index: int) -> int:
        assert self.shape.begin_index <= index <= self.shape.end_index, index
        return index

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        assert self.shape.begin_index <= first_index <= last_index <= self.shape.end_index, first_index
        term = self.shape.term_at(first_index)
        return EntryRange(first_index, min(last_index, self.shape.end_index_for(term)[1]), term, b"entries")

    def configurations_in(self, entries: EntryRange) -> Sequence[ConfigurationEntry]:
        return ()

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        return True

    def apply(self, operation: Any) -> None:
        match operation:
            case Append(entries):
                assert entries.first_index == self.shape.end_index + 1, entries
                self.shape.extend(entries.term, entries.last_index)
            case TruncateFrom(index):
                self.shape.truncate_from(index)
            case Reset(begin_index, _):
                self.shape.reset(begin_index, -1)


class LowRng:
    def between(self, low: int, high: int) -> int:
        return low


class NodeMachine(RuleBasedStateMachine):
    """A node among peers that say anything."""

    impairment: Impairment | None = None

    def __init__(self) -> None:
        super().__init__()
        self.log = ModelLog()
        self.now_ms = 0
        self.commit_index = -1
        self.term = 0
        self.waiting: set[int] = set()
        config = Config("g", "n0", ("n0", *PEERS), pending_appends_max=5, out_of_order_pushes_max=2)
        self.node = Node(
            config, HardState(0, None), LogState(0, -1, (), -1), self.log, LowRng(), 0, self.impairment
        )

    @rule(sender=st.sampled_from(PEERS), message=messages)
    def receive(self, sender: str, message: Message) -> None:
        self.node.receive(sender, message, self.now_ms)
        self.turn()

    @rule(sender=st.sampled_from(PEERS), some=st.lists(messages, max_size=4))
    def receive_several_in_one_turn(self, sender: str, some: list[Message]) -> None:
        for message in some:
            self.node.receive(sender, message, self.now_ms)
            self.lay_out_term_start()
        self.turn()

    @rule(entries=entry_ranges(), term=terms)
    def receive_append_at_the_end(self, entries: EntryRange, term: int) -> None:
        node = self.node
        last_index = node.end_index + 1 + entries.last_index - entries.first_index
        fitting = EntryRange(node.end_index + 1, last_index, entries.term, entries.data)
        node.receive("n1", AppendRequest(node.term, last_index, node.end_term, fitting), self.now_ms)
        node.receive("n1", AppendRequest(term, last_index, node.end_term, entries), self.now_ms)
        self.turn()

    @rule(index=indexes, prev_term=terms, is_reset=st.booleans())
    def receive_truncate_of_this_log(self, index: int, prev_term: int, is_reset: bool) -> None:
        node = self.node
        end = (node.end_index, node.end_term)
        request = TruncateRequest(node.term, -1, index, prev_term, 0, is_reset, *end)
        node.receive("n1", request, self.now_ms)
        self.turn()

    @rule()
    def win_an_election(self) -> None:
        self.now_ms += 3_000
        self.node.tick(self.now_ms)
        for is_pre_vote in (True, False):
            term = self.node.term
            ballot_term = term + is_pre_vote
            self.node.receive(
                "n1", VoteResponse(term, ballot_term, is_pre_vote, VoteResult.ACCEPT), self.now_ms
            )
        self.turn()

    @rule(wait_ms=st.integers(0, 2_000))
    def tick(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.node.tick(self.now_ms)
        self.turn()

    @rule(count=st.integers(0, 4))
    def propose(self, count: int) -> None:
        code = self.node.check_append(count)
        proposal = self.node.propose(count, self.now_ms)
        assert isinstance(proposal, Proposal) == (code is ResponseCode.SUCCESS)
        if isinstance(proposal, Proposal):
            self.lay_out(proposal)
            self.waiting.add(proposal.first_index)
        self.turn()

    @rule(index=indexes, term=terms)
    def persisted(self, index: int, term: int) -> None:
        self.node.persisted(index, term, self.now_ms)
        self.turn()

    @rule(peer=st.sampled_from(PEERS), is_connected=st.booleans())
    def connection(self, peer: str, is_connected: bool) -> None:
        change = self.node.peer_connected if is_connected else self.node.peer_disconnected
        change(peer, self.now_ms)
        self.turn()

    @rule(peer=st.sampled_from(("n0", *PEERS, "n9")))
    def transfer(self, peer: str) -> None:
        self.node.transfer_leadership(peer, self.now_ms)
        self.turn()

    @rule(is_full=st.booleans())
    def disk(self, is_full: bool) -> None:
        self.node.set_disk_full(is_full)

    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        begin_index = data.draw(st.integers(self.node.begin_index, self.node.commit_index + 1))
        self.node.log_begins_at(begin_index)
        self.log.shape.truncate_before(begin_index)
        self.turn()

    def lay_out(self, proposal: Proposal) -> None:
        assert proposal.first_index == self.log.shape.end_index + 1, proposal
        self.log.shape.extend(proposal.term, proposal.last_index)

    def lay_out_term_start(self) -> None:
        start = self.node.take_term_start()
        if start is not None:
            self.lay_out(start)

    def turn(self) -> None:
        self.lay_out_term_start()
        self.carry_out(self.node.take_output(self.now_ms))

    def carry_out(self, output: Output) -> None:
        for operation in output.log_ops:
            self.log.apply(operation)
        assert output.commit_index >= self.commit_index, (output.commit_index, self.commit_index)
        self.commit_index = output.commit_index
        for completion in output.completions:
            self.complete(completion)
        if output.is_healed:
            self.node.healed()

    def complete(self, completion: Completion) -> None:
        self.waiting.remove(completion.first_index)
        assert completion.code is not ResponseCode.SUCCESS or completion.last_index <= self.commit_index

    @invariant()
    def node_is_sound(self) -> None:
        self.node.check_invariants()
        assert self.node.term >= self.term
        self.term = self.node.term
        assert (self.node.begin_index, self.node.end_index) == (
            self.log.shape.begin_index,
            self.log.shape.end_index,
        )
        assert self.node.status(self.now_ms).epochs == self.log.shape.epochs
        assert self.node.role is Role.LEADER or not self.waiting


class ImpairedNodeMachine(NodeMachine):
    """A node that lost its vote; some answers are to its own question."""

    impairment = Impairment(1, True, "lost")


ImpairedNodeMachine.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=50, deadline=None
)
TestImpairedNodeMachine = ImpairedNodeMachine.TestCase
NodeMachine.TestCase.settings = ImpairedNodeMachine.TestCase.settings
TestNodeMachine = NodeMachine.TestCase
