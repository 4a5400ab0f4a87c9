"""A start finds a sector that cannot be read: a member of a group is marked, and cuts its log there."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from commitlog.entry_store import EntryStore
from dledger.fs import Buffer
from tests.support.log_entries import DIRECTORY, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs
from tests.support.storage_damage import COUNT, PER_FILE, body, data_file, expected, index_file

BYTES = 512
"""Of the sector."""


class BadSectorFs(MemoryFs):
    """One sector of one file cannot be read until it is written, or cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: tuple[Path, int] | None = None

    def _is_bad(self, fd: int, begin: int, end: int) -> bool:
        return (
            self.bad is not None
            and self._paths[fd] == self.bad[0]
            and begin < self.bad[1] + BYTES
            and self.bad[1] < end
        )

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        if self._is_bad(fd, position, position + size_bytes):
            raise OSError(errno.EIO, "Input/output error")
        return super().pread(fd, size_bytes, position)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        if self._is_bad(fd, position, position + sum(map(len, buffers))):
            self.bad = None
        super().pwrite(fd, buffers, position)

    def set_size(self, fd: int, size_bytes: int) -> None:
        if self.bad is not None and self._paths[fd] == self.bad[0] and size_bytes <= self.bad[1]:
            self.bad = None
        super().set_size(fd, size_bytes)

    def delete(self, path: Path) -> None:
        if self.bad is not None and self.bad[0] == path:
            self.bad = None
        super().delete(path)


def filled() -> BadSectorFs:
    """All 60 entries are synced."""
    fs = BadSectorFs()
    store = open_small(fs)
    fill(store)
    store.close()
    fs.end_process()
    return fs


def fill(store: EntryStore) -> None:
    for index in range(store.end_index + 1, COUNT):
        store.append_bodies(index, 1 + index // 25, [body(index)])
        write_all(store)


@pytest.mark.parametrize("number", [3, 4, 5])
@pytest.mark.parametrize("at", [0, 512])
def test_member_is_told_before_anything_changes_and_starts_with_what_is_before(number: int, at: int) -> None:
    fs = filled()
    fs.bad = (data_file(number), at)
    before = {path: fs.content(path) for path in fs.paths()}
    told: list[str] = []

    def on_damage(reason: str) -> None:
        if not told:
            assert {path: fs.content(path) for path in fs.paths()} == before
        told.append(reason)

    store = open_small(fs, on_damage=on_damage)
    assert any("Input/output error" in reason for reason in told)
    assert store.end_index < (number + 1) * PER_FILE
    assert read_all(store) == expected(store.end_index + 1)
    fill(store)
    store.close()
    fs.end_process()
    again = open_small(fs)
    assert read_all(again) == expected(COUNT)


@pytest.mark.parametrize("number", range(8))
def test_unreadable_index_is_written_again_and_nothing_lost(number: int) -> None:
    fs = filled()
    fs.bad = (index_file(number), 0)
    told: list[str] = []
    store = open_small(fs, on_damage=told.append)
    assert not told
    assert store.end_index == COUNT - 1
    fs.bad = None
    assert read_all(store) == expected(COUNT)


def test_lone_node_does_not_start_and_leaves_all_as_it_is() -> None:
    fs = filled()
    fs.bad = (data_file(5), 0)
    before = {path: fs.content(path) for path in fs.paths()}
    with pytest.raises(OSError, match="Input/output error"):
        open_small(fs)
    assert {path: fs.content(path) for path in fs.paths()} == before


def test_what_cannot_be_read_later_is_no_affair_of_the_start() -> None:
    """The reader names the entries then."""
    fs = filled()
    told: list[str] = []
    store = open_small(fs, on_damage=told.append)
    fs.bad = (data_file(1), 0)
    with pytest.raises(ValueError, match="Input/output error"):
        store.read_range(PER_FILE, PER_FILE, 100)
    assert not told


@pytest.mark.parametrize("name", ["checkpoint", "synced", "epochs", "format"])
def test_small_file_that_cannot_be_read_counts_as_damaged(name: str) -> None:
    fs = filled()
    fs.bad = (DIRECTORY / name, 0)
    told: list[str] = []
    store = open_small(fs, on_damage=told.append)
    assert not told
    assert read_all(store) == expected(COUNT)
