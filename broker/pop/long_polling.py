"""Held pops (PopLongPollingService): kept by topic, group and queue until a message arrives or their time is
up.

`HeldPops` is the pure table. `PopLongPolling` is its side of the event loop: one timer for the earliest
deadline, and the batches of the log that wake the held pops, in a turn of their own.
"""

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.pop.deadlines import Deadlines
from commitlog.dispatch import DispatchBatch
from commitlog.log import MessageLog
from remoting.pop_receipts import pop_retry_topic

HELD_MAX = 100_000
HELD_PER_QUEUE_MAX = 1_024
"""Of one group, topic and queue id (RocketMQ's popPollingSize)."""
T = TypeVar("T")
SERVED_PER_TURN_MAX = 200


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
        assert held not in self._connections.get(held.connection_id, ()), f"{held} is held already"
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
        """The queue ids for which the group has held pops."""
        return list(self._topics.get(topic, {}).get(group, ()))

    def first(self, group: str, topic: str, queue_id: int) -> Held[T] | None:
        return next(iter(self._topics.get(topic, {}).get(group, {}).get(queue_id, ())), None)

    def all_of(self, group: str, topic: str) -> list[Held[T]]:
        return [held for queue in self._topics.get(topic, {}).get(group, {}).values() for held in queue]

    def remove_expired(self, now_ms: int) -> list[Held[T]]:
        """Remove and return the held pops whose deadline has passed."""
        return self._discard_all(self._deadlines.pop_due(now_ms))

    def remove_all(self) -> list[Held[T]]:
        return self._discard_all([held for of_one in self._connections.values() for held in of_one])

    def drop_connection(self, connection_id: int) -> None:
        """Remove the requests of a closed connection."""
        self._discard_all(list(self._connections.get(connection_id, ())))

    def earliest_deadline_ms(self) -> int | None:
        return self._deadlines.earliest_ms()

    def _discard_all(self, removed: list[Held[T]]) -> list[Held[T]]:
        for held in removed:
            self.discard(held)
        return removed


def _retry_topics(held: Held[T]) -> tuple[str, str]:
    return pop_retry_topic(held.topic, held.group), pop_retry_topic(held.topic, held.group, v2=True)


class PopLongPolling(Generic[T]):
    """Holds requests. `serve` tries to answer one, and returns whether it did; the requests of a group are
    tried one after the other until one finds nothing. `expired` is called with each request whose deadline
    has passed.
    """

    def __init__(
        self,
        log: MessageLog,
        serve: Callable[[T], bool],
        expired: Callable[[T], None],
        turn_ends: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.waits: HeldPops[T] = HeldPops()
        self._serve = serve
        self._expired = expired
        self._turn_ends = turn_ends
        self._now_ms = now_ms
        self._awake: dict[tuple[str, str], dict[int, None]] = {}
        """By group and topic, the queue ids with new messages; -1: all."""
        self._later: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stopped = False
        self._log = log

    def hold(self, held: Held[T], poll_time_ms: int) -> bool:
        """False when there is no room, or the node stops."""
        if self._is_stopped or not self.waits.hold(held, self._now_ms() + poll_time_ms):
            return False
        self._log.add_listener(self._on_dispatch)
        self._arm()
        return True

    def wake(self, group: str, topic: str, queue_id: int = -1) -> None:
        """Messages may have become available for the group's held requests at this queue, or at any queue of
        the topic; -1: at all queues.
        """
        self._awake.setdefault((group, topic), {})[queue_id] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def wake_at(self, group: str, topic: str, wait_ms: int) -> None:
        """Wake the group after `wait_ms`, unless it will be woken earlier anyway."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + wait_ms / 1_000
        known = self._later.get((group, topic))
        if known is not None:
            if known.when() <= due_s:
                return
            known.cancel()
        self._later[group, topic] = loop.call_at(due_s, self._wake_now, group, topic)

    def _wake_now(self, group: str, topic: str) -> None:
        del self._later[group, topic]
        self.wake(group, topic)

    def end_all(self, end: Callable[[T], None]) -> None:
        """Remove all held requests and call `end` with each."""
        self._awake.clear()
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        for held in self.waits.remove_all():
            end(held.request)

    def stop(self) -> None:
        """Answer all held pops as expired: the connections are closed next."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self.end_all(self._expired)

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        waits = self.waits
        if not len(waits):
            self._log.remove_listener(self._on_dispatch)
            return
        if not self._is_awaited(batch.topics):
            return
        places: Iterable[tuple[str, int]]
        if batch.runs is not None:
            places = ((run[0], run[1]) for run in batch.runs)
        else:
            places = ((request.topic, request.queue_id) for request in batch)
        for topic, queue_id in dict.fromkeys(places):
            for group, origin in waits.waiting_for(topic):
                self.wake(group, origin, queue_id if origin == topic else -1)

    def _is_awaited(self, topics: frozenset[str]) -> bool:
        return not (topics.isdisjoint(self.waits.topics) and topics.isdisjoint(self.waits.retry_topics))

    def _turn(self) -> None:
        self._is_scheduled = False
        awake, self._awake = self._awake, {}
        room = SERVED_PER_TURN_MAX
        for (group, topic), queue_ids in awake.items():
            for queue_id in self.waits.queue_ids(group, topic):
                if queue_id >= 0 and queue_id not in queue_ids and -1 not in queue_ids:
                    continue
                while room and (held := self.waits.first(group, topic, queue_id)) is not None:
                    if not self._serve(held.request):
                        break
                    room -= 1
                    self.waits.discard(held)
            if not room:
                for queue_id in queue_ids:
                    self.wake(group, topic, queue_id)
        self._turn_ends()

    def _expire(self) -> None:
        """Time out the overdue pops. After an early timer there are none: pops were answered meanwhile."""
        self._timer = None
        for held in self.waits.remove_expired(self._now_ms()):
            self._expired(held.request)
        self._arm()

    def _arm(self) -> None:
        deadline_ms = self.waits.earliest_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._now_ms(), 0) / 1_000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)
