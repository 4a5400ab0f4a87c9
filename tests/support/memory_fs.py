"""A file system in memory whose machine can lose power.

`crash` keeps what was synced; of what was not, it keeps a random part in random order, torn at 512-byte
sectors, as a disk may. Keeps `dledger.fs.Fs`.
"""

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dledger.fs import Buffer

SECTOR_BYTES = 512


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes


@dataclass(slots=True)
class _Resize:
    size_bytes: int


@dataclass(slots=True, eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Resize] = field(default_factory=list)


class MemoryFs:
    """Files by path; a directory's changes are durable after `fsync_directory`."""

    def __init__(self) -> None:
        self.fail_after_writes: int | None = None
        """Raise ENOSPC from this many pwrites on."""
        self.used = 0.0
        self.sync_count = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called before everything that changes a file, a directory or what of them is durable."""
        self._files: dict[Path, _File] = {}
        self._durable_files: dict[Path, _File] = {}
        self._directories: set[Path] = set()
        self._fds: dict[int, _File] = {}
        self._next_fd = 3
        self._locks: dict[int, _File] = {}

    @property
    def open_files(self) -> int:
        return len(self._fds)

    def crash(self, rng: random.Random) -> "MemoryFs":
        """The file system as it is found after a power failure now."""
        after = MemoryFs()
        after._directories = set(self._directories)
        for path, file in self._durable_files.items():
            content = _after_crash(file, rng)
            after._files[path] = _File(bytearray(content), bytearray(content))
        # Of the names not yet synced any may be there, with any part of the file.
        for path, file in self._files.items():
            if self._durable_files.get(path) is not file and rng.random() < 0.5:
                content = _after_crash(file, rng)
                after._files[path] = _File(bytearray(content), bytearray(content))
        after._durable_files = dict(after._files)
        return after

    def content(self, path: Path) -> bytes:
        return bytes(self._files[path].content)

    def overwrite(self, path: Path, position: int, data: bytes) -> None:
        """Damage a file behind everybody's back."""
        for content in (self._files[path].content, self._files[path].durable):
            content[position : position + len(data)] = data

    def open(self, path: Path) -> int:
        assert path.parent in self._directories, path.parent
        if path not in self._files:
            self.on_change()
            self._files[path] = _File()
        self._next_fd += 1
        self._fds[self._next_fd] = self._files[path]
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._fds[fd]
        self._locks.pop(fd, None)

    def lock(self, path: Path) -> int:
        fd = self.open(path)
        if self._fds[fd] in self._locks.values():
            self.close(fd)
            raise BlockingIOError(errno.EWOULDBLOCK, f"{path} is locked")
        self._locks[fd] = self._fds[fd]
        return fd

    def size(self, fd: int) -> int:
        return len(self._fds[fd].content)

    def set_size(self, fd: int, size_bytes: int) -> None:
        self.on_change()
        file = self._fds[fd]
        _apply(file.content, _Resize(size_bytes))
        file.unsynced.append(_Resize(size_bytes))

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        assert position + size_bytes <= self.size(fd), (position, size_bytes)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self.on_change()
        if self.fail_after_writes is not None:
            if self.fail_after_writes == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.fail_after_writes -= 1
        write = _Write(position, b"".join(buffers))
        file = self._fds[fd]
        _apply(file.content, write)
        file.unsynced.append(write)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        return bytes(self._fds[fd].content[position : position + size_bytes])

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        self.on_change()
        file = self._fds[fd]
        file.durable = bytearray(file.content)
        file.unsynced.clear()
        self.sync_count += 1

    def fsync_directory(self, path: Path) -> None:
        self.on_change()
        for name in [name for name in self._durable_files if name.parent == path]:
            del self._durable_files[name]
        self._durable_files |= {name: file for name, file in self._files.items() if name.parent == path}

    def rename(self, source: Path, target: Path) -> None:
        self.on_change()
        self._files[target] = self._files.pop(source)

    def delete(self, path: Path) -> None:
        self.on_change()
        del self._files[path]

    def delete_directory(self, path: Path) -> None:
        assert not self.list(path), path
        self._directories.remove(path)

    def make_directory(self, path: Path) -> None:
        self._directories |= {path, *path.parents}

    def list(self, path: Path) -> list[str]:
        names = {name.name for name in [*self._files, *self._directories] if name.parent == path != name}
        return sorted(names)

    def used_ratio(self, path: Path) -> float:
        assert path in self._directories, path
        return self.used


def _apply(content: bytearray, change: _Write | _Resize) -> None:
    if isinstance(change, _Resize):
        del content[change.size_bytes :]
        content.extend(bytes(change.size_bytes - len(content)))
        return
    end = change.position + len(change.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[change.position : end] = change.data


def _after_crash(file: _File, rng: random.Random) -> bytearray:
    content = bytearray(file.durable)
    for change in file.unsynced:
        if isinstance(change, _Resize):
            _apply(content, change)
            continue
        at = change.position
        end = at + len(change.data)
        while at < end:
            sector_end = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if rng.random() < 0.7 and sector_end <= len(content):
                content[at:sector_end] = change.data[at - change.position : sector_end - change.position]
            at = sector_end
    return content
