"""Lag of consumer groups: one rule, for the metric and for request 65005.

In a queue it is the queue's end less the group's offset, as RocketMQ's clients and tools reckon (brokerOffset
- consumerOffset): messages that were deleted before the group read them count too. Only the read queues of
existing topics count. The metric is computed at a scrape, ROWS_PER_TURN_MAX rows in a turn of the event loop.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from broker.state.tables import OffsetTable

ROWS_PER_TURN_MAX: Final = 200
"""(topic, group) pairs, each with all its queues: about a millisecond."""
REFRESH_INTERVAL_S: Final = 10.0
"""With a million offsets one computation costs a second of CPU; more frequent scrapes get the last result."""


class _Topic(Protocol):
    @property
    def read_queue_nums(self) -> int: ...


class _Queue(Protocol):
    @property
    def max_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Messages a group is behind in one topic, in the queues it has an offset for. None when the group has no
    offset in any queue with messages: 0 would mean that all is consumed.
    """

    lag: int | None
    unknown_queues: int
    """Queues with messages for which the group has no offset."""


class QueueEnds:
    """The end offsets of topics' read queues, each read once; for one answer."""

    def __init__(
        self, topic: Callable[[str], _Topic | None], queue: Callable[[str, int], _Queue | None]
    ) -> None:
        self._topic = topic
        self._queue = queue
        self._known: dict[str, Sequence[int] | None] = {}

    def of(self, topic: str) -> Sequence[int] | None:
        """By queue id, 0 for one without messages. None: there is no such topic."""
        if topic not in self._known:
            config = self._topic(topic)
            self._known[topic] = None if config is None else self._ends(topic, config.read_queue_nums)
        return self._known[topic]

    def _ends(self, topic: str, count: int) -> list[int]:
        queues = (self._queue(topic, number) for number in range(count))
        return [0 if queue is None else queue.max_offset for queue in queues]


def topic_lag(ends: Sequence[int], offsets: Mapping[int, int]) -> TopicLag:
    """Of a group with these offsets behind these ends, both by queue id."""
    lag = filled = unknown = 0
    for number, end in enumerate(ends):
        if end:
            offset = offsets.get(number)
            if offset is None:
                unknown += 1
            else:
                filled += 1
                lag += max(0, end - offset)
    is_known = filled > 0 or (bool(offsets) and not unknown)
    return TopicLag(lag if is_known else None, unknown)


Pair = tuple[str, str]


class ConsumerLags:
    """Lag of each group that has committed offsets. Only the writable leader has the current
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
