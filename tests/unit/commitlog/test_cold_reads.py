"""Reading from the files: whole bytes or an error that names the entries, never wrong bytes."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.entry import UNIT
from commitlog.entry_store import EntryStore
from commitlog.errors import PositionError
from dledger.core.types import DamagedEntryError
from tests.support.log_entries import DIRECTORY, Stored, open_small, write_all
from tests.support.memory_fs import MemoryFs

BODY_BYTES = 52
ENTRY_BYTES = 100
PER_FILE = 10


def filled(fs: MemoryFs) -> EntryStore:
    """50 entries of 100 bytes, ten a file, of which the last few are in memory, too."""
    store = open_small(fs)
    for index in range(50):
        store.append_bodies(index, 1 + index // 25, [bytes([index]) * BODY_BYTES])
        write_all(store)
    return store


def data_file(index: int) -> tuple[Path, int]:
    return DIRECTORY / "data" / f"{index // PER_FILE * 1024:020d}", index % PER_FILE * ENTRY_BYTES


def index_file(index: int) -> tuple[Path, int]:
    return DIRECTORY / "index" / f"{index * 32 // 256 * 256:020d}", index * 32 % 256


def position_of(index: int) -> int:
    return index // PER_FILE * 1024 + index % PER_FILE * ENTRY_BYTES


def read_each(store: EntryStore, first_index: int, last_index: int, bytes_max: int) -> set[int]:
    """The entries found damaged by reading all, with the others compared to what was written."""
    damaged: set[int] = set()
    index = first_index
    while index <= last_index:
        try:
            found = store.read_range(index, last_index, bytes_max)
        except DamagedEntryError as error:
            assert error.first_index == index <= error.last_index <= last_index  # noqa: PT017
            damaged.update(range(index, error.last_index + 1))
            index = error.last_index + 1
            continue
        for number in range(found.first_index, found.last_index + 1):
            at = (number - found.first_index) * ENTRY_BYTES + 48
            assert bytes(found.data[at : at + BODY_BYTES]) == bytes([number]) * BODY_BYTES
        index = found.last_index + 1
    return damaged


@pytest.mark.parametrize("bit", range(0, 8 * ENTRY_BYTES, 5))
def test_flip_in_an_entry_is_damage_of_that_entry_alone(bit: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    path, at = data_file(14)
    fs.flip(path, at + bit // 8, bit % 8)
    assert read_each(store, 0, 49, 700) == {14}
    assert read_each(store, 14, 16, 1) == {14}


@pytest.mark.parametrize("bit", range(8 * UNIT.size))
def test_flip_in_an_index_unit_never_gives_wrong_bytes(bit: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    path, at = index_file(14)
    fs.flip(path, at + bit // 8, bit % 8)
    assert read_each(store, 0, 49, 700) <= {14}
    assert read_each(store, 14, 14, 700) <= {14}
    assert store.position_of(14) >= 0
    assert store.position_of(15) == position_of(15)


@pytest.mark.parametrize(
    "damage",
    [
        lambda fs, path: fs.overwrite(path, 200, bytes(300)),
        lambda fs, path: fs.fail({"pread"}, errno.EIO, is_lasting=True, folder=path),
    ],
)
def test_hole_and_unreadable_sector_are_damage(damage: Callable[[MemoryFs, Path], None]) -> None:
    fs = MemoryFs()
    store = filled(fs)
    damage(fs, data_file(10)[0])
    damaged = read_each(store, 0, 49, 700)
    assert damaged in ({12, 13, 14}, set(range(10, 20)))
    fs.heal()


def test_any_other_error_of_the_disk_is_no_damage() -> None:
    fs = MemoryFs()
    store = filled(fs)
    fs.fail({"pread"}, errno.EBADF)
    with pytest.raises(OSError, match="Bad file"):
        store.read_range(12, 13, 700)


def test_missing_index_file_is_damage_of_its_entries() -> None:
    fs = MemoryFs()
    store = filled(fs)
    fs.fail({"pread"}, errno.EIO, is_lasting=True, folder=index_file(16)[0])
    assert read_each(store, 16, 23, 700) == set(range(16, 24))


@pytest.mark.parametrize("bit", range(0, 8 * ENTRY_BYTES, 5))
def test_bodies_are_read_checked(bit: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    path, at = data_file(14)
    fs.flip(path, at + bit // 8, bit % 8)
    units = [(position_of(index) + 48, BODY_BYTES) for index in (12, 13, 15)]
    assert [bytes(body) for body in store.read_bodies(units)] == [
        bytes([i]) * BODY_BYTES for i in (12, 13, 15)
    ]
    with pytest.raises(DamagedEntryError) as raised:
        store.read_bodies([(position_of(index) + 48, BODY_BYTES) for index in (12, 14, 15)])
    assert (raised.value.first_index, raised.value.last_index) == (14, 14)


@pytest.mark.parametrize(("position", "size"), [(1448 + 1, BODY_BYTES), (1448, BODY_BYTES - 1), (1500, 10)])
def test_bodies_where_none_stands_are_no_damage(position: int, size: int) -> None:
    with pytest.raises(PositionError):
        filled(MemoryFs()).read_bodies([(position, size)])


def test_entry_of_an_unreadable_body_is_looked_for_among_the_written_ones_only() -> None:
    fs = MemoryFs()
    store = filled(fs)
    for index in range(50, 80):
        store.append_bodies(index, 2, [bytes([index]) * BODY_BYTES])
    fs.fail({"pread"}, errno.EIO)
    with pytest.raises(DamagedEntryError) as raised:
        store.read_bodies([(position_of(14) + 48, BODY_BYTES)])
    assert (raised.value.first_index, raised.value.last_index) == (14, 14)


def test_cut_at_a_damaged_index_unit_is_refused() -> None:
    fs = MemoryFs()
    store = filled(fs)
    path, at = index_file(14)
    fs.flip(path, at + 11, 4)  # its position
    with pytest.raises(DamagedEntryError, match="14"):
        store.truncate_from(15)
    assert store.end_index == 49


def test_entries_in_memory_need_no_disk() -> None:
    fs = MemoryFs()
    store = filled(fs)
    fs.fail({"pread"}, errno.EIO, is_lasting=True)
    found = store.read_range(49, 49, 700)
    assert Stored(found.term, bytes(found.data[48:])) == Stored(2, bytes([49]) * BODY_BYTES)


def test_sequential_reader_has_each_later_block_read_ahead_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.cold_reads.AHEAD_BYTES", 200)
    store = filled(MemoryFs())
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        store._files.data, "read_ahead", lambda position, size: asked.append((position, size))
    )
    for index in range(PER_FILE):
        store.cold.read_range(index, index, ENTRY_BYTES)
    assert asked == [(position, 200) for position in range(600, 1_401, 200)]
