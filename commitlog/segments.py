"""Fixed-size files that together are one long byte sequence.

A file is named by the 20-digit position of its first byte and has its full length from its creation on.
Blocks are reserved before they are written, so that a full disk raises OSError before data is lost. Bytes
that were never written read as zero. One thread writes, another may read: `load` and the writer open
descriptors; only `close_retired`, `close_removed` and `close`, which the reading thread calls, close them. So
the reader never reads a descriptor that was closed, or reused for another file.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from commitlog.errors import CorruptLogError
from dledger.fs import Buffer, Fs, OsFs

NAME_DIGITS: Final = 20
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ASIDE_SUFFIX: Final = ".damaged"
READ_BLOCK_BYTES: Final = 4096
"""The bytes around an unreadable sector that read as zero with it."""


def file_name(start: int) -> str:
    """The name of the file whose first byte is at position `start`."""
    return f"{start:0{NAME_DIGITS}d}"


class Segments:
    """The files of one directory."""

    def __init__(self, fs: Fs, directory: Path, file_bytes: int, reserve_bytes: int) -> None:
        assert min(file_bytes, reserve_bytes) > 0, (file_bytes, reserve_bytes)
        self.directory = directory
        self.file_bytes = file_bytes
        self.on_unreadable: Callable[[str], None] | None = None
        """When set, it is called with the place of an unreadable sector, which then reads as zero. When None,
        the read raises OSError.
        """
        self._fs = fs
        self._reserve_bytes = reserve_bytes
        self._fds: dict[int, int] = {}
        self._reserved_to: dict[int, int] = {}
        self._unsynced: set[int] = set()
        self._is_directory_unsynced = False
        self.retired_fds: list[int] = []
        """Of deleted files: until `close_retired` the reading thread may use them."""
        self._removed_fds: list[int] = []
        self._direct_start = -1
        self._direct_fd: int | None = None

    def load(self, on_damage: Callable[[str], None] | None = None, first_start: int = 0) -> None:
        """Open the files; the first must start at `first_start` or behind it.

        The last one may be short, after a crash between its creation or truncation and its extension. Raises
        CorruptLogError for every other fault. With `on_damage` that is called instead, and the files that
        follow the first without a fault remain: a file with a wrong name is renamed, a long one cut, and
        files behind a gap or a short file are deleted.
        """
        self._fs.make_directory(self.directory)
        report = on_damage or _raise_corrupt
        expected: int | None = None
        is_ended = False
        for name in [name for name in self._fs.list(self.directory) if name.isdecimal()]:
            start = int(name)
            path = self.directory / name
            is_start = name == file_name(start) and start % self.file_bytes == 0
            if is_ended or (is_start and start < first_start):
                self._drop(path)  # before the first: a removal was interrupted
            elif not is_start:
                report(f"{path}: not a start of {self.file_bytes}-byte files")
                self._fs.rename(path, path.with_name(name + ASIDE_SUFFIX))
                self._is_directory_unsynced = True
            elif expected is not None and start != expected:
                report(f"{path}: the file before it is missing")
                self._drop(path)
                is_ended = True
            else:
                is_ended = not self._load_file(start, report)
                expected = start + self.file_bytes

    def has_expected_sizes(self) -> bool:
        """Before `load`: whether all files but the last have the full length, and none has more."""
        names = [name for name in self._fs.list(self.directory) if name.isdecimal()]
        sizes = []
        for name in names:
            fd = self._fs.open(self.directory / name)
            sizes.append(self._fs.size(fd))
            self._fs.close(fd)
        is_full = all(size == self.file_bytes for size in sizes[:-1])
        return is_full and all(size <= self.file_bytes for size in sizes)

    def _load_file(self, start: int, report: Callable[[str], None]) -> bool:
        """Whether a file can follow this one."""
        self._open(start)
        size_bytes = self._fs.size(self._fds[start])
        if size_bytes == self.file_bytes:
            return True
        is_short = size_bytes < self.file_bytes
        if not is_short or self._has_file_behind(start):
            report(f"{self.path_of(start)}: {size_bytes} bytes, expected {self.file_bytes}")
        self._fs.set_size(self._fds[start], self.file_bytes)
        self._unsynced.add(start)
        return not is_short

    def _drop(self, path: Path) -> None:
        self._fs.delete(path)
        self._is_directory_unsynced = True

    def _has_file_behind(self, start: int) -> bool:
        return any(name.isdecimal() and int(name) > start for name in self._fs.list(self.directory))

    def starts(self) -> list[int]:
        """The first position of each file, ascending."""
        return sorted(self._fds)

    def path_of(self, position: int) -> Path:
        """The file that holds `position`, for messages."""
        return self.directory / file_name(position - position % self.file_bytes)

    def has(self, position: int) -> bool:
        """Whether there is a file for `position`."""
        return position - position % self.file_bytes in self._fds

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers back to back, making files as needed. In the page cache until `sync`."""
        assert position >= 0, position
        size_bytes = sum(map(len, buffers))
        start = position - position % self.file_bytes
        room = start + self.file_bytes - position
        if size_bytes > room:
            data = memoryview(b"".join(buffers))
            self.write(position, [data[:room]])
            self.write(position + room, [data[room:]])
            return
        if start not in self._fds:
            self._create(start)
        self._reserve(start, position, position + size_bytes)
        self._fs.pwrite(self._fds[start], buffers, position - start)
        self._unsynced.add(start)

    def descriptor_for(self, position: int, size_bytes: int) -> int | None:
        """The descriptor of the file for these bytes; None unless the file is open and its blocks are
        reserved up to there.
        """
        start = position - position % self.file_bytes
        if position + size_bytes > min(self._reserved_to.get(start, start), start + self.file_bytes):
            return None
        return self._fds.get(start)

    def direct_descriptor_for(self, position: int) -> int | None:
        """A descriptor that bypasses the page cache, of the file of `position`, which is open; kept for one
        file.
        """
        start = position - position % self.file_bytes
        if start != self._direct_start:
            self._retire_direct()
            self._direct_start = start
            if isinstance(self._fs, OsFs):
                self._direct_fd = self._fs.open_direct(self.directory / file_name(start))
        return self._direct_fd

    def _retire_direct(self) -> None:
        if self._direct_fd is not None:
            self.retired_fds.append(self._direct_fd)
        self._direct_start, self._direct_fd = -1, None

    def needs_sync_at_most_of(self, position: int) -> bool:
        """Whether `sync` would sync at most the file of `position`."""
        start = position - position % self.file_bytes
        return not self._is_directory_unsynced and self._unsynced <= {start}

    def was_written(self, position: int, is_synced: bool) -> None:
        """The native writer wrote to the descriptor of this position's file, and synced it or not."""
        start = position - position % self.file_bytes
        if is_synced:
            self._unsynced.discard(start)
        else:
            self._unsynced.add(start)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Bytes of one or more files. Raises CorruptLogError when the files do not have them."""
        start = position - position % self.file_bytes
        fd = self._fds.get(start)
        if fd is None:
            raise CorruptLogError(f"{self.path_of(position)}: missing, position {position} was to be read")
        part_bytes = min(size_bytes, start + self.file_bytes - position)
        data = self._pread(fd, part_bytes, position)
        if len(data) < part_bytes:
            raise CorruptLogError(f"{self.path_of(position)}: ends before position {position + part_bytes}")
        if part_bytes < size_bytes:
            return data + self.read(position + part_bytes, size_bytes - part_bytes)
        return data

    def read_ahead(self, position: int, size_bytes: int) -> None:
        """Has the system read these bytes of one file soon, if they are there; nothing waits for them."""
        fd = self._fds.get(position - position % self.file_bytes)
        if fd is not None and isinstance(self._fs, OsFs):
            with suppress(OSError):  # a read will show whether anything is wrong
                self._fs.read_ahead(fd, position % self.file_bytes, size_bytes)

    def _pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        at = position % self.file_bytes
        try:
            return self._fs.pread(fd, size_bytes, at)
        except OSError as error:
            if error.errno != errno.EIO or self.on_unreadable is None:
                raise
            if at // READ_BLOCK_BYTES == (at + size_bytes - 1) // READ_BLOCK_BYTES:
                self.on_unreadable(f"{self.path_of(position)}: position {position}: {error.strerror}")
                return bytes(size_bytes)
        parts = []
        while size_bytes > 0:
            part_bytes = min(size_bytes, READ_BLOCK_BYTES - position % self.file_bytes % READ_BLOCK_BYTES)
            parts.append(self._pread(fd, part_bytes, position))
            position += part_bytes
            size_bytes -= part_bytes
        return b"".join(parts)

    def sync(self) -> None:
        """Sync everything that was written, and the names of new files."""
        for start in sorted(self._unsynced):
            self._fs.fdatasync(self._fds[start])
        self._unsynced.clear()
        if self._is_directory_unsynced:
            self._fs.fsync_directory(self.directory)
            self._is_directory_unsynced = False

    def sync_from(self, position: int) -> None:
        """As `sync`, and also everything that another process may have written from `position` on."""
        first = position - position % self.file_bytes
        self._unsynced.update(start for start in self._fds if start >= first)
        self._is_directory_unsynced = True
        self.sync()

    def truncate(self, position: int) -> None:
        """Drop all bytes from `position` on, durably; the rest of its file reads as zero.

        Later files are deleted, the last first, so that a crash leaves no gap between the files.
        """
        for start in reversed(self.starts()):
            if start >= position:
                self.retired_fds.append(self._delete(start))
        self._fs.fsync_directory(self.directory)
        start = position - position % self.file_bytes
        fd = self._fds.get(start)
        if fd is not None:
            # Shrink and grow: the cut bytes read as zero, and never as entries again.
            self._fs.set_size(fd, position - start)
            self._fs.set_size(fd, self.file_bytes)
            self._fs.fsync(fd)
            self._reserved_to.pop(start, None)
            self._unsynced.discard(start)

    def drop_before(self, position: int) -> int:
        """Delete the files that end at `position` or before it, durably; how many."""
        ended = [start for start in self.starts() if start + self.file_bytes <= position]
        for start in ended:
            self._removed_fds.append(self._delete(start))
        if ended:
            self._fs.fsync_directory(self.directory)
        return len(ended)

    def close_removed(self) -> None:
        """Close the files that `drop_before` deleted, which frees their disk space."""
        while self._removed_fds:
            self._fs.close(self._removed_fds.pop())

    def close_retired(self) -> None:
        """Close the descriptors of deleted files."""
        while self.retired_fds:
            self._fs.close(self.retired_fds.pop())

    def close(self) -> None:
        """Close all. The files stay as they are."""
        self._retire_direct()
        self.close_retired()
        self.close_removed()
        while self._fds:
            self._fs.close(self._fds.popitem()[1])

    def _open(self, start: int) -> None:
        self._fds[start] = self._fs.open(self.directory / file_name(start))

    def _create(self, start: int) -> None:
        fd = self._fs.open(self.directory / file_name(start))
        self._fs.set_size(fd, self.file_bytes)
        # The next `sync` makes the name durable, before anything in the file is acknowledged.
        self._fds[start] = fd
        self._is_directory_unsynced = True

    def _reserve(self, start: int, position: int, end_position: int) -> None:
        # In a file found at the start, the bytes before the first write have their blocks already.
        reserved_to = self._reserved_to.get(start, position)
        if end_position <= reserved_to:
            return
        windows = -(-(end_position - start) // self._reserve_bytes)
        window_end = min(start + windows * self._reserve_bytes, start + self.file_bytes)
        try:
            self._fs.allocate(self._fds[start], reserved_to - start, window_end - reserved_to)
        except OSError as error:
            # On a nearly full disk, reserve only what this write needs.
            if error.errno not in _NO_ROOM or window_end == end_position:
                raise
            window_end = end_position
            self._fs.allocate(self._fds[start], reserved_to - start, window_end - reserved_to)
        self._reserved_to[start] = window_end

    def _delete(self, start: int) -> int:
        """The file's descriptor, still open: the other thread may be reading from it."""
        if start == self._direct_start:
            self._retire_direct()
        self._fs.delete(self.directory / file_name(start))
        fd = self._fds.pop(start)
        self._reserved_to.pop(start, None)
        self._unsynced.discard(start)
        return fd


def _raise_corrupt(reason: str) -> None:
    raise CorruptLogError(reason)
