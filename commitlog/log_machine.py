"""A table that is built from the log, and what happens to it when its node becomes leader or follower.

The table's content follows from committed records alone, and it changes only by a record. A `LogMachine`
follows one log. There are two kinds of tables:

- A table that **every node** keeps (topics and offsets, the timer index): `apply` gets each committed batch
  in log order, so a node that becomes the leader has the table already. What the leader adds for itself
  (timers, writes in flight) begins in `become_leader` and ends in `become_follower`.
- A table that **only the leader** keeps (POP, open transactions): a `LoadedMachine` reads it from a
  changelog, a system queue of the log, when leadership begins, and drops it when leadership ends.

                 log writable                load() done, take_over() accepted
    follower ───────────────────► loading ──────────────────────────────────────► leader
       ▲                            │  ▲                                            │
       │                            │  └─ take_over() refused: again in RETRY_MS    │
       └──── log not writable ──────┴──── log not writable ─────────────────────────┘

The log is writable once this node leads *and* has applied an entry of its own term (Raft, section 8), so that
everything earlier leaders committed is in the queues by then. No other node writes at the same time, so what
a leader loads stays complete. A write of a former leadership may still end later; its callback sees that by
`leadership`.

A loaded table is kept short by snapshots among its changes: a new leader reads the last whole snapshot and
what follows. A snapshot is due when as many changes were written as it has rows, and at least
SNAPSHOT_CHANGES_MIN: reading is then never longer than twice the table, and writing never more than double.

The model is Redpanda's `persisted_stm` (src/v/raft/persisted_stm.h).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Final, Generic, TypeVar

from commitlog.consume_queue import ConsumeQueue
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedQueueError, DamagedRecordError, PositionError
from commitlog.log import MessageLog, PutStatus
from commitlog.record import CorruptRecordError, Message, Record, decode_record

CLOCK_STEP_MAX_MS: Final = 60_000
"""How far the wall clocks of two leaders may differ, and how far one may be set back unnoticed."""
RETRY_MS: Final = 200
"""Pause after the log refused a write, and before a damaged record is read again (it is being repaired)."""
REQUEST_RETRY_MS: Final = 50
"""The same where a client's request waits for the write."""
TIMER_MAX_MS: Final = 30_000
"""A timer for a wall-clock time is set again at least this often: the clock may be set meanwhile."""
SNAPSHOT_CHANGES_MIN: Final = 5_000
READ_AT_ONCE: Final = 64
"""Records read before the loading task yields to the event loop."""
UNITS_AT_ONCE: Final = 4_096

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ChangelogError(ValueError):
    """A record of a changelog cannot be decoded: a later version wrote it, or another program."""


def is_ahead(stored_ms: int, now_ms: int) -> bool:
    """Whether a time that a leader read from its clock is so far in the future that its clock, or this one,
    was wrong: then nothing waits for that time. Also whether a clock that showed `stored_ms` was set back to
    `now_ms`.
    """
    return stored_ms > now_ms + CLOCK_STEP_MAX_MS


def is_snapshot_due(changes: int, rows: int, changes_min: int) -> bool:
    """Whether `changes` since the last snapshot are enough for a new snapshot of `rows` rows."""
    return changes >= max(changes_min, rows)


def ignore(status: PutStatus) -> None:
    """For a write whose end needs no answer: if it fails, the next leader does not find it in the log."""


class LeaderTimer:
    """One timer of a machine; it never fires on a node that does not lead."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms: int | None = None

    @property
    def is_armed(self) -> bool:
        return self._handle is not None

    @property
    def due_ms(self) -> int | None:
        """What `arm_at` was given last; None when the timer is not armed."""
        return self._due_ms if self.is_armed else None

    def arm(self, delay_ms: float) -> None:
        """Fire in `delay_ms`, or earlier if it is armed already."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self.fire)

    def arm_at(self, due_ms: int, now_ms: int) -> None:
        """Fire when the wall clock shows `due_ms`, instead of any earlier setting; at the latest in
        TIMER_MAX_MS, so that `work` must check what is due and arm it again.
        """
        if self._handle is not None:
            if due_ms == self._due_ms:
                return
            self.cancel()
        self._due_ms = due_ms
        self.arm(min(max(due_ms - now_ms, 0), TIMER_MAX_MS))

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def fire(self) -> None:
        """The time has come."""
        self.cancel()
        self._work()


class LogMachine:
    """The part of a table's life that does not depend on its content. Subclasses override the three hooks."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._is_leader = False
        self._timers: list[LeaderTimer] = []
        self.leadership = 0
        """Changes with every change of role: a callback that has the number of an earlier time is stale."""
        log.on_writable_change(self._on_writable_change)

    # -- hooks

    def apply(self, batch: DispatchBatch) -> None:
        """Committed messages, in log order, on every node; called only after `follow_log`. After a restart
        batches may come again. Raises DamagedRecordError to get the batch again once it is repaired.
        """

    def become_leader(self) -> None:
        """From now on this node alone writes to the log."""

    def become_follower(self) -> None:
        """Another node may write from now on. Timers are cancelled already."""

    # -- for subclasses

    def follow_log(self, topics: Collection[str] | None = None) -> None:
        """Have `apply` called with the batches that hold a message of these topics; None: with all."""
        self._log.add_listener(self.apply, topics)

    def unfollow_log(self) -> None:
        """Undo `follow_log`: a table that waits for no message need not be called for each. One more batch
        may come.
        """
        self._log.remove_listener(self.apply)

    def timer(self, work: Callable[[], None]) -> LeaderTimer:
        """A timer that is cancelled when this node becomes a follower."""
        timer = LeaderTimer(work)
        self._timers.append(timer)
        return timer

    # -- life

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, and the table is ready."""
        return self._is_leader

    async def start(self) -> None:
        """A log that is writable from its start does not report a change."""
        if self._log.is_writable() and not self._is_active():
            self._on_writable_change(True)

    async def stop(self) -> None:
        self._on_writable_change(False)

    def _is_active(self) -> bool:
        return self._is_leader

    def _on_writable_change(self, is_writable: bool) -> None:
        self.leadership += 1  # callbacks of writes of an earlier leadership see that they are stale
        if is_writable:
            self._begin()
        else:
            self._end()

    def begin_again(self) -> None:
        """This node still leads, but in a later term than the table's last write."""
        self.leadership += 1
        self._begin()

    def _begin(self) -> None:
        self._is_leader = True
        self.become_leader()

    def _end(self) -> None:
        self._is_leader = False
        for timer in self._timers:
            timer.cancel()
        self.become_follower()


class LoadedMachine(LogMachine, Generic[T]):
    """A table of the leader alone. `subject` names it in log lines, like "open transactions"."""

    def __init__(self, log: MessageLog, subject: str) -> None:
        super().__init__(log)
        self._subject = subject
        self._table: T | None = None
        self._loading: asyncio.Task[None] | None = None
        self._changes = 0
        """Written since the last snapshot."""
        self._ready_callbacks: list[Callable[[bool], None]] = []

    # -- hooks

    async def load(self) -> T:
        """Read the table from the log, and set `_changes`. Cancelled when the leadership ends.

        Raises ChangelogError or CorruptRecordError when it cannot be read at all.
        """
        raise NotImplementedError

    def take_over(self, table: T) -> bool:
        """Write the records that must be in the log before this leader's own changes. Returns whether the log
        accepted them; if not, this is called again.
        """
        return True

    def rows(self, table: T) -> int:
        """How long a snapshot of the table is, counted in changes."""
        raise NotImplementedError

    def snapshot_messages(self, table: T) -> list[Message]:
        """The records of a snapshot: a new leader needs no earlier record."""
        raise NotImplementedError

    def snapshot_written(self, table: T) -> None:
        """The log accepted the snapshot."""

    def may_snapshot(self) -> bool:
        """Whether every change that is in the table was put into the log."""
        return True

    # -- life

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    def on_ready(self, callback: Callable[[bool], None]) -> None:
        """Have `callback` called with True when the table is ready, and with False when it is dropped or
        cannot be loaded.
        """
        self._ready_callbacks.append(callback)

    def snapshot(self) -> None:
        """Write a snapshot, unless nothing changed since the last one. One that the log refuses is written
        later.
        """
        table = self._table
        if table is None or not self._changes or not self.may_snapshot():
            return
        if self._log.put(self.snapshot_messages(table), ignore).status is PutStatus.PUT_OK:
            self._changes = 0
            self.snapshot_written(table)

    def snapshot_if_due(self) -> None:
        """After changes were written."""
        if self._table is not None and is_snapshot_due(
            self._changes, self.rows(self._table), SNAPSHOT_CHANGES_MIN
        ):
            self.snapshot()

    def _is_active(self) -> bool:
        return self._is_leader or self._loading is not None

    def _begin(self) -> None:
        self._end()
        self._loading = asyncio.get_running_loop().create_task(self._load(), name=self._subject)

    def _end(self) -> None:
        was_active = self._is_active()
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self._table = None
        super()._end()
        if was_active:
            self._notify_ready(False)

    async def _load(self) -> None:
        try:
            table = await self._load_and_take_over()
        except (ChangelogError, CorruptRecordError, DamagedQueueError) as error:
            logger.error("%s: the table cannot be loaded and is not served: %s", self._subject, error)
            self._loading = None
            self._notify_ready(False)
            return
        # No await from here on: the role cannot change between the last check and the first callback.
        self._loading = None
        self._table = table
        super()._begin()
        self._notify_ready(True)

    async def _load_and_take_over(self) -> T:
        while True:
            try:
                table = await self.load()
                while not self.take_over(table):
                    await asyncio.sleep(RETRY_MS / 1000)
            except DamagedRecordError as error:
                logger.warning("%s: loading waits for the repair of the log: %s", self._subject, error)
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                return table

    def _notify_ready(self, is_ready: bool) -> None:
        for callback in self._ready_callbacks:
            callback(is_ready)


class Changelog:
    """One system queue whose records are the changes of a table, with snapshots of it among them. A
    snapshot's records are put together and have the tag whose code is `snapshot_tags_code`; a leader that
    dies while it writes them may leave only the first ones in the log.
    """

    def __init__(self, log: MessageLog, topic: str, queue_id: int, snapshot_tags_code: int) -> None:
        self._log = log
        self._topic = topic
        self._queue_id = queue_id
        self._snapshot_tags_code = snapshot_tags_code

    @property
    def queue(self) -> ConsumeQueue | None:
        """None before the first record."""
        return self._log.queues.get(self._topic, self._queue_id)

    @property
    def max_offset(self) -> int:
        queue = self.queue
        return 0 if queue is None else queue.max_offset

    async def records(self, start: int, end: int) -> AsyncIterator[Record]:
        """The records from offset `start` up to (not including) `end`, without those that retention deleted.
        Waits while one is damaged and being repaired. Raises CorruptRecordError.
        """
        queue = self.queue
        start = start if queue is None else max(start, queue.min_offset)
        while queue is not None and start < end:
            units = queue.units(start, min(READ_AT_ONCE, end - start))
            if not units:
                return
            for position, size, _ in units:
                record = await self._read(position, size)
                if record is not None:
                    yield record
            start += len(units)
            await asyncio.sleep(0)

    async def _read(self, position: int, size: int) -> Record | None:
        while size:  # 0: a hole in the queue
            try:
                return decode_record(self._log.read(position, size))
            except PositionError:
                return None
            except DamagedRecordError as error:
                logger.warning("%s cannot be read yet: %s", self._topic, error)
                await asyncio.sleep(RETRY_MS / 1000)
        return None

    def snapshot_ends(self) -> Iterator[int]:
        """The offset after each record of a snapshot, from the queue's end backwards."""
        queue = self.queue
        end = self.max_offset
        while queue is not None and end > queue.min_offset:
            start = max(queue.min_offset, end - UNITS_AT_ONCE)
            units = queue.units(start, end - start)
            for at in range(len(units) - 1, -1, -1):
                if units[at][2] == self._snapshot_tags_code:
                    yield start + at + 1
            end = start

    async def snapshots(
        self, part_of: Callable[[Record], tuple[int, int] | None]
    ) -> AsyncIterator[tuple[int, int]]:
        """(start, end) offsets of the snapshots that have a last part, the newest first. `part_of` gives the
        number of a record's part, from 0, and how many there are; None for a record that is no part.
        """
        for end in self.snapshot_ends():
            async for record in self.records(end - 1, end):
                place = part_of(record)
                if place is not None and place[0] == place[1] - 1:
                    yield end - place[1], end

    def position_at(self, offset: int) -> int:
        """The position of a record in the log; -1 when the queue does not have it."""
        queue = self.queue
        units = queue.units(offset, 1) if queue is not None and offset >= 0 else []
        return units[0][0] if units else -1
