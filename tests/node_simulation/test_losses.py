"""Durability `replicated`: what power failures may take from a group, and that nothing else takes any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from commitlog.dledger_commit_log import store_directory
from dledger.maintenance import Maintenance
from tests.node_simulation.losses import PageCaches
from tests.node_simulation.machine import Machine
from tests.node_simulation.options import FaultOptions, Options, draw_replicated_options
from tests.node_simulation.programs import ROOT
from tests.node_simulation.script import FILES, Client, Script
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

REPLICATED = {**FILES, "durability": "replicated"}
CALM = Options(seed=1, safety_ms=12_000, config=REPLICATED)
POWER = replace(
    CALM,
    faults=FaultOptions(crash_ms=3_000, crash_all_probability=0.7, power_probability=1.0, down_max_ms=500),
)
SEEDS = range(3)
FINDING_SEEDS = (6, 7, 10, 11, 12)


def losses_of(options: Options, seeds: Iterable[int] = SEEDS) -> tuple[int, int]:
    """Over a few seeds: how often a group lost committed entries; how many messages were acknowledged."""
    losses = acknowledged = 0
    for seed in seeds:
        world = World(replace(options, seed=seed))
        acknowledged += world.run().acknowledged
        assert isinstance(world.checker.disks, PageCaches)
        losses += world.checker.disks.losses
    return losses, acknowledged


def test_killed_processes_lose_nothing() -> None:
    losses, acknowledged = losses_of(replace(POWER, faults=replace(POWER.faults, power_probability=0.0)))
    assert losses == 0
    assert acknowledged > 0


def test_power_failures_of_all_machines_lose_what_they_explain() -> None:
    losses, acknowledged = losses_of(POWER)
    assert losses > 0
    assert acknowledged > 0


def test_loss_that_no_power_failure_explains_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageCaches, "loses_power", lambda self, machine: None)
    with pytest.raises(InvariantError, match=r"no power failure took it|does not hold|on the disks of"):
        losses_of(POWER)


def test_loss_of_more_than_the_last_seconds_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Maintenance) -> None: ...

    monkeypatch.setattr(Maintenance, "save_checkpoint", never)
    with pytest.raises(InvariantError, match="has not synced for"):
        losses_of(replace(POWER, faults=replace(POWER.faults, crash_ms=8_000)), FINDING_SEEDS)


def test_node_without_leader_syncs_what_it_does_not_know_to_be_committed() -> None:
    """It has acknowledged it, and the machine that committed it may have lost power meanwhile."""
    with Script(config=REPLICATED) as script:
        script.run(8_000)

        async def send(client: Client) -> bool:
            while not await client.send():
                pass
            return True

        script.client("sender", send)
        last, *others = script.followers()
        script.kill(script.leader(), *others, is_power_lost=True)
        assert unsynced_since(last) is not None
        script.run(5_000)
        assert unsynced_since(last) is None


def unsynced_since(machine: Machine) -> int | None:
    return machine.fs.oldest_unsynced_us(store_directory(ROOT, machine.name) / "data")


def test_drawn_worlds_have_both_kinds_of_crash_and_groups_of_two() -> None:
    drawn = [draw_replicated_options(seed) for seed in range(40)]
    assert {options.faults.power_probability for options in drawn} == {0.0, 0.3, 1.0}
    assert {options.nodes for options in drawn} == {1, 2, 3, 5}
    assert drawn == [draw_replicated_options(seed) for seed in range(40)]
