"""The machine's two clocks, in whole milliseconds."""

import time


def monotonic_ms() -> int:
    """Never goes back; its zero means nothing."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as the machine believes."""
    return time.time_ns() // 1_000_000
