"""The walk over DLedger's entries."""

from typing import Final

from commitlog.entry import BLANK, BLANK_BYTES, BLANK_MAGIC, HEADER_BYTES
from commitlog.recovery import EntryHead, entry_head, find_entry, leading_blank
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.entries import Taken, take_entries
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.log.stretch import UNKNOWN, LogRange, Stretch
from rocketmq_spark.log.unit_index import UnitIndex
from rocketmq_spark.log.walk import WINDOW_BYTES, Place, Walk

UNITS_TRIED_MAX: Final = 4096


def open_index(log: Log) -> UnitIndex:
    """The log's index; one that says nothing when there is none."""
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
    """The header that stands at a position and says so itself."""
    if position < 0:
        return None
    try:
        return entry_head(log.read(position, HEADER_BYTES), position)
    except GoneError:
        return None


def first_place(log: Log, start: int) -> tuple[int, EntryHead] | None:
    """Where the first entry of the data file at `start` stands, behind a leading blank if there is one."""
    try:
        blank_bytes = leading_blank(log.read(start, BLANK_BYTES).ljust(BLANK_BYTES, b"\0"))
    except GoneError:
        return None
    position = start + blank_bytes if 0 < blank_bytes < log.data.file_bytes else start
    head = head_at(log, position)
    return None if head is None else (position, head)


class EntryWalk(Walk):
    """Goes through a range of a DLedger log."""

    head_bytes = HEADER_BYTES
    overlap_bytes = HEADER_BYTES - 1

    def __init__(self, log: Log, wanted: LogRange, window_bytes: int = WINDOW_BYTES) -> None:
        super().__init__(log, wanted, window_bytes)
        self._index = open_index(log)

    def _step(self, place: Place, data: bytes) -> Taken:
        if place.index == UNKNOWN:
            head = entry_head(data[:HEADER_BYTES], place.position)
            if head is not None:
                place.index = head.index
        room = self.log.data.file_end(place.position) - place.position
        return take_entries(data, place.position, room, place.index, place.term)

    def _stretch(self, place: Place, data: bytes, taken: Taken) -> Stretch:
        last = self.wanted.last_index
        count = len(taken.starts)
        if last != UNKNOWN:
            count = min(count, last - place.index + 1)
        starts, sizes, terms = taken.starts[:count], taken.sizes[:count], taken.terms[:count]
        return Stretch(data, place.position, starts, sizes, place.index, terms, HEADER_BYTES)

    def _advance(self, place: Place, stretch: Stretch) -> None:
        place.position += stretch.size_bytes
        place.index += len(stretch)
        place.term = int(stretch.terms[-1])

    def _by_size(self, place: Place) -> Place | None:
        """Behind the entry at `place`, when its header is right and leads to another entry or a blank."""
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
