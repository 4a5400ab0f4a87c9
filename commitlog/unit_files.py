"""The files of consume queues: fixed-size files of 20-byte units in one directory per queue.

A file is named by the 20-digit byte number of its start and has its full length from its creation on.
Reading is for the loop's thread and keeps a bounded number of files open; writing opens, syncs and closes,
in any thread.
"""

import errno
import logging
from pathlib import Path

from commitlog.segments import file_name
from dledger.fs import Buffer, Fs

logger = logging.getLogger(__name__)


class UnitFiles:
    """The files of all queues."""

    def __init__(self, fs: Fs, file_bytes: int, open_files_max: int) -> None:
        self.file_bytes = file_bytes
        self._fs = fs
        self._open_files_max = open_files_max
        self._fds: dict[tuple[Path, int], int] = {}

    def starts(self, directory: Path) -> list[int]:
        """The byte numbers at which the queue's files start, ascending, up to the first gap."""
        found = sorted(int(name) for name in self._fs.list(directory) if name.isdecimal())
        row: list[int] = []
        for start in found:
            if start % self.file_bytes != 0 or (row and start != row[-1] + self.file_bytes):
                break
            row.append(start)
        return row

    def read(self, directory: Path, position: int, size_bytes: int) -> bytes:
        """Bytes that may lie in several files; shorter where they end or cannot be read."""
        start = position - position % self.file_bytes
        part_bytes = min(size_bytes, start + self.file_bytes - position)
        data = self._pread(
            self._fd(directory, start), directory / file_name(start), part_bytes, position - start
        )
        if part_bytes < size_bytes and len(data) == part_bytes:
            return data + self.read(directory, position + part_bytes, size_bytes - part_bytes)
        return data

    def hold(self, directory: Path, begin: int, end: int) -> bool:
        """Whether the files of a queue go from one byte number to the other without a gap."""
        found = {int(name) for name in self._fs.list(directory) if name.isdecimal()}
        return all(start in found for start in range(begin - begin % self.file_bytes, end, self.file_bytes))

    def read_once(self, directory: Path, position: int, size_bytes: int) -> bytes:
        """As `read`, of one file only, which is not kept open."""
        start = position - position % self.file_bytes
        path = directory / file_name(start)
        fd = self._fs.open(path)
        try:
            return self._pread(
                fd, path, min(size_bytes, start + self.file_bytes - position), position - start
            )
        finally:
            self._fs.close(fd)

    def _pread(self, fd: int, path: Path, size_bytes: int, at: int) -> bytes:
        try:
            return self._fs.pread(fd, size_bytes, at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            logger.error("%s: %s", path, error.strerror)
            return b""

    def write(self, directory: Path, position: int, data: Buffer, is_synced: bool = True) -> None:
        """Write, and sync if that is wanted, making files as needed."""
        self._fs.make_directory(directory, is_durable=is_synced)
        view = memoryview(data)
        while view:
            start = position - position % self.file_bytes
            part = view[: start + self.file_bytes - position]
            self._write_file(directory, start, position - start, part, is_synced)
            position += len(part)
            view = view[len(part) :]

    def clear_from(self, directory: Path, position: int) -> None:
        """Make all units from a byte number on read as zero. Nobody relies on that: it is not synced."""
        for start in reversed(self.starts(directory)):
            if start >= position:
                self._fs.delete(directory / file_name(start))
            elif start + self.file_bytes > position:
                fd = self._fs.open(directory / file_name(start))
                try:
                    self._fs.set_size(fd, position - start)
                    self._fs.set_size(fd, self.file_bytes)
                finally:
                    self._fs.close(fd)

    def drop(self, directory: Path) -> None:
        """Delete the queue's files and its directory."""
        names = self._fs.list(directory)
        for name in reversed(names):
            self._fs.delete(directory / name)
        if directory.name in self._fs.list(directory.parent):
            self._fs.delete_directory(directory)

    def drop_before(self, directory: Path, position: int) -> int:
        """Delete the queue's files that end at or before a byte number; how many."""
        names = [name for name in self._fs.list(directory) if name.isdecimal()]
        ended = [name for name in names if int(name) + self.file_bytes <= position]
        for name in ended:
            self._fs.delete(directory / name)
        return len(ended)

    def forget_before(self, directory: Path, position: int) -> None:
        """Close what is open of a queue's files before a byte number."""
        for key in [key for key in self._fds if key[0] == directory and key[1] < position]:
            self._fs.close(self._fds.pop(key))

    def forget(self, directory: Path) -> None:
        """Close what is open of a queue."""
        for key in [key for key in self._fds if key[0] == directory]:
            self._fs.close(self._fds.pop(key))

    def close(self) -> None:
        """Close all."""
        while self._fds:
            self._fs.close(self._fds.popitem()[1])

    def _fd(self, directory: Path, start: int) -> int:
        key = (directory, start)
        fd = self._fds.pop(key, None)
        if fd is None:
            while len(self._fds) >= self._open_files_max:
                self._fs.close(self._fds.pop(next(iter(self._fds))))
            fd = self._fs.open(directory / file_name(start))
        self._fds[key] = fd  # the last used stands last
        return fd

    def _write_file(self, directory: Path, start: int, at: int, data: Buffer, is_synced: bool) -> None:
        fd = self._fs.open(directory / file_name(start))
        try:
            is_new = self._fs.size(fd) < self.file_bytes
            if is_new:
                self._fs.set_size(fd, self.file_bytes)
            self._fs.pwrite(fd, [data], at)
            if is_synced:
                self._fs.fdatasync(fd)
        finally:
            self._fs.close(fd)
        if is_new and is_synced:
            for made in (directory, directory.parent, directory.parent.parent):
                self._fs.fsync_directory(made)
