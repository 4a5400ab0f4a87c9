"""Latencies of a run, in seconds, and the figures they come down to."""

from __future__ import annotations

from array import array


class Latencies:
    """Every single latency: eight bytes each, so that no bucket blurs the tail."""

    def __init__(self) -> None:
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def add(self, latency_s: float) -> None:
        self._values.append(latency_s)

    def summary_ms(self) -> dict[str, float | None]:
        """p50, p99, p99.9 and the maximum in ms; None where nothing was measured."""
        ordered = sorted(self._values)
        marks = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
        return {name: _percentile_ms(ordered, share) for name, share in marks.items()}


def _percentile_ms(ordered: list[float], share: float) -> float | None:
    """The smallest latency that at least `share` of all do not exceed."""
    if not ordered:
        return None
    rank = max(1, -int(-share * len(ordered) // 1))
    return round(ordered[rank - 1] * 1000, 3)
