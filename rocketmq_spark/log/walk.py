"""Reads a range of a log from one whole entry to the next, across damage: DLedger's entries (`EntryWalk`) or
the records of a plain commit log (`RecordWalk`).

Every byte of a range is accounted for: it belongs to an entry that is yielded, to a blank, or to a `Damage`.
"""

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from commitlog.entry import BLANK, BLANK_BYTES, BLANK_MAGIC, HEADER_BYTES
from commitlog.record import CorruptRecordError, decode_record
from commitlog.recovery import (
    BLANK_STOP,
    FILLER_MAGIC,
    MORE,
    EntryHead,
    entry_head,
    find_entry,
    find_record,
    leading_blank,
    scan_records,
)
from remoting.record_layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.entries import (
    UNKNOWN,
    Damage,
    EntryBlock,
    LogRange,
    Parsed,
    Status,
    int64s,
    parse_entries,
)
from rocketmq_spark.log.index_files import UnitIndex
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.records.fields import RecordColumns

WINDOW_BYTES: Final = 8 * 1024 * 1024
SEARCH_BYTES: Final = 8 * 1024 * 1024
"""After damage the next whole entry is searched in steps of this size."""
SEARCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""After this size the search continues in the next file: the empty end of a file can be a gigabyte."""


READS_AGAIN_MAX: Final = 3
READ_AGAIN_S: Final = 0.01


@dataclass(slots=True)
class Place:
    """The state of a walk: the next entry expected; UNKNOWN accepts any."""

    position: int
    index: int
    term: int = 0


class Walk(ABC):
    """Reads one range, once. Raises OSError of the storage."""

    def __init__(self, log: Log, wanted: LogRange, window_bytes: int = WINDOW_BYTES) -> None:
        self.log = log
        self.wanted = wanted
        self._window_bytes = window_bytes
        self._read_again_at = -1
        self._reads_left = 0

    def __iter__(self) -> Iterator[EntryBlock | Damage]:
        place = Place(self.wanted.first_position, self.wanted.first_index)
        yield from self._walk(place)
        last = self.wanted.last_index
        if last != UNKNOWN and UNKNOWN != place.index <= last:
            error = f"the log ends at position {place.position}, before entry {last}"
            yield Damage("missing", place.position, 0, error, place.index, last)

    def _walk(self, place: Place) -> Iterator[EntryBlock | Damage]:
        window_bytes = self._window_bytes
        while not self._is_done(place):
            limit = min(self.log.data.file_end(place.position), self.wanted.end_position)
            asked = min(window_bytes, limit - place.position)
            window_bytes = self._window_bytes
            try:
                data = self.log.read(place.position, asked)
            except GoneError as error:
                yield from self._over_damage(place, "missing", str(error))
                continue
            parsed = self._step(place, data)
            if len(parsed.starts):
                block = self._block(place, data, parsed)
                self._advance(place, block)
                yield block
                if self._is_done(place):
                    return
            if parsed.stop == MORE:
                left = len(data) - parsed.size_bytes
                if len(data) < asked:
                    yield from self._over_damage(place, "missing", self._ends_early(place, left))
                elif place.position + max(parsed.bytes_needed, 1) > limit:
                    yield from self._over_damage(place, "corrupt", self._overlong(place, limit))
                else:
                    window_bytes = max(self._window_bytes, parsed.bytes_needed)
            elif parsed.stop == BLANK_STOP:
                place.position = self.log.data.file_end(place.position)
            elif self.wanted.is_open and self._ends_here(place, data[parsed.size_bytes :]):
                return
            elif self._may_be_being_written(place):
                continue
            else:
                yield from self._over_damage(place, "corrupt", parsed.stop)

    def _may_be_being_written(self, place: Place) -> bool:
        """Whether to read once more: a running broker may have been in the middle of writing.

        It writes in order: if an entry after this place was whole, the bytes read here now are whole, too.
        """
        if not self.wanted.is_open or place.position < self.wanted.synced_position:
            return False
        if place.position != self._read_again_at:
            self._read_again_at, self._reads_left = place.position, READS_AGAIN_MAX
        self._reads_left -= 1
        if self._reads_left < 0:
            return False
        time.sleep(READ_AGAIN_S)
        return True

    def _is_done(self, place: Place) -> bool:
        last = self.wanted.last_index
        return place.position >= self.wanted.end_position or (last != UNKNOWN and place.index > last)

    def _ends_early(self, place: Place, left: int) -> str:
        return f"{self.log.data.path_of(place.position)} ends at position {place.position + left}"

    def _overlong(self, place: Place, limit: int) -> str:
        return f"what begins at position {place.position} reaches over the next at position {limit}"

    def _ends_here(self, place: Place, rest: bytes) -> bool:
        """Whether the log ends here: the bytes show no sign of a write."""
        is_blank = not any(rest[: self.head_bytes])
        return is_blank and place.position >= self.wanted.synced_position and self._later(place) is None

    def _over_damage(self, place: Place, status: Status, error: str) -> Iterator[Damage]:
        """Yield the damage at `place`, then continue after it."""
        behind = self._later(place)
        if behind is None:
            is_tail = self.wanted.is_open and place.position >= self.wanted.synced_position
            if is_tail and status == "missing":
                place.position = self.wanted.end_position
                return
            end = self.wanted.end_position
            behind = Place(end, UNKNOWN if self.wanted.last_index == UNKNOWN else self.wanted.last_index + 1)
            status = "torn" if is_tail else status
            if is_tail:
                end = min(end, self.log.data.file_end(place.position))
            yield _damage(place, Place(end, behind.index), status, error)
        elif place.index == UNKNOWN or behind.index != place.index:  # else a blank is damaged, and no entry
            yield _damage(place, behind, status, error)
        place.position, place.index, place.term = behind.position, behind.index, behind.term

    def _later(self, place: Place) -> Place | None:
        """The next whole entry after `place` in the range, or None."""
        found = self._by_size(place) or self._by_index(place)
        if found is not None:
            return found
        end = self.wanted.end_position
        position = place.position + 1
        while position < end:
            file_end = min(self.log.data.file_end(position), end)
            found = self._search(position, file_end, place)
            if found is not None:
                return found
            position = self._next_file(file_end)
        return None

    def _next_file(self, position: int) -> int:
        """The start of the first file from `position` on; the range's end when there is none."""
        starts = [start for start in self.log.data.starts if start >= position]
        return starts[0] if starts else self.wanted.end_position

    def _search(self, position: int, end: int, place: Place) -> Place | None:
        search_end = min(end, position + SEARCH_BYTES_MAX)
        while position < search_end:
            try:
                data = self.log.read(position, min(SEARCH_BYTES, end - position))
            except GoneError:
                return None
            found = self._find(data, position, place)
            if found is not None and found.position < end:
                return found
            step = len(data) - self.overlap_bytes
            if step <= 0 or len(data) < SEARCH_BYTES:
                return None
            position += step
        return None

    head_bytes: int
    """How many bytes of an entry show whether anything was written."""
    overlap_bytes: int
    """How far an entry that begins in one step of a search may reach into the next."""

    @abstractmethod
    def _step(self, place: Place, data: bytes) -> Parsed: ...

    @abstractmethod
    def _block(self, place: Place, data: bytes, parsed: Parsed) -> EntryBlock: ...

    @abstractmethod
    def _advance(self, place: Place, block: EntryBlock) -> None: ...

    @abstractmethod
    def _by_size(self, place: Place) -> Place | None: ...

    @abstractmethod
    def _by_index(self, place: Place) -> Place | None: ...

    @abstractmethod
    def _find(self, data: bytes, position: int, place: Place) -> Place | None: ...


def _damage(place: Place, behind: Place, status: Status, error: str) -> Damage:
    length = behind.position - place.position
    if place.index == UNKNOWN or behind.index == UNKNOWN or behind.index <= place.index:
        return Damage(status, place.position, length, error)
    return Damage(status, place.position, length, error, place.index, behind.index - 1)


UNITS_TRIED_MAX: Final = 4096


def open_index(log: Log) -> UnitIndex:
    """The log's index; an empty one when there is none."""
    row = log.index

    def read(position: int, size_bytes: int) -> bytes:
        if row is None:
            return b""
        try:
            return row.read(log.storage, position, size_bytes)
        except GoneError:
            return b""

    return UnitIndex(read)


def head_at(log: Log, position: int) -> EntryHead | None:
    """The header at a position, if its own position field agrees."""
    if position < 0:
        return None
    try:
        return entry_head(log.read(position, HEADER_BYTES), position)
    except GoneError:
        return None


def first_place(log: Log, start: int) -> tuple[int, EntryHead] | None:
    """Position of the first entry of the data file at `start`, after a leading blank if there is one."""
    try:
        blank_bytes = leading_blank(log.read(start, BLANK_BYTES).ljust(BLANK_BYTES, b"\0"))
    except GoneError:
        return None
    position = start + blank_bytes if 0 < blank_bytes < log.data.file_bytes else start
    head = head_at(log, position)
    return None if head is None else (position, head)


class EntryWalk(Walk):
    """Reads a range of a DLedger log."""

    head_bytes = HEADER_BYTES
    overlap_bytes = HEADER_BYTES - 1

    def __init__(self, log: Log, wanted: LogRange, window_bytes: int = WINDOW_BYTES) -> None:
        super().__init__(log, wanted, window_bytes)
        self._index = open_index(log)

    def _step(self, place: Place, data: bytes) -> Parsed:
        if place.index == UNKNOWN:
            head = entry_head(data[:HEADER_BYTES], place.position)
            if head is not None:
                place.index = head.index
        room = self.log.data.file_end(place.position) - place.position
        return parse_entries(data, place.position, room, place.index, place.term)

    def _block(self, place: Place, data: bytes, parsed: Parsed) -> EntryBlock:
        last = self.wanted.last_index
        count = len(parsed.starts)
        if last != UNKNOWN:
            count = min(count, last - place.index + 1)
        starts, sizes, terms = parsed.starts[:count], parsed.sizes[:count], parsed.terms[:count]
        return EntryBlock(data, place.position, starts, sizes, place.index, terms, HEADER_BYTES)

    def _advance(self, place: Place, block: EntryBlock) -> None:
        place.position += block.size_bytes
        place.index += len(block)
        place.term = int(block.terms[-1])

    def _by_size(self, place: Place) -> Place | None:
        """The place after the entry at `place`, if its header is right and an entry or a blank follows."""
        head = head_at(self.log, place.position)
        if head is None or place.index not in (UNKNOWN, head.index):
            return None
        position, index = place.position + head.size, head.index + 1
        if position == self.wanted.end_position:
            return Place(position, index)
        behind = head_at(self.log, position)
        if behind is not None and behind.index == index:
            return Place(position, index)
        return Place(position, index) if self._is_blank(position) else None

    def _is_blank(self, position: int) -> bool:
        try:
            head = self.log.read(position, BLANK_BYTES)
        except GoneError:
            return False
        room = self.log.data.file_end(position) - position
        return head == BLANK.pack(BLANK_MAGIC, room)

    def _by_index(self, place: Place) -> Place | None:
        """The next entry that the index leads to."""
        if place.index == UNKNOWN:
            return None
        last = self.wanted.last_index
        end = place.index + UNITS_TRIED_MAX
        for index in range(place.index + 1, end if last == UNKNOWN else min(end, last + 1)):
            unit = self._index.unit(index)
            if unit is None:
                continue
            if unit[0] >= self.wanted.end_position:
                return None
            head = head_at(self.log, unit[0]) if unit[0] > place.position else None
            if head is not None and head.index == index:
                return Place(unit[0], index)
        return None

    def _find(self, data: bytes, position: int, place: Place) -> Place | None:
        found = find_entry(data, position, max(place.index, 0))
        if found is None:
            return None
        head = entry_head(data[found - position : found - position + HEADER_BYTES], found)
        assert head is not None, found
        is_within = self.wanted.last_index == UNKNOWN or head.index <= self.wanted.last_index
        return Place(found, head.index) if is_within else None


RECORD_BYTES_MAX: Final = 4 * 1024 * 1024 + 128 * 1024
"""A body of RocketMQ's largest message, with all its properties."""
CHAIN_RECORDS: Final = 4
EMPTY_BYTES: Final = 64 * 1024
"""This many zero bytes mark the end of the written part."""

_INT32: Final = struct.Struct(">i")


def parse_records(data: bytes, position: int, room: int) -> Parsed:
    """The whole records that data[0] begins with: it is at `position`, `room` bytes before its file's
    end. The checks are those of `scan_records` for flushed records.
    """
    starts = int64s(_walk_sizes(data))
    sizes = np.diff(np.append(starts, _end_of(data, starts)))
    columns = RecordColumns(data, starts, sizes, position + starts)
    is_right = columns.is_whole & (starts + sizes + BLANK_BYTES <= room) if len(starts) else np.ones(0, bool)
    count = len(starts) if is_right.all() else int(np.argmin(is_right))
    wrong = columns.wrong_body_crcs(np.arange(count)) if count else []
    count = wrong[0] if wrong else count
    at = int(starts[count - 1] + sizes[count - 1]) if count else 0
    scan = scan_records(memoryview(data)[at:], position + at, room - at, position + len(data))
    stop = columns.fault_of(count) if scan.size_bytes and count < len(starts) else scan.stop
    needed = scan.bytes_needed if stop == MORE else 0
    return Parsed(starts[:count], sizes[:count], int64s([]), stop, needed)


def _walk_sizes(data: bytes) -> list[int]:
    size_at = _INT32.unpack_from
    starts = []
    end = len(data)
    at = 0
    while at + RECORD_BYTES_MIN <= end:
        (size,) = size_at(data, at)
        if size < RECORD_BYTES_MIN or at + size > end:
            break
        starts.append(at)
        at += size
    return starts


def _end_of(data: bytes, starts: np.typing.NDArray[np.int64]) -> int:
    if not len(starts):
        return 0
    last = int(starts[-1])
    return last + int(_INT32.unpack_from(data, last)[0])


def whole_record_at(log: Log, position: int) -> int | None:
    """The size of the whole record at a position whose own position field agrees; None without one."""
    try:
        size = _INT32.unpack(log.read(position, 4).ljust(4, b"\0"))[0]
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return None
        record = decode_record(log.read(position, size), 0, check_crc=True)
    except (GoneError, CorruptRecordError):
        return None
    return record.size if record.physical_offset == position else None


def find_whole_record(log: Log, position: int) -> int | None:
    """The first place from `position` on in its file where a chain of whole records begins.

    A message body may contain the bytes of a record. Such bytes count as a record only if they hold their own
    position, which a sender cannot know in advance, and only several of them in a row count as a chain.
    """
    end = log.data.file_end(position)
    while position < end:
        data = _window(log, position, end)
        found = find_record(data, position) if any(data[:EMPTY_BYTES]) else None
        if found is None:
            return None
        if _begins_chain(log, found):
            return found
        position = found + 1
    return None


def _window(log: Log, position: int, end: int) -> bytes:
    try:
        data = log.read(position, min(EMPTY_BYTES, end - position))
        if any(data):
            data = log.read(position, min(2 * RECORD_BYTES_MAX, end - position))
    except GoneError:
        return b""
    return data


def _begins_chain(log: Log, position: int) -> bool:
    for _ in range(CHAIN_RECORDS):
        size = whole_record_at(log, position)
        if size is None:
            break
        position += size
    else:
        return True
    try:
        head = log.read(position, 8).ljust(8, b"\0")
    except GoneError:
        return True
    size, magic = _INT32.unpack_from(head)[0], int.from_bytes(head[4:], "big")
    return not any(head) or (size, magic) == (log.data.file_end(position) - position, FILLER_MAGIC)


class RecordWalk(Walk):
    """Reads a range of a plain commit log."""

    head_bytes = 8
    overlap_bytes = RECORD_BYTES_MAX

    def _step(self, place: Place, data: bytes) -> Parsed:
        return parse_records(data, place.position, self.log.data.file_end(place.position) - place.position)

    def _block(self, place: Place, data: bytes, parsed: Parsed) -> EntryBlock:
        return EntryBlock(data, place.position, parsed.starts, parsed.sizes, UNKNOWN, parsed.terms, 0)

    def _advance(self, place: Place, block: EntryBlock) -> None:
        place.position += block.size_bytes

    def _by_size(self, place: Place) -> Place | None:
        """The place after the record at `place`, if another whole record follows."""
        try:
            head = self.log.read(place.position, 8).ljust(8, b"\0")
        except GoneError:
            return None
        size, magic = _INT32.unpack_from(head)[0], int.from_bytes(head[4:], "big")
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_BYTES_MIN:
            return None
        position = place.position + size
        is_end = position == self.wanted.end_position
        return Place(position, UNKNOWN) if is_end or whole_record_at(self.log, position) else None

    def _by_index(self, place: Place) -> Place | None:
        return None

    def _find(self, data: bytes, position: int, place: Place) -> Place | None:
        found = find_record(data, position)
        return None if found is None else Place(found, UNKNOWN)
