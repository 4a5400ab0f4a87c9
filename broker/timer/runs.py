"""Sorted rows in files: what waits for later than the near future, on disk only.

A run is written once and never changed. It is derived from the log and is not synced: its size and its
checksum stand in the checkpoint (checkpoint.py), and when one does not fit, all are thrown away.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.timer.rows import KEY_BYTES, ROW_BYTES, first_at
from dledger.fs import Fs

BLOCK_ROWS = 512
"""Read at once; an open run keeps so many in memory."""
SCAN_BYTES = 32 * 1024 * ROW_BYTES
_KEY_AT = ROW_BYTES - KEY_BYTES


class DamagedRunError(Exception):
    """A run does not hold what was written: the index has to be built anew."""


@dataclass(frozen=True, slots=True)
class RunExtent:
    """What a checkpoint says of a run."""

    number: int
    rows: int
    crc: int


class Run:
    """Rows in their order; those before `at` are over."""

    def __init__(self, fs: Fs, path: Path, extent: RunExtent) -> None:
        self.extent = extent
        self.at = 0
        self._fs = fs
        self._path = path
        self._fd: int | None = None
        self._block = b""
        self._block_at = 0

    def __len__(self) -> int:
        return self.extent.rows

    @property
    def left(self) -> int:
        return self.extent.rows - self.at

    def verify(self) -> None:
        """Read it all. Raises DamagedRunError, OSError."""
        crc = 0
        for at in range(0, len(self), BLOCK_ROWS * 64):
            crc = zlib.crc32(self._read(at, BLOCK_ROWS * 64), crc)
        if crc != self.extent.crc:
            raise DamagedRunError(f"{self._path}: the checksum does not fit")

    def row(self, at: int) -> bytes:
        """Raises DamagedRunError, OSError, as all that reads."""
        start = at - self._block_at
        if not 0 <= start < len(self._block) // ROW_BYTES:
            self._block, self._block_at, start = self._read(at, BLOCK_ROWS), at, 0
        return self._block[start * ROW_BYTES : (start + 1) * ROW_BYTES]

    def from_row(self, at: int) -> Iterator[bytes]:
        """The rows from number `at` on."""
        while at < len(self):
            yield self.row(at)
            at += 1

    def lower_bound(self, wake_ms: int) -> int:
        """The number of the first row that is not of an earlier time."""
        low, high, wanted = 0, len(self), first_at(wake_ms)
        while low < high:
            middle = (low + high) // 2
            if self._read(middle, 1) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, key: bytes, from_ms: int, until_ms: int) -> Iterator[bytes]:
        """Rows with this key of the times from `from_ms` up to `until_ms`, which is not one of them."""
        at, end = self.lower_bound(from_ms), self.lower_bound(until_ms)
        while at < end:
            data = self._read(at, min(SCAN_BYTES // ROW_BYTES, end - at))
            found = data.find(key)
            while found >= 0:
                if found % ROW_BYTES == _KEY_AT:
                    yield data[found - _KEY_AT : found + KEY_BYTES]
                found = data.find(key, found + 1)
            at += len(data) // ROW_BYTES

    def close(self) -> None:
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None

    def delete(self) -> None:
        self.close()
        self._fs.delete(self._path)

    def _read(self, at: int, count: int) -> bytes:
        if self._fd is None:
            self._fd = self._fs.open(self._path)
        wanted = min(count, len(self) - at) * ROW_BYTES
        data = self._fs.pread(self._fd, wanted, at * ROW_BYTES)
        if len(data) != wanted:
            raise DamagedRunError(f"{self._path}: rows are missing")
        return data


class RunWriter:
    """Writes a new run, a stretch at a time."""

    def __init__(self, fs: Fs, path: Path, number: int) -> None:
        """Raises OSError, as all that writes."""
        self._fs = fs
        self._path = path
        self._number = number
        self._rows = 0
        self._crc = 0
        self._fd = fs.open(path)
        fs.set_size(self._fd, 0)

    def add(self, rows: list[bytes]) -> None:
        """Rows behind all that were added."""
        data = b"".join(rows)
        self._fs.pwrite(self._fd, [data], self._rows * ROW_BYTES)
        self._crc = zlib.crc32(data, self._crc)
        self._rows += len(rows)

    def finish(self) -> Run:
        self._fs.close(self._fd)
        return Run(self._fs, self._path, RunExtent(self._number, self._rows, self._crc))

    def abandon(self) -> None:
        self._fs.close(self._fd)
        self._fs.delete(self._path)
