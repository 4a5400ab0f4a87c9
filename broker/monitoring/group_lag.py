"""How far a consumer group is behind: the one rule, of the metric and of request 65005. Pure.

In a queue it is the queue's end less the group's offset, as RocketMQ's clients and tools reckon (brokerOffset
- consumerOffset): messages that were deleted before the group read them count too. What counts is the read
queues of a topic that is there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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
