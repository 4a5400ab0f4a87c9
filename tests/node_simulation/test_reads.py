"""The workload of reads by choice under each seed's faults; and that it sees what it is there to see."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace

import pytest

from dledger.core.reads import ReadIndex as CoreReadIndex
from tests.node_simulation.options import FaultOptions, Options, draw_options
from tests.node_simulation.workloads_reads import ReadWorkload, read_workload
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError
from tests.support.long_runs import is_long_run

SEEDS = range(9_000, 9_000 + int(os.environ.get("LEDGERMQ_READ_SEEDS", "8" if is_long_run() else "2")))
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
LONG_REIGNS = {"election_timeout_min_ms": 300, "election_timeout_max_ms": 4_000, "heartbeat_interval_ms": 100}
"""A leader that was cut off goes on for long after another one was elected."""
CALM = Options(seed=1, safety_ms=20_000, config=FILES | LONG_REIGNS)
CUTS = replace(CALM, faults=FaultOptions(partition_ms=2_000, partition_max_ms=4_000, leader_bias=1.0))
PAUSES = replace(CALM, config=FILES, faults=FaultOptions(pause_ms=800, pause_max_ms=4_000, leader_bias=0.9))
BUSY_SEED = 10
"""Of a workload with many reads."""
FINDING_SEEDS = (7, 6, 5, 4, 1)


def run(options: Options) -> ReadWorkload:
    world = World(options, workload=read_workload)
    world.run()
    assert isinstance(world.workload, ReadWorkload)
    return world.workload


@pytest.mark.parametrize("seed", SEEDS)
def test_reads_under_faults(seed: int) -> None:
    run(draw_options(seed))


@pytest.mark.parametrize("options", [CUTS, PAUSES], ids=["cuts", "pauses"])
def test_reads_while_leaders_are_cut_off_or_suspended(options: Options) -> None:
    counts = run(replace(options, seed=BUSY_SEED)).counts
    assert min(counts[kind] for kind in ("max offset", "pull", "held pull", "aged")) > 5, counts


def test_a_leader_that_asks_no_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoreReadIndex, "_is_confirmed", lambda self, number: True)
    options = [replace(CUTS, seed=seed) for seed in FINDING_SEEDS]
    with pytest.raises(InvariantError, match=r"acknowledged|misses|moves a consumer"):
        deque(map(run, options), maxlen=0)
