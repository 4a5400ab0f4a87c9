"""The Python client under each seed's faults; and that its workload sees what it is there to see."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ledgermq.client.progress import QueueProgress
from ledgermq.client.queue_locks import QueueLock
from ledgermq.client.rebalancing import Locks
from remoting.client.routes import MessageQueue
from tests.node_simulation.clients import History
from tests.node_simulation.options import FaultOptions, Options
from tests.node_simulation.workloads_client import (
    ClientOptions,
    ClientWorkload,
    client_options,
    client_workload,
)
from tests.node_simulation.world import WorkloadFactory, World
from tests.simulation.invariants import InvariantError

SEEDS = range(6_000, 6_000 + int(os.environ.get("LEDGERMQ_CLIENT_SEEDS", "2")))
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
CALM = Options(seed=1, safety_ms=6_000, config=FILES)
KILLS = replace(CALM, faults=FaultOptions(crash_ms=1_000, client_ms=1_500, leader_bias=0.9, down_max_ms=500))


BUSY = ClientOptions(members=3, interval_ms=30, work_max_ms=300)
"""Members that work whenever a queue changes hands."""


def busy_workload(options: Options, history: History) -> ClientWorkload:
    return ClientWorkload(BUSY, options.seed, history)


def run(options: Options, workload: WorkloadFactory = client_workload) -> ClientWorkload:
    world = World(options, workload=workload)
    world.run()
    assert isinstance(world.workload, ClientWorkload)
    return world.workload


def run_seeds(options: Options, workload: WorkloadFactory = client_workload) -> None:
    for seed in range(5):
        run(replace(options, seed=seed), workload)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_client_under_faults(seed: int) -> None:
    run(client_options(seed))


def test_leaders_and_clients_that_die() -> None:
    workload = run(KILLS)
    assert len(workload.sent) > 20
    assert sum(workload.order.finished.values()) >= len(workload.sent)


def test_offsets_that_pass_over_what_is_not_done_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueProgress, "committable", property(lambda progress: progress.next_offset))
    monkeypatch.setattr("tests.node_simulation.cluster.LIVENESS_LIMIT_MS", 20_000)
    with pytest.raises(InvariantError):
        run_seeds(KILLS)


def test_queues_without_locks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grant_all(self: Locks, queues: object) -> tuple[set[MessageQueue], set[MessageQueue]]:
        return set(queues), set()  # type: ignore[call-overload]

    monkeypatch.setattr(Locks, "lock", grant_all)
    monkeypatch.setattr(QueueLock, "is_valid", lambda self, now_s: True)
    with pytest.raises(InvariantError, match="is handled"):
        run_seeds(KILLS, busy_workload)


def test_busy_members_keep_the_order() -> None:
    run(KILLS, busy_workload)
