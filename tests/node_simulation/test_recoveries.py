"""Groups whose majority is gone; and that the world sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from broker.store import recovery
from broker.store.recovery import Plan, StoppedStore
from commitlog.entry_store import EntryStore, Writes
from dledger.core.types import HardState
from dledger.durable_state import HardStateFile
from dledger.transport import Address, Transport
from tests.node_simulation.losses import CommittedEntry, Disks
from tests.node_simulation.options import (
    FaultOptions,
    Options,
    RecoveryOptions,
    draw_membership,
    draw_recovering_options,
)
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError

FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
SEEDS = range(8)
RECOVERING = Options(
    seed=0,
    safety_ms=20_000,
    config=FILES,
    faults=FaultOptions(crash_ms=5_000, down_max_ms=500),
    recovery=RecoveryOptions(
        first_ms=5_000, cut_max_ms=2_000, disasters_max=2, disk_gone_probability=0.2,
        return_probability=0.5, forget_probability=0.5,
    ),
)  # fmt: skip
KINDS = {
    "majority gone",
    "recover",
    "recover: acknowledged entries lost",
    "recover: kill while it decides",
    "recover: power while it decides",
    "member added after recover",
    "member added with its old files",
    "member of an earlier generation started",
}


def run_seeds(options: Options = RECOVERING, seeds: range = SEEDS) -> Counter[str]:
    faults: Counter[str] = Counter()
    for seed in seeds:
        faults.update(World(replace(options, seed=seed, nodes=(3, 2, 5)[seed % 3])).run().faults)
    return faults


def test_groups_go_on_with_one_node_and_every_kind_of_end_is_drawn() -> None:
    assert run_seeds().keys() >= KINDS


def test_another_log_than_the_most_complete_one_may_be_taken() -> None:
    assert RECOVERING.recovery is not None
    options = replace(RECOVERING, recovery=replace(RECOVERING.recovery, other_probability=1.0))
    faults = run_seeds(options, range(2, 12, 3))
    assert faults["recover: with another log than the most complete one"]


def test_members_change_before_and_after_and_vote_files_are_lost() -> None:
    assert RECOVERING.recovery is not None
    recovery = replace(RECOVERING.recovery, vote_lost_probability=0.5)
    faults = run_seeds(replace(RECOVERING, recovery=recovery, membership=draw_membership(1)), range(6))
    assert faults["recover"] >= 4
    assert faults["recover: vote file lost"]
    assert sum(count for kind, count in faults.items() if kind.startswith("member change: ")) >= 20


def test_drawn_groups_have_two_to_five_members() -> None:
    drawn = [draw_recovering_options(seed) for seed in range(40)]
    assert {options.nodes for options in drawn} == {2, 3, 4, 5}
    assert {options.membership is None for options in drawn} == {True, False}
    assert drawn == [draw_recovering_options(seed) for seed in range(40)]


def test_a_decision_that_drops_entries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = StoppedStore.decide

    def decide_on_less(self: StoppedStore, plan: Plan, note: Mapping[str, object]) -> None:
        self._entries.truncate_from(plan.index - 1)
        decide(self, replace(plan, index=plan.index - 1), note)

    monkeypatch.setattr(StoppedStore, "decide", decide_on_less)
    with pytest.raises(InvariantError, match="is decided on as"):
        run_seeds()


def test_a_decision_that_is_not_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = EntryStore.write

    def without_sync(self: EntryStore, writes: Writes, sync: bool) -> None:
        write(self, writes, sync=False)

    append = StoppedStore._append

    def append_unsynced(self: StoppedStore, *arguments: object) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(EntryStore, "write", without_sync)
            patched.setattr(EntryStore, "save_checkpoint", lambda self, end_index, committed_index: None)
            append(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StoppedStore, "_append", append_unsynced)
    with pytest.raises(InvariantError, match=r"is decided on as|durably"):
        run_seeds()


def test_a_term_that_a_gone_member_may_have_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "TERM_STEP", 0)
    with pytest.raises(InvariantError, match="goes on in term"):
        run_seeds()


def test_messages_between_generations_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    set_peers = Transport.set_peers

    def of_one_generation(self: Transport, peers: Mapping[str, Address], level: int, _: int) -> None:
        set_peers(self, peers, level, 0)

    monkeypatch.setattr(Transport, "set_peers", of_one_generation)
    with pytest.raises(InvariantError, match="of an earlier generation"):
        run_seeds()


def test_a_generation_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty node starts again before its first entry, beside one of before."""
    assert RECOVERING.recovery is not None
    recovery = replace(
        RECOVERING.recovery, disasters_max=3, disk_gone_probability=0.1, return_probability=0.9,
        early_kill_probability=0.8,
    )  # fmt: skip
    save = HardStateFile.save

    def save_without(self: HardStateFile, state: HardState) -> None:
        save(self, replace(state, generation=0))

    monkeypatch.setattr(HardStateFile, "save", save_without)
    with pytest.raises(InvariantError, match="of an earlier generation has term"):
        run_seeds(replace(RECOVERING, safety_ms=30_000, recovery=recovery), range(2, 60, 3))


def test_an_acknowledged_message_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what clients saw, only the messages are excused that the chosen disk lacked."""
    lose = Disks.lose

    def lose_all_but_one(self: Disks, first_index: int, entries: list[CommittedEntry]) -> None:
        lose(self, first_index + 1, entries[1:])

    monkeypatch.setattr(Disks, "lose", lose_all_but_one)
    with pytest.raises(InvariantError, match=r"^history: .* acknowledged"):
        run_seeds(seeds=range(2, 30, 3))
