"""Exactly-once under each seed's faults; and that the workload sees what it is there to see."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.send.sequencing import SequenceRefusedError, Sequencing, Verdict, _Tip
from broker.state.tables import StateTables
from remoting.codes import ResponseCode
from tests.node_simulation.options import FaultOptions, Options, draw_options
from tests.node_simulation.workloads_sequenced import SequencedWorkload, sequenced_workload
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError
from tests.support.long_runs import is_long_run

SEEDS = range(4_000, 4_000 + int(os.environ.get("LEDGERMQ_WORKLOAD_SEEDS", "6" if is_long_run() else "2")))
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
CALM = Options(seed=1, safety_ms=5_000, config=FILES)
KILLS = Options(
    seed=1,
    safety_ms=8_000,
    config=FILES,
    faults=FaultOptions(
        crash_ms=1_000, client_ms=3_000, leader_bias=0.9, down_max_ms=500, power_probability=0.3
    ),
)
CUTS = replace(KILLS, faults=FaultOptions(partition_ms=700, partition_max_ms=2_000, leader_bias=0.9))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_exactly_once_under_faults(seed: int) -> None:
    World(draw_options(seed), workload=sequenced_workload).run()


@pytest.mark.parametrize("options", [KILLS, CUTS])
def test_leaders_that_die_or_are_cut_off_cost_repeats_only(options: Options) -> None:
    repeats = batches = 0
    for seed in (1, 2):
        world = World(replace(options, seed=seed), workload=sequenced_workload)
        world.run()
        assert isinstance(world.workload, SequencedWorkload)
        repeats += world.workload.repeats
        batches += sum(writer.batch_id for writer in world.workload.writers.values())
    assert repeats > 10
    assert batches > 10


def run_seeds(options: Options) -> None:
    for seed in range(5):
        World(replace(options, seed=seed), workload=sequenced_workload).run()


def test_a_leader_that_forgets_what_is_on_its_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows only what is committed: a quick repeat is stored again."""
    finish = Sequencing._append

    def forget(self: Sequencing, key: bytes, *rest: object) -> object:
        verdict = finish(self, key, *rest)  # type: ignore[arg-type]
        self._tips.pop(key, None)
        return verdict

    monkeypatch.setattr(Sequencing, "_append", forget)
    with pytest.raises(InvariantError):
        run_seeds(KILLS)


def test_a_gap_that_is_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that was refused for want of room is overtaken by the next one."""
    admit = Sequencing.admit

    def admit_any(
        self: Sequencing, key: bytes, batch_id: int, first: int, count: int, digests: Sequence[bytes] = ()
    ) -> Verdict:
        try:
            return admit(self, key, batch_id, first, count, digests)
        except SequenceRefusedError as error:
            if error.code != ResponseCode.LEDGERMQ_SEQUENCE_GAP:
                raise
            self._tips[key] = _Tip(batch_id, first, first, digests[0])
            return admit(self, key, batch_id, first, count, digests)

    monkeypatch.setattr(Sequencing, "admit", admit_any)
    with pytest.raises(InvariantError):
        run_seeds(replace(CALM, config={**FILES, "pending_appends_max": 7}))


def test_a_table_that_is_not_in_the_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = StateTables.rows

    def without_writers(self: StateTables) -> dict[str, Iterator[Any]]:
        return {name: found for name, found in rows(self).items() if name != "writers"}

    monkeypatch.setattr(StateTables, "rows", without_writers)
    with pytest.raises(InvariantError):
        run_seeds(replace(KILLS, config={**FILES, "state_snapshot_interval_ms": 300}))
