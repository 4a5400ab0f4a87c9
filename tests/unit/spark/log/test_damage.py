"""Damage of every kind is told with its place, and everything else is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketmq_spark.log.entries import Damage
from rocketmq_spark.log.planning import plan_ranges
from rocketmq_spark.log.storage import Storage
from tests.unit.spark.log.stores import (
    DATA_FILE_BYTES,
    NODE,
    damages,
    flip,
    numbered,
    one_log,
    patch,
    positions,
    walk,
    write_entries,
    write_records,
)

COUNT = 60
SPLITS = (300, 1 << 30)


def data_file(folder: Path, number: int) -> Path:
    return sorted(folder.iterdir())[number]


def place_of(entry_position: int) -> tuple[int, int]:
    return divmod(entry_position, DATA_FILE_BYTES)


@pytest.fixture(scope="module")
def whole_entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store and where its entries stand."""
    root = tmp_path_factory.mktemp("entries")
    write_entries(root, numbered(COUNT))
    return root, read_all(root, 1 << 30)[0]


@pytest.fixture(scope="module")
def whole_records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A plain log and where its records stand."""
    root = tmp_path_factory.mktemp("records")
    write_records(root, numbered(COUNT))
    return root, read_all(root, 1 << 30)[0]


@pytest.fixture
def entries(tmp_path: Path, whole_entries: tuple[Path, list[int]]) -> tuple[Path, list[int]]:
    """The data files of a copy, to be damaged."""
    root, places = whole_entries
    shutil.copytree(root, tmp_path / "store")
    return tmp_path / "store" / NODE / "data", places


@pytest.fixture
def plain(tmp_path: Path, whole_records: tuple[Path, list[int]]) -> tuple[Path, list[int]]:
    """The files of a copy, to be damaged."""
    root, places = whole_records
    shutil.copytree(root, tmp_path / "store")
    return tmp_path / "store" / "commitlog", places


def read_all(folder: Path, split_bytes: int) -> tuple[list[int], list[Damage]]:
    log = one_log(folder)
    found = walk(log, plan_ranges(log, split_bytes))
    log.storage.close()
    return positions(found), damages(found)


@pytest.mark.parametrize("split_bytes", SPLITS)
@pytest.mark.parametrize("byte", [0, 5, 15, 20, 30, 33, 37, 41, 46, 48, 150, -1])
@pytest.mark.parametrize("entry", [0, 17, 30, COUNT - 1])
def test_a_flipped_bit_costs_its_entry_alone(
    entries: tuple[Path, list[int]], entry: int, byte: int, split_bytes: int
) -> None:
    folder, places = entries
    ends = [*places[1:], 0]
    if byte < 0:
        byte = min(ends[entry] - places[entry], 100) - 1 if entry < COUNT - 1 else 99
    file, at = place_of(places[entry])
    flip(data_file(folder, file), at + byte)
    whole, [damage] = read_all(folder.parent, split_bytes)
    assert whole == places[:entry] + places[entry + 1 :]
    assert damage.status == "corrupt"
    assert (damage.position, damage.first_index, damage.last_index) == (places[entry], entry, entry)
    if entry < COUNT - 1 and places[entry + 1] % DATA_FILE_BYTES:
        assert damage.position + damage.length == places[entry + 1]


@pytest.mark.parametrize("split_bytes", SPLITS)
def test_a_run_of_lost_entries_is_told_with_both_ends(
    entries: tuple[Path, list[int]], split_bytes: int
) -> None:
    folder, places = entries
    start, end = places[20], places[24]
    assert start // DATA_FILE_BYTES == end // DATA_FILE_BYTES
    file, at = place_of(start)
    patch(data_file(folder, file), at, lambda data: bytes(len(data)), end - start)
    whole, found = read_all(folder.parent, split_bytes)
    assert whole == places[:20] + places[24:]
    assert sum(each.length for each in found) == end - start
    assert [index for each in found for index in range(each.first_index, each.last_index + 1)] == [
        20,
        21,
        22,
        23,
    ]


@pytest.mark.parametrize("split_bytes", SPLITS)
@pytest.mark.parametrize("has_index", [True, False])
def test_a_missing_middle_file_is_told_as_missing(
    entries: tuple[Path, list[int]], split_bytes: int, has_index: bool
) -> None:
    folder, places = entries
    data_file(folder, 1).unlink()
    if not has_index:
        for path in (folder.parent / "index").iterdir():
            path.unlink()
    lost = [index for index, place in enumerate(places) if place // DATA_FILE_BYTES == 1]
    whole, [damage] = read_all(folder.parent, split_bytes)
    assert whole == [place for place in places if place // DATA_FILE_BYTES != 1]
    assert damage.status == "missing"
    assert (damage.first_index, damage.last_index) == (lost[0], lost[-1])
    assert (damage.position, damage.length) == (DATA_FILE_BYTES, DATA_FILE_BYTES)
    assert f"{DATA_FILE_BYTES:020d}" in damage.error


@pytest.mark.parametrize("split_bytes", SPLITS)
def test_a_missing_first_file_is_told_where_our_epochs_know_of_it(
    entries: tuple[Path, list[int]], split_bytes: int
) -> None:
    folder, places = entries
    data_file(folder, 0).unlink()
    whole, [damage] = read_all(folder.parent, split_bytes)
    assert whole == [place for place in places if place >= DATA_FILE_BYTES]
    assert (damage.status, damage.position, damage.first_index) == ("missing", 0, 0)


@pytest.mark.parametrize("split_bytes", SPLITS)
def test_a_truncated_tail_is_told_up_to_the_committed_entry(
    entries: tuple[Path, list[int]], split_bytes: int
) -> None:
    folder, places = entries
    file, at = place_of(places[COUNT - 4])
    with data_file(folder, file).open("r+b") as opened:
        opened.truncate(at + 30)
    whole, found = read_all(folder.parent, split_bytes)
    assert whole == places[: COUNT - 4]
    assert {each.status for each in found} == {"missing"}
    assert (found[0].position, found[0].first_index, found[-1].last_index) == (
        places[COUNT - 4],
        COUNT - 4,
        COUNT - 1,
    )


@pytest.mark.parametrize("split_bytes", SPLITS)
def test_a_truncated_middle_file_costs_its_last_entries(
    entries: tuple[Path, list[int]], split_bytes: int
) -> None:
    folder, places = entries
    with data_file(folder, 0).open("r+b") as opened:
        opened.truncate(places[3] + 7)
    behind = next(index for index, place in enumerate(places) if place >= DATA_FILE_BYTES)
    whole, found = read_all(folder.parent, split_bytes)
    assert whole == places[:3] + places[behind:]
    assert {each.status for each in found} == {"missing"}
    assert (found[0].first_index, found[-1].last_index) == (3, behind - 1)


def test_a_damaged_blank_costs_nothing(entries: tuple[Path, list[int]]) -> None:
    folder, places = entries
    last = max(index for index, place in enumerate(places) if place < DATA_FILE_BYTES)
    data = data_file(folder, 0).read_bytes()
    blank_at = data.find(b"\xff\xff\xff\xff", places[last] + 48)
    flip(data_file(folder, 0), blank_at + 6)
    for split_bytes in SPLITS:
        assert read_all(folder.parent, split_bytes) == (places, [])


@pytest.mark.parametrize("split_bytes", SPLITS)
@pytest.mark.parametrize("byte", [1, 5, 9, 30, 86, 95])
@pytest.mark.parametrize("record", [0, 17, 30])
def test_a_flipped_bit_of_a_plain_log_costs_its_record(
    plain: tuple[Path, list[int]], record: int, byte: int, split_bytes: int
) -> None:
    folder, places = plain
    file, at = place_of(places[record])
    flip(data_file(folder, file), at + byte)
    whole, [damage] = read_all(folder.parent, split_bytes)
    assert whole == places[:record] + places[record + 1 :]
    assert (damage.status, damage.position) == ("corrupt", places[record])


@pytest.mark.parametrize("split_bytes", SPLITS)
def test_a_missing_file_of_a_plain_log_is_told(plain: tuple[Path, list[int]], split_bytes: int) -> None:
    folder, places = plain
    data_file(folder, 1).unlink()
    whole, [damage] = read_all(folder.parent, split_bytes)
    assert whole == [place for place in places if place // DATA_FILE_BYTES != 1]
    assert (damage.status, damage.position, damage.length) == ("missing", DATA_FILE_BYTES, DATA_FILE_BYTES)


@pytest.mark.parametrize("split_bytes", SPLITS)
def test_missing_last_files_are_told_up_to_the_committed_entry(
    entries: tuple[Path, list[int]], split_bytes: int
) -> None:
    folder, places = entries
    for path in sorted(folder.iterdir())[-2:]:
        path.unlink()
    files = len(list(folder.iterdir()))
    left = [place for place in places if place < files * DATA_FILE_BYTES]
    for has_index in (True, False):
        if not has_index:
            shutil.rmtree(folder.parent / "index")
        whole, found = read_all(folder.parent, split_bytes)
        assert whole == left
        assert {each.status for each in found} == {"missing"}
        assert (found[0].first_index, found[-1].last_index) == (len(left), COUNT - 1)


def test_an_unfinished_last_record_is_torn_where_nobody_knows_better(plain: tuple[Path, list[int]]) -> None:
    """RocketMQ 4 keeps no flushed position: then a write that did not end and damage look the same."""
    folder, places = plain
    (folder.parent / "checkpoint").unlink()
    file, at = place_of(places[-1])
    flip(data_file(folder, file), at + 95)
    whole, [damage] = read_all(folder.parent, 1 << 30)
    assert whole == places[:-1]
    assert (damage.status, damage.position) == ("torn", places[-1])


def test_a_damaged_last_record_that_was_flushed_is_corrupt(plain: tuple[Path, list[int]]) -> None:
    folder, places = plain
    file, at = place_of(places[-1])
    flip(data_file(folder, file), at + 95)
    whole, [damage] = read_all(folder.parent, 1 << 30)
    assert whole == places[:-1]
    assert (damage.status, damage.position) == ("corrupt", places[-1])


def test_an_uncommitted_unfinished_entry_is_torn(tmp_path: Path) -> None:
    folder = write_entries(tmp_path, numbered(COUNT), committed=30)
    log = one_log(tmp_path)
    places = positions(walk(log, plan_ranges(log, 1000, include_uncommitted=True)))
    (folder / "checkpoint").write_bytes(b"endIndex=40\ncommittedIndex=30\n")
    file, at = place_of(places[-1])
    flip(folder / "data" / f"{file * DATA_FILE_BYTES:020d}", at + 60)
    log = one_log(tmp_path)
    found = walk(log, plan_ranges(log, 1000, include_uncommitted=True))
    assert positions(found) == places[:-1]
    assert [each.status for each in damages(found)] == ["torn"]


def test_an_entry_that_was_being_written_when_it_was_read_is_no_damage(
    entries: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reads see half of an entry behind the checkpoint; then it is there, and others behind it."""
    folder, places = entries
    (folder.parent / "checkpoint").write_bytes(b"endIndex=10\ncommittedIndex=10\n")
    log = one_log(folder.parent)
    [*_, last] = plan_ranges(log, 1 << 30, include_uncommitted=True)
    half = places[COUNT - 3] + 60
    reads: list[int] = []

    def read(storage: Storage, path: str, start: int, size_bytes: int) -> bytes:
        data = Storage.read(storage, path, start, size_bytes)
        position = int(Path(path).name) + start
        is_early = "data" in path and size_bytes > 100 and len(reads) < 2 and position <= half
        if is_early and half < position + len(data):
            reads.append(position)
            return data[: half - position] + bytes(len(data) - half + position)
        return data

    monkeypatch.setattr(log.storage, "read", read.__get__(log.storage))
    found = walk(log, [last])
    assert len(reads) == 2
    assert damages(found) == []
    assert positions(found)[-3:] == places[-3:]
