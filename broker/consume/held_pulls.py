"""The loop's side of the held pulls: one timer for the earliest deadline, and the log's batches that wake
them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Generic, TypeVar

from broker.consume.long_polling import Arrivals, HeldPull, LongPollingTable, QueueKey, group_arrivals
from commitlog.consume_queue import UNIT
from commitlog.dispatch import DispatchBatch, QueueRun
from commitlog.log import MessageLog

RESUMED_S_MAX: Final = 0.01
"""Of one turn of the loop. Each pull may read as much as an answer holds; what is left waits for the next."""

T = TypeVar("T")


class PullWaits(Generic[T]):
    """Holds pulls and gives each one to `resume` once: when a message it wants is there, when its time is
    up, or when this node's role changed. `resume` is called in the turn in which the message was
    dispatched, unless there are very many.
    """

    def __init__(
        self,
        log: MessageLog,
        resume: Callable[[HeldPull[T], bool], None],
        refuse: Callable[[HeldPull[T]], None],
        now_ms: Callable[[], int],
        table: LongPollingTable[T] | None = None,
    ) -> None:
        """`resume` gets whether the pull may be held again. `refuse` gets those that lose their place.
        `now_ms` is the clock of the deadlines, which must be monotonic.
        """
        self._table: LongPollingTable[T] = LongPollingTable() if table is None else table
        self._resume = resume
        self._refuse = refuse
        self._now_ms = now_ms
        self._woken: deque[tuple[HeldPull[T], bool]] = deque()
        self._is_resuming = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stopped = False
        self._log = log
        log.on_writable_change(self._on_writable_change)

    def __len__(self) -> int:
        return len(self._table)

    def hold(self, pull: HeldPull[T]) -> bool:
        """Keep the pull; False when the node stops, or the table is full and no connection has more of it
        than this pull's connection.
        """
        if self._is_stopped:
            return False
        if not self._table.hold(pull):
            for other in self._table.make_room(pull.connection_id):
                self._refuse(other)
            if not self._table.hold(pull):
                return False
        self._log.add_listener(self._on_dispatch)
        self._arm()
        return True

    def drop_connection(self, connection_id: int) -> None:
        """Drop the pulls of a connection that closed."""
        self._table.drop_connection(connection_id)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Resume all pulls of a queue, whether there is a message or not."""
        self._resume_all(self._table.take_queue((topic, queue_id)), True)

    def expire(self) -> None:
        """Resume the pulls whose deadline has passed, and set the timer for the next deadline."""
        self._timer = None
        self._resume_all(self._table.expire(self._now_ms()), False)
        self._arm()

    async def start(self) -> None:
        """Nothing to begin: the first held pull arms the timer."""

    async def stop(self) -> None:
        """Answer all held pulls, and hold no more: the connections are closed next."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        while self._woken:
            self._resume(self._woken.popleft()[0], False)
        for pull in self._table.take_all():
            self._resume(pull, False)

    def _arm(self) -> None:
        """A timer that is earlier than need be is left: it finds nothing, and arms the next."""
        deadline_ms = self._table.earliest_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._now_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.expire)

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        if not len(self._table):
            self._log.remove_listener(self._on_dispatch)
            return
        keys = self._table.waiting_queues
        found = group_arrivals(keys, batch) if batch.runs is None else _arrivals_of(keys, batch.runs)
        for key, arrivals in found.items():
            self._resume_all(self._table.wake(key, arrivals), False)

    def _on_writable_change(self, is_writable: bool) -> None:
        """A new leader knows the end of a queue, which a follower may not: read again for those
        beyond it.
        """
        if is_writable:
            self._resume_all(self._table.take_all(), True)

    def _resume_all(self, pulls: Sequence[HeldPull[T]], may_hold: bool) -> None:
        self._woken.extend((pull, may_hold) for pull in pulls)
        if not self._is_resuming:
            self._resume_some()

    def _resume_some(self) -> None:
        self._is_resuming = True
        loop = asyncio.get_running_loop()
        end_s = loop.time() + RESUMED_S_MAX
        while self._woken:
            self._resume(*self._woken.popleft())
            if self._woken and loop.time() > end_s:
                loop.call_soon(self._resume_some)
                return
        self._is_resuming = False


def _arrivals_of(keys: AbstractSet[QueueKey], runs: Sequence[QueueRun]) -> dict[QueueKey, Arrivals]:
    """As `group_arrivals`, from runs."""
    found = {}
    for topic, queue_id, first_offset, units in runs:
        key = (topic, queue_id)
        if key in keys:
            numbered = enumerate(UNIT.iter_unpack(units), first_offset)
            codes = [(offset, tags_code) for offset, (_, _, tags_code) in numbered]
            found[key] = Arrivals(codes[-1][0] + 1, codes)
    return found
