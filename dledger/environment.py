"""What a node takes from the machine it runs on: files, clocks and chance.

The real ones are the defaults. A simulation gives its own, and a whole node runs in virtual time on files in
memory.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.clock import monotonic_ms, wall_clock_ms
from dledger.fs import Fs, OsFs


@dataclass(frozen=True, slots=True)
class Environment:
    """`monotonic_ms` never goes back; `wall_clock_ms` is Unix time and may jump."""

    fs: Fs = field(default_factory=OsFs)
    monotonic_ms: Callable[[], int] = monotonic_ms
    wall_clock_ms: Callable[[], int] = wall_clock_ms
    rng: random.Random = field(default_factory=random.Random)

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included: `dledger.core.ports.Rng`."""
        return self.rng.randint(low, high)
