"""The interface to the file system (`Fs`), and its implementation by the operating system (`OsFs`).

Tests and simulations pass their own `Fs`, which knows what a crash would lose.
"""

import ctypes
import errno
import fcntl
import logging
import os
import sys
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
    """A file system's bytes. The bytes reserved for root, 5 % of an ext4, are neither used nor free."""

    total_bytes: int
    used_bytes: int
    free_bytes: int
    """The bytes that a process without root's rights may still use."""

    @property
    def used_ratio(self) -> float:
        """used / (used + free), as df and RocketMQ count it: 1 when nothing can be written any more, while
        used / total stays below 1.
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
        """Makes all changes of the file system that holds `path` durable: contents and names."""

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
        """How full the file system of `path` is, 0 to 1, of what an ordinary user may use."""

    def lock(self, path: Path) -> int:
        """Locks a file, created if missing, against all other processes until `close` of the descriptor
        returned.

        Raises BlockingIOError when another process has locked it.
        """


class OsFs:
    """The operating system's files. New ones are readable by the process's own user only."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def open_direct(self, path: Path) -> int | None:
        """A second descriptor of an existing file, which writes whole blocks without the page cache; None
        where file system or operating system do not support that.
        """
        flag = getattr(os, "O_DIRECT", None)
        if flag is None:
            return None
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | flag)
        except OSError as error:
            logger.debug("%s is written through the page cache: %s", path, error)
            return None

    def read_ahead(self, fd: int, position: int, size_bytes: int) -> None:
        """Has the system read these bytes into its page cache, where it can, without waiting for them."""
        if sys.platform == "linux":
            os.posix_fadvise(fd, position, size_bytes, os.POSIX_FADV_WILLNEED)

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
        path.mkdir(mode=0o700, exist_ok=True)
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
    """Whether a file system is too full; checked at an interval, not with every call."""

    def __init__(
        self, fs: Fs, path: Path, full_ratio: float, interval_ms: int, clock: Callable[[], float]
    ) -> None:
        """`clock` returns seconds and never goes back."""
        self._fs = fs
        self._path = path
        self._full_ratio = full_ratio
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._is_full = False
        self._check_due_s: float | None = None

    def is_full(self) -> bool:
        """Whether more than the ratio was used at the last check."""
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
    """Replaces the content of `path` in one step: a crash leaves the old or the new content.

    With is_durable False the old content may be back after a power failure; it is never lost together with
    the new.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = fs.open(temporary)
    try:
        fs.set_size(fd, 0)
        fs.pwrite(fd, [content], 0)
        # Before the rename: the name must never lead to content that is not on the disk.
        fs.fsync(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    # The rename is durable only with the directory; without this sync the old file may be back.
    if is_durable:
        fs.fsync_directory(path.parent)


def read_replaced_file(fs: Fs, path: Path, size_bytes_max: int) -> bytes | None:
    """As `read_file`, for a file that `replace_file` writes; its content is durable when this returns.

    A process killed within `replace_file` may have left a name that is not on the disk yet. A caller that
    acts on what it read must not have the earlier content back after a power failure.
    """
    content = read_file(fs, path, size_bytes_max)
    if content is not None:
        fs.fsync_directory(path.parent)
    return content


def read_file(fs: Fs, path: Path, size_bytes_max: int) -> bytes | None:
    """The file's first bytes, or None when there is no such file. b"" when a sector cannot be read: the
    caller treats that as a damaged file, and can replace it.
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
