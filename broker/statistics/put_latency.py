"""How long puts took lately, as RocketMQ tells it: 99 of 100, and 999 of 1,000, at most so many ms."""

from collections.abc import Sequence
from typing import Final

from broker.rates import RateMeter
from telemetry.histogram import Histogram

WINDOW_S: Final = 10.0
UNKNOWN_MS: Final = -1.0
"""RocketMQ's word for what was not measured: nothing was put."""


class PutLatency:
    """Of the puts of the last 10 s or so; the histogram itself counts from the start on."""

    def __init__(self, seconds: Histogram) -> None:
        self._bounds = seconds.bounds
        self.meter = RateMeter(lambda: tuple(seconds.cumulative()))

    def percentile_ms(self, share: float, now_s: float) -> float:
        """The time that this share of the puts took at most, or UNKNOWN_MS."""
        seconds = percentile(self._bounds, self.meter.grown(now_s, WINDOW_S), share)
        return UNKNOWN_MS if seconds is None else seconds * 1000


def percentile(bounds: Sequence[float], cumulative: Sequence[int], share: float) -> float | None:
    """The value that this share of all is at most, taken as evenly spread within its range; None of none.

    `cumulative`: how many are at most each bound, and last how many there are. Of those beyond the last bound
    only that is known.
    """
    wanted = cumulative[-1] * share
    if not cumulative[-1]:
        return None
    low, below = 0.0, 0
    for bound, count in zip(bounds, cumulative, strict=False):
        if count >= wanted:
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low
