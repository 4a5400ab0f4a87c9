"""One consume queue: the positions of the messages of one (topic, queue id), in the order of their offsets.

    unit: position of the record 8 | size of the record 4 | tags code 8          offset = number of the unit

New units are buffered in memory and written to the files in batches; written units are read from the files.
The files have a fixed size, with one directory per queue; a file is named by the 20-digit byte number of its
start and has its full length from its creation on. Source: RocketMQ's ConsumeQueue.
"""

import enum
import errno
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from commitlog.errors import DamagedQueueError
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
        """Bytes of one or more files; shorter where they end or cannot be read."""
        start = position - position % self.file_bytes
        part_bytes = min(size_bytes, start + self.file_bytes - position)
        data = self._pread(
            self._fd(directory, start), directory / file_name(start), part_bytes, position - start
        )
        if part_bytes < size_bytes and len(data) == part_bytes:
            return data + self.read(directory, position + part_bytes, size_bytes - part_bytes)
        return data

    def has_range(self, directory: Path, begin: int, end: int) -> bool:
        """Whether the queue's files cover the bytes from `begin` to `end` without a gap."""
        found = {int(name) for name in self._fs.list(directory) if name.isdecimal()}
        return all(start in found for start in range(begin - begin % self.file_bytes, end, self.file_bytes))

    def read_once(self, directory: Path, position: int, size_bytes: int) -> bytes:
        """As `read`, of one file only, which is closed again."""
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
        """Write, creating files as needed, and sync if `is_synced`."""
        self._fs.make_directory(directory, is_durable=is_synced)
        view = memoryview(data)
        while view:
            start = position - position % self.file_bytes
            part = view[: start + self.file_bytes - position]
            self._write_file(directory, start, position - start, part, is_synced)
            position += len(part)
            view = view[len(part) :]

    def clear_from(self, directory: Path, position: int) -> None:
        """Make all units from a byte number on read as zero. Not synced: a start clears them again."""
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

    def close_before(self, directory: Path, position: int) -> None:
        """Close the open files of a queue before a byte number."""
        for key in [key for key in self._fds if key[0] == directory and key[1] < position]:
            self._fs.close(self._fds.pop(key))

    def close_queue(self, directory: Path) -> None:
        """Close the open files of a queue."""
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
        self._fds[key] = fd  # the most recently used is the last
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


UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = 20
_POSITION: Final = struct.Struct(">q")
HOLE_SIZE: Final = 2**31 - 1
"""The size in a unit without a message."""
PREFIX_UNIT: Final = UNIT.pack(0, HOLE_SIZE, 0)
"""Java's unit for the offsets below a queue's first message, in the first file."""
HOLE_TAGS_CODE: Final = -1
"""Distinguishes a hole inside a queue from the units before its first message."""
HOLES_MAX: Final = 300_000
"""The longest hole that is filled, one file of units; with a longer one the queue begins again behind it."""

Unit = tuple[int, int, int]


class Boundary(enum.Enum):
    """BoundaryType: which message a search by time returns."""

    LOWER = "LOWER"
    """The first message stored at the time or later."""
    UPPER = "UPPER"
    """The last message stored at the time or earlier."""


class QueuedLog(Protocol):
    """The part of the log that its queues use."""

    @property
    def min_position(self) -> int: ...

    def record_at(self, position: int) -> bytes | None: ...

    def store_timestamp_at(self, position: int) -> int | None:
        """When the record at a position was stored; None when there is none."""


@dataclass(frozen=True, slots=True)
class UnitWrites:
    """A queue's units, to be written to its files."""

    queue: "ConsumeQueue"
    life: int
    """How often the queue had been restarted."""
    is_new: bool
    """Whether files from before a restart of the queue are to be dropped first."""
    first_offset: int
    units: bytes


class ConsumeQueue:
    """A queue from `begin_offset` on, ending before `max_offset`."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        files: UnitFiles,
        log: "QueuedLog",
        on_damage: Callable[[DamagedQueueError], None],
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self.begin_offset = 0
        self.max_offset = 0
        self.last_position = -1
        """Position of the last message; one at or before it is a repeat."""
        self._files = files
        self._log = log
        self._on_damage = on_damage
        self._life = 0
        self._tail = bytearray()
        self._tail_offset = 0
        self._is_new = True
        self._min_for_position = -1
        self._min_offset = 0
        self._floor_offset = 0

    def restore(self, begin_offset: int, max_offset: int, last_position: int) -> None:
        """Continue with the units in the files."""
        self.begin_offset = begin_offset
        self.max_offset = max_offset
        self._tail_offset = max_offset
        self._is_new = False
        self.last_position = last_position

    def put(self, queue_offset: int, position: int, size: int, tags_code: int) -> None:
        """Add a message; one that the queue has already is skipped."""
        # Dispatch after a crash begins before the end of the files: positions only rise in a queue.
        if position <= self.last_position:
            return
        if queue_offset != self.max_offset:
            self._continue_at(queue_offset)
        assert queue_offset == self.max_offset, (queue_offset, self.max_offset)
        self._tail += UNIT.pack(position, size, tags_code)
        self.max_offset += 1
        self.last_position = position

    def put_run(self, first_offset: int, units: bytes) -> None:
        """As `put`, for messages whose offsets follow each other, as units."""
        (first_position,) = _POSITION.unpack_from(units)
        if first_offset != self.max_offset or first_position <= self.last_position:
            for queue_offset, unit in enumerate(UNIT.iter_unpack(units), first_offset):
                self.put(queue_offset, *unit)
            return
        self._tail += units
        if len(units) == UNIT_BYTES:
            self.max_offset += 1
            self.last_position = first_position
            return
        self.max_offset += len(units) // UNIT_BYTES
        (self.last_position,) = _POSITION.unpack_from(units, len(units) - UNIT_BYTES)

    def units(self, start: int, count: int) -> list[Unit]:
        """(position, size, tags code) of the messages from offset `start` on, at most `count`.

        Empty when `start` is not in the queue. A hole has size 0 and no record. Raises DamagedQueueError.
        """
        raw = self.packed_units(start, count)
        found: list[Unit] = list(UNIT.iter_unpack(raw))
        if any(size <= 0 for _, size, _ in found):
            raise self._damage(start + len(found), len(found))
        if any(size == HOLE_SIZE for _, size, _ in found):
            return [(position, 0 if size == HOLE_SIZE else size, tags) for position, size, tags in found]
        return found

    def packed_units(self, start: int, count: int) -> bytes:
        """As `units`, in their stored form and unchecked: a hole has HOLE_SIZE."""
        if not self.begin_offset <= start < self.max_offset:
            return b""
        end = min(start + count, self.max_offset)
        wanted = end - start
        raw = b""
        if start < self._tail_offset:
            in_files = min(end, self._tail_offset) - start
            raw = self._files.read(self.directory, start * UNIT_BYTES, in_files * UNIT_BYTES)
            start += in_files
        if start < end:
            first = (start - self._tail_offset) * UNIT_BYTES
            raw += self._tail[first : first + (end - start) * UNIT_BYTES]
        if len(raw) < wanted * UNIT_BYTES:
            raise self._damage(end, wanted)
        return raw

    def _damage(self, end: int, wanted: int) -> DamagedQueueError:
        error = DamagedQueueError(f"{self.directory}: a unit is missing among {wanted} before offset {end}")
        self._on_damage(error)
        return error

    @property
    def min_offset(self) -> int:
        """The first offset whose message the log still holds, and the queue still shows."""
        min_position = self._log.min_position
        if min_position != self._min_for_position:
            self._min_for_position = min_position
            found = self.max_offset
            if self.last_position >= min_position:
                found = self._first(lambda unit: unit[0] >= min_position, self.begin_offset)
            self._min_offset = max(found, min(self._floor_offset, self.max_offset))
        return self._min_offset

    def hide_before(self, offset: int) -> None:
        """Raise `min_offset` to this offset, even if the log still has earlier messages."""
        if offset > self._floor_offset:
            self._floor_offset = offset
            self._min_for_position = -1

    def cut_files(self) -> int | None:
        """Drop the files that have only units before `min_offset`. Returns the first offset of the remaining
        files; None when there is nothing to drop.
        """
        per_file = self._files.file_bytes // UNIT_BYTES
        last = max(self.begin_offset, self._tail_offset - 1)
        begin = min(self.min_offset, last) // per_file * per_file
        if begin <= self.begin_offset or self._is_new:
            return None
        self.begin_offset = begin
        self._files.close_before(self.directory, begin * UNIT_BYTES)
        return begin

    def offset_by_time(self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Search by the messages' store times, which grow with the offset but for small steps back.

        Past the last message LOWER gives max_offset; before the first one UPPER gives min_offset.
        """

        def is_past(unit: Unit) -> bool:
            time_ms = self._log.store_timestamp_at(unit[0])
            if time_ms is None:
                return False
            return time_ms >= timestamp_ms if boundary is Boundary.LOWER else time_ms > timestamp_ms

        found = self._first(is_past, self.min_offset)
        return found if boundary is Boundary.LOWER else max(self.min_offset, found - 1)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are not in the files yet."""
        return len(self._tail)

    def take_writes(self) -> UnitWrites | None:
        """The units to write to the files; they stay readable from memory until `written`."""
        if not self._tail:
            return None
        return UnitWrites(self, self._life, self._is_new, self._tail_offset, bytes(self._tail))

    def is_current(self, writes: UnitWrites) -> bool:
        """Whether the queue was not restarted after `take_writes`."""
        return writes.life == self._life

    def written(self, writes: UnitWrites) -> None:
        """These units are in the files."""
        if not self.is_current(writes):
            return
        assert self._tail_offset == writes.first_offset, (self._tail_offset, writes.first_offset)
        del self._tail[: len(writes.units)]
        self._tail_offset += len(writes.units) // UNIT_BYTES
        self._is_new = False

    def begin_at(self, queue_offset: int) -> None:
        """Drop all units; the next message has this offset."""
        self._files.close_queue(self.directory)
        self._tail.clear()
        self.begin_offset = self.max_offset = self._tail_offset = queue_offset
        self.last_position = -1
        self._is_new = True
        self._life += 1
        self._min_for_position = -1

    def _continue_at(self, queue_offset: int) -> None:
        missing = queue_offset - self.max_offset
        if self.begin_offset == self.max_offset:
            self.begin_at(queue_offset)
        elif 0 < missing <= HOLES_MAX:
            logger.warning("%s queue %d: no messages %d to %d", *self._place(queue_offset))
            self._tail += UNIT.pack(self.last_position, HOLE_SIZE, HOLE_TAGS_CODE) * missing
            self.max_offset = queue_offset
        else:
            # The topic was deleted and made again, or the log was reset to a begin behind this queue's end.
            logger.warning("%s queue %d: ends at %d, restarts at %d", *self._place(queue_offset))
            self.begin_at(queue_offset)

    def _place(self, queue_offset: int) -> tuple[str, int, int, int]:
        return self.topic, self.queue_id, self.max_offset, queue_offset

    def _unit(self, offset: int) -> Unit:
        if offset >= self._tail_offset:
            raw = bytes(self._tail[(offset - self._tail_offset) * UNIT_BYTES :][:UNIT_BYTES])
        else:
            raw = self._files.read(self.directory, offset * UNIT_BYTES, UNIT_BYTES).ljust(UNIT_BYTES, b"\0")
        position, size, tags = UNIT.unpack(raw)
        return position, size, tags

    def _first(self, is_past: Callable[[Unit], bool], low: int) -> int:
        high = self.max_offset
        while low < high:
            middle = (low + high) // 2
            if is_past(self._unit(middle)):
                high = middle
            else:
                low = middle + 1
        return low
