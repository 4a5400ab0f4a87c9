"""Lag of each consumer group, computed at a scrape, ROWS_PER_TURN_MAX rows in a turn of the event loop."""

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Final

from broker.monitoring.group_lag import QueueEnds, topic_lag
from broker.state.offsets import OffsetTable

ROWS_PER_TURN_MAX: Final = 200
"""(topic, group) pairs, each with all its queues: about a millisecond."""
REFRESH_INTERVAL_S: Final = 10.0
"""With a million offsets one computation costs a second of CPU; more frequent scrapes get the last result."""

Pair = tuple[str, str]


class ConsumerLags:
    """Lag (group_lag.py) of each group that has committed offsets. Only the writable leader has the current
    offsets and queue ends; other nodes show no lag.
    """

    def __init__(
        self,
        offsets: Callable[[], OffsetTable],
        ends: Callable[[], QueueEnds],
        is_writable: Callable[[], bool],
        pairs_max: int,
    ) -> None:
        self._offsets = offsets
        self._ends = ends
        self._is_writable = is_writable
        self._pairs_max = pairs_max
        self._refreshed_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self.shown: Mapping[Pair, int] = {}
        """Of the (topic, group) pairs that are behind the most."""
        self.other: int | None = None
        """Of all others together; None while nothing is known."""

    async def refresh(self) -> None:
        """Bring `shown` and `other` up to date. Concurrent callers wait for the same computation."""
        if not self._is_writable():
            self.reset()
            return
        if asyncio.get_running_loop().time() - self._refreshed_s < REFRESH_INTERVAL_S:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._compute(), name="consumer lags")
        await asyncio.shield(self._refreshing)

    def reset(self) -> None:
        """Nothing is known any more."""
        self.shown, self.other, self._refreshed_s = {}, None, float("-inf")

    async def _compute(self) -> None:
        try:
            lags: dict[Pair, int] = {}
            offsets, queue_ends = self._offsets(), self._ends()
            for number, (topic, group) in enumerate(offsets.pairs(), 1):
                ends = queue_ends.of(topic)
                lag = None if ends is None else topic_lag(ends, offsets.queues(group, topic)).lag
                if lag is not None:
                    lags[topic, group] = lag
                if number % ROWS_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
            if not self._is_writable():
                self.reset()
                return
            top = heapq.nlargest(self._pairs_max, lags, key=lambda pair: (lags[pair], pair))
            self.shown = {pair: lags[pair] for pair in sorted(top)}
            self.other = sum(lags.values()) - sum(self.shown.values())
            self._refreshed_s = asyncio.get_running_loop().time()
        finally:
            self._refreshing = None

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
