"""Rolling upgrades under faults; and that the world sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from commitlog.entry_store import EntryStore
from dledger.codec import PROTOCOL_VERSION
from dledger.server import DLedgerServer
from dledger.transport import Transport
from tests.node_simulation.invariants import engine_of
from tests.node_simulation.options import FaultOptions, Options, UpgradeOptions, draw_upgrading_options
from tests.node_simulation.programs import NodeProgram
from tests.node_simulation.upgrades import OldTransport
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
SEEDS = range(3)
UPGRADING = Options(
    seed=0,
    safety_ms=15_000,
    config=FILES,
    faults=FaultOptions(crash_ms=5_000, down_max_ms=500),
    upgrade=UpgradeOptions(step_ms=300, early_probability=0.5, back_probability=0.3),
)
KINDS = {
    "upgraded",
    "downgraded",
    "upgrade finished",
    "upgrade-finish refused: a member is of the release before",
}
KNOWN_SEEDS = (5011,)  # an upgrade ended over the open connections of a node that had lost power


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_seeds_that_once_broke_something(seed: int) -> None:
    World(draw_upgrading_options(seed)).run()


def run_seeds(options: Options = UPGRADING, seeds: range = SEEDS) -> Counter[str]:
    faults: Counter[str] = Counter()
    for seed in seeds:
        faults.update(World(replace(options, seed=seed)).run().faults)
    return faults


def test_every_step_of_an_upgrade_is_drawn() -> None:
    assert run_seeds().keys() >= KINDS


def test_some_drawn_upgrades_are_not_ended_and_some_go_on_with_other_members() -> None:
    drawn = [draw_upgrading_options(seed) for seed in range(40)]
    assert {options.nodes for options in drawn} == {1, 2, 3, 5}
    assert {options.upgrade.is_finished for options in drawn if options.upgrade} == {True, False}
    assert {options.membership is None for options in drawn} == {True, False}
    assert drawn == [draw_upgrading_options(seed) for seed in range(40)]


def test_nodes_of_the_release_before_say_and_read_protocol_2_only() -> None:
    world = World(replace(UPGRADING, upgrade=UpgradeOptions(step_ms=100_000)))
    world.nodes["n0"].program = NodeProgram(world._config(0), world._stopped)
    try:
        for machine in [world.name_server, *world.nodes.values()]:
            machine.start()
        world.run_for(5_000)
        for machine in world.nodes.values():
            assert machine.process is not None
            assert machine.process.broker is not None
            transport = engine_of(machine.process.broker)._transport
            assert type(transport) is (Transport if machine.name == "n0" else OldTransport)
            assert {transport.version_of(peer) for peer in transport.peers} == {PROTOCOL_VERSION}
            assert not any(map(transport.speaks_newest, transport.peers))
    finally:
        world._bury()


def test_a_level_that_is_raised_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DLedgerServer, "speaks_newest_protocol", lambda self, configuration: True)
    with pytest.raises(InvariantError, match=r"raises the format level|finds format level"):
        run_seeds()


def test_files_that_the_release_before_refuses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append = EntryStore.append_bodies

    def append_in_newest_format(
        self: EntryStore, first_index: int, term: int, bodies: list[bytes]
    ) -> list[int]:
        self._raise_format()
        return append(self, first_index, term, bodies)

    monkeypatch.setattr(EntryStore, "append_bodies", append_in_newest_format)
    with pytest.raises(InvariantError, match=r"of 0\.1\.0 finds files of format"):
        run_seeds()


def test_nodes_that_do_not_hear_the_release_before_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.node_simulation.cluster.LIVENESS_LIMIT_MS", 20_000)
    monkeypatch.setattr(Transport, "needs_introduction", lambda self, node_id: True)
    with pytest.raises(InvariantError, match="not within"):
        run_seeds()
