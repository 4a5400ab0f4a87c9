"""How far consumer groups are behind, group by group: looked up when somebody asks, a stretch per turn of the
loop.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Final

from broker.state.offsets import OffsetTable
from commitlog.consume_queues import ConsumeQueues

ROWS_PER_TURN_MAX: Final = 200
"""(topic, group) pairs, each with all its queues: about a millisecond."""
LOOK_INTERVAL_S: Final = 10.0
"""With a million offsets a look costs a second of CPU, so who asks more often gets the same again."""

Pair = tuple[str, str]


class ConsumerLags:
    """Messages between what each group has committed and the end of the queue. Only a node that takes
    messages knows both to the last; another has nothing to tell.
    """

    def __init__(
        self,
        offsets: Callable[[], OffsetTable],
        queues: ConsumeQueues,
        is_writable: Callable[[], bool],
        pairs_max: int,
    ) -> None:
        self._offsets = offsets
        self._queues = queues
        self._is_writable = is_writable
        self._pairs_max = pairs_max
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self.shown: Mapping[Pair, int] = {}
        """Of the (topic, group) pairs that are behind the most."""
        self.other: int | None = None
        """Of all others together; None while nothing is known."""

    async def look(self) -> None:
        """Bring `shown` and `other` up to date. Who comes meanwhile waits for the same look."""
        if not self._is_writable():
            self.forget()
            return
        if asyncio.get_running_loop().time() - self._looked_s < LOOK_INTERVAL_S:
            return
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="consumer lags")
        await asyncio.shield(self._looking)

    def forget(self) -> None:
        """What was known is known no more."""
        self.shown, self.other, self._looked_s = {}, None, float("-inf")

    async def _look(self) -> None:
        try:
            lags: dict[Pair, int] = {}
            for number, (topic, group, offsets) in enumerate(list(self._offsets().items()), 1):
                lags[topic, group] = self._lag(topic, offsets)
                if number % ROWS_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
            if not self._is_writable():
                self.forget()
                return
            top = heapq.nlargest(self._pairs_max, lags, key=lambda pair: (lags[pair], pair))
            self.shown = {pair: lags[pair] for pair in sorted(top)}
            self.other = sum(lags.values()) - sum(self.shown.values())
            self._looked_s = asyncio.get_running_loop().time()
        finally:
            self._looking = None

    def _lag(self, topic: str, offsets: Mapping[int, int]) -> int:
        lag = 0
        for queue_id, offset in offsets.items():
            queue = self._queues.get(topic, queue_id)
            if queue is not None:
                lag += max(queue.max_offset - max(offset, queue.min_offset), 0)
        return lag

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
