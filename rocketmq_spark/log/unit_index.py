"""DLedger's index, read in blocks: which entries stand where.

The index has no CRC: what it says is a hint until the entry it leads to agrees.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commitlog.entry import ENTRY_MAGIC, HEADER_BYTES, UNIT_BYTES

BLOCK_UNITS: Final = 2048
BLOCKS_KEPT_MAX: Final = 256
UNITS_LOOKED_ON: Final = 64
"""So many units behind a wrong one are tried."""

UNIT_TYPE: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
Units = npt.NDArray[Any]
"""Of UNIT_TYPE."""


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
        """(position, size, term) of one entry, None when its unit can be none."""
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
        """The first of the entries low … high - 1 that stands at `position` or behind it; `high` for none.

        Wrong units are passed over, as far as they can be told.
        """
        while low < high:
            middle = (low + high) // 2
            probe = middle
            unit = self.unit(probe)
            while unit is None and probe + 1 < min(high, middle + UNITS_LOOKED_ON):
                probe += 1
                unit = self.unit(probe)
            if unit is None or unit[0] >= position:
                high = middle
            else:
                low = probe + 1
        return low

    def end_index(self, low: int, high: int) -> int:
        """The last of the entries low … high - 1 that has a unit, when those that have come first; low - 1
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
