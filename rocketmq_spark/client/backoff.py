"""Waiting between tries, up to a deadline, with the memory of how they ended."""

import time
from typing import Final

from rocketmq_spark.errors import ClusterUnavailableError

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
_REASONS_MAX = 4


class Backoff:
    """One request's tries. Pauses double from PAUSE_MIN_S to PAUSE_MAX_S."""

    def __init__(self, what: str, deadline_s: float) -> None:
        self._what = what
        self._deadline_s = deadline_s
        self._started_s = time.monotonic()
        self._pause_s = PAUSE_MIN_S
        self._tries = 0
        self._reasons: dict[str, int] = {}

    def failed(self, reason: str) -> None:
        """Take note of a failed try, then wait for the next.

        Raises:
            ClusterUnavailableError: the deadline would pass meanwhile; names the tries and their ends.
        """
        self._tries += 1
        if reason in self._reasons or len(self._reasons) < _REASONS_MAX:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        waited_s = time.monotonic() - self._started_s
        if waited_s + self._pause_s > self._deadline_s:
            ends = "; ".join(f"{text} ({count} x)" for text, count in self._reasons.items())
            raise ClusterUnavailableError(
                f"{self._what}: no success in {self._tries} tries over {waited_s:.1f} s: {ends}"
            )
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
