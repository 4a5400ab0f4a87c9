"""The seam to the file system: what the storage needs of it, and the operating system's own.

A storage test or simulation gives its own `Fs`, one that counts what a crash would lose.
"""

import ctypes
import errno
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

BUFFERS_PER_CALL_MAX: Final = 1024
"""Linux's IOV_MAX: the most buffers one pwritev takes."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A file system's bytes. Some are neither used nor free: those kept back for root, 5 % of an ext4."""

    total_bytes: int
    used_bytes: int
    free_bytes: int
    """What a process may still take that is not root's."""

    @property
    def used_ratio(self) -> float:
        """Used by used and free, as df, RocketMQ and the limits of a node count: 1 when nothing can be taken,
        which used by total does not reach.
        """
        return self.used_bytes / max(1, self.used_bytes + self.free_bytes)


def disk_space(path: Path) -> DiskSpace:
    """Of the file system that the path is on. Raises OSError."""
    found = os.statvfs(path)
    block = found.f_frsize
    return DiskSpace(found.f_blocks * block, (found.f_blocks - found.f_bfree) * block, found.f_bavail * block)


class Fs(Protocol):
    """Files by descriptor. Every method raises OSError on failure; none is retried here or above."""

    def open(self, path: Path) -> int:
        """Open for reading and writing, creating the file when it does not exist."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def set_size(self, fd: int, size_bytes: int) -> None:
        """Cut or extend; new bytes read as zero."""

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        """Reserve blocks inside the file, so that writing there cannot fail for want of space."""

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers back to back at `position`."""

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes`; fewer only at the end of the file."""

    def fdatasync(self, fd: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def fsync_directory(self, path: Path) -> None: ...

    def sync_all(self, path: Path) -> None:
        """Put on the disk whatever was changed in the file system that holds `path`: contents and names."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` in one step."""

    def delete(self, path: Path) -> None: ...

    def delete_directory(self, path: Path) -> None:
        """Delete an empty directory."""

    def make_directory(self, path: Path, is_durable: bool = True) -> None:
        """With its parents; an existing one is fine."""

    def list(self, path: Path) -> list[str]:
        """The names in a directory, sorted; none when it does not exist."""

    def used_ratio(self, path: Path) -> float:
        """How full the file system of `path` is, 0 to 1, of what an ordinary user can have."""

    def lock(self, path: Path) -> int:
        """Lock a file, made if missing, against all other processes until `close` of what this returns.

        Raises BlockingIOError when another holds it.
        """


class OsFs:
    """The operating system's files."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def open_direct(self, path: Path) -> int | None:
        """A further descriptor of an existing file, by which whole blocks go past the page cache; None where
        the file system or the operating system has none.
        """
        flag = getattr(os, "O_DIRECT", None)
        if flag is None:
            return None
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | flag)
        except OSError as error:
            logger.debug("%s is written by the page cache: %s", path, error)
            return None

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def set_size(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        os.posix_fallocate(fd, position, size_bytes)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(buffers), BUFFERS_PER_CALL_MAX):
            part = buffers[first : first + BUFFERS_PER_CALL_MAX]
            part_bytes = sum(map(len, part))
            written = os.pwritev(fd, part, position)
            if written < part_bytes:
                _write_rest(fd, memoryview(b"".join(part))[written:], position + written)
            position += part_bytes

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        data = os.pread(fd, size_bytes, position)
        if 0 < len(data) < size_bytes:
            # Short at the end of the file, or after 2 GiB less a page, the most one call gives.
            return data + self.pread(fd, size_bytes - len(data), position + len(data))
        return data

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def delete(self, path: Path) -> None:
        path.unlink()

    def delete_directory(self, path: Path) -> None:
        path.rmdir()

    def sync_all(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), str(path))
        finally:
            os.close(fd)

    def make_directory(self, path: Path, is_durable: bool = True) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent, is_durable)
        path.mkdir(exist_ok=True)
        if is_durable:
            self.fsync_directory(path.parent)

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 (a path object for each name takes its time)
        except FileNotFoundError:
            return []

    def used_ratio(self, path: Path) -> float:
        return disk_space(path).used_ratio

    def lock(self, path: Path) -> int:
        fd = self.open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd


class DiskWatch:
    """Whether a file system is too full to take more; looked at now and then, not with every question."""

    def __init__(
        self, fs: Fs, path: Path, full_ratio: float, interval_ms: int, clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds that never go back."""
        self._fs = fs
        self._path = path
        self._full_ratio = full_ratio
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._is_full = False
        self._check_due_s: float | None = None

    def is_full(self) -> bool:
        """Whether more than the ratio was used when last looked at."""
        now_s = self._clock()
        if self._check_due_s is None or now_s >= self._check_due_s:
            self._check_due_s = now_s + self._interval_s
            self._is_full = self.used_ratio() > self._full_ratio
        return self._is_full

    def used_ratio(self) -> float:
        """How full it is now."""
        return self._fs.used_ratio(self._path)


def _write_rest(fd: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        data = data[written:]
        position += written


def replace_file(fs: Fs, path: Path, content: bytes, is_durable: bool = True) -> None:
    """Give `path` this content in one step: a crash leaves the old or the new.

    Not durable: after a power failure the old one may still be there, but never neither.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = fs.open(temporary)
    try:
        fs.set_size(fd, 0)
        fs.pwrite(fd, [content], 0)
        fs.fsync(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    if is_durable:
        fs.fsync_directory(path.parent)


def read_replaced_file(fs: Fs, path: Path, size_bytes_max: int) -> bytes | None:
    """As `read_file`, of a file that `replace_file` writes; durable by now.

    A process that was killed within `replace_file` may have left a name that is not on the disk yet. Whoever
    goes on from what is found must not have the earlier content back after a power failure.
    """
    content = read_file(fs, path, size_bytes_max)
    if content is not None:
        fs.fsync_directory(path.parent)
    return content


def read_file(fs: Fs, path: Path, size_bytes_max: int) -> bytes | None:
    """The file's first bytes, or None when there is no such file. No bytes when a sector cannot be read: to
    its reader that is a damaged file, and a new one can be put in its place.
    """
    if path.name not in fs.list(path.parent):
        return None
    fd = fs.open(path)
    try:
        return fs.pread(fd, min(fs.size(fd), size_bytes_max), 0)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        logger.error("%s: %s", path, error.strerror)
        return b""
    finally:
        fs.close(fd)
