"""The loop's side of pops that wait: one timer for the earliest deadline, and the log's batches that wake
them, in a turn of their own.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from broker.pop.long_polling import Held, HeldPops
from commitlog.dispatch import DispatchBatch
from commitlog.log import MessageLog

SERVED_PER_TURN_MAX = 200

T = TypeVar("T")


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
        """By group and topic, the queue ids with news; -1: all."""
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
        """Wake the group in so long, or earlier if it is to be woken earlier already."""
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
        for held in self.waits.take_all():
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
        """A timer that is earlier than need be finds nothing, and arms the next."""
        self._timer = None
        for held in self.waits.take_expired(self._now_ms()):
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
