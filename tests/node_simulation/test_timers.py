"""The timer workload under each seed's faults; and that it sees what it is there to see."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pytest

import broker.timer.index
import broker.timer.journal
from broker.store.redelivery import LogTail
from broker.timer.delivery import TimerDelivery
from broker.timer.index import TimerIndex
from broker.timer.journal import TimerJournal
from broker.timer.records import Row, offset_of
from tests.node_simulation.options import FaultOptions, Options
from tests.node_simulation.workloads_timers import (
    ROLLING,
    TIMERS,
    TimerWorkload,
    timer_options,
    timer_workload,
)
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

SEEDS = range(7_000, 7_000 + int(os.environ.get("LEDGERMQ_TIMER_SEEDS", "2")))
BUSY_SEEDS = (1, 5, 4)
"""Of which all draw recalls, and the first one longer delays."""
FORGETTING_SEEDS = (6, 8, 11, 13)
"""In which a node starts again that has runs with what was delivered."""
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
CALM = Options(seed=1, safety_ms=5_000, config=FILES | TIMERS)
KILLS = replace(CALM, faults=FaultOptions(crash_ms=1_000, leader_bias=0.9, down_max_ms=500))
POWER = replace(CALM, faults=replace(KILLS.faults, power_probability=0.5, crash_majority_probability=0.3))
ROLLS = replace(KILLS, config=CALM.config | ROLLING)


@pytest.fixture(autouse=True)
def _small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that most of what waits is in runs, and runs are joined."""
    monkeypatch.setattr(broker.timer.journal, "TimerIndex", partial(TimerIndex, rows_max=6))
    monkeypatch.setattr(broker.timer.index, "UNSAVED_RECORDS_MAX", 40)
    monkeypatch.setattr(broker.timer.index, "RUNS_MAX", 3)
    monkeypatch.setattr(broker.timer.index, "JOINED_RUNS", 3)
    monkeypatch.setattr(broker.timer.index, "JOIN_STEP_ROWS", 4)


def run(options: Options) -> TimerWorkload:
    world = World(options, workload=timer_workload)
    world.run()
    assert isinstance(world.workload, TimerWorkload)
    return world.workload


def run_seeds(options: Options, seeds: Collection[int] = BUSY_SEEDS) -> None:
    for seed in seeds:
        run(replace(options, seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_timers_under_faults(seed: int) -> None:
    run(timer_options(seed))


@pytest.mark.parametrize("options", [KILLS, POWER, ROLLS], ids=["kills", "power", "rolls"])
def test_timers_whose_leaders_die(options: Options) -> None:
    workloads = [run(replace(options, seed=seed)) for seed in BUSY_SEEDS[:2]]
    assert sum(len(workload.stored) for workload in workloads) > 40
    assert any(workload.recalled for workload in workloads)


def test_a_node_that_forgets_what_is_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start it takes all that its runs hold as waiting."""
    restore = TimerIndex.restore

    def forget(self: TimerIndex) -> None:
        restore(self)
        for run in self._runs:
            for row in run.from_row(0):
                self.pending.add(offset_of(row))

    monkeypatch.setattr(TimerIndex, "restore", forget)
    with pytest.raises(InvariantError, match=r"more than once|was recalled"):
        run_seeds(KILLS, FORGETTING_SEEDS)


def test_a_leader_that_delivers_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    due = TimerIndex.due

    def due_early(self: TimerIndex, until_ms: int, most: int, passed_over: Collection[int]) -> list[Row]:
        return due(self, until_ms + 150, most, passed_over)

    monkeypatch.setattr(TimerIndex, "due", due_early)
    with pytest.raises(InvariantError, match="too early"):
        run_seeds(CALM)


@pytest.fixture
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth put of deliveries ends before its last message, and the leader checks again how much of it
    is there: as if the leader had died and its log been cut there, which chance alone brings seldom.
    """
    put = TimerDelivery._put
    calls = iter(range(1, 1_000_000))

    def cut_short(self: TimerDelivery, batch: object, now_ms: int) -> None:
        if next(calls) % 5 or not batch.messages:  # type: ignore[attr-defined]
            put(self, batch, now_ms)  # type: ignore[arg-type]
            return
        log = self._log
        self._log = _CutLog(log)  # type: ignore[assignment]
        try:
            put(self, batch, now_ms)  # type: ignore[arg-type]
        finally:
            self._log = log
        self._kept = None

    monkeypatch.setattr(TimerDelivery, "_put", cut_short)


class _CutLog:
    def __init__(self, log: object) -> None:
        self._whole = log

    def put(self, messages: list[object], on_done: object) -> object:
        return self._whole.put(messages[:-1], on_done)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_short_logs")
def test_deliveries_that_are_only_half_there_are_finished() -> None:
    run_seeds(KILLS)


@pytest.mark.usefixtures("_short_logs")
def test_deliveries_that_nobody_finishes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogTail, "messages_behind", lambda self, record, origins: len(origins))
    with pytest.raises(InvariantError, match=r"not within|not delivered"):
        run_seeds(KILLS)


def test_an_index_that_is_lost_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start finds none."""
    start = TimerJournal.start

    async def start_anew(self: TimerJournal) -> None:
        self.index.clear()
        await start(self)

    monkeypatch.setattr(TimerJournal, "start", start_anew)
    run(replace(KILLS, seed=1))
