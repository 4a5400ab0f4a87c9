"""Only a minority is damaged at once, and no node loses a part of its log and the marks that tell of it."""

from collections import Counter

import pytest

from tests.node_simulation.damage import EVIDENCE, KINDS
from tests.node_simulation.options import FaultOptions, Options
from tests.node_simulation.world import World

FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}


def world_of(nodes: int, seed: int = 1, **faults: int) -> World:
    return World(Options(seed, nodes, safety_ms=8_000, config=FILES, faults=FaultOptions(**faults)))


@pytest.mark.parametrize(("nodes", "minority"), [(1, 0), (3, 1), (5, 2)])
def test_at_most_a_minority_is_damaged_at_once(nodes: int, minority: int) -> None:
    world = world_of(nodes)
    damage = world.faults._damage
    assert not any(damage.may_strike(machine) for machine in world.nodes.values()), (
        "the group is not there yet"
    )
    damage._strangers.clear()
    for machine in world.nodes.values():
        if damage.may_strike(machine):
            damage.strike(machine, "wipe")
    assert len(world.checker.damaged) == minority


def test_whoever_is_damaged_already_keeps_the_marks_that_tell_it() -> None:
    world = world_of(3)
    machine = world.nodes["n0"]
    paths = [world.faults._damage._folder(machine) / name for name in EVIDENCE]
    for path in paths:
        machine.fs.plant(path, bytes(100))
    world.checker.damaged.add("n0")
    for _ in range(60):
        world.faults._damage.strike(machine, "delete derived")
    assert machine.fs.paths() == sorted(paths)


@pytest.mark.parametrize("kind", ["cut", "flip any", "delete log", "delete vote", "wipe"])
def test_every_kind_takes_a_disk_without_a_file(kind: str) -> None:
    world = world_of(3)
    world.faults._damage.strike(world.nodes["n0"], kind)
    assert world.checker.damaged == {"n0"}


def test_every_kind_is_drawn_and_counted_and_all_is_repaired() -> None:
    counts: Counter[str] = Counter()
    for seed in range(4):
        counts += Counter(world_of(3, seed, damage_ms=300).run().faults)
    assert counts.keys() == {f"damage: {kind}" for kind in KINDS}
