"""Reads entries that are only in the files, and checks them: the error names the damaged entries.

The index has no CRC, the entries have: an index unit is only trusted when the entry that it points to agrees.
"""

import errno
from collections.abc import Sequence
from typing import NoReturn

from commitlog.entry import BLANK_BYTES, HEADER_BYTES, UNIT, UNIT_BYTES, has_right_crcs, verify_entries
from commitlog.entry_files import EntryFiles
from commitlog.errors import CorruptLogError, PositionError
from commitlog.recovery import EntryHead, entry_head
from dledger.core.types import CorruptRangeError, DamagedEntryError, EntryRange

UNITS_PER_READ = 4096
UNITS_SEARCHED_BACK = 64
AHEAD_BYTES = 4 * 1024 * 1024
"""A sequential reader is one to two blocks of this size behind the system's reading ahead: its reads need not
wait for the disk, which would block the event loop. Larger blocks take longer to be asked for."""

Unit = tuple[int, int, int, int, int]
"""As in the index: magic, position, size, index, term."""


class ColdReader:
    """Reads the files of one store."""

    def __init__(self, files: EntryFiles) -> None:
        self._files = files

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        """As LogReader.read_range, of entries that are all in the files. Raises DamagedEntryError."""
        raw = self._raw_units(first_index, min(UNITS_PER_READ, last_index - first_index + 1))
        _, start, size, _, term = self._checked(UNIT.unpack_from(raw), first_index)
        file_bytes = self._files.data.file_bytes
        file_end = start - start % file_bytes + file_bytes
        limit = min(start + bytes_max, file_end)
        end = start + size
        # The last unit of the same term and file within the limit. Units may be damaged: the search then ends
        # anywhere, and `verify_entries` decides.
        low, high = 0, len(raw) // UNIT_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            _, position, size, _, own_term = UNIT.unpack_from(raw, middle * UNIT_BYTES)
            if own_term == term and start < position + size <= limit:
                low, end = middle, position + size
            else:
                high = middle
        try:
            found = EntryRange(first_index, first_index + low, term, self._data(start, end - start))
            verify_entries(found)
        except (CorruptRangeError, CorruptLogError, OSError) as error:
            units = list(UNIT.iter_unpack(raw[: (low + 1) * UNIT_BYTES]))
            return self._whole_part(units, first_index, error)
        self._read_ahead(start, end)
        return found

    def _read_ahead(self, start: int, end: int) -> None:
        """Each block is asked for once by a sequential reader: when it reads into the second block before."""
        block = end // AHEAD_BYTES
        if start // AHEAD_BYTES != block:
            self._files.data.read_ahead((block + 2) * AHEAD_BYTES, AHEAD_BYTES)

    def read_bodies(
        self, units: Sequence[tuple[int, int]], begin_index: int, end_index: int
    ) -> list[memoryview]:
        """The bodies at (position, size), which ascend and are close together, in one read.

        Raises DamagedEntryError; PositionError when the log is whole there but no body begins at one of them.
        The indexes bound the search for the damaged entry.
        """
        start = units[0][0] - HEADER_BYTES
        last, last_size = units[-1]
        try:
            data = memoryview(self._data(start, last + last_size - start))
        except (CorruptLogError, OSError) as error:
            self._raise_damaged(units[0][0] - HEADER_BYTES, units[0][1], begin_index, end_index, error)
        bodies = []
        for position, size in units:
            at = position - start
            head = entry_head(data[at - HEADER_BYTES : at], position - HEADER_BYTES)
            is_entry = head is not None and head.size == size + HEADER_BYTES
            if not is_entry or not has_right_crcs(data, at - HEADER_BYTES, size + HEADER_BYTES):
                reason = CorruptRangeError("header or body do not have their CRCs")
                self._raise_damaged(position - HEADER_BYTES, size, begin_index, end_index, reason)
            bodies.append(data[at : at + size])
        return bodies

    def raw(self, position: int, size_bytes: int) -> bytes:
        """Bytes of the files, unchecked. Raises CorruptLogError, OSError."""
        return self._data(position, size_bytes)

    def position_of(self, index: int, begin_index: int, begin_position: int) -> int:
        """The position of an entry; when its unit is damaged, of one before it."""
        for candidate in range(index, max(begin_index, index - UNITS_SEARCHED_BACK) - 1, -1):
            unit = self.unit(candidate)
            if unit is not None:
                return unit[1]
        return begin_position

    def end_of(self, index: int) -> int:
        """First byte after an entry; index and entry agree, so the log may be cut there. Raises
        DamagedEntryError.
        """
        _, position, size, _, _ = self._checked(self._units(index, 1)[0], index)
        head = self.head_at(position)
        if head is None or (head.index, head.size) != (index, size):
            raise DamagedEntryError(index, index, f"the index points to position {position}, where it is not")
        return position + size

    def unit(self, index: int) -> Unit | None:
        """An entry's index unit; None when it cannot be one of this entry."""
        try:
            return self._checked(self._units(index, 1)[0], index)
        except DamagedEntryError:
            return None

    def head_at(self, position: int) -> EntryHead | None:
        """The header of the entry at a position; None when none can be read there."""
        try:
            return entry_head(self._data(position, HEADER_BYTES), position)
        except CorruptLogError:
            return None
        except OSError as error:
            _raise_unless_unreadable(error)
            return None

    def _units(self, first_index: int, count: int) -> list[Unit]:
        return list(UNIT.iter_unpack(self._raw_units(first_index, count)))

    def _raw_units(self, first_index: int, count: int) -> bytes:
        try:
            return self._files.read_units(first_index, count)
        except (CorruptLogError, OSError) as error:
            raise damaged(first_index, first_index, error) from error

    def _checked(self, unit: Unit, index: int) -> Unit:
        """The unit, if it can be one of this entry."""
        magic, position, size, own_index, _ = unit
        file_bytes = self._files.data.file_bytes
        room = file_bytes - position % file_bytes - BLANK_BYTES
        if (magic, own_index) != (1, index) or position < 0 or not HEADER_BYTES <= size <= room:
            raise DamagedEntryError(index, index, f"its index unit is {unit}")
        return unit

    def _data(self, position: int, size_bytes: int) -> bytes:
        if size_bytes <= 0 or position < 0:
            raise CorruptLogError(f"{size_bytes} bytes at position {position}")
        return self._files.data.read(position, size_bytes)

    def _whole_part(self, units: Sequence[Unit], first_index: int, error: Exception) -> EntryRange:
        """The entries before the first damaged one; if that is the first of all, it and those damaged
        behind it are the error.
        """
        parts: list[bytes] = []
        bad = 0
        for index, unit in enumerate(units, first_index):
            data = self.whole_entry(unit, index, units[0][4])
            if data is None:
                if parts:
                    break
                bad += 1
            elif bad:
                break
            else:
                parts.append(data)
        if bad:
            raise damaged(first_index, first_index + bad - 1, error) from error
        return EntryRange(first_index, first_index + len(parts) - 1, units[0][4], b"".join(parts))

    def whole_entry(self, unit: Unit, index: int, term: int) -> bytes | None:
        """The entry's bytes, when the unit points to it and all of it is right."""
        try:
            _, position, size, _, _ = self._checked(unit, index)
            data = self._data(position, size)
            verify_entries(EntryRange(index, index, term, data))
        except (DamagedEntryError, CorruptRangeError, CorruptLogError):
            return None
        except OSError as error:
            _raise_unless_unreadable(error)
            return None
        head = entry_head(data, position)
        return data if head is not None else None

    def _raise_damaged(
        self, position: int, size: int, begin_index: int, end_index: int, error: Exception
    ) -> NoReturn:
        """Raise which entry is damaged where a record could not be read."""
        if isinstance(error, OSError):
            _raise_unless_unreadable(error)
        low, high = begin_index, end_index + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._units(middle, 1)[0][1] <= position else (low, middle)
        [unit] = self._units(low, 1)
        is_other = unit[1] != position or size != unit[2] - HEADER_BYTES
        if is_other and self.whole_entry(unit, low, unit[4]) is not None:
            raise PositionError(f"no record at position {position + HEADER_BYTES}") from error
        raise damaged(low, low, error) from error


def damaged(first_index: int, last_index: int, error: Exception) -> DamagedEntryError:
    """The error as one of entries; an OSError that is not of a bad sector is raised as it is."""
    if isinstance(error, OSError):
        _raise_unless_unreadable(error)
    return DamagedEntryError(first_index, last_index, str(error))


def _raise_unless_unreadable(error: OSError) -> None:
    """EIO of a read counts as damage: the sector can still be overwritten with good bytes."""
    if error.errno != errno.EIO:
        raise error
