"""Disk faults that a test switches on in a running node through a small file: full, failing, slow."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from dledger.fs import Buffer, Fs
from tests.chaos.volatile_fs import VolatileFs


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """What the disk does from the moment this is written."""

    is_full: bool = False
    """Nothing can be written or reserved: ENOSPC."""
    used_ratio: float | None = None
    """How full it says it is."""
    failing_syncs: int = 0
    """So many syncs from now on fail with EIO."""
    failing_reads: int = 0
    sync_delay_ms: int = 0

    def write(self, path: Path) -> None:
        """Put the faults in force of the node that watches this file, in one step."""
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(orjson.dumps(asdict(self)))
        temporary.replace(path)


class FaultyFs:
    """Keeps `dledger.fs.Fs` over another one. Looks at its control file with every call that it may fail."""

    def __init__(self, inner: Fs, control: Path) -> None:
        self._inner = inner
        self._control = control
        self._seen: tuple[int, int] | None = None
        self._faults = DiskFaults()
        self._failing_syncs = 0
        self._failing_reads = 0
        self._lock = threading.Lock()

    def _look(self) -> DiskFaults:
        with self._lock:
            try:
                found = self._control.stat()
            except FileNotFoundError:
                return self._faults
            if (seen := (found.st_mtime_ns, found.st_ino)) != self._seen:
                self._seen = seen
                self._faults = DiskFaults(**orjson.loads(self._control.read_bytes()))
                self._failing_syncs = self._faults.failing_syncs
                self._failing_reads = self._faults.failing_reads
            return self._faults

    def _need_room(self) -> None:
        if self._look().is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: Path) -> int:
        return self._inner.open(path)

    def close(self, fd: int) -> None:
        self._inner.close(fd)

    def size(self, fd: int) -> int:
        return self._inner.size(fd)

    def set_size(self, fd: int, size_bytes: int) -> None:
        self._inner.set_size(fd, size_bytes)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._need_room()
        self._inner.allocate(fd, position, size_bytes)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self._need_room()
        self._inner.pwrite(fd, buffers, position)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self._look()
        with self._lock:
            is_failing = self._failing_reads > 0
            self._failing_reads -= is_failing
        if is_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._inner.pread(fd, size_bytes, position)

    def fdatasync(self, fd: int) -> None:
        self._before_sync(fd)
        self._inner.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._before_sync(fd)
        self._inner.fsync(fd)

    def _before_sync(self, fd: int | None) -> None:
        delay_ms = self._look().sync_delay_ms
        if delay_ms:
            time.sleep(delay_ms / 1000)
        with self._lock:
            is_failing = self._failing_syncs > 0
            self._failing_syncs -= is_failing
        if is_failing:
            if fd is not None and isinstance(self._inner, VolatileFs):
                self._inner.give_up(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fsync_directory(self, path: Path) -> None:
        self._inner.fsync_directory(path)

    def sync_all(self, path: Path) -> None:
        self._before_sync(None)
        self._inner.sync_all(path)

    def rename(self, source: Path, target: Path) -> None:
        self._inner.rename(source, target)

    def delete(self, path: Path) -> None:
        self._inner.delete(path)

    def delete_directory(self, path: Path) -> None:
        self._inner.delete_directory(path)

    def make_directory(self, path: Path, is_durable: bool = True) -> None:
        self._inner.make_directory(path, is_durable)

    def list(self, path: Path) -> list[str]:
        return self._inner.list(path)

    def used_ratio(self, path: Path) -> float:
        ratio = self._look().used_ratio
        return self._inner.used_ratio(path) if ratio is None else ratio

    def lock(self, path: Path) -> int:
        return self._inner.lock(path)
