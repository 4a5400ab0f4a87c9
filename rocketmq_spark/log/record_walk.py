"""The walk over the records of a plain commit log."""

import struct
from typing import Final

import numpy as np

from commitlog.entry import BLANK_BYTES
from commitlog.record import CorruptRecordError, decode_record
from commitlog.recovery import FILLER_MAGIC, MORE, find_record, scan_records
from remoting.record_layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.entries import Taken
from rocketmq_spark.log.record_columns import RecordColumns
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.log.stretch import UNKNOWN, Stretch, int64s
from rocketmq_spark.log.walk import Place, Walk

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024 + 128 * 1024
"""A body of RocketMQ's largest message, with all its properties."""
CHAIN_RECORDS: Final = 4
EMPTY_BYTES: Final = 64 * 1024
"""So many zeros are taken for the end of what was written."""

_INT32: Final = struct.Struct(">i")


def take_records(data: bytes, position: int, room: int) -> Taken:
    """The whole records that data[0] begins with: it stands at `position`, `room` bytes before its file's
    end. What is checked is what `scan_records` checks of flushed records.
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
    return Taken(starts[:count], sizes[:count], int64s([]), stop, needed)


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
    """The size of the whole record that stands at a position and says so itself; None when none does."""
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

    A message may hold the bytes of a record as its body; only one that knew its own position before it was
    sent passes for a record here, and it takes several of them to pass for a chain.
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
    """Goes through a range of a plain commit log."""

    head_bytes = 8
    overlap_bytes = RECORD_BYTES_MAX

    def _step(self, place: Place, data: bytes) -> Taken:
        return take_records(data, place.position, self.log.data.file_end(place.position) - place.position)

    def _stretch(self, place: Place, data: bytes, taken: Taken) -> Stretch:
        return Stretch(data, place.position, taken.starts, taken.sizes, UNKNOWN, taken.terms, 0)

    def _advance(self, place: Place, stretch: Stretch) -> None:
        place.position += stretch.size_bytes

    def _by_size(self, place: Place) -> Place | None:
        """Behind the record at `place`, when its size leads to another whole one."""
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
