"""A store that is looked through while it runs finds every damage, and takes good entries in its place."""

import dataclasses
import errno
import random
from pathlib import Path

import pytest

from commitlog.entry import encode_entries
from commitlog.entry_store import EntryStore, StoreFailedError
from dledger.core.types import CorruptRangeError, DamagedEntryError, EntryRange, Scrubbed
from tests.support.log_entries import DIRECTORY, SMALL, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs

COUNT = 60
COMMITTED = 54


def filled(fs: MemoryFs) -> EntryStore:
    """60 entries of 100 bytes, ten a file, of terms 1 to 3; 55 are committed, none is in memory."""
    store = open_small(fs, dataclasses.replace(SMALL, cache_bytes_max=1))
    for index in range(COUNT):
        store.append_bodies(index, 1 + index // 25, [bytes([index]) * 52])
    write_all(store)
    store.save_checkpoint(COUNT - 1, COMMITTED)
    return store


def place(index: int) -> tuple[Path, int]:
    return DIRECTORY / "data" / f"{index // 10 * 1024:020d}", index % 10 * 100


def unit_place(index: int) -> tuple[Path, int]:
    return DIRECTORY / "index" / f"{index * 32 // 256 * 256:020d}", index * 32 % 256


def good_range(first_index: int, last_index: int) -> EntryRange:
    """As a peer gives them."""
    term = 1 + first_index // 25
    bodies = [bytes([index]) * 52 for index in range(first_index, last_index + 1)]
    position = first_index // 10 * 1024 + first_index % 10 * 100
    data = encode_entries(bodies, first_index, term, position, None)[0]
    return EntryRange(first_index, last_index, term, data)


def scrub_round(store: EntryStore, bytes_max: int = 700) -> tuple[set[int], int]:
    """(entries found damaged, bytes read) of a whole round."""
    found: set[int] = set()
    read_bytes = 0
    for _ in range(500):
        scrubbed = store.scrub(bytes_max)
        assert scrubbed.read_bytes > 0 or scrubbed.is_round_done
        read_bytes += scrubbed.read_bytes
        for damage in scrubbed.damaged:
            found.update(range(damage.first_index, damage.last_index + 1))
        if scrubbed.is_round_done:
            return found, read_bytes
    pytest.fail("the round does not end")


def files(fs: MemoryFs) -> dict[Path, bytes]:
    return {path: fs.content(path) for path in fs.paths() if path.parent.name in ("data", "index")}


@pytest.mark.parametrize("bytes_max", [1, 48, 100, 700, 1024, 100_000])
def test_whole_log_is_read_and_nothing_found(bytes_max: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    for _ in range(3):
        found, read_bytes = scrub_round(store, bytes_max)
        assert not found
        assert read_bytes >= (COMMITTED + 1) * 100
    assert files(fs) == before


def test_step_reads_no_more_than_it_may_and_an_entry() -> None:
    store = filled(MemoryFs())
    for bytes_max in (200, 500):
        for _ in range(40):
            assert store.scrub(bytes_max).read_bytes <= bytes_max + 100


def test_empty_log_is_a_round() -> None:
    assert open_small(MemoryFs()).scrub(1000) == Scrubbed(0, (), True)


@pytest.mark.parametrize("bit", range(0, 800, 3))
@pytest.mark.parametrize("index", [0, 9, 14, 54])
def test_every_flip_is_found_and_mended(index: int, bit: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    path, at = place(index)
    fs.flip(path, at + bit // 8, bit % 8)
    assert scrub_round(store)[0] == {index}
    store.replace_range(good_range(index, index))
    assert scrub_round(store)[0] == set()
    assert files(fs) == before


def test_uncommitted_entries_are_not_looked_at() -> None:
    fs = MemoryFs()
    store = filled(fs)
    path, at = place(COMMITTED + 1)
    fs.flip(path, at + 50, 0)
    assert scrub_round(store)[0] == set()


@pytest.mark.parametrize(("first", "size"), [(12, 350), (10, 1024), (3, 10), (8, 124), (19, 124)])
def test_hole_over_many_entries_is_found_and_mended(first: int, size: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    path, at = place(first)
    fs.overwrite(path, at, bytes(size))
    found, _ = scrub_round(store)
    count = min(-(-size // 100), 10 - first % 10)
    assert found == set(range(first, first + count))
    store.replace_range(good_range(first, first + count - 1))
    assert scrub_round(store)[0] == set()
    assert files(fs) == before


@pytest.mark.parametrize("bit", range(256))
def test_damaged_index_unit_is_written_again_from_the_entries(bit: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    path, at = unit_place(14)
    fs.flip(path, at + bit // 8, bit % 8)
    assert scrub_round(store)[0] == set()
    assert files(fs) == before


@pytest.mark.parametrize("index", range(8, 24))
def test_entry_and_unit_damaged_together_are_mended(index: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    for path, at in (place(index), unit_place(index)):
        fs.overwrite(path, at, b"\x77" * 20)
    assert index in scrub_round(store)[0]
    store.replace_range(good_range(index, index))
    assert scrub_round(store)[0] == set()
    assert files(fs) == before


def test_file_and_its_units_lost_together_are_found_to_the_next_file() -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    fs.overwrite(place(20)[0], 0, bytes(1024))
    for index in range(16, 32):
        path, at = unit_place(index)
        fs.overwrite(path, at, bytes(32))
    assert scrub_round(store)[0] == set(range(20, 30))
    for first, last in ((20, 24), (25, 29)):
        store.replace_range(good_range(first, last))
    assert scrub_round(store)[0] == set()
    assert files(fs) == before


def test_unreadable_sector_is_damage_and_heals_when_written() -> None:
    fs = MemoryFs()
    store = filled(fs)
    fs.fail({"pread"}, errno.EIO, is_lasting=True, folder=place(20)[0])
    assert scrub_round(store)[0] == set(range(20, 30))
    fs.heal()
    fs.fail({"pread"}, errno.ENODEV)
    with pytest.raises(OSError, match="No such device"):
        store.scrub(700)
    with pytest.raises(StoreFailedError):
        store.scrub(700)


@pytest.mark.parametrize("bit", range(64))
def test_damaged_blank_is_written_again(bit: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    fs.flip(place(19)[0], 1000 + bit // 8, bit % 8)
    assert scrub_round(store)[0] == set()
    assert files(fs) == before


def test_what_does_not_fit_is_refused_with_nothing_written() -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = files(fs)
    good = good_range(14, 15)
    moved = encode_entries([bytes(52)] * 2, 14, 1, 1432, None)[0]
    longer = encode_entries([bytes(52), bytes(60)], 14, 1, 1424, None)[0]
    wrong = [
        EntryRange(14, 15, 1, bytes([good.data[0] ^ 1]) + bytes(good.data[1:])),
        EntryRange(14, 15, 1, moved),
        EntryRange(14, 15, 1, longer),
        EntryRange(14, 15, 2, encode_entries([bytes(52)] * 2, 14, 2, 1424, None)[0]),
        EntryRange(24, 25, 1, encode_entries([bytes(52)] * 2, 24, 1, 2448, None)[0]),
        EntryRange(60, 60, 3, encode_entries([bytes(52)], 60, 3, 6144, None)[0]),
        EntryRange(19, 20, 1, encode_entries([bytes(52)] * 2, 19, 1, 1924, None)[0]),
    ]
    for entries in wrong:
        with pytest.raises(CorruptRangeError):
            store.replace_range(entries)
    assert files(fs) == before
    store.replace_range(good)  # the store has not failed
    assert files(fs) == before


def test_what_was_mended_outlives_a_power_failure() -> None:
    for seed in range(20):
        fs = MemoryFs()
        before = read_all(filled(fs))
        store = open_small(fs)
        fs.overwrite(place(12)[0], 200, bytes(300))
        store.replace_range(good_range(12, 14))
        assert read_all(open_small(fs.crash(random.Random(seed)))) == before


def test_larger_entry_than_a_step_is_read_whole() -> None:
    fs = MemoryFs()
    store = open_small(fs, dataclasses.replace(SMALL, cache_bytes_max=1))
    store.append_bodies(0, 1, [bytes(900), b"x", bytes(900), b"y"])
    write_all(store)
    store.save_checkpoint(3, 3)
    assert scrub_round(store, 64)[0] == set()
    fs.flip(DIRECTORY / "data" / f"{1024:020d}", 500, 0)
    assert scrub_round(store, 64)[0] == {2}
    with pytest.raises(DamagedEntryError):
        store.read_range(2, 3, 10)
