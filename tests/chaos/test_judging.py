"""What a run of real processes is judged by can fail: each condition, on answers and histories made up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.cluster import ChaosCluster, ChaosNode, Disk
from tests.chaos.damage import files_of, flip_in_log
from tests.chaos.network import Network
from tests.chaos.run import JUDGED, Run
from tests.chaos.workload import Workload
from tests.histories.files import HistoryWriter
from tests.histories.words import Report, Rules, Word
from tests.integration.log_files import first_difference

WHOLE = {"term": 3, "leaderId": "n0", "endIndex": 9, "committedIndex": 9, "appliedIndex": 9}
IN_TOUCH = {"id": "n1", "pushState": "APPEND", "lagEntries": 7}


class ToldCluster(ChaosCluster):
    """Nodes whose statuses are given."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        super().__init__(Path("nowhere"), random.Random(1), len(statuses))
        self._told = {f"n{number}": status for number, status in enumerate(statuses)}
        self.nodes = dict.fromkeys(self._told, cast("ChaosNode", None))

    async def status(self, node_id: str) -> dict[str, Any] | None:
        return self._told[node_id] or None

    async def statuses(self) -> dict[str, dict[str, Any]]:
        return {node_id: status for node_id, status in self._told.items() if status}

    async def leader(self) -> str | None:
        return "n0"


async def test_group_with_one_log_is_whole() -> None:
    assert len(await ToldCluster(WHOLE, WHOLE, WHOLE).wait_whole(0.0)) == 3


@pytest.mark.parametrize(
    "other",
    [{}, {**WHOLE, "term": 4}, {**WHOLE, "endIndex": 10}, {**WHOLE, "appliedIndex": 8}],
    ids=["silent", "of another term", "longer", "behind"],
)
async def test_group_with_a_node_that_differs_is_not_whole(other: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="one leader and one log"):
        await ToldCluster(WHOLE, WHOLE, other).wait_whole(0.0)


@pytest.mark.parametrize("change", [{"leaderId": None}, {"committedIndex": 8, "appliedIndex": 8}], ids=str)
async def test_group_that_agrees_on_something_unfinished_is_not_whole(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="one leader and one log"):
        await ToldCluster(*[{**WHOLE, **change}] * 3).wait_whole(0.0)


@pytest.mark.parametrize(
    ("change", "is_in_touch"),
    [
        ({}, True),
        ({"lagEntries": None}, False),
        ({"lagEntries": 10_000}, False),
        ({"pushState": "COMPARE"}, False),
    ],
    ids=str,
)
async def test_leader_is_in_touch_with_a_follower_it_knows_to_be_near(
    change: dict[str, Any], is_in_touch: bool
) -> None:
    cluster = ToldCluster({"peers": [{"id": "n0"}, {**IN_TOUCH, **change}]}, {})
    if is_in_touch:
        await cluster.wait_in_touch(0.0)
        return
    with pytest.raises(AssertionError, match="in touch"):
        await cluster.wait_in_touch(0.0)


async def test_impaired_node_is_not_healed() -> None:
    leader = {"peers": [IN_TOUCH], "impairment": None}
    await ToldCluster(leader, {"impairment": None}).wait_healed("n1", 0.0)
    with pytest.raises(AssertionError, match="n1 is healed"):
        await ToldCluster(leader, {"impairment": "its vote is lost"}).wait_healed("n1", 0.0)


class ToldRun(Run):
    """A run whose history is judged already."""

    def __init__(self, folder: Path, report: Report) -> None:
        path = folder / "history.jsonl"
        with HistoryWriter(path) as writer:
            load = Workload("nowhere", "T", writer, random.Random(1), read=1)
        cluster = ToldCluster(WHOLE)
        cluster._network = Network([], random.Random(1))
        super().__init__(cluster, load, path)
        self._report = report

    async def judge(self, *, from_each: bool = False) -> Report:
        return self._report


def report_of(*kinds: str) -> Report:
    report = Report(Rules())
    report.operations.update(kinds)
    return report


async def test_clean_history_passes(tmp_path: Path) -> None:
    await ToldRun(tmp_path, report_of(*JUDGED)).finish()


@pytest.mark.parametrize("kind", sorted(JUDGED))
async def test_history_without_a_kind_of_operation_is_no_evidence(tmp_path: Path, kind: str) -> None:
    with pytest.raises(AssertionError, match=kind):
        await ToldRun(tmp_path, report_of(*(JUDGED - {kind}))).finish()


async def test_fault_idle_consumers_and_moved_offsets_fail_a_run(tmp_path: Path) -> None:
    faulty = report_of(*JUDGED)
    faulty.add(Word.LOST_WRITE, "T/0", "'a' is gone", (1,))
    with pytest.raises(AssertionError, match="lost-write"):
        await ToldRun(tmp_path, faulty).finish()
    run = ToldRun(tmp_path, report_of(*JUDGED))
    run.load.read = 0
    with pytest.raises(AssertionError, match="no consumer read"):
        await run.finish()
    run = ToldRun(tmp_path, report_of(*JUDGED))
    run.load.moved.append("c0 asked for 7")
    with pytest.raises(AssertionError, match="c0 asked for 7"):
        await run.finish()


def node_with(folder: Path, *files: bytes) -> ChaosNode:
    """A node whose log is in these files, of 8 bytes each."""
    node = ChaosNode("n0", 0, folder, "127.0.0.11", folder / "store", Disk())
    data = node.store / "data"
    data.mkdir(parents=True)
    for number, content in enumerate(files):
        (data / f"{8 * number:020}").write_bytes(content)
    return node


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bit_is_before_the_end_and_seen_till_it_is_undone(tmp_path: Path, seed: int) -> None:
    node = node_with(tmp_path / "n0", b"abcdefgh", b"ijklmnop")
    other = node_with(tmp_path / "n1", b"abcdefgh", b"ijklmnop")
    flip = flip_in_log(node, 11, random.Random(seed))
    assert not flip.is_undone()
    assert first_difference(node.folder, other.folder, 11) is not None
    content = bytearray(flip.path.read_bytes())
    content[flip.at] = flip.was
    flip.path.write_bytes(content)
    assert flip.is_undone()
    assert first_difference(node.folder, other.folder, 16) is None


def test_logs_of_which_nothing_is_compared_are_not_equal(tmp_path: Path) -> None:
    node, other = node_with(tmp_path / "n0", b"abc"), node_with(tmp_path / "n1", b"xyz")
    with pytest.raises(AssertionError, match="nothing is compared"):
        first_difference(node.folder, other.folder, 0)


def test_only_files_that_hold_something_can_be_damaged(tmp_path: Path) -> None:
    node = node_with(tmp_path / "n0", b"abc", bytes(8))
    assert [path.name for path in files_of(node, "data")] == ["0" * 20]
    assert files_of(node, "vote") == []
