"""The file system in memory fails as a disk does: what the storage tests rest on."""

import errno
import random
from pathlib import Path

import pytest

from tests.support.memory_fs import SYNCS, WRITES, MemoryFs

FILE = Path("/d/f")


def made() -> tuple[MemoryFs, int]:
    fs = MemoryFs()
    fs.make_directory(FILE.parent)
    fd = fs.open(FILE)
    fs.pwrite(fd, [b"old"], 0)
    fs.fsync(fd)
    fs.fsync_directory(FILE.parent)
    return fs, fd


def test_fault_strikes_once_after_so_many_operations() -> None:
    fs, fd = made()
    fault = fs.fail(WRITES, errno.ENOSPC, after=1)
    fs.pwrite(fd, [b"a"], 0)
    with pytest.raises(OSError, match="No space left"):
        fs.pwrite(fd, [b"bb"], 1)
    fs.pwrite(fd, [b"c"], 2)
    assert (fs.content(FILE), fault.strikes) == (b"abc", 1)  # the failed write left its first half


def test_lasting_fault_strikes_until_it_is_healed_and_only_in_its_folder() -> None:
    fs, fd = made()
    fs.make_directory(Path("/e"))
    other = fs.open(Path("/e/f"))
    fs.fail(SYNCS, is_lasting=True, folder=FILE.parent)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            fs.fdatasync(fd)
    fs.fdatasync(other)
    fs.heal()
    fs.fdatasync(fd)


def test_what_a_failed_sync_was_to_save_is_lost_though_the_next_one_succeeds() -> None:
    fs, fd = made()
    fs.pwrite(fd, [b"new"], 0)
    fs.fail(SYNCS)
    with pytest.raises(OSError, match="Input"):
        fs.fdatasync(fd)
    fs.fdatasync(fd)
    assert fs.content(FILE) == b"new"
    assert fs.crash(random.Random(0)).content(FILE) == b"old"


def test_damage_behind_the_back_outlives_a_power_failure() -> None:
    fs, _ = made()
    fs.flip(FILE, 0, 0)
    assert fs.content(FILE) == fs.crash(random.Random(0)).content(FILE) == b"nld"
    fs.cut(FILE, 2)
    assert fs.content(FILE) == fs.crash(random.Random(0)).content(FILE) == b"nl"
    fs.cut(FILE, 4)
    assert fs.content(FILE) == b"nl\0\0"
    fs.remove(FILE)
    assert fs.paths() == fs.crash(random.Random(0)).paths() == []
    fs.plant(FILE, b"x")
    assert fs.crash(random.Random(0)).content(FILE) == b"x"


def test_every_operation_is_told_before_it_happens() -> None:
    fs, fd = made()
    told: list[tuple[str, Path]] = []
    fs.on_operation = lambda operation, path: told.append((operation, path))
    fs.pread(fd, 1, 0)
    fs.pwrite(fd, [b"x"], 0)
    fs.rename(FILE, Path("/d/g"))
    fs.fsync_directory(Path("/d"))
    assert told == [
        ("pread", FILE),
        ("pwrite", FILE),
        ("rename", Path("/d/g")),
        ("fsync_directory", Path("/d")),
    ]


def test_an_ended_process_holds_no_lock() -> None:
    fs, _ = made()
    fs.lock(FILE)
    with pytest.raises(BlockingIOError):
        fs.lock(FILE)
    fs.end_process()
    assert fs.open_files == 0
    fs.lock(FILE)
