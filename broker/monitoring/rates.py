"""How often things happened per second, over the last 10 s, minute and 10 minutes (RocketMQ's
StoreStatsService).
"""

import asyncio
from collections import deque
from collections.abc import Callable

SAMPLE_INTERVAL_S = 10.0
WINDOWS_S = (10, 60, 600)


class RateMeter:
    """Samples counters that only grow, every 10 s."""

    def __init__(self, read_counts: Callable[[], tuple[int, ...]]) -> None:
        self._read_counts = read_counts
        length = int(max(WINDOWS_S) / SAMPLE_INTERVAL_S) + 1
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=length)
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._sample()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        self.add(loop.time())
        self._timer = loop.call_later(SAMPLE_INTERVAL_S, self._sample)

    def add(self, now_s: float) -> None:
        """Add a sample of now."""
        self._samples.append((now_s, self._read_counts()))

    def rates(self, counter: int, now_s: float) -> list[float]:
        """Per second over each window; a window that reaches before the first sample begins there."""
        count = self._read_counts()[counter]
        return [self._rate(counter, count, now_s, window_s) for window_s in WINDOWS_S]

    def grown(self, now_s: float, window_s: float) -> list[int]:
        """By how much each counter grew over a window, which begins at the first sample at the earliest."""
        counts = self._read_counts()
        since_s = now_s - window_s - SAMPLE_INTERVAL_S / 2
        then = next((sampled for at_s, sampled in self._samples if at_s >= since_s), counts)
        return [count - before for count, before in zip(counts, then, strict=True)]

    def _rate(self, counter: int, count: int, now_s: float, window_s: float) -> float:
        inside = [sample for sample in self._samples if sample[0] >= now_s - window_s - SAMPLE_INTERVAL_S / 2]
        if not inside or inside[0][0] >= now_s:
            return 0.0
        since_s, then = inside[0]
        return (count - then[counter]) / (now_s - since_s)
