"""Pops that wait for a message, by topic, group and queue (PopLongPollingService). Pure."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.pop.deadlines import Deadlines
from broker.pop.names import pop_retry_topic

HELD_MAX = 100_000
HELD_PER_QUEUE_MAX = 1_024
"""Of one group, topic and queue id (RocketMQ's popPollingSize)."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Held(Generic[T]):
    """One request without an answer yet; `queue_id` is -1 when any will do."""

    group: str
    topic: str
    queue_id: int
    connection_id: int
    request: T


class HeldPops(Generic[T]):
    """All held pops of a broker, in order of arrival."""

    def __init__(self, held_max: int = HELD_MAX, per_queue_max: int = HELD_PER_QUEUE_MAX) -> None:
        self._held_max = held_max
        self._per_queue_max = per_queue_max
        self._topics: dict[str, dict[str, dict[int, dict[Held[T], None]]]] = {}
        """By topic, group and queue id."""
        self._origins: dict[str, tuple[str, str]] = {}
        """Topic and group of each retry topic that a held pop also reads."""
        self._connections: dict[int, dict[Held[T], None]] = {}
        self._deadlines: Deadlines[Held[T]] = Deadlines()

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def topics(self) -> AbstractSet[str]:
        """Topics with held pops, without retry topics: a live view."""
        return self._topics.keys()

    @property
    def retry_topics(self) -> AbstractSet[str]:
        return self._origins.keys()

    def hold(self, held: Held[T], deadline_ms: int) -> bool:
        """Keep it until it is discarded or its time is up; False when there is no room."""
        if len(self) >= self._held_max or self.count(held.group, held.topic, held.queue_id) >= (
            self._per_queue_max
        ):
            return False
        groups = self._topics.setdefault(held.topic, {})
        if held.group not in groups:
            for name in _retry_topics(held):
                self._origins[name] = (held.topic, held.group)
        groups.setdefault(held.group, {}).setdefault(held.queue_id, {})[held] = None
        self._connections.setdefault(held.connection_id, {})[held] = None
        self._deadlines.add(held, deadline_ms)
        return True

    def discard(self, held: Held[T]) -> None:
        """Remove it, if it is still held: its connection may have closed meanwhile."""
        if held not in self._connections.get(held.connection_id, ()):
            return
        groups = self._topics[held.topic]
        queues = groups[held.group]
        of_queue = queues[held.queue_id]
        del of_queue[held]
        if not of_queue:
            del queues[held.queue_id]
        if not queues:
            del groups[held.group]
            for name in _retry_topics(held):
                self._origins.pop(name, None)
        if not groups:
            del self._topics[held.topic]
        of_connection = self._connections[held.connection_id]
        del of_connection[held]
        if not of_connection:
            del self._connections[held.connection_id]
        self._deadlines.discard(held)

    def count(self, group: str, topic: str, queue_id: int) -> int:
        return len(self._topics.get(topic, {}).get(group, {}).get(queue_id, ()))

    def waiting_for(self, topic: str) -> list[tuple[str, str]]:
        """(group, topic) of the held pops that may receive a message of this topic."""
        origin = self._origins.get(topic)
        found = [(group, topic) for group in self._topics.get(topic, ())]
        return found if origin is None else [*found, (origin[1], origin[0])]

    def queue_ids(self, group: str, topic: str) -> list[int]:
        """The queue ids that the group waits at."""
        return list(self._topics.get(topic, {}).get(group, ()))

    def first(self, group: str, topic: str, queue_id: int) -> Held[T] | None:
        return next(iter(self._topics.get(topic, {}).get(group, {}).get(queue_id, ())), None)

    def all_of(self, group: str, topic: str) -> list[Held[T]]:
        return [held for queue in self._topics.get(topic, {}).get(group, {}).values() for held in queue]

    def take_expired(self, now_ms: int) -> list[Held[T]]:
        """Remove and return the held pops whose deadline has passed."""
        return self._taken(self._deadlines.take_due(now_ms))

    def take_all(self) -> list[Held[T]]:
        return self._taken([held for of_one in self._connections.values() for held in of_one])

    def drop_connection(self, connection_id: int) -> None:
        """Remove the requests of a closed connection."""
        self._taken(list(self._connections.get(connection_id, ())))

    def earliest_deadline_ms(self) -> int | None:
        return self._deadlines.earliest_ms()

    def _taken(self, taken: list[Held[T]]) -> list[Held[T]]:
        for held in taken:
            self.discard(held)
        return taken


def _retry_topics(held: Held[T]) -> tuple[str, str]:
    return pop_retry_topic(held.topic, held.group), pop_retry_topic(held.topic, held.group, v2=True)
