"""Whatever a plan is, its ranges yield every entry exactly once, in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketmq_spark.log.discovery import NoLogError
from rocketmq_spark.log.entries import UNKNOWN, EntryBlock
from rocketmq_spark.log.planning import plan_ranges
from rocketmq_spark.log.walk import EntryWalk
from tests.support.long_runs import examples
from tests.unit.spark.log.stores import (
    Put,
    damages,
    flip,
    numbered,
    one_log,
    positions,
    records,
    walk,
    write_entries,
    write_records,
)


@pytest.mark.parametrize("split_bytes", [1, 300, 1000, 4096, 5000, 1 << 30])
def test_ranges_of_entries_follow_each_other(tmp_path: Path, split_bytes: int) -> None:
    write_entries(tmp_path, numbered(100))
    log = one_log(tmp_path)
    ranges = plan_ranges(log, split_bytes)
    assert [each.end_position for each in ranges[:-1]] == [each.first_position for each in ranges[1:]]
    assert [each.last_index + 1 for each in ranges[:-1]] == [each.first_index for each in ranges[1:]]
    assert (ranges[0].first_index, ranges[-1].last_index) == (0, 99)
    assert len(ranges) >= min(len(log.data.starts), 100)
    found = walk(log, ranges)
    assert damages(found) == []
    blocks = [each for each in found if isinstance(each, EntryBlock)]
    indexes = [range(each.first_index, each.first_index + len(each)) for each in blocks]
    assert [index for part in indexes for index in part] == list(range(100))


sizes = st.lists(st.integers(0, 900), min_size=1, max_size=60)


@settings(max_examples=examples(40), deadline=None)
@given(sizes, st.integers(1, 6000), st.integers(1, 20), st.integers(60, 9000))
def test_any_plan_yields_every_entry_once(
    body_sizes: list[int], split_bytes: int, partitions_min: int, window_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        puts = [Put(b"b" * size, term=1 + number // 9) for number, size in enumerate(body_sizes)]
        write_entries(Path(folder), puts)
        log = one_log(folder)
        whole = positions(walk(log, plan_ranges(log, 1 << 30)))
        ranges = plan_ranges(log, split_bytes, partitions_min)
        found = [each for part in ranges for each in EntryWalk(log, part, window_bytes)]
        log.storage.close()
        assert damages(found) == []
        assert positions(found) == whole
        assert len(whole) == len(puts)


@settings(max_examples=examples(25), deadline=None)
@given(sizes, st.integers(1, 6000), st.booleans())
def test_any_plan_yields_every_record_once(body_sizes: list[int], split_bytes: int, has_queues: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        puts = [Put(b"b" * size, queue_id=number % 3) for number, size in enumerate(body_sizes)]
        write_records(Path(folder), puts)
        if not has_queues:
            (Path(folder) / "consumequeue").rename(Path(folder) / "elsewhere")
        log = one_log(folder)
        found = walk(log, plan_ranges(log, split_bytes))
        log.storage.close()
        assert damages(found) == []
        assert len(positions(found)) == len(set(positions(found))) == len(puts)
        assert positions(found) == sorted(positions(found))


def test_plain_log_is_divided_inside_its_files_with_queues_and_without(tmp_path: Path) -> None:
    write_records(tmp_path, numbered(60), data_file_bytes=1 << 16)
    with_queues = plan_ranges(one_log(tmp_path), 2000)
    (tmp_path / "consumequeue").rename(tmp_path / "elsewhere")
    searched = plan_ranges(one_log(tmp_path), 2000)
    assert with_queues == searched
    assert len(searched) > 4


def test_a_body_that_holds_a_record_divides_nothing(tmp_path: Path) -> None:
    """The record in the body says itself where it stands: where its maker guessed that it would."""
    inner = bytearray(records([Put(b"forged")])[0])
    place = 88 + 200
    inner[28:36] = place.to_bytes(8, "big")
    write_records(tmp_path, [Put(b"." * 200 + bytes(inner) + b"." * 300), *numbered(20)], 1 << 16)
    (tmp_path / "consumequeue").rename(tmp_path / "elsewhere")
    log = one_log(tmp_path)
    ranges = plan_ranges(log, 250)
    assert place not in [each.first_position for each in ranges]
    assert len(positions(walk(log, ranges))) == 21


def test_only_committed_entries_are_planned_unless_told(tmp_path: Path) -> None:
    write_entries(tmp_path, numbered(50), committed=29)
    log = one_log(tmp_path)
    assert len(positions(walk(log, plan_ranges(log, 1000)))) == 30
    everything = walk(log, plan_ranges(log, 1000, include_uncommitted=True))
    assert len(positions(everything)) == 50
    assert damages(everything) == []


def test_nothing_committed_is_no_range(tmp_path: Path) -> None:
    write_entries(tmp_path, numbered(5), committed=-1)
    assert plan_ranges(one_log(tmp_path), 1000) == []


def test_the_checkpoint_before_counts_where_the_newest_is_missing_or_torn(tmp_path: Path) -> None:
    """What a Java broker leaves that ends between deleting the old one and renaming the new one."""
    folder = write_entries(tmp_path, numbered(20))
    content = (folder / "checkpoint").read_bytes()
    whole = one_log(tmp_path)
    (folder / "checkpoint").rename(folder / "checkpoint.bak")
    for torn in (None, b"", b"endIndex=3", content[: len(content) // 2]):
        if torn is not None:
            (folder / "checkpoint").write_bytes(torn)
        found = one_log(tmp_path)
        assert found.checkpoint == whole.checkpoint is not None
    (folder / "checkpoint").write_bytes(b"endIndex=10\ncommittedIndex=10\n")
    found = one_log(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.committed_index == 10


def test_store_without_a_checkpoint_is_refused_and_can_be_read_whole(tmp_path: Path) -> None:
    folder = write_entries(tmp_path, numbered(20))
    (folder / "checkpoint").unlink()
    log = one_log(tmp_path)
    with pytest.raises(NoLogError, match="includeUncommitted"):
        plan_ranges(log, 1000)
    assert len(positions(walk(log, plan_ranges(log, 1000, include_uncommitted=True)))) == 20


def test_without_an_index_a_log_is_divided_by_its_files(tmp_path: Path) -> None:
    folder = write_entries(tmp_path, numbered(60))
    (folder / "index").rename(folder / "lost")
    (folder / "index").mkdir()
    log = one_log(tmp_path)
    ranges = plan_ranges(log, 500)
    assert len(ranges) == len(log.data.starts)
    assert len(positions(walk(log, ranges))) == 60


@pytest.mark.parametrize("unit", [0, 7, 8, 30, 59])
@pytest.mark.parametrize("field", [0, 11, 15, 23])
def test_a_damaged_index_unit_costs_no_entry(tmp_path: Path, unit: int, field: int) -> None:
    folder = write_entries(tmp_path, numbered(60))
    file, at = divmod(unit * 32 + field, 320)
    flip(folder / "index" / f"{file * 320:020d}", at)
    log = one_log(tmp_path)
    for split_bytes in (200, 700, 1 << 30):
        found = walk(log, plan_ranges(log, split_bytes))
        assert len(positions(found)) == 60, damages(found)
        assert damages(found) == []


def test_a_row_of_a_range_that_ends_within_the_window_is_told_by_bytes_alone(tmp_path: Path) -> None:
    """As where the index is damaged at the committed entry: the range's end is the row's."""
    folder = write_entries(tmp_path, numbered(40), committed=19)
    for unit in (18, 19, 20):
        file, at = divmod(unit * 32 + 5, 320)
        flip(folder / "index" / f"{file * 320:020d}", at)
    log = one_log(tmp_path)
    ranges = plan_ranges(log, 1 << 30)
    assert ranges[-1].last_index == 19
    assert len(positions(walk(log, ranges))) == 20
    assert UNKNOWN not in [each.first_index for each in ranges]
