"""The operating system's files, and the two helpers every storage module uses."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from dledger.fs import Buffer, DiskWatch, OsFs, disk_space, read_file, replace_file
from tests.support.log_entries import Stored, read_all, write_all
from tests.support.memory_fs import MemoryFs
from tests.support.reserving_disk import BLOCK, reserve_blocks


@pytest.fixture
def fs() -> OsFs:
    return OsFs()


def test_pwrite_takes_more_buffers_than_one_call(fs: OsFs, tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "f")
    buffers = [bytes([number % 251]) for number in range(2500)]
    fs.pwrite(fd, buffers, 10)
    assert fs.size(fd) == 2510
    assert fs.pread(fd, 5000, 10) == b"".join(buffers)
    fs.close(fd)


def test_pwrite_goes_on_after_a_short_write(
    fs: OsFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_three(fd: int, data: memoryview, position: int) -> int:
        return real_pwrite(fd, data[:3], position)

    def write_four(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return real_pwrite(fd, b"".join(buffers)[:4], position)

    real_pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", write_three)
    monkeypatch.setattr(os, "pwritev", write_four)
    fd = fs.open(tmp_path / "f")
    fs.pwrite(fd, [b"0123", b"", b"456789", b"ab"], 0)
    assert (tmp_path / "f").read_bytes() == b"0123456789ab"
    fs.close(fd)


def test_pread_goes_on_after_a_short_read_and_ends_at_the_end(
    fs: OsFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: real_pread(fd, min(size, 4), position))
    fd = fs.open(tmp_path / "f")
    assert fs.pread(fd, 100, 1) == b"123456789"
    assert fs.pread(fd, 5, 0) == b"01234"
    assert fs.pread(fd, 5, 10) == b""
    fs.close(fd)


def test_directories_are_made_with_their_parents_listed_sorted_and_deleted(fs: OsFs, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    fs.make_directory(directory)
    fs.make_directory(directory)
    for name in ("2", "10", "1"):
        fs.close(fs.open(directory / name))
    assert fs.list(directory) == ["1", "10", "2"]
    assert fs.list(tmp_path / "none") == []
    with pytest.raises(OSError, match="not empty"):
        fs.delete_directory(directory)
    for name in fs.list(directory):
        fs.delete(directory / name)
    fs.delete_directory(directory)
    assert fs.list(tmp_path / "a") == []


def test_set_size_and_allocate_leave_zeros(fs: OsFs, tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "f")
    fs.pwrite(fd, [b"x" * 100], 0)
    fs.set_size(fd, 10)
    fs.set_size(fd, 8192)
    fs.allocate(fd, 0, 8192)
    fs.fdatasync(fd)
    fs.fsync(fd)
    fs.fsync_directory(tmp_path)
    assert fs.pread(fd, 8192, 0) == b"x" * 10 + bytes(8182)
    fs.close(fd)


def test_used_ratio_is_a_share(fs: OsFs, tmp_path: Path) -> None:
    assert 0 <= fs.used_ratio(tmp_path) <= 1


def test_space_kept_back_for_root_is_neither_used_nor_free(
    fs: OsFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of df, whose 27 % are these: by the total it would be 9 %."""
    reserve_blocks(monkeypatch, used=9, free=24, total=100)
    space = disk_space(tmp_path)
    assert (space.total_bytes, space.used_bytes, space.free_bytes) == (100 * BLOCK, 9 * BLOCK, 24 * BLOCK)
    assert space.used_ratio == fs.used_ratio(tmp_path) == pytest.approx(9 / 33)


def test_a_disk_that_only_root_may_fill_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve_blocks(monkeypatch, used=95, free=0, total=100)
    assert disk_space(tmp_path).used_ratio == 1.0
    reserve_blocks(monkeypatch, used=0, free=0, total=0)
    assert disk_space(tmp_path).used_ratio == 0.0


def test_replace_file_leaves_the_old_one_when_it_fails() -> None:
    fs = MemoryFs()
    fs.make_directory(Path("/d"))
    replace_file(fs, Path("/d/f"), b"old and long")
    fs.fail_after_writes = 0
    with pytest.raises(OSError, match="No space left"):
        replace_file(fs, Path("/d/f"), b"new")
    assert read_file(fs, Path("/d/f"), 100) == b"old and long"
    fs.fail_after_writes = None
    replace_file(fs, Path("/d/f"), b"new")
    assert read_file(fs, Path("/d/f"), 100) == b"new"
    assert read_file(fs, Path("/d/f"), 2) == b"ne"
    assert read_file(fs, Path("/d/g"), 2) is None
    assert fs.list(Path("/d")) == ["f"]
    assert fs.open_files == 0


def test_disk_watch_looks_again_after_its_interval() -> None:
    fs = MemoryFs()
    fs.make_directory(Path("/d"))
    now_s = [100.0]
    watch = DiskWatch(fs, Path("/d"), 0.9, 1000, lambda: now_s[0])
    fs.used = 0.95
    assert watch.is_full()
    fs.used = 0.5
    now_s[0] = 100.9
    assert watch.is_full()
    now_s[0] = 101.0
    assert not watch.is_full()


def test_entry_store_works_on_real_files(tmp_path: Path) -> None:
    config = EntryStoreConfig(
        data_file_bytes=8192, index_file_bytes=1024, reserve_bytes=4096, cache_bytes_max=0
    )
    store = open_entry_store(tmp_path / "s", config)
    bodies = [bytes([number]) * 500 for number in range(60)]
    for number, body in enumerate(bodies):
        store.append_bodies(number, 1 + number // 20, [body])
        write_all(store, sync=number % 3 == 0)
    store.truncate_from(50)
    write_all(store)
    store.save_checkpoint(49, 40)
    store.close()
    assert {path.stat().st_size for path in (tmp_path / "s" / "data").iterdir()} == {8192}
    again = open_entry_store(tmp_path / "s", config)
    assert read_all(again) == [Stored(1 + number // 20, body) for number, body in enumerate(bodies[:50])]
    assert again.log_state().commit_index == 40
    again.close()


def test_new_files_and_folders_belong_to_their_user_only(fs: OsFs, tmp_path: Path) -> None:
    fs.make_directory(tmp_path / "store" / "log")
    fs.close(fs.open(tmp_path / "store" / "log" / "f"))
    fs.close(fs.lock(tmp_path / "store" / "lock"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "store").rglob("*")}
    assert modes == {"log": 0o700, "f": 0o600, "lock": 0o600}
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
