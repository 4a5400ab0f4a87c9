"""The time by which it is judged what is old: the wall clock's, unless that was just set ahead.

What retention lets go does not come back, and a clock that jumps by days is wrong more often than right.
"""

import logging
from collections.abc import Callable
from typing import Final

STEP_MAX_MS: Final = 60_000
"""A clock moves on by no more than this beyond the time that passed, unless it is set."""
DOUBT_MS: Final = 24 * 3_600_000
"""A clock that was set ahead is believed after this: an operator sees the warning, or time puts it right."""

logger = logging.getLogger(__name__)


class RetentionClock:
    """Compares two clocks each time it is asked, so that it has to be asked regularly. A machine that slept
    has a clock that was set.
    """

    def __init__(self, wall_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._last: tuple[int, float] | None = None
        """What the two clocks said when it was asked last."""
        self._doubt: tuple[int, float] | None = None
        """The time to go on from, and when that was."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        wall_ms, at_s = self._wall_ms(), self._monotonic_s()
        if self._last is not None:
            expected_ms = self._last[0] + _ms(at_s - self._last[1])
            if self._doubt is None and wall_ms > expected_ms + STEP_MAX_MS:
                ahead_s = (wall_ms - expected_ms) // 1_000
                logger.warning("the clock was set ahead by %d s: nothing is old by it for a day", ahead_s)
                self._doubt = expected_ms, at_s
        self._last = wall_ms, at_s
        if self._doubt is None:
            return wall_ms
        passed_ms = _ms(at_s - self._doubt[1])
        believed_ms = self._doubt[0] + passed_ms
        if passed_ms < DOUBT_MS and wall_ms > believed_ms + STEP_MAX_MS:
            return believed_ms
        self._doubt = None
        return wall_ms


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)
