"""How long puts took lately, as RocketMQ tells it: 99 of 100, and 999 of 1,000, at most so many ms; and how
many took how long.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from broker.rates import RateMeter
from telemetry.histogram import Histogram

WINDOW_S: Final = 10.0
UNKNOWN_MS: Final = -1.0
"""RocketMQ's word for what was not measured: nothing was put."""
MINUTE_S: Final = 60.0
RANGES: Final = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]"),
    *("[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
"""RocketMQ's names of RANGES_MS (broker/put_watch.py) and what is beyond."""


class PutSpread:
    """Of the puts of the last minute, as putMessageDistributeTime has it."""

    def __init__(self, by_ms: Histogram) -> None:
        assert len(by_ms.bounds) + 1 == len(RANGES), "a name for each range"
        self.meter = RateMeter(lambda: tuple(by_ms.cumulative()))

    def text(self, now_s: float) -> str:
        """Each range and how many puts were in it."""
        grown = self.meter.grown(now_s, MINUTE_S)
        counts = [count - below for below, count in pairwise([0, *grown])]
        return " ".join(f"{name}:{count}" for name, count in zip(RANGES, counts, strict=True))


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
