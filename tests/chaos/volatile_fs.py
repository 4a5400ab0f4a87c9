"""A file system of which a killed process leaves what a power failure would leave: only what was synced.

What is written stays in this process's memory, where its reads see it, and reaches the real file at the sync.
Names are made, changed and removed in memory, too, until their directory is synced: a new file has no name on
the disk before. So SIGKILL is a power failure of this node's disk, while its neighbours' disks live on.

Of what was not synced, a disk may have written any part before the power went: with `leak` each 512-byte
sector is written at once with that chance, and the journal of names is now and then written up to some point.

Approximations: a directory is made, and an empty one removed, durably at once; a real sync is left out, as
the page cache of the machine lives on.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dledger.fs import Buffer, OsFs

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass(slots=True, eq=False)
class _File:
    """A file of the disk, and what memory holds on top of it."""

    fd: int
    path: Path | None
    """Its name on the disk; None: it has none yet, and is gone with the process."""
    size_bytes: int
    valid_bytes: int
    """Of the real file so much counts: it was cut there since the last sync, or ends there."""
    pages: dict[int, bytearray] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Pages that a failed sync gave up: they are read, and never written."""
    handles: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __del__(self) -> None:
        os.close(self.fd)

    def is_clean(self) -> bool:
        """Whether the disk has it as it is."""
        return not self.pages and self.size_bytes == self.valid_bytes == os.fstat(self.fd).st_size

    def page(self, number: int) -> bytearray:
        """The page in memory, taken from the disk if it was not there."""
        found = self.pages.get(number)
        if found is None:
            start = number * PAGE_BYTES
            wanted = max(0, min(PAGE_BYTES, self.valid_bytes - start))
            found = bytearray(os.pread(self.fd, wanted, start) if wanted else b"")
            found.extend(bytes(PAGE_BYTES - len(found)))
            self.pages[number] = found
        return found

    def read(self, size_bytes: int, position: int) -> bytes:
        end = min(position + size_bytes, self.size_bytes)
        if end <= position:
            return b""
        real_bytes = max(0, min(end, self.valid_bytes) - position)
        data = bytearray(os.pread(self.fd, real_bytes, position) if real_bytes else b"")
        data.extend(bytes(end - position - len(data)))
        for number in self.dirty(position, end):
            start = number * PAGE_BYTES
            first, last = max(start, position), min(start + PAGE_BYTES, end)
            data[first - position : last - position] = self.pages[number][first - start : last - start]
        return bytes(data)

    def dirty(self, position: int, end: int) -> Iterator[int]:
        """The pages in memory that hold any of these bytes."""
        wanted = range(position // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)
        if len(wanted) <= len(self.pages):
            return (number for number in wanted if number in self.pages)
        return (number for number in list(self.pages) if number in wanted)

    def write(self, data: memoryview, position: int) -> None:
        end = position + len(data)
        at = position
        while at < end:
            number, offset = divmod(at, PAGE_BYTES)
            part = min(PAGE_BYTES - offset, end - at)
            self.page(number)[offset : offset + part] = data[at - position : at - position + part]
            self.lost.discard(number)
            at += part
        self.size_bytes = max(self.size_bytes, end)

    def resize(self, size_bytes: int) -> None:
        if size_bytes < self.size_bytes:
            for number in [number for number in self.pages if (number + 1) * PAGE_BYTES > size_bytes]:
                kept = max(0, size_bytes - number * PAGE_BYTES)
                if kept == 0:
                    del self.pages[number]
                else:
                    self.pages[number][kept:] = bytes(PAGE_BYTES - kept)
            self.valid_bytes = min(self.valid_bytes, size_bytes)
        self.size_bytes = size_bytes

    def sync(self) -> None:
        """Give the disk what memory holds."""
        if self.valid_bytes < os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, self.valid_bytes)
        for number in sorted(self.pages.keys() - self.lost):
            os.pwrite(self.fd, self.pages.pop(number), number * PAGE_BYTES)
        os.ftruncate(self.fd, self.size_bytes)
        self.valid_bytes = self.size_bytes

    def leak(self, position: int, end: int, rng: random.Random, chance: float) -> None:
        """Write some sectors of what was just written, as the kernel may at any time."""
        for start in range(position - position % SECTOR_BYTES, end, SECTOR_BYTES):
            if rng.random() < chance:
                page = self.page(start // PAGE_BYTES)
                offset = start % PAGE_BYTES
                os.pwrite(self.fd, page[offset : offset + SECTOR_BYTES], start)


@dataclass(frozen=True, slots=True)
class _NameChange:
    """`file` gets `name`, from memory or from another name; without a file the name is removed."""

    name: Path
    file: _File | None


class VolatileFs(OsFs):
    """Keeps `dledger.fs.Fs`. Not for two processes on the same files."""

    def __init__(self, rng: random.Random, leak: float = 0.0) -> None:
        self._rng = rng
        self._leak = leak
        self._lock = threading.RLock()
        self._names: dict[Path, _File] = {}
        self._removed: set[Path] = set()
        self._journal: dict[Path, list[_NameChange]] = {}
        self._handles: dict[int, _File] = {}
        self._next_handle = itertools.count(1_000_000)

    def open(self, path: Path) -> int:
        with self._lock:
            file = self._names.get(path) or self._take(path)
            file.handles += 1
            handle = next(self._next_handle)
            self._handles[handle] = file
            return handle

    def _take(self, path: Path) -> _File:
        """The file of the disk, or a new one that has no name there yet."""
        if path not in self._removed and path.exists():
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(fd).st_size
            file = _File(fd, path, size, size)
        else:
            fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
            file = _File(fd, None, 0, 0)
            self._note(_NameChange(path, file))
        self._names[path] = file
        return file

    def close(self, fd: int) -> None:
        with self._lock:
            file = self._handles.pop(fd, None)
            if file is None:
                os.close(fd)  # a lock's
                return
            file.handles -= 1
            self._forget(file)

    def _forget(self, file: _File) -> None:
        """Let a closed file go that is on the disk as it is, under the name it has here; others are kept."""
        if file.handles or not file.is_clean() or file.path is None:
            return
        is_changing = any(change.name == file.path for change in self._journal.get(file.path.parent, ()))
        if not is_changing and self._names.get(file.path) is file:
            del self._names[file.path]
            self._removed.discard(file.path)

    def size(self, fd: int) -> int:
        return self._handles[fd].size_bytes

    def set_size(self, fd: int, size_bytes: int) -> None:
        file = self._handles[fd]
        with file.lock:
            file.resize(size_bytes)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        file = self._handles[fd]
        with file.lock:
            file.size_bytes = max(file.size_bytes, position + size_bytes)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        file = self._handles[fd]
        data = memoryview(b"".join(buffers))
        with file.lock:
            file.write(data, position)
            if self._leak:
                file.leak(position, position + len(data), self._rng, self._leak)
                self._leak_names()

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        file = self._handles[fd]
        with file.lock:
            return file.read(size_bytes, position)

    def fdatasync(self, fd: int) -> None:
        file = self._handles[fd]
        with file.lock:
            file.sync()

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def give_up(self, fd: int) -> None:
        """A sync has failed: the kernel counts the pages as clean, so that no later sync writes them."""
        file = self._handles[fd]
        with file.lock:
            file.lost.update(file.pages)

    def fsync_directory(self, path: Path) -> None:
        with self._lock:
            self._write_names(path, len(self._journal.get(path, ())))
            self._removed = {name for name in self._removed if name.parent != path}
            for file in [file for name, file in self._names.items() if name.parent == path]:
                self._forget(file)

    def sync_all(self, path: Path) -> None:
        with self._lock:
            for file in list(self._names.values()):
                with file.lock:
                    file.sync()
            for directory in list(self._journal):
                self.fsync_directory(directory)

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, (source, target)
        with self._lock:
            file = self._names.pop(source, None) or self._take_away(source)
            self._removed.add(source)
            self._names[target] = file
            self._note(_NameChange(target, file))

    def _take_away(self, path: Path) -> _File:
        if path in self._removed or not path.exists():
            raise FileNotFoundError(path)
        file = self._take(path)
        del self._names[path]
        return file

    def delete(self, path: Path) -> None:
        with self._lock:
            if path not in self._names and (path in self._removed or not path.exists()):
                raise FileNotFoundError(path)
            self._names.pop(path, None)
            self._removed.add(path)
            self._note(_NameChange(path, None))

    def delete_directory(self, path: Path) -> None:
        self.fsync_directory(path)
        path.rmdir()

    def list(self, path: Path) -> list[str]:
        with self._lock:
            real = {name for name in super().list(path) if path / name not in self._removed}
            return sorted(real | {name.name for name in self._names if name.parent == path})

    def lock(self, path: Path) -> int:
        return OsFs().lock(path)

    def _note(self, change: _NameChange) -> None:
        self._journal.setdefault(change.name.parent, []).append(change)

    def _leak_names(self) -> None:
        """Now and then the journal of names is written up to some point."""
        with self._lock:
            for path, changes in self._journal.items():
                if self._rng.random() < self._leak / 8:
                    self._write_names(path, self._rng.randint(0, len(changes)))

    def _write_names(self, path: Path, count: int) -> None:
        changes = self._journal.get(path, [])
        done, changes[:] = changes[:count], changes[count:]
        for change in done:
            if change.file is None:
                change.name.unlink(missing_ok=True)
            else:
                _give_name(change.file, change.name)


def _give_name(file: _File, name: Path) -> None:
    """On the disk, in one step."""
    if file.path is not None:
        if file.path != name:
            file.path.replace(name)
    else:
        with suppress(FileNotFoundError):
            name.unlink()
        folder = os.open(name.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # with a folder given, the link of the process's descriptor is followed to the file
            os.link(f"/proc/self/fd/{file.fd}", name.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
    file.path = name
