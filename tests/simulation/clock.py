"""Virtual time: one queue of events in world microseconds, and a clock per node that runs fast or slow."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], None]


@dataclass(slots=True)
class Event:
    """Something that will happen; `cancel` makes it not happen."""

    action: Action | None

    def cancel(self) -> None:
        self.action = None


class VirtualClock:
    """The event queue. Events of one microsecond happen in the order they were scheduled."""

    def __init__(self) -> None:
        self.now_us = 0
        self._queue: list[tuple[int, int, Event]] = []
        self._numbers = itertools.count()

    def schedule(self, delay_us: int, action: Action) -> Event:
        """Has `action` called once, delay_us from now."""
        event = Event(action)
        heapq.heappush(self._queue, (self.now_us + max(0, delay_us), next(self._numbers), event))
        return event

    def run_next(self, end_us: int) -> bool:
        """Runs the next event that is due by end_us; without one, moves time there and says False."""
        while self._queue and self._queue[0][0] <= end_us:
            at_us, _, event = heapq.heappop(self._queue)
            if event.action is None:
                continue
            self.now_us = at_us
            event.action()
            return True
        self.now_us = max(self.now_us, end_us)
        return False


@dataclass(frozen=True, slots=True)
class NodeClock:
    """A node's own milliseconds: an arbitrary zero and a rate in parts per million of world time."""

    zero_ms: int
    rate_ppm: int

    def now_ms(self, world_us: int) -> int:
        return self.zero_ms + world_us * self.rate_ppm // 1_000_000_000

    def world_us(self, node_ms: int) -> int:
        """The first world microsecond at which this clock shows node_ms."""
        return -((self.zero_ms - node_ms) * 1_000_000_000 // self.rate_ppm)
