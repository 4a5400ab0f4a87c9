"""Reads the files of a log for damage, a part at a time, and writes repaired entries over damaged ones.

Both happen in the writer thread, between batches, so that no write of the log overlaps them. Units of the
index and blanks are derived from the entries: wrong ones beside right entries are written again immediately.
"""

import errno
import logging

from commitlog.checkpoint import LogBegin
from commitlog.cold_reads import UNITS_PER_READ, ColdReader
from commitlog.entry import (
    BLANK_BYTES,
    HEADER_BYTES,
    UNIT,
    UNIT_BYTES,
    blank,
    encode_units,
    entry_position,
    place_entry,
    verify_entries,
)
from commitlog.entry_files import EntryFiles
from commitlog.errors import CorruptLogError
from commitlog.recovery import BLANK_STOP, MORE, EntryHead, scan_entries
from dledger.core.types import NO_TERM, CorruptRangeError, DamagedEntryError, EntryRange, Scrubbed

logger = logging.getLogger(__name__)


class Scrubber:
    """Reads the files of one store again and again, up to what is known to be committed."""

    def __init__(self, files: EntryFiles) -> None:
        self._files = files
        self._cold = ColdReader(files)
        self._index = 0
        self._term = NO_TERM
        self._needed_bytes = HEADER_BYTES
        self._position: int | None = None
        """The position of the entry `_index`; None before a round."""

    def scrub(self, begin: LogBegin, bytes_max: int) -> Scrubbed:
        """Read and check the next `bytes_max` bytes, and the rest of an entry that they end in.

        Entries up to the checkpoint's commit index are read. Raises OSError; a sector that cannot be
        read is damage.
        """
        end_index = min(self._files.checkpoint.committed_index, self._files.written_end_index)
        if self._position is None or self._index < begin.begin_index:
            self._index, self._position, self._term = begin.begin_index, begin.begin_position, NO_TERM
        damaged: list[DamagedEntryError] = []
        read_bytes = 0
        while self._index <= end_index and read_bytes < bytes_max:
            window_bytes = max(self._needed_bytes, bytes_max - read_bytes)
            stop, size_bytes = self._check_window(self._position, window_bytes)
            read_bytes += size_bytes
            if stop != MORE and self._index <= end_index:
                damaged.append(self._skip_damage(stop, end_index))
        is_round_done = self._index > end_index
        if is_round_done:
            self._position = None
        return Scrubbed(read_bytes, tuple(damaged), is_round_done)

    def _check_window(self, position: int, window_bytes: int) -> tuple[str, int]:
        """(why it ended, bytes read). Moves on to where it ended."""
        file_bytes = self._files.data.file_bytes
        room = file_bytes - position % file_bytes
        size_bytes = min(window_bytes, room)
        try:
            data = self._files.data.read(position, size_bytes)
        except CorruptLogError as error:
            return str(error), 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return str(error), size_bytes
        scan = scan_entries(data, position, self._index, self._term, room)
        self._repair_index(scan.units)
        self._index, self._term = scan.next_index, scan.last_term
        self._position = position + scan.size_bytes
        stop = scan.stop
        if stop == BLANK_STOP or (stop != MORE and self._repair_blank(self._position)):
            self._position = position + room
            stop = MORE
        self._needed_bytes = scan.bytes_needed if scan.stop == MORE else HEADER_BYTES
        return stop, size_bytes

    def _repair_index(self, units: bytes) -> None:
        if not units:
            return
        at = self._index * UNIT_BYTES
        try:
            if self._files.index.read(at, len(units)) == units:
                return
        except CorruptLogError:
            pass  # a file of the index is missing
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        logger.warning("%s: writing units from entry %d on again", self._files.index.directory, self._index)
        self._files.index.write(at, [units])
        self._files.index.sync()

    def _repair_blank(self, position: int) -> bool:
        """Whether only a blank can be here: the next file begins with the very entry that is next."""
        start = position - position % self._files.data.file_bytes + self._files.data.file_bytes
        head = self._cold.head_at(start)
        if head is None or head.index != self._index or head.term < self._term:
            return False
        if start - position >= BLANK_BYTES:
            logger.warning("%s: writing a damaged blank again", self._files.data.path_of(position))
            self._files.data.write(position, [blank(start - position)])
            self._files.sync_data()
        return True

    def _skip_damage(self, reason: str, end_index: int) -> DamagedEntryError:
        """Continue with the next entry behind the damage that can be found, by the index or as a file's
        first.
        """
        first_index = self._index
        head, position = self._next_first(first_index)
        last_index = min(end_index, first_index + UNITS_PER_READ, head.index - 1 if head else end_index)
        for index in range(first_index + 1, last_index + 1):
            unit = self._cold.unit(index)
            found = self._cold.head_at(unit[1]) if unit is not None else None
            if unit is not None and found is not None and found.index == index:
                head, position = found, unit[1]
                break
        if head is None or head.index > end_index:
            self._index = end_index + 1
        else:
            self._index, self._term, self._position = head.index, head.term, position
        return DamagedEntryError(first_index, self._index - 1, reason)

    def _next_first(self, index: int) -> tuple[EntryHead | None, int]:
        """The first entry behind `index` that begins a file, and where."""
        for position in self._files.data.starts():
            head = self._cold.head_at(position) if position > (self._position or 0) else None
            if head is not None and head.index > index:
                return head, position
        return None, 0

    def replace(self, begin: LogBegin, entries: EntryRange) -> None:
        """Write entries over the damaged ones of the same indexes, terms, positions and sizes, and their
        units; synced. Raises CorruptRangeError when they do not fit, OSError.
        """
        verify_entries(entries)
        data = entries.data
        units = encode_units(data)
        start = entry_position(data)
        _, last_start, last_size, _, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
        end = start + len(data)
        file_bytes = self._files.data.file_bytes
        name = f"entries {entries.first_index} to {entries.last_index} at position {start}"
        if entries.first_index < begin.begin_index or entries.last_index > self._files.written_end_index:
            raise CorruptRangeError(f"{name} are not in the files")
        if end + BLANK_BYTES > start - start % file_bytes + file_bytes:
            raise CorruptRangeError(f"{name} have {len(data)} bytes, more than the file has left")
        epochs = [epoch for epoch in begin.epochs if epoch.first_index <= entries.last_index]
        if not epochs or epochs[-1].term != entries.term or epochs[-1].first_index > entries.first_index:
            raise CorruptRangeError(f"{name} are not of term {entries.term} here")
        first_size = UNIT.unpack_from(units)[2]
        is_start = self._is_start(entries.first_index, start, first_size, begin)
        if not is_start or not self._is_end(entries.last_index, last_start, last_size):
            raise CorruptRangeError(f"{name} do not fit between the others")
        self._files.overwrite(start, data, entries.first_index, units)
        logger.warning("%s: repaired %s", self._files.data.path_of(start), name)

    def _is_start(self, index: int, position: int, size: int, begin: LogBegin) -> bool:
        if (index, position) == (begin.begin_index, begin.begin_position):
            return True
        if self._is_at(index, position, size):
            return True
        before = self._cold.unit(index - 1) if index > begin.begin_index else None
        return before is not None and self._place(before[1] + before[2], size) == position

    def _is_end(self, index: int, position: int, size: int) -> bool:
        if index == self._files.written_end_index or self._is_at(index, position, size):
            return True
        own, behind = self._cold.unit(index), self._cold.unit(index + 1)
        if own is None and behind is None:
            return True  # both units were lost with the entries; the start was verified
        return behind is not None and self._place(position + size, behind[2]) == behind[1]

    def _is_at(self, index: int, position: int, size: int) -> bool:
        unit = self._cold.unit(index)
        if unit is not None and unit[1:3] == (position, size):
            return True
        head = self._cold.head_at(position)
        return head is not None and (head.index, head.size) == (index, size)

    def _place(self, end_position: int, size: int) -> int:
        return place_entry(end_position, size, self._files.data.file_bytes)
