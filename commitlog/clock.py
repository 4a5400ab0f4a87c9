"""The wall clock, for store times. Nothing here decides anything by it."""

import time


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
