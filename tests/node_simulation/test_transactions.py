"""The transaction workload under each seed's faults; and that it sees what it is there to see."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from broker.transactions.ledger import Decision, Loaded, Loader, TransactionLedger
from broker.transactions.window import TransactionWindow
from commitlog.log import PutStatus
from tests.node_simulation.options import FaultOptions, Options
from tests.node_simulation.workloads_transactions import (
    CHECKS,
    TransactionWorkload,
    transaction_options,
    transaction_workload,
)
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError
from tests.support.long_runs import is_long_run

SEEDS = range(3_000, 3_000 + int(os.environ.get("LEDGERMQ_TRANSACTION_SEEDS", "8" if is_long_run() else "2")))
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
CALM = Options(seed=1, safety_ms=6_000, config=FILES | CHECKS)
KILLS = replace(CALM, faults=FaultOptions(crash_ms=1_000, leader_bias=0.9, down_max_ms=500))
POWER = replace(CALM, faults=replace(KILLS.faults, power_probability=0.5, crash_majority_probability=0.3))


def run(options: Options) -> TransactionWorkload:
    world = World(options, workload=transaction_workload)
    world.run()
    assert isinstance(world.workload, TransactionWorkload)
    return world.workload


def run_seeds(options: Options) -> None:
    for seed in range(6):
        run(replace(options, seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_under_faults(seed: int) -> None:
    run(transaction_options(seed))


@pytest.mark.parametrize("options", [KILLS, POWER], ids=["kills", "power"])
def test_transactions_whose_leaders_die(options: Options) -> None:
    """Transactions of each kind were there, and producers were asked."""
    workloads = [run(replace(options, seed=seed)) for seed in range(4)]
    assert sum(workload.asked for workload in workloads) > 10
    assert {how for workload in workloads for how in workload.decisions.values()} == {8, 12}
    assert sum(len(workload.prepared) for workload in workloads) > 100


def test_a_leader_that_forgets_what_has_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(self: Loader) -> Loaded:
        window = TransactionWindow()
        window.extend(self._log.queues.next_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0))
        return Loaded(window, 0)

    monkeypatch.setattr(Loader, "load", load)
    with pytest.raises(InvariantError, match="more than once"):
        run_seeds(KILLS)


def test_a_leader_that_takes_all_as_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(self: Loader) -> Loaded:
        return Loaded(TransactionWindow(self._log.queues.next_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)), 0)

    monkeypatch.setattr(Loader, "load", load)
    with pytest.raises(InvariantError, match="not within"):
        run_seeds(KILLS)


@pytest.fixture
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth put of a leader ends before its last record, and the leader reads the log again: as if
    the leader had died and its log been cut there, which chance alone brings once in thousands of seconds.
    """
    end = TransactionLedger.end
    calls = count()

    def cut_short(
        self: TransactionLedger, decisions: Sequence[Decision], on_done: Callable[[PutStatus], None]
    ) -> PutStatus:
        if next(calls) % 10 or decisions[-1].message is None:
            return end(self, decisions, on_done)
        messages = [message for decision in decisions for message in self._messages(decision)]
        result = self._log.put(messages[:-1], on_done)
        if result.status is PutStatus.PUT_OK:
            self._on_writable_change(False)
            asyncio.get_running_loop().create_task(lead_again(self, result.positions[-1]))
        return result.status

    async def lead_again(self: TransactionLedger, position: int) -> None:
        leadership = self._log.is_writable()
        while leadership and self._log.max_position <= position:
            await asyncio.sleep(0.01)
            leadership = self._log.is_writable()
        if leadership and self.window is None and not self.is_loading:
            self._on_writable_change(True)

    monkeypatch.setattr(TransactionLedger, "end", cut_short)


@pytest.mark.usefixtures("_short_logs")
def test_a_commit_that_is_only_half_there_is_finished() -> None:
    run_seeds(KILLS)


@pytest.mark.usefixtures("_short_logs")
def test_a_commit_that_nobody_finishes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No leader checks whether the message follows the record that says that its transaction is committed."""
    monkeypatch.setattr(Loader, "_is_complete", lambda *_: True)
    with pytest.raises(InvariantError, match="not within"):
        run_seeds(KILLS)


@pytest.mark.long
def test_world_repeats_a_seed() -> None:
    first, second = (World(transaction_options(3_001), workload=transaction_workload) for _ in range(2))
    assert first.run() == second.run()
