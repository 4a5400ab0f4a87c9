"""Latencies in buckets whose width grows with the value, as in HdrHistogram: exact to 0.1 %."""

from collections import Counter
from collections.abc import Iterator

_EXACT_BITS = 10
"""Values keep this many leading bits: a bucket is at most 1/1024 of its value wide."""
CURVE_SHARES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 0.99999)


class Histogram:
    """Counts of values in µs. Memory depends on the spread of the values, not on how many there are."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._max_us = 0
        self.total = 0

    def add(self, value_us: int, count: int = 1) -> None:
        """Take `count` latencies of `value_us`; negative ones count as 0."""
        value_us = max(0, value_us)
        shift = max(0, value_us.bit_length() - _EXACT_BITS)
        self._counts[value_us >> shift << shift] += count
        self._max_us = max(self._max_us, value_us)
        self.total += count

    def percentile_ms(self, share: float) -> float | None:
        """The smallest latency that at least `share` of all do not exceed; None of none."""
        return next(self._percentiles_ms((share,)), None)

    def summary_ms(self) -> dict[str, float | None]:
        """p50, p99, p99.9 and the maximum."""
        marks = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
        return {name: self.percentile_ms(share) for name, share in marks.items()}

    def curve(self) -> list[tuple[float, float]]:
        """Pairs of share and latency in ms, for a plot of the tail; ends with the maximum."""
        shares = [share for share in CURVE_SHARES if self.total * (1 - share) >= 1]
        return list(zip([*shares, 1.0], self._percentiles_ms((*shares, 1.0)), strict=False))

    def _percentiles_ms(self, shares: tuple[float, ...]) -> Iterator[float]:
        ordered = iter(sorted(self._counts.items()))
        seen, value = 0, 0
        for share in shares if self.total else ():
            rank = max(1, -int(-share * self.total // 1))
            while seen < rank:
                value, count = next(ordered)
                seen += count
            yield (self._max_us if rank == self.total else value) / 1000
