"""Event-loop lag: the delay between a callback's due time and its execution."""

import asyncio
from typing import Final

from telemetry.histogram import Histogram

INTERVAL_S: Final = 0.5


class LoopDelay:
    """Measures twice a second, which takes almost no CPU time in an idle process."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + INTERVAL_S
        self._timer = loop.call_at(due_s, self._measure, loop, due_s)

    def _measure(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self.seconds.observe(max(loop.time() - due_s, 0.0))
        self._arm(loop)
