"""Which names are shown, when there are more than a time series database should be given. Pure.

Prometheus keeps a series for each name it ever saw, so at most so many are shown: those with the most
messages lately. What comes to all the others is counted under one name. That counter never goes back, for
one that does is taken for one that began anew: a name that is shown takes nothing out of it.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HALF_LIFE_S: Final = 300.0
"""After so long a message counts half for who is shown."""
STAY: Final = 2.0
"""So many times as much as the last one shown a newcomer must have: names that come and go show nothing."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Messages and bytes since the start, of the names shown, and of the others together."""

    names: Mapping[str, tuple[int, int]]
    other: tuple[int, int]


class TopTotals:
    """Of counters that only grow; one that is smaller than it was has begun anew."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._seen: dict[str, tuple[int, int, float]] = {}
        """Of each name messages and bytes at the last look, and how much it came to lately."""
        self._shown: frozenset[str] = frozenset()
        self._other = (0, 0)
        self._looked_s = 0.0

    def look(self, totals: Mapping[str, tuple[int, int]], now_s: float) -> Shown:
        """The names to show now. Takes a millisecond for 2,000 names."""
        fade = 0.5 ** (max(now_s - self._looked_s, 0.0) / HALF_LIFE_S)
        self._looked_s = now_s
        before, seen = self._seen, {}
        for name, (count, size_bytes) in totals.items():
            old_count, _, lately = before.get(name, (0, 0, 0.0))
            grown = count - old_count if count >= old_count else count
            seen[name] = (count, size_bytes, lately * fade + grown)
        self._seen = seen
        self._shown = self._choose()
        self._add_others(before)
        return Shown({name: totals[name] for name in sorted(self._shown)}, self._other)

    def _choose(self) -> frozenset[str]:
        seen, shown = self._seen, self._shown
        if len(seen) <= self._names_max:
            return frozenset(seen)

        def weight(name: str) -> tuple[float, str]:
            return seen[name][2] * (STAY if name in shown else 1.0), name

        return frozenset(heapq.nlargest(self._names_max, seen, key=weight))

    def _add_others(self, before: Mapping[str, tuple[int, int, float]]) -> None:
        if len(self._shown) == len(self._seen):
            return
        messages, size_bytes = self._other
        for name, (count, count_bytes, _) in self._seen.items():
            if name in self._shown:
                continue
            old_count, old_bytes, _ = before.get(name, (0, 0, 0.0))
            is_new = count < old_count
            messages += count if is_new else count - old_count
            size_bytes += count_bytes if is_new else count_bytes - old_bytes
        self._other = messages, size_bytes
