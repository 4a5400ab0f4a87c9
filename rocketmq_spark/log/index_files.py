"""DLedger's index (entries by number) and the consume queues (records by topic and queue), read in blocks.

Both are derived from the log and have no CRC: what they contain is a hint until the entry at that place
agrees.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commitlog.entry import ENTRY_MAGIC, HEADER_BYTES, UNIT_BYTES
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.storage import FileRow, GoneError, Storage, file_row

BLOCK_UNITS: Final = 2048
BLOCKS_KEPT_MAX: Final = 256
UNITS_PROBED_MAX: Final = 64
"""Units that are tried after a wrong one."""

UNIT_TYPE: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
Units = npt.NDArray[Any]
"""An array of UNIT_TYPE."""


class UnitIndex:
    """The units of one log; `read(position, size)` gives bytes of the index row, fewer where it ends."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._blocks: dict[int, Units] = {}

    def units(self, first_index: int, count: int) -> Units:
        """The units of consecutive entries; fewer where the index ends or a file of it is missing."""
        parts = []
        while count > 0:
            data = self._read(first_index * UNIT_BYTES, count * UNIT_BYTES)
            part = np.frombuffer(data, UNIT_TYPE, len(data) // UNIT_BYTES)
            if not len(part):
                break
            parts.append(part)
            first_index += len(part)
            count -= len(part)
        return np.concatenate(parts) if parts else np.empty(0, UNIT_TYPE)

    def unit(self, index: int) -> tuple[int, int, int] | None:
        """(position, size, term) of one entry, None when its unit is not valid."""
        if index < 0:
            return None
        block = self._block(index // BLOCK_UNITS)
        at = index % BLOCK_UNITS
        if at >= len(block):
            return None
        magic, position, size, own_index, term = block[at].item()
        if magic != ENTRY_MAGIC or own_index != index or size < HEADER_BYTES or position < 0:
            return None
        return position, size, term

    def first_from(self, position: int, low: int, high: int) -> int:
        """The first of the entries low … high - 1 that begins at `position` or later, else `high`.

        Units that are recognisably wrong are skipped.
        """
        while low < high:
            middle = (low + high) // 2
            probe = middle
            unit = self.unit(probe)
            while unit is None and probe + 1 < min(high, middle + UNITS_PROBED_MAX):
                probe += 1
                unit = self.unit(probe)
            if unit is None or unit[0] >= position:
                high = middle
            else:
                low = probe + 1
        return low

    def end_index(self, low: int, high: int) -> int:
        """The last of the entries low … high - 1 that has a unit, if all with a unit come first; low - 1
        for none.
        """
        while low < high:
            middle = (low + high) // 2
            if self.unit(middle) is None:
                high = middle
            else:
                low = middle + 1
        return low - 1

    def _block(self, number: int) -> Units:
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= BLOCKS_KEPT_MAX:
                self._blocks.clear()
            block = self._blocks[number] = self.units(number * BLOCK_UNITS, BLOCK_UNITS)
        return block


QUEUE_UNIT_BYTES: Final = 20
FILE_BYTES: Final = 300_000 * QUEUE_UNIT_BYTES
PREFILL_SIZE: Final = 2**31 - 1
"""The size in a unit without a message."""
HINT_QUEUES_MAX: Final = 8
TOPICS_LISTED_MAX: Final = 64

QUEUE_UNIT_TYPE: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


def queue_row(storage: Storage, folder: str) -> FileRow:
    """The files of one queue, in its folder."""
    names = storage.list(folder)
    row = file_row(folder, names)
    # A single file has its full length, and so has the last of several.
    return row if len(row.starts) != 1 else file_row(folder, names, max(row.sizes[0], QUEUE_UNIT_BYTES))


def read_units(storage: Storage, row: FileRow, offset: int, count: int) -> npt.NDArray[Any]:
    """Units of consecutive offsets, of QUEUE_UNIT_TYPE; fewer where the files end."""
    parts = []
    while count > 0:
        try:
            data = row.read(storage, offset * QUEUE_UNIT_BYTES, count * QUEUE_UNIT_BYTES)
        except GoneError:
            break
        part = np.frombuffer(data, QUEUE_UNIT_TYPE, len(data) // QUEUE_UNIT_BYTES)
        if not len(part):
            break
        parts.append(part)
        offset += len(part)
        count -= len(part)
    return np.concatenate(parts) if parts else np.empty(0, QUEUE_UNIT_TYPE)


def queue_folders(storage: Storage, root: str, topics_max: int) -> Iterator[tuple[str, int, str]]:
    """(topic, queue id, folder) of the queues below a `consumequeue` folder, for at most `topics_max`."""
    topics = [name for name, size in sorted(storage.list(root).items()) if size == -1]
    for topic in topics[:topics_max]:
        for name, size in sorted(storage.list(f"{root}/{topic}").items()):
            if size == -1 and name.isdecimal():
                yield topic, int(name), f"{root}/{topic}/{name}"


class QueueHints:
    """Where records of a plain log begin, according to its longest consume queues."""

    def __init__(self, log: Log) -> None:
        self._storage = log.storage
        self._rows: list[tuple[FileRow, int, int]] = []
        if log.queues is None:
            return
        lengths: Mapping[str, tuple[FileRow, int, int]] = {
            folder: self._extent(queue_row(log.storage, folder))
            for _, _, folder in queue_folders(log.storage, log.queues, TOPICS_LISTED_MAX)
        }
        longest = sorted(lengths.values(), key=lambda each: each[1] - each[2])
        self._rows = [each for each in longest[:HINT_QUEUES_MAX] if each[2] > each[1]]

    def first_from(self, position: int) -> list[int]:
        """Positions of records at `position` or later: one from each queue, the nearest first."""
        found = []
        for row, low, high in self._rows:
            end = high
            while low < high:
                middle = (low + high) // 2
                unit = self._unit(row, middle)
                low, high = (low, middle) if unit is None or unit >= position else (middle + 1, high)
            at = self._unit(row, low) if low < end else None
            if at is not None and at >= position:
                found.append(at)
        return sorted(found)

    def _extent(self, row: FileRow) -> tuple[FileRow, int, int]:
        """The files, the queue's first and its end offset: written units come first in the files."""
        low = high = row.begin // QUEUE_UNIT_BYTES
        first, high = low, row.end // QUEUE_UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            units = read_units(self._storage, row, middle, 1)
            low, high = (middle + 1, high) if len(units) and units[0]["size"] > 0 else (low, middle)
        return row, first, low

    def _unit(self, row: FileRow, offset: int) -> int | None:
        units = read_units(self._storage, row, offset, 1)
        if not len(units):
            return None
        # Units without a message are before the queue's first message.
        return -1 if units[0]["size"] == PREFILL_SIZE else int(units[0]["position"])
