"""Which offsets of the timer queue are still waiting: one bit each, in pieces; a piece is freed with its last
waiting offset. Pure.

Runs: files of sorted rows. Messages that are not due in the near future are held on disk only.

A run is written once and never changed. It is derived from the log and is not synced: the checkpoint holds
its size and its checksum, and when one run does not match, all runs are discarded.

The checkpoint of a node's timer index: the offset up to which it has read the timer queue, the waiting
offsets, and its runs. Pure.

    magic 8 | version 4 | crc 4 of all behind it | end 8 | position 8 | last delivery 8 | runs 4 | pieces 4
    runs: number 8 | rows 8 | crc 4; pieces: rows of PendingSet

Big-endian. Written to a side file and renamed, not synced: one that a crash left half written is found by its
checksum, and the index is built from the log again.

The folder of a node's timer index: its runs and its checkpoint.
"""

import logging
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker.timer.records import KEY_BYTES, ROW_BYTES, first_at
from dledger.fs import Fs, read_file

PIECE = 1_024
PIECE_BYTES = PIECE // 8
PIECE_ROW_BYTES = 8 + PIECE_BYTES


class PendingSet:
    """A set of offsets. One offset needs at most one piece of 128 bytes."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: dict[int, int] = {}

    def __contains__(self, offset: int) -> bool:
        return bool(self._pieces.get(offset // PIECE, 0) >> offset % PIECE & 1)

    @property
    def first(self) -> int | None:
        """The lowest; None when there is none."""
        if not self._pieces:
            return None
        number = min(self._pieces)
        bits = self._pieces[number]
        return number * PIECE + (bits & -bits).bit_length() - 1

    @property
    def held_bytes(self) -> int:
        """Memory of the pieces, in bytes."""
        return len(self._pieces) * PIECE_BYTES

    def add(self, offset: int) -> None:
        if offset not in self:
            number = offset // PIECE
            self._pieces[number] = self._pieces.get(number, 0) | 1 << offset % PIECE
            self.count += 1

    def remove(self, offset: int) -> bool:
        """Whether it was there."""
        if offset not in self:
            return False
        number = offset // PIECE
        left = self._pieces[number] ^ 1 << offset % PIECE
        if left:
            self._pieces[number] = left
        else:
            del self._pieces[number]
        self.count -= 1
        assert self.count >= 0, f"{self.count} offsets wait"
        return True

    def drop_before(self, offset: int) -> None:
        """Remove all lower offsets."""
        for number in [number for number in self._pieces if number * PIECE < offset]:
            bits = self._pieces.pop(number)
            gone = min(offset - number * PIECE, PIECE)
            left = bits >> gone << gone
            self.count -= (bits ^ left).bit_count()
            if left:
                self._pieces[number] = left

    def rows(self) -> Iterator[bytes]:
        """What `restored` makes the set of."""
        for number, bits in self._pieces.items():
            yield number.to_bytes(8, "big") + bits.to_bytes(PIECE_BYTES, "big")

    @classmethod
    def restored(cls, rows: Iterable[bytes]) -> "PendingSet":
        """Raises ValueError."""
        pending = cls()
        for row in rows:
            number, bits = int.from_bytes(row[:8], "big"), int.from_bytes(row[8:], "big")
            if len(row) != PIECE_ROW_BYTES or not bits or number in pending._pieces:
                raise ValueError(f"a row of {len(row)} bytes for piece {number}")
            pending._pieces[number] = bits
            pending.count += bits.bit_count()
        return pending


BLOCK_ROWS = 512
"""Read at once; an open run keeps so many in memory."""
SCAN_BYTES = 32 * 1024 * ROW_BYTES
_KEY_AT = ROW_BYTES - KEY_BYTES


class DamagedRunError(Exception):
    """A run does not hold what was written: the index must be built again."""


@dataclass(frozen=True, slots=True)
class RunExtent:
    """A run's number, size and checksum, as a checkpoint holds them."""

    number: int
    rows: int
    crc: int


class Run:
    """Rows in their order; those before `at` are of ended messages."""

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


MAGIC = b"LMQTIMER"
VERSION = 1
CHECKPOINT_BYTES_MAX = 1 << 30

_HEAD = struct.Struct(">8sII")
_BODY = struct.Struct(">qqqII")
_RUN = struct.Struct(">QQI")


class CheckpointError(ValueError):
    """The checkpoint cannot be used."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`end`: every offset of the timer queue below it is in the runs. `position`: bytes, of the record before
    `end`; it shows whether the index belongs to this queue. `last_delivery`: offset of the last record of
    deliveries, or -1.
    """

    end: int
    position: int
    last_delivery: int
    runs: tuple[RunExtent, ...]
    pending: PendingSet


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    pieces = list(checkpoint.pending.rows())
    parts = [
        _BODY.pack(
            checkpoint.end, checkpoint.position, checkpoint.last_delivery, len(checkpoint.runs), len(pieces)
        ),
        *(_RUN.pack(run.number, run.rows, run.crc) for run in checkpoint.runs),
        *pieces,
    ]
    body = b"".join(parts)
    return _HEAD.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises CheckpointError."""
    try:
        if len(data) < _HEAD.size + _BODY.size:
            raise CheckpointError(f"it has only {len(data)} bytes")
        magic, version, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if (magic, version) != (MAGIC, VERSION) or zlib.crc32(body) != crc:
            raise CheckpointError("magic, version or checksum do not fit")
        end, position, last_delivery, runs, pieces = _BODY.unpack_from(body)
        pieces_at = _BODY.size + runs * _RUN.size
        if len(body) != pieces_at + pieces * PIECE_ROW_BYTES:
            raise CheckpointError("its length does not fit")
        extents = tuple(RunExtent(*_RUN.unpack_from(body, _BODY.size + at * _RUN.size)) for at in range(runs))
        rows = (body[at : at + PIECE_ROW_BYTES] for at in range(pieces_at, len(body), PIECE_ROW_BYTES))
        return Checkpoint(end, position, last_delivery, extents, PendingSet.restored(rows))
    except (struct.error, CheckpointError, ValueError) as error:
        raise CheckpointError(f"the timer index's checkpoint cannot be used: {error}") from error


FOLDER = "timer"
_CHECKPOINT = "checkpoint"
_SIDE_FILE = "checkpoint.tmp"
_RUN_PREFIX = "run-"

logger = logging.getLogger(__name__)


class RunStore:
    """Everything raises OSError."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._next_number = 0

    def load(self) -> tuple[Checkpoint, list[Run]] | None:
        """What was saved; None when there is nothing, or nothing of use. Deletes all other files."""
        names = set(self._fs.list(self._directory))
        data = read_file(self._fs, self._directory / _CHECKPOINT, CHECKPOINT_BYTES_MAX)
        found: tuple[Checkpoint, list[Run]] | None = None
        if data is not None:
            try:
                found = self._checked(decode_checkpoint(data), names)
            except (CheckpointError, DamagedRunError) as error:
                logger.warning("the timer index is built from the log again: %s", error)
        runs = found[1] if found is not None else []
        kept = {_name(run.extent.number) for run in runs} | ({_CHECKPOINT} if found is not None else set())
        for name in names - kept:
            self._fs.delete(self._directory / name)
        self._next_number = max((run.extent.number + 1 for run in runs), default=0)
        return found

    def new_run(self) -> RunWriter:
        self._fs.make_directory(self._directory, is_durable=False)
        number = self._next_number
        self._next_number += 1
        return RunWriter(self._fs, self._directory / _name(number), number)

    def save(self, checkpoint: Checkpoint) -> None:
        self._fs.make_directory(self._directory, is_durable=False)
        side_file = self._directory / _SIDE_FILE
        fd = self._fs.open(side_file)
        try:
            self._fs.set_size(fd, 0)
            self._fs.pwrite(fd, [encode_checkpoint(checkpoint)], 0)
        finally:
            self._fs.close(fd)
        self._fs.rename(side_file, self._directory / _CHECKPOINT)

    def clear(self) -> None:
        """Delete everything, as far as it can be."""
        for name in self._fs.list(self._directory):
            with suppress(FileNotFoundError):
                self._fs.delete(self._directory / name)

    def _checked(self, checkpoint: Checkpoint, names: set[str]) -> tuple[Checkpoint, list[Run]]:
        runs = []
        for extent in checkpoint.runs:
            name = _name(extent.number)
            if name not in names:
                raise CheckpointError(f"{name} is missing")
            run = Run(self._fs, self._directory / name, extent)
            run.verify()
            runs.append(run)
        return checkpoint, runs


def _name(number: int) -> str:
    return f"{_RUN_PREFIX}{number:012d}"
