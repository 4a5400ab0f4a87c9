"""What a node that lost entries, its vote or its disk may not do, with every invariant checked."""

import dataclasses
from collections.abc import Callable

import pytest

from dledger.core.messages import VoteRequest
from dledger.core.types import Role
from tests.simulation.host import Host
from tests.simulation.options import draw_damaging_options
from tests.simulation.script import Script, power_loss
from tests.simulation.world import World

SILENT_MS = 20_000
"""Many times the longest election time-out."""


def lose_last(host: Host) -> None:
    host.shorten(host.store.disk.end_index - 1)


def lose_most(host: Host) -> None:
    host.shorten(host.store.disk.begin_index)


def lose_log_and_vote(host: Host) -> None:
    host.shorten(host.store.disk.end_index - 3)
    host.lose_vote()


def lose_disk(host: Host) -> None:
    host.wipe()


@pytest.mark.parametrize("damage", [lose_last, lose_most, lose_log_and_vote, lose_disk])
@pytest.mark.parametrize("is_lagging_alone", [False, True])
def test_damaged_node_is_never_elected_with_a_hole(
    damage: Callable[[Host], None], is_lagging_alone: bool
) -> None:
    """Entries stand on n0 and n1, n2 never saw them. n1 loses them, and n0 is down: no leader may come of the
    other two, though they are a majority, and the first one there is has every entry.
    """
    script = Script()
    script.elect("n0")
    script.write("n0", 3)
    script.until_converged()
    script.isolate("n2")
    for _ in range(4):
        script.write("n0", 2)
    script.until(lambda: script["n1"].node.commit_index == script["n0"].node.commit_index, "n1 has it all")
    written = script.committed_bodies()
    n0, n1, n2 = (script[name] for name in ("n0", "n1", "n2"))
    end_index = n0.node.end_index
    power_loss(n0, n1)
    damage(n1)
    script.heal()
    n1.start()
    if is_lagging_alone:
        script.let_only("n2")
    for _ in range(SILENT_MS // 100):
        script.run(100)
        assert n1.node.role is not Role.LEADER
        assert n2.node.role is not Role.LEADER
    assert n1.impairment is not None
    script.let_only(None)
    n0.start()
    script.until_converged(30_000)
    script.until(script.world.is_sound, "n1 votes again", 30_000)
    assert n1.store.disk.end_index >= end_index
    power_loss(n0)
    script.elect("n1")
    script.write("n1")
    assert script.committed_bodies()[: len(written)] == written


def test_candidate_that_lost_its_disk_may_vote_in_the_term_that_nobody_knows_of() -> None:
    """Its requests for votes of term 1 reached nobody who kept them. That candidacy is over, so its vote for
    another candidate of term 1 makes no second leader, and the old requests, coming late, make none either.
    """
    script = Script()
    script.let_only("n2")
    script.drop(lambda _sender, _to, message: isinstance(message, VoteRequest) and not message.is_pre_vote)
    n1, n2 = script["n1"], script["n2"]
    script.until(lambda: n2.node.term == 1, "n2 asks for votes of term 1")
    late = VoteRequest(1, 1, n2.node.end_index, n2.node.end_term, is_pre_vote=False, is_transfer=False)
    script.run(100)
    power_loss(n2)
    n2.wipe()
    script.drop(None)
    script.let_only("n1")
    n2.start()
    script.until(script.world.is_sound, "n2 votes again")
    assert n2.node.term == 0
    script.isolate("n0")
    script.until(lambda: script.leads("n1"), "n1 leads")
    assert (n1.node.term, n2.node.voted_for) == (1, "n1")
    script["n0"].deliver("n2", late)
    script.heal()
    script.until_converged()
    assert n2.node.role is Role.FOLLOWER
    script.write("n1")


@pytest.mark.parametrize("damage", [lose_last, lose_most, lose_log_and_vote, lose_disk, Host.lose_vote])
@pytest.mark.parametrize("is_longer", [False, True])
def test_group_of_two_heals_its_damaged_node_by_itself(
    damage: Callable[[Host], None], is_longer: bool
) -> None:
    """No majority is without the damaged one. The other holds all that was committed, so it may have the
    vote, even when the damaged one has kept entries that nobody else ever had.
    """
    script = Script(nodes=2)
    script.elect("n1")
    script.write("n1", 6)
    script.until_converged()
    n0, n1 = script["n0"], script["n1"]
    if is_longer:
        script.isolate("n1")
        script.propose("n1", 3)
        script.run(100)
        assert n1.store.disk.end_index == n0.store.disk.end_index + 3
    written = script.committed_bodies()
    power_loss(n1)
    script.run(5_000)
    damage(n1)
    script.heal()
    n1.start()
    script.until(lambda: script.leads("n0"), "n0 leads", 30_000)
    script.until(script.world.is_sound, "n1 is healed", 30_000)
    script.write("n0")
    assert script.committed_bodies()[: len(written)] == written


@pytest.mark.parametrize("seed", range(10))
def test_group_of_two_bears_damage_of_one_at_a_time(seed: int) -> None:
    options = dataclasses.replace(draw_damaging_options(seed), nodes=2, preferred_leader=None)
    assert options.damage.interval_ms > 0
    World(options).run()
