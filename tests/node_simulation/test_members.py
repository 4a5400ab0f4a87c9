"""Members that change under faults; and that the world sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dledger.core.membership import Configuration
from dledger.core.node import Node
from dledger.core.types import ResponseCode
from tests.node_simulation.invariants import overlap
from tests.node_simulation.membership import KINDS
from tests.node_simulation.options import FaultOptions, Options, draw_changing_options, draw_membership
from tests.node_simulation.programs import NodeProgram
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
SEEDS = range(4)
CHANGING = Options(
    seed=1,
    safety_ms=20_000,
    config=FILES,
    faults=FaultOptions(crash_ms=4_000, leader_bias=0.9, down_max_ms=500),
    membership=replace(draw_membership(1), change_ms=400),
)


KNOWN_SEEDS = (
    1026,  # a node that caught up dialled its leader at a former address, and cut the connection that worked
    5042,  # the same, and no leader could be elected any more
    5019,  # an impaired node whose known members had all left never asked the leader that pushed to it
    5071,  # the same
)


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_seeds_that_once_broke_something(seed: int) -> None:
    World(draw_changing_options(seed)).run()


def run_seeds(options: Options = CHANGING, seeds: range = SEEDS) -> Counter[str]:
    faults: Counter[str] = Counter()
    for seed in seeds:
        faults.update(World(replace(options, seed=seed)).run().faults)
    return faults


def test_groups_change_their_members_and_every_kind_of_change_is_drawn() -> None:
    faults = run_seeds(seeds=range(5))
    assert {f"member change: {kind}" for kind in KINDS} <= faults.keys()
    assert {"removed member left running", "stranger with an old configuration"} & faults.keys()


def test_drawn_groups_begin_with_one_to_five_members() -> None:
    drawn = [draw_changing_options(seed) for seed in range(40)]
    assert {options.nodes for options in drawn} == {1, 2, 3, 5}
    assert drawn == [draw_changing_options(seed) for seed in range(40)]


def test_members_that_are_all_empty_are_not_strangers_but_another_group() -> None:
    """Also the only one that a file names: it elects itself, and clients that ask it find other messages."""
    world = World(replace(CHANGING, nodes=2))
    assert world.changes is not None
    first, second = world.nodes.values()
    assert isinstance(first.program, NodeProgram)
    assert not world.changes._is_whole_group(first)
    world.changes._emptied.add(second.name)
    assert world.changes._is_whole_group(first)
    first.program = replace(
        first.program, config=first.program.config.model_copy(update={"dledger_join": True})
    )
    assert not world.changes._is_whole_group(first)
    alone = World(replace(CHANGING, nodes=1))
    assert alone.changes is not None
    assert alone.changes._is_whole_group(alone.nodes["n0"])


def test_member_that_lost_power_and_comes_back_at_another_address_is_heard() -> None:
    """No machine answers at the former address: only the kernel ends the connections to there."""
    world = World(replace(CHANGING, nodes=3, faults=FaultOptions()))
    try:
        for machine in [world.name_server, *world.nodes.values()]:
            machine.start()
        world.run_until(world.is_converged, "one log")
        victim = next(machine for machine in world.nodes.values() if machine is not world.leader())
        victim.stop_by_force(is_power_lost=True)
        world.run_for(1_000)
        world._move(victim, world._new_ip())
        victim.start()
        world.run_until(world.is_converged, "the member is back", 30_000)
    finally:
        world._bury()


def test_change_before_an_own_entry_is_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of single-server changes (Ongaro's mail of 2015)."""
    monkeypatch.setattr(Node, "_check_configuration", lambda self, new: ResponseCode.SUCCESS)
    with pytest.raises(InvariantError, match=r"has not committed|own term|steps from|two leaders|commits"):
        run_seeds(replace(CHANGING, membership=replace(draw_membership(1), change_ms=5)))


@pytest.mark.parametrize(
    ("one", "other", "is_safe"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", True),
        ("abcd", "abc", True),
        ("ab", "a", True),
        ("abc", "abcde", False),
        ("abc", "abd", False),
        ("abc", "ade", False),
        ("a", "b", False),
    ],
)
def test_configurations_overlap_when_no_two_majorities_are_disjoint(
    one: str, other: str, is_safe: bool
) -> None:
    assert overlap(Configuration.of_voters(one), Configuration.of_voters(other)) is is_safe
