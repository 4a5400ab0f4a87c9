"""How fast a peer that is far behind gets what it missed: with what the producers leave free.

After LEDBAT (RFC 6817; the pauses are LEDBAT++'s): how long callers wait for their commits tells how busy the
leader, its disk and the peers are, whatever of them is short. While callers wait hardly longer than they do
when nobody catches up, the rate grows; when they wait longer it falls. Now and then catching up pauses, and
what callers wait then is what they are compared with.
"""

from dledger.core.types import LONG_AGO_MS

WINDOW_MS = 100
"""After each the rate is set anew."""
PAUSE_MS = 200
WINDOWS_BETWEEN_PAUSES = 50
WAIT_RATIO = 1.15
"""Callers may wait this many times as long as in a pause, and SLACK_MS."""
SLACK_MS = 0.5
GROWTH = 1.5
SHRINKING_MIN = 0.5
BASE_WEIGHT = 0.5
"""What the newest quiet window counts for in the wait that others are compared with."""
BYTES_PER_S_MAX = 1 << 32
BURST_MS = 20
"""So much time's bytes leave at once at most."""
UNDER_WAY_MS = 100


class CatchUp:
    """The one rate for all peers of a leadership that are far behind and that no quorum waits for."""

    def __init__(self, bytes_per_s_min: int) -> None:
        self.bytes_per_s = float(bytes_per_s_min)
        self._bytes_per_s_min = bytes_per_s_min
        self._window_end_ms = LONG_AGO_MS
        self._waits_ms = 0
        self._waits = 0
        self._base_ms: float | None = None
        self._pause_end_ms = LONG_AGO_MS
        self._windows_since_pause = 0
        self._spent_bytes = 0
        self._tokens = 0.0
        self._filled_ms = LONG_AGO_MS

    def waited(self, wait_ms: int) -> None:
        """A caller's append was committed after so long."""
        self._waits_ms += wait_ms
        self._waits += 1

    def pass_time(self, now_ms: int, oldest_wait_ms: int | None) -> None:
        """With each turn; `oldest_wait_ms`: of the caller that waits longest now, if any does."""
        if now_ms < self._window_end_ms:
            return
        wait_ms = self._waits_ms / self._waits if self._waits else None
        if oldest_wait_ms is not None and oldest_wait_ms > WINDOW_MS:
            wait_ms = max(wait_ms or 0, oldest_wait_ms)
        if self._spent_bytes == 0:
            self._learn(wait_ms)
        else:
            self._adapt(wait_ms, now_ms)
        self._window_end_ms = now_ms + WINDOW_MS
        self._waits_ms = self._waits = self._spent_bytes = 0

    def _learn(self, wait_ms: float | None) -> None:
        if wait_ms is None:
            return
        if self._base_ms is None:
            self._base_ms = wait_ms
        else:
            self._base_ms += (wait_ms - self._base_ms) * BASE_WEIGHT

    def _adapt(self, wait_ms: float | None, now_ms: int) -> None:
        self._windows_since_pause += 1
        factor = GROWTH
        if wait_ms is not None:
            if self._base_ms is None or self._windows_since_pause >= WINDOWS_BETWEEN_PAUSES:
                self._pause_end_ms = now_ms + PAUSE_MS
                self._windows_since_pause = 0
            if self._base_ms is None:
                return
            allowed_ms = self._base_ms * WAIT_RATIO + SLACK_MS
            if wait_ms > allowed_ms:
                factor = max(SHRINKING_MIN, allowed_ms / wait_ms)
        self.bytes_per_s = min(max(self.bytes_per_s * factor, self._bytes_per_s_min), BYTES_PER_S_MAX)

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """When more may leave; None: now."""
        if now_ms < self._pause_end_ms:
            return self._pause_end_ms
        burst = self.bytes_per_s * BURST_MS / 1000
        filled = self._tokens + self.bytes_per_s * (now_ms - self._filled_ms) / 1000
        self._tokens, self._filled_ms = min(burst, filled), now_ms
        if self._tokens > 0:
            return None
        return now_ms + max(1, int(-self._tokens * 1000 / self.bytes_per_s) + 1)

    @property
    def under_way_bytes_max(self) -> float:
        """What one peer may have to acknowledge yet."""
        return self.bytes_per_s * UNDER_WAY_MS / 1000

    def sent(self, size_bytes: int, *, is_bounded: bool) -> None:
        """So much left. What a quorum waited for left without asking; nobody waits for it afterwards."""
        self._spent_bytes += size_bytes
        if is_bounded:
            self._tokens -= size_bytes
