"""What a crash or damage leaves of an entry store, and what opening it again makes of that."""

import dataclasses
import random
from pathlib import Path

import pytest

from commitlog.entry_store import EntryStore
from commitlog.errors import CorruptLogError
from dledger.core.types import DamagedEntryError, Epoch
from tests.support.log_entries import DIRECTORY, SMALL, Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs, PowerLossError

FIRST = DIRECTORY / "data" / f"{0:020d}"


def append(store: EntryStore, term: int, *bodies: bytes) -> None:
    store.append_bodies(store.end_index + 1, term, bodies)


def epochs_of(entries: list[Stored], begin_index: int) -> tuple[Epoch, ...]:
    found: list[Epoch] = []
    for index, entry in enumerate(entries, begin_index):
        if not found or found[-1].term != entry.term:
            found.append(Epoch(entry.term, index))
    return tuple(found)


# -- cut at every byte -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", range(98, 98 + 49 + 50 + 51 + 1))
def test_file_that_ends_at_any_byte_of_the_last_entries_keeps_the_whole_ones(kept: int) -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"0", b"1")
    append(store, 2, b"2", b"33", b"444")
    write_all(store, sync=False)
    fs.overwrite(FIRST, kept, bytes(1024 - kept))
    again = open_small(fs)
    whole = sum(kept >= end for end in (147, 197, 248))
    assert again.end_index == 1 + whole
    assert again.end_position == [98, 147, 197, 248][whole]
    assert again.log_state().epochs == epochs_of(read_all(again), 0)
    append(again, 3, b"new")
    write_all(again)
    assert read_all(open_small(fs))[-1] == Stored(3, b"new")


def test_short_last_file_is_extended_again() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"a", b"b")
    write_all(store, sync=False)
    fd = fs.open(FIRST)
    fs.set_size(fd, 60)
    assert open_small(fs).end_index == 0
    assert fs.size(fd) == 1024


def test_what_a_crash_left_behind_the_cut_never_comes_back() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"a", b"b", b"c")
    write_all(store, sync=False)
    fs.overwrite(FIRST, 49 + 48, b"\0")  # entry 1 is torn, entry 2 whole
    again = open_small(fs)
    append(again, 1, b"x")
    write_all(again)
    assert read_all(open_small(fs)) == [Stored(1, b"a"), Stored(1, b"x")]


# -- damage ------------------------------------------------------------------------------------------------


def filled(fs: MemoryFs) -> EntryStore:
    """200 entries of 100 bytes, ten a file: the checkpoint knows the first 100, the last file is unsynced."""
    store = open_small(fs)
    for index in range(100):
        append(store, 1 + index // 30, bytes([index]) * 52)
    write_all(store)
    store.save_checkpoint(99, 50)
    for index in range(100, 200):
        append(store, 9, bytes([index]) * 52)
    write_all(store, sync=False)
    return store


def place(position: int) -> tuple[Path, int]:
    return DIRECTORY / "data" / f"{position - position % 1024:020d}", position % 1024


@pytest.mark.parametrize(
    ("at", "damage", "reason"),
    [
        (0, b"\0\0\0\2", "magic 2"),
        (7, b"\x65", "size 101"),
        (15, b"\x99", "entry 153"),
        (23, b"\x08", "of term 8"),
        (31, b"\x01", "at position"),
        (43, b"\x01", "CRC"),
        (47, b"\x35", "body length 53"),
        (70, b"\x01", "CRC"),
    ],
)
def test_damaged_tail_above_the_checkpoint_is_cut(at: int, damage: bytes, reason: str) -> None:
    fs = MemoryFs()
    store = filled(fs)
    path, start = place(store.position_of(198))
    fs.overwrite(path, start + at, damage)
    again = open_small(fs)
    assert again.end_index == 197
    assert again.log_state().commit_index == 50


@pytest.mark.parametrize("at", [0, 7, 15, 23, 31, 43, 47, 70])
def test_damage_the_checkpoint_covers_is_corrupt(at: int) -> None:
    fs = MemoryFs()
    store = filled(fs)
    store.save_checkpoint(199, 50)
    position = store.position_of(199)
    path, start = place(position)
    fs.overwrite(path, start + at, b"\x77")
    with pytest.raises(CorruptLogError, match=rf"{path.name}: position {position}: .*entry 199.*on the disk"):
        open_small(fs)
    assert fs.open_files == len(fs.list(DIRECTORY / "data")) + len(fs.list(DIRECTORY / "index")) + 1


def test_damage_farther_back_than_anything_unsynced_is_corrupt() -> None:
    config = dataclasses.replace(SMALL, unsynced_bytes_max=500)
    fs = MemoryFs()
    store = filled(fs)
    path, start = place(store.position_of(190))
    fs.overwrite(path, start + 60, b"\x77")
    with pytest.raises(CorruptLogError, match="whole at position"):
        open_small(fs, config)
    assert open_small(fs).end_index == 189  # with 4096 bytes unsynced at most it may be a torn write


def test_missing_data_files_are_corrupt() -> None:
    fs = MemoryFs()
    filled(fs)
    for name in fs.list(DIRECTORY / "data"):
        fs.delete(DIRECTORY / "data" / name)
    with pytest.raises(CorruptLogError, match="no files"):
        open_small(fs)


def test_missing_middle_file_is_corrupt() -> None:
    fs = MemoryFs()
    filled(fs)
    fs.delete(DIRECTORY / "data" / f"{2048:020d}")
    with pytest.raises(CorruptLogError, match="the file before it is missing"):
        open_small(fs)


def test_missing_last_file_below_the_checkpoint_is_corrupt() -> None:
    fs = MemoryFs()
    store = filled(fs)
    store.save_checkpoint(199, 50)
    fs.delete(DIRECTORY / "data" / fs.list(DIRECTORY / "data")[-1])
    with pytest.raises(CorruptLogError, match="next data file is missing"):
        open_small(fs)


def test_data_file_of_another_length_or_name_is_corrupt() -> None:
    for name, size in ((f"{1024:020d}", 1000), (f"{1000:020d}", 1024), ("7", 1024)):
        fs = MemoryFs()
        filled(fs)
        fd = fs.open(DIRECTORY / "data" / name)
        fs.set_size(fd, size)
        with pytest.raises(CorruptLogError, match=name):
            open_small(fs)


def test_begin_that_nothing_tells_is_corrupt_when_entries_follow() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    store.reset(50, 3000)
    append(store, 7, b"x", b"y")
    write_all(store, sync=False)
    fs.delete(DIRECTORY / "epochs")
    assert open_small(fs).begin_index == 50  # the first entry tells
    fs.delete(DIRECTORY / "epochs")
    fs.overwrite(*place(3000), b"\x77")
    with pytest.raises(CorruptLogError, match="where the log begins"):
        open_small(fs)


# -- what can be made again --------------------------------------------------------------------------------


def test_walk_begins_with_the_third_last_file() -> None:
    fs = MemoryFs()
    filled(fs)
    fs.overwrite(FIRST, 60, b"\x77")
    store = open_small(fs)
    assert store.end_index == 199
    with pytest.raises(DamagedEntryError):
        read_all(store)


def test_lost_index_is_written_again() -> None:
    fs = MemoryFs()
    before = read_all(filled(fs))
    index = {name: fs.content(DIRECTORY / "index" / name) for name in fs.list(DIRECTORY / "index")}
    for lost in (list(index), list(index)[:1], list(index)[5:6], list(index)[-2:]):
        for name in lost:
            fs.delete(DIRECTORY / "index" / name)
        assert read_all(open_small(fs)) == before
        assert {name: fs.content(DIRECTORY / "index" / name) for name in index} == index


def test_wrong_index_of_the_last_files_is_mended() -> None:
    fs = MemoryFs()
    store = filled(fs)
    before = read_all(store)
    last = fs.list(DIRECTORY / "index")[-1]
    fs.overwrite(DIRECTORY / "index" / last, 5, b"\x77" * 100)
    assert read_all(open_small(fs)) == before


@pytest.mark.parametrize("content", [None, b"", b"{}\n00000000\n", b'{"version":9}\n'])
def test_epochs_are_read_from_the_log_when_their_file_is_missing_or_wrong(content: bytes | None) -> None:
    fs = MemoryFs()
    store = filled(fs)
    expected = store.log_state().epochs
    assert expected == (Epoch(1, 0), Epoch(2, 30), Epoch(3, 60), Epoch(4, 90), Epoch(9, 100))
    good = fs.content(DIRECTORY / "epochs")
    fs.delete(DIRECTORY / "epochs")
    if content is not None:
        fs.pwrite(fs.open(DIRECTORY / "epochs"), [content], 0)
    assert open_small(fs).log_state().epochs == expected
    assert fs.content(DIRECTORY / "epochs") == good


def test_entry_larger_than_a_window_is_walked_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.entry_recovery.WINDOW_BYTES", 100)
    fs = MemoryFs()
    store = filled(fs)
    append(store, 9, bytes(800), bytes(900), b"end")
    write_all(store)
    assert read_all(open_small(fs)) == read_all(store)


# -- against a list, with crashes --------------------------------------------------------------------------


class Model:
    """The log as a list, and every state that a power failure may leave it in."""

    def __init__(self) -> None:
        self.begin = 0
        self.entries: list[Stored] = []
        self.allowed: list[tuple[int, list[Stored]]] = [(0, [])]

    def note(self) -> None:
        self.allowed.append((self.begin, list(self.entries)))

    def append(self, entries: list[Stored]) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.note()

    def cut(self, kept: int) -> None:
        # File by file, the last first: a failure may leave any part of what is to go.
        while len(self.entries) > kept:
            self.entries.pop()
            self.note()

    def synced(self) -> None:
        self.allowed = [(self.begin, list(self.entries))]


class Script:
    """A run of random operations on a store and its model."""

    def __init__(self, seed: int, fs: MemoryFs) -> None:
        self.rng = random.Random(seed)
        self.fs = fs
        self.store = open_small(fs)
        self.model = Model()
        self.term = 1
        self.position = 0

    def check(self, store: EntryStore) -> None:
        entries = read_all(store, self.rng.randrange(1, 1500))
        assert (store.begin_index, entries) == (self.model.begin, self.model.entries)
        assert store.log_state().epochs == epochs_of(entries, store.begin_index)

    def step(self) -> None:
        rng, model = self.rng, self.model
        choice = rng.random()
        if choice < 0.5:
            self.term += rng.random() < 0.3
            bodies = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 6))]
            append(self.store, self.term, *bodies)
            model.append([Stored(self.term, body) for body in bodies])
        elif choice < 0.62 and model.entries:
            kept = rng.randrange(len(model.entries) + 1)
            self.store.truncate_from(model.begin + kept)
            model.cut(kept)
            self.term += 1
        elif choice < 0.65:
            model.cut(0)
            model.begin = rng.randrange(1000)
            self.store.reset(model.begin, rng.randrange(6) * 1024 + rng.choice([0, 8, 100, 800]))
            model.note()
        elif choice < 0.9:
            write_all(self.store)
            model.synced()
            if rng.random() < 0.4:
                self.store.save_checkpoint(self.store.end_index, self.store.end_index)
        else:
            write_all(self.store)
            model.synced()
            self.store.close()
            assert self.fs.open_files == 0
            self.store = open_small(self.fs)


@pytest.mark.parametrize("seed", range(15))
def test_store_equals_a_list_through_appends_truncations_resets_and_restarts(seed: int) -> None:
    script = Script(seed, MemoryFs())
    for _ in range(80):
        script.step()
        script.check(script.store)


@pytest.mark.parametrize("seed", range(150))
def test_power_failure_at_any_moment_loses_only_what_was_not_synced(seed: int) -> None:
    rng = random.Random(seed)
    fs = MemoryFs()
    script = Script(seed, fs)
    try:
        with fs.stopping_after(rng.randrange(200)):
            for _ in range(60):
                script.step()
    except PowerLossError:
        pass
    after = fs.crash(rng)
    store = open_small(after)
    found = (store.begin_index, read_all(store))
    assert found in script.model.allowed
    assert store.log_state().epochs == epochs_of(found[1], found[0])
    append(store, script.term + 1, b"goes on")
    write_all(store)
    assert read_all(open_small(after)) == [*found[1], Stored(script.term + 1, b"goes on")]


# -- ends within a truncation, one after the other -----------------------------------------------------------


def truncate_until(store: EntryStore, fs: MemoryFs, index: int, changes: int) -> bool:
    """Cut the log there until the process ends after so many changes; whether it came so far."""
    store.truncate_from(index)
    try:
        with fs.stopping_after(changes):
            write_all(store)
    except PowerLossError:
        return True
    return False


def seven_files(fs: MemoryFs) -> EntryStore:
    """70 entries, ten a file, all of them on the disk and in the checkpoint."""
    store = open_small(fs)
    for index in range(70):
        append(store, 1, b"%052d" % index)
        write_all(store)
    store.save_checkpoint(store.end_index, store.end_index)
    return store


def test_a_truncation_that_was_killed_and_then_loses_power() -> None:
    """Whatever a killed process left in the page cache: what the next one goes on from is on the disk."""
    killed_after = 0
    while cut_twice(killed_after, 0):
        lost_after = 1
        while cut_twice(killed_after, lost_after):
            lost_after += 1
        killed_after += 1
    assert killed_after >= 20


def cut_twice(killed_after: int, lost_after: int) -> bool:
    """Kill a truncation, and have power fail in the next; whether the first came so far, and the second did
    or was the one of the first step.
    """
    fs = MemoryFs()
    if not truncate_until(seven_files(fs), fs, 55, killed_after):
        return False
    fs.end_process()
    again = open_small(fs)
    found = again.end_index
    assert found >= 54
    is_cut = found >= 55 and truncate_until(again, fs, 55, lost_after)
    for seed in range(8):
        after = open_small(fs.crash(random.Random(seed)))
        assert 54 <= after.end_index <= found
        assert [each.body for each in read_all(after)] == [b"%052d" % n for n in range(after.end_index + 1)]
    return is_cut or not lost_after


def test_what_was_recovered_is_on_the_disk() -> None:
    """A mark that was lowered for a truncation which never came: what is found behind it is written again."""
    fs = MemoryFs()
    assert truncate_until(seven_files(fs), fs, 55, 9)
    fs.end_process()
    again = open_small(fs)
    assert again.end_index == 69
    assert [path for path in fs.unsynced_paths() if path.parent == FIRST.parent] == []
