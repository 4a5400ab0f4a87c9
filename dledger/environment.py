"""The parts of the machine that a node uses: files, clocks and random numbers.

The real ones are the defaults. A simulation passes its own, so that a whole node runs in virtual time on
files in memory.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.credentials import MemberCredentials
from dledger.fs import Fs, OsFs


def monotonic_ms() -> int:
    """Never goes back; its zero means nothing."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as the machine believes."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """`monotonic_ms` never goes back; `wall_clock_ms` is Unix time and may jump."""

    fs: Fs = field(default_factory=OsFs)
    monotonic_ms: Callable[[], int] = monotonic_ms
    wall_clock_ms: Callable[[], int] = wall_clock_ms
    rng: random.Random = field(default_factory=random.Random)
    credentials: MemberCredentials | None = None
    """Given by a simulated network, whose members know each other without files; None: those of the files."""

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included: `dledger.core.ports.Rng`."""
        return self.rng.randint(low, high)
