"""The group workload under each seed's faults; and that it sees what it is there to see."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from broker.consume.offset_commits import OffsetCommits
from broker.send.processor import SendMessageProcessor
from commitlog.log import PutStatus
from ledgermq.client import idempotent
from remoting.client.send_requests import WriterPlace, sequenced_command
from remoting.command import RemotingCommand
from tests.histories.checker import check
from tests.node_simulation.options import FaultOptions, Options, draw_options
from tests.node_simulation.workloads import GroupWorkload, draw_group_options, group_workload
from tests.node_simulation.world import WorkloadFactory, World, plain_workload
from tests.simulation.invariants import InvariantError
from tests.support.long_runs import is_long_run

SEEDS = range(2_000, 2_000 + int(os.environ.get("LEDGERMQ_WORKLOAD_SEEDS", "8" if is_long_run() else "2")))
FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
CALM = Options(seed=1, safety_ms=5_000, config=FILES)
KILLS = replace(CALM, faults=FaultOptions(crash_ms=1_500, leader_bias=0.9, down_max_ms=500))
CUTS = replace(CALM, faults=FaultOptions(partition_ms=500, partition_max_ms=2_000, leader_bias=0.9))


@pytest.mark.parametrize("seed", SEEDS)
def test_group_workload_under_faults(seed: int) -> None:
    World(draw_options(seed), workload=group_workload).run()


def test_every_kind_of_operation_is_drawn() -> None:
    """Otherwise the runs above would show less than they say."""
    counts: Counter[str] = Counter()
    for seed in range(4):
        world = World(replace(KILLS, seed=seed), workload=group_workload)
        world.run()
        counts += check(world.history.operations).operations
    kinds = {"send ok", "poll ok", "fetch ok", "commit ok", "assign", "seek", "drain"}
    assert kinds <= counts.keys()
    assert {"send info", "send fail"} & counts.keys()
    assert counts["values acknowledged"] > counts["send ok"], "no batch was sent"


def test_all_options_are_met_within_a_few_seeds() -> None:
    drawn = [draw_group_options(seed) for seed in range(40)]
    assert {options.groups for options in drawn} == {(1,), (2,), (3,), (1, 2)}
    assert {options.operation_ms for options in drawn} == {0, 500, 3_000}
    assert {options.producing.tries_max for options in drawn} == {1, 4, 12}


def run_seeds(options: Options, workload: WorkloadFactory = group_workload) -> None:
    for seed in range(5):
        World(replace(options, seed=seed), workload=workload).run()


def test_offsets_that_are_acknowledged_and_not_stored_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetCommits, "commit", lambda *_: None)
    with pytest.raises(InvariantError, match="stale-offset"):
        run_seeds(CALM)


@pytest.mark.parametrize("workload", [plain_workload, group_workload])
def test_messages_that_are_acknowledged_before_a_quorum_has_them_are_found(
    monkeypatch: pytest.MonkeyPatch, workload: WorkloadFactory
) -> None:
    """The answer leaves at once, even where the leader is cut off from the others. Without numbered sends,
    which a broker cannot end twice.
    """
    put = SendMessageProcessor._put

    def put_and_answer(self: SendMessageProcessor, turn: object) -> None:
        put(self, turn)  # type: ignore[arg-type]
        if getattr(turn, "result", None) is not None:
            self._done(turn, PutStatus.PUT_OK)  # type: ignore[arg-type]

    monkeypatch.setattr(SendMessageProcessor, "_put", put_and_answer)
    monkeypatch.setattr("tests.node_simulation.workload.is_numbered", lambda _: False)
    with pytest.raises(InvariantError, match=r"not within|lost-write|inconsistent"):
        run_seeds(CUTS, workload)


def test_a_producer_with_new_numbers_for_each_try_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes the second try for another message."""
    tries = count(1)

    def forgetful(
        group: str, topic: str, broker_name: str, place: WriterPlace, parts: list[bytes], born_ms: int
    ) -> RemotingCommand:
        another = replace(place, partition=10_000 + next(tries), first=0)
        return sequenced_command(group, topic, broker_name, another, parts, born_ms)

    monkeypatch.setattr(idempotent, "sequenced_command", forgetful)
    with pytest.raises(InvariantError, match="duplicate"):
        World(draw_options(2)).run()


def test_world_repeats_a_seed() -> None:
    first, second = (World(draw_options(2_003), workload=group_workload) for _ in range(2))
    assert first.run() == second.run()
    assert first.history.operations == second.history.operations
    assert isinstance(first.workload, GroupWorkload)
