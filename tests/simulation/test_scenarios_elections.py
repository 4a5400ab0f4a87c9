"""Histories of lost leaders that broke replicated logs elsewhere, with every invariant checked."""

import random
from dataclasses import replace

import pytest

from dledger.core.messages import (
    AppendRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.types import HardState, ResponseCode, Role
from tests.simulation.script import Script, power_loss
from tests.simulation.workload import Outcome


def figure_8(script: Script) -> tuple[int, int]:
    """Raft Figure 8 up to (c): an old entry comes to stand on a majority. Returns its index and term."""
    n0, n4 = script.elect("n0"), script["n4"]
    script.until_converged()
    script.isolate("n0", "n1")
    old = script.propose("n0")
    script.until(lambda: script["n1"].store.disk.end_index >= old.first_index, "n1 holds the entry")
    old_term = n0.node.term
    power_loss(n0)
    script.lead("n4")
    script.drop(lambda sender, _to, message: sender == "n4" and isinstance(message, AppendRequest))
    script.until(lambda: n4.store.disk.end_index >= old.first_index, "n4 holds its own entry")
    power_loss(n4)
    script.heal()
    n0.start()
    return old.first_index, old_term


def test_s1_entry_of_an_old_term_on_a_majority_is_not_committed_and_may_be_replaced() -> None:
    """Raft Figure 8 (a)-(d): counting replicas commits nothing of an earlier term (section 5.4.2)."""
    script = Script(nodes=5)
    script.elect("n0")
    index, term = figure_8(script)
    n0, n4 = script["n0"], script["n4"]
    script.drop(
        lambda _from, _to, message: isinstance(message, AppendRequest) and message.entries.term > term
    )
    script.lead("n0")
    script.until(
        lambda: all(script[name].store.disk.end_index >= index for name in ("n0", "n1", "n2")),
        "the old entry on a majority",
    )
    script.run(500)
    assert n0.node.commit_index < index
    power_loss(n0)
    n4.start()
    script.drop(lambda sender, _to, _message: sender == "n1")
    script.elect("n4")
    assert script.world.checker.committed[index].term > term
    script.drop(None)
    n0.start()
    script.until_converged()


def test_s1_entry_of_an_old_term_is_committed_with_one_of_the_new_term() -> None:
    """Raft Figure 8 (e): once an entry of the new term is committed, the old one can't be replaced."""
    script = Script(nodes=5)
    script.elect("n0")
    index, term = figure_8(script)
    script.drop(None)
    script.elect("n0")
    assert script.world.checker.committed[index].term == term
    power_loss(script["n0"])
    script["n4"].start()
    script.until(lambda: script.world.leader() is not None, "a leader")
    script["n0"].start()
    script.until_converged(20_000)
    assert script.world.checker.committed[index].term == term


@pytest.mark.parametrize("lost", [("n0", "n1"), ("n0", "n1", "n2")])
def test_s2_power_loss_right_after_the_acknowledgement_loses_nothing(lost: tuple[str, ...]) -> None:
    script = Script()
    script.elect("n0")
    operation = script.write("n0", 3)
    power_loss(*(script[name] for name in lost))
    for name in lost:
        script[name].start()
    script.until_converged()
    assert script.committed_bodies() == list(operation.bodies)


@pytest.mark.parametrize("crashed", ["n1", "n2"])
def test_s2_power_loss_of_one_node_and_partition_of_another(crashed: str) -> None:
    """One of three loses power just when another is cut off: the acknowledged entry is on the third too."""
    script = Script()
    script.elect("n0")
    operation = script.write("n0")
    script.isolate("n0")
    power_loss(script[crashed])
    script[crashed].start()
    script.until(lambda: any(script.leads(name) for name in ("n1", "n2")), "a new leader")
    script.heal()
    script.until_converged()
    assert script.committed_bodies() == list(operation.bodies)


@pytest.mark.parametrize("is_file_renamed", [False, True])
def test_s3_crash_between_vote_and_vote_file(is_file_renamed: bool) -> None:
    """No vote leaves before its file is durable, whether or not the file survives."""
    script = Script()
    voter = script["n2"]
    script.world.network.cut("n0", "n1")

    def is_voting() -> bool:
        batch = voter.batch_in_flight
        return batch is not None and batch.hard_state is not None and batch.hard_state.voted_for == "n0"

    script.let_only("n0")
    script.until(is_voting, "n2 about to vote for n0")
    voted = voter.batch_in_flight.hard_state  # type: ignore[union-attr]
    power_loss(voter)
    votes = [m for _, _, m in script.messages if isinstance(m, VoteResponse) and not m.is_pre_vote]
    assert not votes
    if is_file_renamed:
        voter.hard_state = voted or HardState(0, None)
    voter.start()
    script.heal()
    script.let_only("n1")
    script.until_converged()
    granted = [
        (sender, to, m.ballot_term)
        for sender, to, m in script.messages
        if isinstance(m, VoteResponse) and not m.is_pre_vote and m.result is VoteResult.ACCEPT
    ]
    assert len({(sender, term) for sender, _, term in granted}) == len(set(granted))


def test_s8_isolated_follower_comes_back_without_disturbing() -> None:
    """openmessaging/dledger#325: pre-vote keeps its term down; it follows again within a beat or two."""
    script = Script()
    n0 = script.elect("n0")
    term = n0.node.term
    script.isolate("n2")
    script.run(60_000)
    script.write("n0")
    script.heal()
    script.until_converged(2_000)
    script.run(5_000)
    assert script.leads("n0")
    assert {host.node.term for host in script.hosts.values()} == {term}


def test_s12_all_nodes_killed_and_restarted_at_once_go_on_writing() -> None:
    """apache/rocketmq#7689: no index is given twice after a restart."""
    script = Script()
    script.elect("n0")
    first = script.write("n0", 5)
    script.propose("n0", 5)
    power_loss(*script.hosts.values())
    for host in script.hosts.values():
        host.start()
    script.until(lambda: script.world.leader() is not None, "a leader")
    leader = script.world.leader()
    assert leader is not None
    script.elect(leader.name)
    second = script.write(leader.name, 5)
    assert second.first_index > first.first_index + 4
    script.until_converged()


def test_s13_leader_that_hears_nobody_steps_down() -> None:
    """rocketmq#4800: its beats arrive, so only check-quorum ends its leadership."""
    script = Script()
    n0 = script.elect("n0")
    script.until_converged()
    for name in ("n1", "n2"):
        script.world.network.cut(name, "n0")
    lost = script.propose("n0")
    script.until(lambda: n0.node.role is not Role.LEADER, "n0 steps down", 2_000)
    assert lost.code is not ResponseCode.SUCCESS
    script.until(lambda: script.leads("n1") or script.leads("n2"), "a new leader", 5_000)
    new_leader = "n1" if script.leads("n1") else "n2"
    script.write(new_leader)
    script.heal()
    script.until_converged()


def test_s13_leader_that_nobody_hears_is_replaced_and_steps_down() -> None:
    """rocketmq#6662: clients on both sides; the old leader acknowledges nothing."""
    script = Script()
    n0 = script.elect("n0")
    script.until_converged()
    for name in ("n1", "n2"):
        script.world.network.cut("n0", name)
    lost = script.propose("n0")
    script.until(lambda: script.leads("n1") or script.leads("n2"), "a new leader", 5_000)
    new_leader = "n1" if script.leads("n1") else "n2"
    script.write(new_leader)
    script.until(lambda: n0.node.role is not Role.LEADER, "n0 steps down", 2_000)
    assert lost.outcome is not Outcome.ACKNOWLEDGED
    script.heal()
    script.until_converged()


def test_s18_append_tried_again_after_a_failover_stands_in_the_log_once() -> None:
    """A client whose append timed out in a partition tries at the new leader: one copy, in order."""
    script = Script()
    script.elect("n0")
    before = script.write("n0", 2)
    script.isolate("n0")
    timed_out = script.propose("n0", 2)
    script.until(lambda: timed_out.code is not None, "the first try fails")
    assert timed_out.code in (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED)
    script.until(lambda: script.leads("n1") or script.leads("n2"), "a new leader")
    leader = script["n1" if script.leads("n1") else "n2"]
    answers: list[ResponseCode] = []
    code, _ = leader.propose(timed_out.bodies, answers.append)
    assert code is ResponseCode.SUCCESS
    script.until(lambda: bool(answers), "the second try is answered")
    assert answers == [ResponseCode.SUCCESS]
    script.heal()
    script.until_converged()
    assert script.committed_bodies() == [*before.bodies, *timed_out.bodies]


def test_crash_in_the_middle_of_a_batch_keeps_a_prefix() -> None:
    """A power loss while a batch is on its way to the disk leaves some of its entries, never a gap."""
    for seed in range(50):
        script = Script()
        script.elect("n0")
        script.propose("n0", 8)
        n0 = script["n0"]
        script.until(lambda n0=n0: n0.batch_in_flight is not None, "a batch on its way")  # type: ignore[misc]
        n0.crash(random.Random(seed))
        n0.start()
        script.until_converged()


def test_node_told_of_lost_connections_by_mistake_still_wins_an_election() -> None:
    """Who speaks can be reached, whatever was said of its connection."""
    script = Script()
    script.elect("n1")
    script.until_converged()
    script.world.network.options = replace(script.world.network.options, hint_probability=0.0)
    for peer in ("n1", "n2"):
        script["n0"].peer_disconnected(peer)
    script.run(100)
    power_loss(script["n1"])
    script.elect("n0")
