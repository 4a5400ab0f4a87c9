"""What happened in the last minute, hour and day: sums in slots of 10 s, 10 min and 1 h, as RocketMQ's
StatsItem has them. Pure; times are arguments, in ms of a monotonic clock.

A counter adds to its 10-s slot only. When that slot is over its sums go into the three rings, and a slot of a
ring that is older than its window counts no more: nothing has to run for a counter that is left alone.
"""

from array import array
from dataclasses import dataclass
from typing import Final

SLOT_MS: Final = 10_000
RINGS: Final = ((6, 1), (6, 60), (24, 360))
"""Of each window: how many slots, and how many 10-s slots one of them spans."""
_FIELDS: Final = 4
"""Slot number, count, bytes, calls."""
_STARTS: Final = (0, 6 * _FIELDS, 12 * _FIELDS)
_CELLS: Final = 36 * _FIELDS
MINUTE, HOUR, DAY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums of one window, and over how much of it they reach: a counter younger than the window has less."""

    count: int
    bytes: int
    calls: int
    span_ms: int

    def per_second(self, total: int) -> float:
        return total * 1000 / self.span_ms


class WindowCounter:
    """Counts events and bytes. About 1.4 KB."""

    __slots__ = ("_bytes", "_calls", "_cells", "_count", "_since_ms", "_slot", "total", "total_bytes")

    def __init__(self, now_ms: int) -> None:
        self._cells = array("q", bytes(8 * _CELLS))
        self._since_ms = now_ms
        self._slot = now_ms // SLOT_MS
        self._count = self._bytes = self._calls = 0
        self.total = self.total_bytes = 0
        """All that was counted, in any window or before."""

    def add(self, count: int, size_bytes: int, now_ms: int, calls: int = 1) -> None:
        """Count what so many calls brought."""
        slot = now_ms // SLOT_MS
        if slot != self._slot:
            self._put_away(slot)
        self.total += count
        self.total_bytes += size_bytes
        self._count += count
        self._bytes += size_bytes
        self._calls += calls

    @property
    def last_slot(self) -> int:
        """Number of the slot that was last added to."""
        return self._slot

    def figures(self, window: int, now_ms: int) -> Figures:
        """The sums of the window that ends now. The slot that runs counts too."""
        slot = now_ms // SLOT_MS
        if slot != self._slot:
            self._put_away(slot)
        slots, spans = RINGS[window]
        oldest = slot // spans - slots + 1
        count, size_bytes, calls = self._count, self._bytes, self._calls
        start = _STARTS[window]
        for at in range(start, start + slots * _FIELDS, _FIELDS):
            number, more, more_bytes, more_calls = self._cells[at : at + _FIELDS]
            if number >= oldest:
                count += more
                size_bytes += more_bytes
                calls += more_calls
        begin_ms = max(self._since_ms, oldest * spans * SLOT_MS)
        return Figures(count, size_bytes, calls, max(now_ms - begin_ms, SLOT_MS))

    def _put_away(self, slot: int) -> None:
        if self._calls:
            for (slots, spans), start in zip(RINGS, _STARTS, strict=True):
                number = self._slot // spans
                at = start + number % slots * _FIELDS
                if self._cells[at] != number:
                    self._cells[at : at + _FIELDS] = array("q", (number, 0, 0, 0))
                self._cells[at + 1] += self._count
                self._cells[at + 2] += self._bytes
                self._cells[at + 3] += self._calls
            self._count = self._bytes = self._calls = 0
        self._slot = slot
