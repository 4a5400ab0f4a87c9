"""A histogram; adding a value takes a quarter of a microsecond. No I/O, no clock."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

SECONDS: Final = (
    *(0.00005, 0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.5, 5.0),
)
"""Bounds for durations: from the encoding of one send to a slow acknowledgement by a majority."""
COUNTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
SIZES: Final = tuple(float(256 * 4**power) for power in range(9))
"""Bounds for bytes: 256 to 16 MiB."""


class Histogram:
    """Counts of values by range. For one thread; observe batches, not messages."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        """`bounds`: the largest value of each range, ascending; there is one more range after the last."""
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of values so far."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """For each bound the number of values up to it, and last the number of all values."""
        return list(accumulate(self._counts))


def observe_all(*observed: tuple[Histogram, float]) -> None:
    """Count one value in each of several histograms, for what is measured with every put and every write:
    faster than one call for each.
    """
    for histogram, value in observed:
        histogram._counts[bisect_left(histogram.bounds, value)] += 1
        histogram.sum += value
