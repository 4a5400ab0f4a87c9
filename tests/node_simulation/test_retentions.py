"""Groups that delete the begin of their log while their members change; and that the world sees what it is
there to see.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from broker.state.state import ReplicatedState
from broker.store.retention import Retention
from commitlog.consume_queue import ConsumeQueue
from commitlog.log_removal import LogRemoval, OldFile
from tests.node_simulation.options import (
    FAST_TIMES,
    FaultOptions,
    Options,
    WorkloadOptions,
    draw_membership,
    draw_retaining_options,
)
from tests.node_simulation.retentions import KINDS, RetentionOptions
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

FILES = {"index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
EAGER = RetentionOptions(kept_ms=1_000, waits=False)
RETAINING = Options(
    seed=2,
    safety_ms=15_000,
    config=EAGER.config() | FAST_TIMES | FILES,
    faults=FaultOptions(crash_ms=2_000, leader_bias=0.3, down_max_ms=6_000),
    workload=WorkloadOptions(interval_ms=50, body_bytes_max=3_000),
    membership=replace(draw_membership(1), change_ms=800, voters_max=5),
    retention=EAGER,
)
STEADY = replace(RETAINING, safety_ms=5_000, faults=FaultOptions(), membership=None)


def test_nodes_and_learners_are_reset_behind_what_was_deleted() -> None:
    counts: Counter[str] = Counter()
    for seed in (0, 5):
        counts.update(World(replace(RETAINING, seed=seed)).run().faults)
    assert min(counts[kind] for kind in KINDS) > 0


def test_drawn_groups_delete_at_once_or_what_is_old_and_wait_for_members_or_not() -> None:
    drawn = [draw_retaining_options(seed).retention for seed in range(40)]
    assert drawn == [draw_retaining_options(seed).retention for seed in range(40)]
    assert {(each.kept_ms > 0, each.waits) for each in drawn if each} == {
        (is_kept, waits) for is_kept in (False, True) for waits in (False, True)
    }


def test_messages_that_are_deleted_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogRemoval, "_newest_of", lambda *_: 0)
    with pytest.raises(InvariantError, match="is deleted too early"):
        World(STEADY).run()


def test_a_node_that_deletes_what_was_not_decided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_to_go(self: Retention) -> OldFile | None:
        return next(self._removable(), None)

    monkeypatch.setattr(Retention, "_next_to_go", next_to_go)
    with pytest.raises(InvariantError, match=r"begins at \d+ and may at"):
        World(STEADY).run()


def test_a_node_that_deletes_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "_next_to_go", lambda self: None)
    monkeypatch.setattr("tests.node_simulation.cluster.LIVENESS_LIMIT_MS", 15_000)
    with pytest.raises(InvariantError, match="has deleted what the group decided"):
        World(STEADY).run()


def test_a_leader_that_does_not_wait_for_a_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = replace(EAGER, waits=True)
    monkeypatch.setattr(Retention, "_slowest_index", lambda self: 1 << 62)
    options = replace(RETAINING, config=RETAINING.config | waiting.config(), retention=waiting)
    with pytest.raises(InvariantError, match="was not waited for"):
        World(replace(options, membership=None)).run()


def test_a_queue_that_hides_what_is_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = vars(ConsumeQueue)["min_offset"].fget
    monkeypatch.setattr(
        ConsumeQueue, "min_offset", property(lambda self: min(shown(self) + 1, self.max_offset))
    )
    with pytest.raises(InvariantError, match=r"begins at \d+ and should at"):
        World(STEADY).run()


def test_a_node_that_is_reset_without_a_checkpoint_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load_nothing(self: ReplicatedState, batch: object) -> None:
        self.applied_index = batch.last_index  # type: ignore[attr-defined]

    monkeypatch.setattr(ReplicatedState, "_load_checkpoint", load_nothing)
    monkeypatch.setattr("tests.node_simulation.cluster.LIVENESS_LIMIT_MS", 15_000)
    with pytest.raises(InvariantError, match=r"and knows it|begins at \d+ and should at"):
        World(replace(RETAINING, seed=0, safety_ms=8_000)).run()
