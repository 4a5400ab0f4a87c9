"""Queues of topics: their names and bounds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """One queue of one topic on one broker (a group of nodes of one name)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}:{self.queue_id}"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`min_offset` is the first message that is kept, `max_offset` the number the next one gets."""

    min_offset: int
    max_offset: int


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """The queues by the name of their broker, each in its place."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
