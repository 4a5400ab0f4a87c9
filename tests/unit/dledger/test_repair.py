"""dledger.core: what an impaired node does and does not do, rule by rule."""

import pytest

from dledger.core.config import Config
from dledger.core.events import EntryDamaged, Healed, Impaired, MessageIgnored
from dledger.core.membership import Configuration, ConfigurationEntry, Member, MemberRole
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    RepairRequest,
    RepairResponse,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.node import Node
from dledger.core.output import Output
from dledger.core.types import (
    DamagedEntryError,
    EntryRange,
    HardState,
    Impairment,
    ResponseCode,
    Role,
)
from tests.support.memory_log import MemoryLog

NAMES = ("n0", "n1", "n2")
LOG_LOST = Impairment(7, False, "the log")
VOTE_LOST = Impairment(7, True, "the vote")


class LowRng:
    def between(self, low: int, high: int) -> int:
        return low


class Bench:
    """Node n0 of three, with `entries` entries of term 1, in term `term`."""

    def __init__(
        self, impairment: Impairment | None, entries: int = 0, term: int = 1, names: tuple[str, ...] = NAMES
    ) -> None:
        self.store = MemoryLog()
        if entries:
            self.store.append_bodies(0, 1, [b"x"] * entries)
            self.store.write(self.store.take_writes() or pytest.fail("no writes"), sync=True)
        self.now_ms = 0
        config = Config("g", "n0", names)
        state = self.store.log_state()
        self.node = Node(config, HardState(term, None), state, self.store, LowRng(), 0, impairment)

    def receive(self, sender: str, message: Message) -> Output:
        self.node.receive(sender, message, self.now_ms)
        return self.take()

    def take(self) -> Output:
        output = self.node.take_output(self.now_ms)
        self.node.check_invariants()
        return output

    def tick(self, wait_ms: int) -> Output:
        self.now_ms += wait_ms
        self.node.tick(self.now_ms)
        return self.take()

    def persist(self) -> Output:
        self.node.persisted(self.node.end_index, self.node.end_term, self.now_ms)
        return self.take()

    def append(self, leader: str, first_index: int, last_index: int, term: int = 1) -> Output:
        entries = EntryRange(first_index, last_index, term, b"x")
        return self.receive(leader, AppendRequest(self.node.term, -1, self.node.end_term, entries))


def asked(output: Output) -> list[str]:
    return [one.to for one in output.send_now if isinstance(one.message, RepairRequest)]


def answer(end_index: int, *, term: int = 1, is_leader: bool = False, repair_id: int = 7) -> RepairResponse:
    return RepairResponse(term, repair_id, is_leader, end_index)


def vote_request(term: int, last_index: int = 99, *, is_pre_vote: bool = False) -> VoteRequest:
    return VoteRequest(term - is_pre_vote, term, last_index, term - 1, is_pre_vote, False)


# ---- no vote


@pytest.mark.parametrize("impairment", [LOG_LOST, VOTE_LOST])
@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_impaired_node_gives_no_vote(impairment: Impairment, is_pre_vote: bool) -> None:
    bench = Bench(impairment, entries=2)
    output = bench.receive("n1", vote_request(2, is_pre_vote=is_pre_vote))
    answers = [
        one.message
        for one in (*output.send_now, *output.send_after_persist)
        if isinstance(one.message, VoteResponse)
    ]
    assert [one.result for one in answers] == [VoteResult.REJECT_IMPAIRED]
    assert bench.node.voted_for is None


@pytest.mark.parametrize("impairment", [LOG_LOST, VOTE_LOST])
def test_impaired_node_never_campaigns(impairment: Impairment) -> None:
    bench = Bench(impairment, entries=2)
    for _ in range(5):
        bench.tick(1_500)
    bench.node.peer_disconnected("n1", bench.now_ms)
    bench.tick(1_500)
    assert (bench.node.role, bench.node.term) == (Role.FOLLOWER, 1)


def test_impaired_node_forgets_a_leader_that_is_silent() -> None:
    bench = Bench(LOG_LOST, entries=2)
    bench.receive("n1", HeartbeatRequest(1, -1))
    assert bench.node.leader_id == "n1"
    bench.tick(1_500)
    assert bench.node.leader_id is None


def test_impaired_node_takes_no_leadership() -> None:
    bench = Bench(LOG_LOST, entries=2)
    output = bench.receive("n1", TakeLeadershipRequest(1, -1))
    assert bench.node.role is Role.FOLLOWER
    assert any(isinstance(event, MessageIgnored) for event in output.events)


def test_status_event_and_heartbeat_report_the_impairment() -> None:
    bench = Bench(LOG_LOST, entries=2)
    output = bench.receive("n1", HeartbeatRequest(1, -1))
    assert Impaired("the log") in output.events
    assert HeartbeatResponse(1, 1, True) in [one.message for one in output.send_now]
    assert bench.node.status(0).impairment == "the log"
    assert Bench(None).node.status(0).impairment is None


# ---- asking


def test_everybody_is_asked_at_first_and_once_in_an_interval() -> None:
    bench = Bench(LOG_LOST)
    assert asked(bench.take()) == ["n1", "n2"]
    assert asked(bench.tick(249)) == []
    assert bench.node.deadline_ms() == 250
    assert asked(bench.tick(1)) == ["n1", "n2"]


def test_peer_that_connects_is_asked_at_once() -> None:
    bench = Bench(LOG_LOST)
    bench.take()
    bench.node.peer_connected("n2", 1)
    assert asked(bench.take()) == ["n2"]


def test_every_member_answers_and_says_whether_it_leads() -> None:
    bench = Bench(None, entries=3)
    output = bench.receive("n2", RepairRequest(1, 55))
    assert [one.message for one in output.send_now] == [RepairResponse(1, 55, False, 2)]
    impaired = Bench(VOTE_LOST, entries=3).receive("n2", RepairRequest(1, 55))
    assert RepairResponse(1, 55, False, 2) in [one.message for one in impaired.send_now]


def test_nobody_is_asked_any_more_once_healed() -> None:
    bench = Bench(LOG_LOST, entries=3)
    bench.receive("n1", HeartbeatRequest(1, 2))
    assert bench.receive("n1", answer(-1, is_leader=True)).is_healed
    assert asked(bench.tick(250)) == []


def test_peer_that_connects_after_healing_is_not_asked() -> None:
    bench = Bench(LOG_LOST, entries=3)
    bench.receive("n1", HeartbeatRequest(1, 2))
    assert bench.receive("n1", answer(-1, is_leader=True)).is_healed
    bench.node.peer_connected("n2", bench.now_ms)
    assert asked(bench.take()) == []


# ---- healing


def test_healed_only_when_the_leaders_end_is_compared_and_on_the_disk() -> None:
    bench = Bench(LOG_LOST, entries=1)
    bench.receive("n1", HeartbeatRequest(1, -1))
    assert not bench.receive("n1", answer(2, is_leader=True)).is_healed
    assert not bench.append("n1", 1, 1).is_healed
    assert not bench.persist().is_healed
    assert not bench.append("n1", 2, 2).is_healed, "in memory is not enough"
    output = bench.persist()
    assert output.is_healed
    assert output.hard_state == HardState(1, None), "it has not forgotten its vote"
    assert bench.node.is_impaired, "until the mark is gone"
    assert not bench.tick(10).is_healed, "said once"
    bench.node.healed()
    assert Healed("the log") in bench.take().events
    assert not bench.node.is_impaired


def test_own_entries_count_only_once_they_are_known_to_be_the_leaders() -> None:
    bench = Bench(LOG_LOST, entries=5)
    bench.receive("n1", HeartbeatRequest(1, -1))
    assert not bench.receive("n1", answer(2, is_leader=True)).is_healed
    assert bench.receive("n1", CompareRequest(1, -1, 4, 1)).is_healed


def test_answer_of_one_that_does_not_lead_is_no_target() -> None:
    bench = Bench(LOG_LOST, entries=5)
    bench.receive("n1", HeartbeatRequest(1, 4))
    bench.receive("n1", CompareRequest(1, 4, 4, 1))
    assert not bench.receive("n2", answer(0)).is_healed


def test_target_of_an_older_term_is_void() -> None:
    bench = Bench(LOG_LOST, entries=3)
    bench.receive("n1", answer(2, is_leader=True))
    bench.receive("n2", HeartbeatRequest(2, -1))
    assert not bench.receive("n2", CompareRequest(2, -1, 2, 1)).is_healed
    assert bench.receive("n2", answer(2, term=2, is_leader=True)).is_healed


def test_answer_to_an_earlier_impairment_is_not_counted() -> None:
    bench = Bench(LOG_LOST, entries=3)
    bench.receive("n1", CompareRequest(1, -1, 2, 1))
    assert not bench.receive("n1", answer(2, is_leader=True, repair_id=6)).is_healed
    assert bench.receive("n1", answer(2, is_leader=True)).is_healed


# ---- the vote lost


def test_nothing_of_a_leader_is_taken_before_all_have_answered() -> None:
    bench = Bench(VOTE_LOST, entries=3)
    bench.receive("n1", answer(2, is_leader=True))
    for request in (HeartbeatRequest(1, 2), CompareRequest(1, 2, 2, 1)):
        output = bench.receive("n1", request)
        assert not [one for one in output.send_now if isinstance(one.message, HeartbeatResponse)]
        assert output.send_after_persist == ()
    assert bench.append("n1", 3, 3).log_ops == ()
    assert bench.node.leader_id is None
    bench.receive("n2", answer(0))
    output = bench.receive("n1", CompareRequest(1, 2, 2, 1))
    assert [type(one.message) for one in output.send_after_persist] == [CompareResponse]
    assert output.is_healed


def test_answers_from_an_earlier_generation_do_not_count() -> None:
    """n1 there may be another node than n1 of the group that was recovered."""
    bench = Bench(VOTE_LOST, entries=3)
    bench.receive("n1", answer(0))
    bench.node.take_generation(1)
    bench.receive("n2", answer(2, is_leader=True))
    assert not bench.receive("n2", CompareRequest(1, -1, 2, 1)).is_healed
    assert "n1" in asked(bench.tick(1_000))
    bench.receive("n1", answer(0))
    bench.receive("n2", answer(2, is_leader=True))
    assert bench.receive("n2", CompareRequest(1, -1, 2, 1)).is_healed


def test_a_node_that_is_healed_takes_no_generation() -> None:
    bench = Bench(VOTE_LOST, entries=3)
    bench.receive("n1", answer(2, is_leader=True))
    bench.receive("n2", answer(0))
    assert bench.node.is_vote_lost
    assert bench.receive("n1", CompareRequest(1, -1, 2, 1)).is_healed
    assert not bench.node.is_vote_lost, "before its mark is removed, too"


def test_answers_of_higher_terms_are_adopted_and_the_vote_in_it_is_spent() -> None:
    bench = Bench(VOTE_LOST, entries=3)
    bench.receive("n1", answer(2, is_leader=True))
    bench.receive("n2", answer(2, term=6))
    assert bench.node.term == 6
    assert not bench.receive("n1", HeartbeatRequest(1, 2)).is_healed
    bench.receive("n2", CompareRequest(6, -1, 2, 1))
    output = bench.receive("n2", answer(2, term=6, is_leader=True))
    assert output.is_healed
    assert output.hard_state == HardState(6, "n0")
    bench.node.healed()
    bench.now_ms += 5_000
    refused = bench.receive("n1", VoteRequest(6, 6, 99, 6, False, True))
    assert [one.message for one in refused.send_after_persist] == [
        VoteResponse(6, 6, False, VoteResult.REJECT_ALREADY_VOTED)
    ]
    given = bench.receive("n1", VoteRequest(7, 7, 99, 6, False, True))
    assert [one.message for one in given.send_after_persist] == [VoteResponse(7, 7, False, VoteResult.ACCEPT)]


# ---- a new group


def test_group_of_empty_logs_needs_no_leader() -> None:
    bench = Bench(VOTE_LOST, term=0)
    assert not bench.receive("n1", answer(-1, term=0)).is_healed
    output = bench.receive("n2", answer(-1, term=0))
    assert output.is_healed
    assert output.hard_state == HardState(0, None)


def test_new_group_of_which_one_has_voted_already() -> None:
    """It lost power before the others had heard of its term."""
    bench = Bench(VOTE_LOST, term=0)
    bench.receive("n1", answer(-1, term=3))
    output = bench.receive("n2", answer(-1, term=0))
    assert output.is_healed
    assert output.hard_state == HardState(3, "n0")


@pytest.mark.parametrize("end_indexes", [(-1, 0), (0, -1), (4, 4)])
def test_group_in_which_one_has_entries_is_not_new(end_indexes: tuple[int, int]) -> None:
    bench = Bench(VOTE_LOST, term=0)
    outputs = [bench.receive(peer, answer(end)) for peer, end in zip(("n1", "n2"), end_indexes, strict=True)]
    assert not any(output.is_healed for output in outputs)


def test_node_with_entries_does_not_make_a_new_group() -> None:
    bench = Bench(VOTE_LOST, entries=1)
    outputs = [bench.receive(peer, answer(-1)) for peer in ("n1", "n2")]
    assert not any(output.is_healed for output in outputs)


def test_a_log_that_ends_where_the_node_was_alone_does_not_heal_it() -> None:
    """It is filled up: who its group is by now, others say."""
    bench = Bench(VOTE_LOST, entries=3, names=("n0",))
    assert not bench.tick(10_000).is_healed
    bench.receive("n1", HeartbeatRequest(1, 2))
    assert (bench.node.leader_id, bench.node.role) == (None, Role.FOLLOWER)
    assert asked(bench.tick(1_000)) == ["n1"]
    voters = ConfigurationEntry(5, 1, Configuration.of_voters(("n0", "n1", "n2"), 3))
    bench.receive("n1", RepairResponse(1, 7, True, 5, voters))
    bench.receive("n1", HeartbeatRequest(1, 2))
    assert bench.node.leader_id is None, "n2 has not answered"
    bench.receive("n2", RepairResponse(1, 7, False, 5, voters))
    bench.receive("n1", HeartbeatRequest(1, 2))
    assert bench.node.leader_id == "n1"


def test_healed_out_of_turn_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="not impaired"):
        Bench(None).node.healed()
    with pytest.raises(AssertionError, match="not healed yet"):
        Bench(LOG_LOST).node.healed()


# ---- the leader's side, and damage in place


def leading(entries: int = 3) -> Bench:
    """n0 leads term 2 on `entries` entries and its own first; n1 and n2 hold everything."""
    bench = Bench(None, entries)
    bench.tick(1_500)
    bench.receive("n1", VoteResponse(1, 2, True, VoteResult.ACCEPT))
    bench.node.receive("n1", VoteResponse(2, 2, False, VoteResult.ACCEPT), bench.now_ms)
    bench.take()
    start = bench.node.take_term_start()
    assert start is not None
    bench.store.append_bodies(start.first_index, 2, [b"start"])
    bench.take()
    bench.persist()
    for peer in ("n1", "n2"):
        answer = CompareResponse(2, ResponseCode.SUCCESS, entries - 1, 0, entries - 1, 1, entries - 1, 1)
        bench.receive(peer, answer)
        bench.receive(peer, AppendResponse(2, ResponseCode.SUCCESS, entries, entries, entries))
    assert bench.node.commit_index == entries
    return bench


def test_an_answer_that_nothing_waits_for_is_passed_over() -> None:
    bench = leading()
    output = bench.receive("n1", answer(9, term=2, is_leader=True))
    assert not output.send_now
    assert bench.node.status(bench.now_ms).role is Role.LEADER


def test_leader_counts_nothing_of_a_peer_that_lost_its_log_until_it_is_compared() -> None:
    bench = leading()
    assert bench.node.status(bench.now_ms).watermarks_by_term[2]["n1"] == 3
    output = bench.receive("n1", RepairRequest(2, 5))
    assert RepairResponse(2, 5, True, 3) in [one.message for one in output.send_now]
    assert bench.node.status(bench.now_ms).watermarks_by_term[2]["n1"] == -1
    again = bench.receive("n1", RepairRequest(2, 5))
    assert not [one for one in again.send_now if isinstance(one.message, CompareRequest)], "asked already"


def test_leadership_goes_to_nobody_that_is_impaired_or_damaged() -> None:
    bench = leading()
    bench.receive("n1", HeartbeatResponse(2, 3, True))
    assert bench.node.transfer_leadership("n1", bench.now_ms) is ResponseCode.TAKE_LEADERSHIP_FAILED
    bench.receive("n1", HeartbeatResponse(2, 3, False))
    assert bench.node.transfer_leadership("n1", bench.now_ms) is ResponseCode.SUCCESS


def test_damaged_entry_stops_the_pushes_to_those_who_need_it_and_nothing_else() -> None:
    bench = leading()
    bench.store.damaged = {1}
    lagging = CompareResponse(2, ResponseCode.INCONSISTENT_STATE, 3, 0, 0, 1, 0, 1)
    bench.node.peer_connected("n2", bench.now_ms)
    bench.take()
    output = bench.receive("n2", lagging)
    assert EntryDamaged(1, 1, "bad sector") in output.events
    assert not [one for one in output.send_now if isinstance(one.message, AppendRequest)]
    assert not [event for event in bench.tick(999).events if isinstance(event, EntryDamaged)]
    assert bench.node.deadline_ms() <= bench.now_ms + 250
    bench.store.damaged.clear()
    pushed = [one.message for one in bench.tick(1).send_now if isinstance(one.message, AppendRequest)]
    assert [one.entries.first_index for one in pushed][:1] == [1]


def test_leader_that_cannot_read_what_is_not_committed_stops() -> None:
    """Perhaps nobody else has it, and with this leader nothing would ever be committed again."""
    bench = leading()
    proposal = bench.node.propose(1, bench.now_ms)
    bench.store.append_bodies(4, 2, [b"x"])
    bench.store.damaged = {4}
    assert not hasattr(proposal, "code")
    with pytest.raises(DamagedEntryError):
        bench.take()


def test_damaged_node_votes_but_does_not_campaign() -> None:
    bench = Bench(None, entries=2)
    bench.node.set_damaged("damaged entries 0..0")
    bench.tick(1_500)
    assert bench.node.status(0).role is Role.FOLLOWER
    assert bench.node.status(0).impairment == "damaged entries 0..0"
    output = bench.receive("n1", vote_request(2))
    assert [one.message for one in output.send_after_persist] == [
        VoteResponse(2, 2, False, VoteResult.ACCEPT)
    ]
    bench.node.set_damaged(None)
    bench.tick(1_500)
    assert bench.node.status(0).role is Role.CANDIDATE


def test_the_newest_configuration_says_who_must_answer() -> None:
    """n0 lost its disk. Its file names n1 and n2; n2 is gone, and n3 and n4 may know a newer term."""
    bench = Bench(VOTE_LOST)
    members = Configuration.of_voters(("n0", "n1", "n3", "n4"), 3)
    newest = ConfigurationEntry(5, 4, members)
    bench.receive("n1", RepairResponse(4, 7, False, 9, newest))
    bench.receive("n2", RepairResponse(1, 7, False, 3))
    bench.receive("n9", HeartbeatRequest(4, 0))
    assert bench.node.leader_id is None
    asked = {
        envelope.to for envelope in bench.tick(1_000).send_now if isinstance(envelope.message, RepairRequest)
    }
    assert {"n3", "n4"} <= asked
    for name in ("n3", "n4"):
        bench.receive(name, RepairResponse(4, 7, False, 9, newest))
    bench.receive("n1", HeartbeatRequest(4, 0))
    assert bench.node.leader_id == "n1"


def test_a_leader_that_is_no_known_member_is_asked_once_in_an_interval() -> None:
    """n0 was away while all the others were replaced."""
    bench = Bench(VOTE_LOST)
    sent = [*bench.receive("n9", HeartbeatRequest(4, 0)).send_now, *bench.tick(1_000).send_now]
    asked = [each.to for each in sent if isinstance(each.message, RepairRequest)]
    assert asked == ["n1", "n2", "n9"] * 2
    assert not bench.receive("n9", HeartbeatRequest(4, 0)).send_now


def test_a_leader_may_say_that_the_node_is_a_learner() -> None:
    bench = Bench(VOTE_LOST)
    members = Configuration.of_voters(("n1", "n2"), 3).with_member(Member("n0", "", 0, MemberRole.JOINING))
    bench.receive("n1", RepairResponse(4, 7, False, 9, ConfigurationEntry(5, 4, members)))
    bench.receive("n1", HeartbeatRequest(4, 0))
    assert bench.node.leader_id is None, "only a leader's word counts"
    bench.receive("n1", RepairResponse(4, 7, True, 9, ConfigurationEntry(5, 4, members)))
    bench.receive("n1", HeartbeatRequest(4, 0))
    assert bench.node.leader_id == "n1"
