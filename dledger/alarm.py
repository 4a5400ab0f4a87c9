"""The one timer of a node."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Wakes when something is due. It is moved only to wake earlier; woken too early, it is set anew."""

    def __init__(
        self, now_ms: Callable[[], int], deadline_ms: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        self._now_ms = now_ms
        self._deadline_ms = deadline_ms
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether it has woken or is about to. It is set for no later than the deadline."""
        return self._timer is None or now_ms >= self._at_ms

    def set(self, now_ms: int, at_least_ms: int) -> None:
        """Wake at the deadline, or before. `at_least_ms`: if it was set for then or earlier, it stays so."""
        if self._timer is not None:
            if self._at_ms <= at_least_ms or self._at_ms <= self._deadline_ms():
                return
            self._timer.cancel()
        self._at_ms = self._deadline_ms()
        delay_s = max(0, self._at_ms - now_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def stop(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        if now_ms < (deadline_ms := self._deadline_ms()):
            self.set(now_ms, deadline_ms)
        else:
            self._wake()
