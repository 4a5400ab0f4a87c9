"""The POP workload under each seed's faults; and that it sees what it is there to see."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest

from broker.pop import ledger
from broker.pop.fetch import Fetched, Fetcher, Pop, _Read
from broker.pop.ledger import OnDone, PopLedger
from broker.pop.ops import GroupQueueKey
from broker.pop.revival import Revival
from broker.pop.table import GroupQueue, PopTable
from commitlog.log import MessageLog, PutStatus
from tests.node_simulation.options import FaultOptions, Options
from tests.node_simulation.workloads_pop import PopWorkload, pop_options, pop_workload
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

SEEDS = range(5_000, 5_000 + int(os.environ.get("LEDGERMQ_POP_SEEDS", "2")))
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
CALM = Options(seed=1, safety_ms=6_000, config=FILES)
KILLS = replace(CALM, faults=FaultOptions(crash_ms=1_000, leader_bias=0.9, down_max_ms=500))


def run(options: Options) -> PopWorkload:
    world = World(options, workload=pop_workload)
    world.run()
    assert isinstance(world.workload, PopWorkload)
    return world.workload


def run_seeds(options: Options) -> None:
    for seed in range(5):
        run(replace(options, seed=seed))


CLOCK_SET_BACK = 134539864994
"""A message popped in order was given up while the wall clock of its leader was 50 minutes ahead."""


@pytest.mark.parametrize("seed", [CLOCK_SET_BACK, *SEEDS])
def test_pops_under_faults(seed: int) -> None:
    run(pop_options(seed))


def test_pops_whose_leaders_die() -> None:
    """Messages were acknowledged in number, and others came back."""
    workload = run(KILLS)
    assert len(workload.acked) > 50
    assert workload.revived > 1
    assert workload.again > 1


def test_a_leader_that_does_not_know_what_is_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(log: MessageLog, deleted_at: object) -> tuple[PopTable, int]:
        return PopTable(), 0

    monkeypatch.setattr(ledger, "load", load)
    with pytest.raises(InvariantError, match="is handed out"):
        run_seeds(KILLS)


def test_answers_before_the_commit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave at once, and what they say is put in the log a little later."""
    flush = PopLedger.flush

    def at_once(self: PopLedger, on_done: OnDone) -> None:
        on_done(PutStatus.PUT_OK)

    def later(self: PopLedger) -> None:
        asyncio.get_running_loop().call_later(0.3, lambda: self.table is not None and flush(self))

    monkeypatch.setattr(PopLedger, "when_committed", at_once)
    monkeypatch.setattr(PopLedger, "flush", later)
    with pytest.raises(InvariantError, match="is handed out"):
        run_seeds(KILLS)


def test_order_that_goes_on_behind_what_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupQueue, "order_start", property(lambda group_queue: group_queue.next_offset))
    with pytest.raises(InvariantError, match=r"was acknowledged, .* is handed out"):
        run_seeds(CALM)


def test_order_that_leaves_out_what_was_acknowledged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is given again without what was acknowledged behind the first that is missing."""
    read = Fetcher._read

    def only_pending(
        self: Fetcher, pop: Pop, key: GroupQueueKey, start: int, room: int, fetched: Fetched
    ) -> _Read:
        found = read(self, pop, key, start, room, fetched)
        group_queue = self._ledger.group_queue(key)
        if (
            not pop.header.order
            or group_queue is None
            or group_queue.order is None
            or not group_queue.in_order
        ):
            return found
        acked = set(group_queue.order.offsets) - set(group_queue.order.pending)
        kept = [place for place in found.places if place[0] not in acked]
        body = b"".join(found.body[begin:end] for _, begin, end in kept)
        return _Read(found.start, found.next_offset, body, kept)

    monkeypatch.setattr(Fetcher, "_read", only_pending)
    with pytest.raises(InvariantError, match="a gap behind"):
        run_seeds(CALM)


@pytest.mark.long
def test_messages_that_nobody_revives_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long as a message stays out says as much as two minutes, and takes a sixth of the time."""

    async def nothing(self: Revival, *_: Any) -> None:
        """Whatever is due stays out."""

    monkeypatch.setattr(Revival, "revive_due", nothing)
    monkeypatch.setattr("tests.node_simulation.cluster.LIVENESS_LIMIT_MS", 20_000)
    with pytest.raises(InvariantError, match="not within 20000 ms: everything acknowledged is consumed"):
        run_seeds(KILLS)


@pytest.mark.long
def test_world_repeats_a_seed() -> None:
    first, second = (World(pop_options(5_001), workload=pop_workload) for _ in range(2))
    assert first.run() == second.run()
