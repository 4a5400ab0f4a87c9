"""Where the walk of a start begins, and what stands before it."""

import dataclasses

import pytest

from commitlog import entry_recovery
from commitlog.entry_files import REBUILDING
from commitlog.entry_store import EntryStore
from commitlog.recovery import Scan, scan_entries
from tests.support.log_entries import DIRECTORY, SMALL, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs


def append(store: EntryStore, term: int, *bodies: bytes) -> None:
    store.append_bodies(store.end_index + 1, term, bodies)


ONE_FILE = dataclasses.replace(SMALL, data_file_bytes=1 << 20)


def long_log(fs: MemoryFs, count: int) -> EntryStore:
    """Entries of 100 bytes in one file, all counted by the checkpoint."""
    store = open_small(fs, ONE_FILE)
    for index in range(count):
        append(store, 1 + index // 30, b"a" * 52)
    write_all(store)
    store.save_checkpoint(count - 1, count - 1)
    return store


@pytest.mark.parametrize("count", [60, 600])
def test_start_reads_no_more_of_a_long_log_than_of_a_short_one(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = MemoryFs()
    long_log(fs, count)
    walked: list[int] = []

    def scan(data: bytes, position: int, next_index: int, last_term: int, room: int) -> Scan:
        walked.append(next_index)
        return scan_entries(data, position, next_index, last_term, room)

    monkeypatch.setattr(entry_recovery, "scan_entries", scan)
    assert open_small(fs, ONE_FILE).end_index == count - 1
    assert walked == [count - 4]  # the last entry and the 300 bytes before it


def test_units_behind_the_checkpoint_that_a_power_failure_took_are_written_again() -> None:
    fs = MemoryFs()
    store = long_log(fs, 60)
    append(store, 9, *([b"b" * 52] * 20))
    write_all(store)
    expected = read_all(store)
    for number in range(7, 10):
        lost_from = max(0, 60 - number * 8) * 32
        path = DIRECTORY / "index" / f"{number * 256:020d}"
        fs.overwrite(path, lost_from, bytes(256 - lost_from))
    assert read_all(open_small(fs, ONE_FILE)) == expected


@pytest.mark.parametrize("is_counted", [True, False])
def test_units_the_checkpoint_counts_are_never_left_half_mended(is_counted: bool) -> None:
    """Word of it is there before the first is written: the next start might begin behind them."""
    fs = MemoryFs()
    store = long_log(fs, 60)
    if not is_counted:
        append(store, 9, *([b"b" * 52] * 4))
        write_all(store)
    expected = read_all(store)
    number = 58 if is_counted else 61
    fs.overwrite(DIRECTORY / "index" / f"{7 * 256:020d}", (number - 56) * 32 + 8, b"\x77")
    marked: list[bool] = []
    fs.on_operation = lambda operation, path: (
        marked.append(REBUILDING in fs.list(DIRECTORY))
        if operation == "pwrite" and path.parent.name == "index"
        else None
    )
    again = open_small(fs, ONE_FILE)
    fs.on_operation = lambda operation, path: None
    assert marked == [is_counted]
    assert REBUILDING not in fs.list(DIRECTORY)
    assert read_all(again) == expected
