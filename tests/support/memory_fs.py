"""A file system in memory whose machine can lose power, and whose disk fails on request. A `dledger.fs.Fs`.

`crash` keeps what was synced; of what was not, it keeps a random part, torn at 512-byte sectors, as a disk
may. After a failed sync what was to be synced never reaches the disk, though it can still be read and the
next sync says nothing of it: so does Linux.
"""

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dledger.fs import Buffer

SECTOR_BYTES = 512

WRITES = frozenset({"pwrite", "set_size", "allocate"})
SYNCS = frozenset({"fsync", "fdatasync", "fsync_directory"})
CHANGES = WRITES | SYNCS | {"open", "rename", "delete", "delete_directory", "make_directory"}
READS = frozenset({"pread", "size", "list"})


class PowerLossError(BaseException):
    """The process or the machine stops here; nothing under test may handle it."""


@dataclass(slots=True)
class Fault:
    """An error of the operations named, under `folder`: of the one that comes after `after` more of them,
    and if it is lasting of all that follow."""

    operations: frozenset[str]
    error: int
    after: int
    is_lasting: bool
    folder: Path
    strikes: int = 0
    """How often it has struck."""

    def strike(self, operation: str, path: Path) -> bool:
        if operation not in self.operations or not path.is_relative_to(self.folder):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.strikes and not self.is_lasting:
            return False
        self.strikes += 1
        return True


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes
    at_us: int


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
        self.now_us: Callable[[], int] = lambda: 0
        """The clock of `oldest_unsynced_us`."""
        self.on_operation: Callable[[str, Path], None] = lambda operation, path: None
        """Called before every operation, reading ones too, with its name and path: to slow it down."""
        self.faults: list[Fault] = []
        self._files: dict[Path, _File] = {}
        self._durable_files: dict[Path, _File] = {}
        self._directories: set[Path] = set()
        self._fds: dict[int, _File] = {}
        self._paths: dict[int, Path] = {}
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

    def slice(self, path: Path, position: int, size_bytes: int) -> bytes:
        """What a process reads of these bytes; fewer when the file ends before."""
        file = self._files.get(path)
        return b"" if file is None else bytes(file.content[position : position + size_bytes])

    def durable_slice(self, path: Path, position: int, size_bytes: int) -> bytes:
        """What a power failure now would certainly leave of these bytes; fewer when the file ends before."""
        file = self._durable_files.get(path)
        return b"" if file is None else bytes(file.durable[position : position + size_bytes])

    def paths(self) -> list[Path]:
        """Every file, sorted."""
        return sorted(self._files)

    def end_process(self) -> None:
        """The process ends: its files are closed and unlocked; what was written stays."""
        self._fds.clear()
        self._paths.clear()
        self._locks.clear()

    def unsynced_paths(self) -> list[Path]:
        """Every file with changes that a power failure may take, sorted."""
        return sorted(path for path, file in self._files.items() if file.unsynced)

    def oldest_unsynced_us(self, folder: Path) -> int | None:
        """When that of the file contents under a folder was written which a power failure may take and that
        was written first; None when all is synced.
        """
        files = (file for path, file in self._files.items() if path.is_relative_to(folder))
        writes = (change for file in files for change in file.unsynced if isinstance(change, _Write))
        return min((write.at_us for write in writes), default=None)

    # ---- faults

    @contextmanager
    def stopping_after(self, changes: int) -> Iterator[None]:
        """Raises PowerLossError before the change that follows so many of files, directories or what of them
        is durable.
        """
        left = changes

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLossError

        self.on_change = count
        try:
            yield
        finally:
            self.on_change = lambda: None

    def fail(
        self,
        operations: Iterable[str],
        error: int = errno.EIO,
        after: int = 0,
        is_lasting: bool = False,
        folder: Path = Path("/"),
    ) -> Fault:
        """Have operations of these names fail under a folder (or one file), after so many good ones."""
        fault = Fault(frozenset(operations), error, after, is_lasting, folder)
        assert fault.operations <= CHANGES | READS, fault.operations
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No operation fails any more."""
        self.faults.clear()

    def overwrite(self, path: Path, position: int, data: bytes) -> None:
        """Damage a file without a call of its process."""
        for content in (self._files[path].content, self._files[path].durable):
            kept = data[: max(0, len(content) - position)]
            content[position : position + len(kept)] = kept

    def flip(self, path: Path, position: int, bit: int) -> None:
        """Flip one bit of a file."""
        for content in (self._files[path].content, self._files[path].durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def cut(self, path: Path, size_bytes: int) -> None:
        """Make a file shorter, or longer by zeros."""
        for content in (self._files[path].content, self._files[path].durable):
            _apply(content, _Resize(size_bytes))

    def remove(self, path: Path) -> None:
        """Delete a file; open descriptors keep it."""
        del self._files[path]
        self._durable_files.pop(path, None)

    def plant(self, path: Path, content: bytes) -> None:
        """Put a file there, in place of any that is."""
        self._directories |= set(path.parents)
        self._files[path] = self._durable_files[path] = _File(bytearray(content), bytearray(content))

    def _check(self, operation: str, path: Path) -> None:
        self.on_operation(operation, path)
        for fault in self.faults:
            if fault.strike(operation, path):
                raise OSError(fault.error, os.strerror(fault.error), str(path))

    # ---- Fs

    def open(self, path: Path) -> int:
        assert path.parent in self._directories, path.parent
        self._check("open", path)
        if path not in self._files:
            self.on_change()
            self._files[path] = _File()
        self._next_fd += 1
        self._fds[self._next_fd] = self._files[path]
        self._paths[self._next_fd] = path
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._fds[fd], self._paths[fd]
        self._locks.pop(fd, None)

    def lock(self, path: Path) -> int:
        fd = self.open(path)
        if self._fds[fd] in self._locks.values():
            self.close(fd)
            raise BlockingIOError(errno.EWOULDBLOCK, f"{path} is locked")
        self._locks[fd] = self._fds[fd]
        return fd

    def size(self, fd: int) -> int:
        self._check("size", self._paths[fd])
        return len(self._fds[fd].content)

    def set_size(self, fd: int, size_bytes: int) -> None:
        self.on_change()
        self._check("set_size", self._paths[fd])
        file = self._fds[fd]
        _apply(file.content, _Resize(size_bytes))
        file.unsynced.append(_Resize(size_bytes))

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._check("allocate", self._paths[fd])
        size_now = len(self._fds[fd].content)
        assert position + size_bytes <= size_now, (position, size_bytes, size_now)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self.on_change()
        if self.fail_after_writes is not None:
            if self.fail_after_writes == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.fail_after_writes -= 1
        data = b"".join(buffers)
        try:
            self._check("pwrite", self._paths[fd])
        except OSError:
            # A part of it was written before the error came.
            self._write(fd, position, data[: len(data) // 2])
            raise
        self._write(fd, position, data)

    def _write(self, fd: int, position: int, data: bytes) -> None:
        write = _Write(position, data, self.now_us())
        file = self._fds[fd]
        _apply(file.content, write)
        file.unsynced.append(write)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self._check("pread", self._paths[fd])
        return bytes(self._fds[fd].content[position : position + size_bytes])

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _sync(self, operation: str, fd: int) -> None:
        self.on_change()
        file = self._fds[fd]
        unsynced, file.unsynced = file.unsynced, []
        self._check(operation, self._paths[fd])
        for change in unsynced:
            _apply(file.durable, change)
        self.sync_count += 1

    def fsync_directory(self, path: Path) -> None:
        self.on_change()
        self._check("fsync_directory", path)
        # A tuple at once: another thread may create a file meanwhile.
        for name in [name for name in tuple(self._durable_files) if name.parent == path]:
            del self._durable_files[name]
        present = tuple(self._files.items())
        self._durable_files |= {name: file for name, file in present if name.parent == path}

    def rename(self, source: Path, target: Path) -> None:
        self.on_change()
        self._check("rename", target)
        self._files[target] = self._files.pop(source)

    def delete(self, path: Path) -> None:
        self.on_change()
        self._check("delete", path)
        del self._files[path]

    def delete_directory(self, path: Path) -> None:
        assert not self.list(path), path
        self._check("delete_directory", path)
        self._directories.remove(path)

    def sync_all(self, path: Path) -> None:
        self.on_change()
        changed = [(file, file.unsynced) for file in tuple(self._files.values())]
        for file, _ in changed:
            file.unsynced = []
        self._check("sync_all", path)
        for file, unsynced in changed:
            for change in unsynced:
                _apply(file.durable, change)
        self._durable_files = dict(self._files)
        self.sync_count += 1

    def make_directory(self, path: Path, is_durable: bool = True) -> None:
        if path not in self._directories:
            self._check("make_directory", path)
        self._directories |= {path, *path.parents}

    def list(self, path: Path) -> list[str]:
        self._check("list", path)
        folder = f"{path}/".replace("//", "/")
        inside = {str(name)[len(folder) :] for name in tuple(self._files) if str(name).startswith(folder)}
        inside |= {str(name)[len(folder) :] for name in self._directories if str(name).startswith(folder)}
        return sorted(name for name in inside if "/" not in name)

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
    has_new_sizes = True
    for change in file.unsynced:
        if isinstance(change, _Resize):
            # A file system's journal keeps the order of these: one that is lost takes the later ones along.
            has_new_sizes = has_new_sizes and rng.random() < 0.8
            if has_new_sizes:
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
