"""Reads the timer queue into a node's timer index, on every node, so that a new leader can use it at once.

A task reads the queue, a few records at a time. What the index could not save (the disk is damaged or full)
is read from the log again after a restart.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence

from broker.config import BrokerConfig
from broker.members import GroupMembers
from broker.store.redelivery import stored_record
from broker.timer.index import TimerIndex
from broker.timer.index_store import FOLDER, DamagedRunError, RunStore
from broker.timer.records import Deliveries, TimerRecordError, read_deliveries, row_of
from broker.timer.scheduling import TIMER_QUEUE_ID, TIMER_TOPIC
from commitlog.consume_queue import ConsumeQueue
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from commitlog.log_machine import LogMachine
from commitlog.record import Record
from dledger.fs import Fs

RECORDS_PER_TURN = 200
"""Records read before the task yields to the event loop."""
DAMAGE_WAIT_S = 0.2
"""Pause before a damaged record is read again, while it is repaired from the peers."""
TRIES_ALONE = 2
"""Tries of a read where no peer can repair the record: one failed read may be temporary."""
SAVE_RETRY_RECORDS = 10_000
"""Records between two attempts to save, while writes to the disk fail."""
HOUR_MS = 3_600_000

logger = logging.getLogger(__name__)


class TimerJournal(LogMachine):
    """The index of one node: a table of every node, which reads its queue in a task of its own."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        fs: Fs,
        members: GroupMembers,
        index: TimerIndex | None = None,
    ) -> None:
        super().__init__(log)
        store = RunStore(fs, config.store_path_root_dir / FOLDER)
        self.index = index or TimerIndex(store)
        self.roll_ms = config.timer_roll_ms
        self._wakeup = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._joining: Generator[None] | None = None
        self._is_known = False
        """Whether the index is known to be of this queue."""
        self._unsaved_end = 0
        self._last: tuple[int, Deliveries] | None = None
        self._newest_ms = 0
        self.placed = 0
        """Timer messages added to the index since the start, including those that were read again."""
        self.delivered = 0
        """Those of them that the deliveries in the queue ended by a message."""
        self._members = members
        self.follow_log({TIMER_TOPIC})

    async def start(self) -> None:
        await super().start()
        self._guarded(self.index.restore)
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="timer index")

    async def stop(self) -> None:
        if self._task is None:
            return
        await super().stop()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._stop_joining()
        try:
            self.index.save()
        except (DamagedRunError, OSError) as error:
            logger.warning("the timer index is not saved: %s", error)
        self.index.close()

    def on_advance(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything of the queue is in the index."""
        queue = self.queue
        return self._is_known and (queue is None or self.index.end >= queue.max_offset)

    @property
    def queue(self) -> ConsumeQueue | None:
        return self._log.queues.get(TIMER_TOPIC, TIMER_QUEUE_ID)

    def hold(self) -> int | None:
        """The position of the earliest message that waits, as far as it is known."""
        first = self.index.pending.first
        offset = self.index.end if first is None else min(first, self.index.end)
        return self._log.queues.position_at(TIMER_TOPIC, TIMER_QUEUE_ID, offset)

    @property
    def behind(self) -> int:
        """How many records of the queue are not in the index yet."""
        queue = self.queue
        return 0 if queue is None else max(queue.max_offset - max(self.index.end, queue.min_offset), 0)

    def record(self, offset: int) -> Record | None:
        """A record of the queue; None when it cannot be read any more. Raises DamagedRecordError."""
        queue = self.queue
        units = queue.units(offset, 1) if queue is not None and offset >= queue.min_offset else []
        return self._read(units[0][0], units[0][1]) if units else None

    def position(self, offset: int) -> int | None:
        """Position (bytes) of the record at this offset of the timer queue; None when it is no longer known.

        Raises DamagedRecordError.
        """
        queue = self.queue
        units = queue.units(offset, 1) if queue is not None and offset >= queue.min_offset else []
        return units[0][0] if units and units[0][1] else None

    def take_newest_ms(self) -> int:
        """The latest store time (Unix time in ms) of the records that were read since the last call; 0 for
        none.
        """
        newest_ms, self._newest_ms = self._newest_ms, 0
        return newest_ms

    def reopen(self, offsets: Sequence[int]) -> None:
        """Have these wait again: the log has no messages delivered from them. Raises DamagedRecordError."""
        for offset in offsets:
            record = self.record(offset)
            if record is not None:
                self.index.add(row_of(record, self.roll_ms))

    def rebuild(self, reason: BaseException) -> None:
        """The files of the index cannot be used: build it from the log."""
        logger.error("the timer index is built from the log again: %s", reason)
        self._stop_joining()
        try:
            self.index.clear()
        except OSError as error:
            logger.error("files of the timer index cannot be deleted: %s", error)
        self._wakeup.set()

    def apply(self, batch: DispatchBatch) -> None:
        """Wake the task that reads the queue: read here, a long queue would block the event loop."""
        self._wakeup.set()

    def become_leader(self) -> None:
        """Whether an index that is ahead of the queue is of this log is known now."""
        self._wakeup.set()

    async def _keep_up(self) -> None:
        while True:
            self._wakeup.clear()
            try:
                is_behind = self._read_next()
            except (DamagedRecordError, OSError) as error:
                logger.warning("the timer queue cannot be read yet: %s", error)
                await asyncio.sleep(DAMAGE_WAIT_S)
                continue
            self._guarded(self._maintain_files)
            for callback in self._callbacks:
                callback()
            if is_behind or self._joining is not None:
                await asyncio.sleep(0)
            else:
                await self._wakeup.wait()

    def _read_next(self) -> bool:
        """Bring a stretch of the queue into the index; whether there is more."""
        queue, index = self.queue, self.index
        if not self._is_known:
            self._is_known = self._recognize(queue)
        if queue is None or not self._is_known:
            return False
        start = max(index.end, queue.min_offset)
        if start > index.end:  # the log begins later: the records in between were deleted
            index.pending.drop_before(start)
        units = queue.units(start, RECORDS_PER_TURN)
        for offset, (position, size, _) in enumerate(units, start):
            record = self._read(position, size)
            if record is not None:
                self._index_record(record)
            index.move_to(offset + 1, position)
        return index.end < queue.max_offset

    def _recognize(self, queue: ConsumeQueue | None) -> bool:
        """Whether the queue reaches the end of the index; an index that belongs to another queue is
        cleared.
        """
        end = self.index.end
        if end <= (queue.min_offset if queue is not None else 0):
            return True
        if queue is not None and end <= queue.max_offset:
            units = queue.units(end - 1, 1)
            if not units or units[0][0] != self.index.position:
                self.rebuild(ValueError("it was made of another log"))
            return True
        if self._log.is_writable():
            self.rebuild(ValueError("it is ahead of the log"))
            return True
        return False

    def _index_record(self, record: Record) -> None:
        self._newest_ms = max(self._newest_ms, record.store_timestamp_ms)
        try:
            deliveries = read_deliveries(record)
            if deliveries is None:
                self.index.add(row_of(record, self.roll_ms))
                self.placed += 1
            else:
                self._finish(record.queue_offset, deliveries)
        except TimerRecordError as error:
            logger.error("%s: passed over", error)

    def _finish(self, offset: int, deliveries: Deliveries) -> None:
        last = self.last_deliveries()
        if last is not None:
            self.reopen(last.delivered[deliveries.kept :])
        self.delivered += len(deliveries.delivered)
        for each in deliveries.delivered + deliveries.dropped:
            self.index.remove(each)
        self.index.last_delivery = offset
        self._last = offset, deliveries

    def last_deliveries(self) -> Deliveries | None:
        """The last ones that are in the index. Raises DamagedRecordError."""
        offset = self.index.last_delivery
        if offset < 0:
            return None
        if self._last is None or self._last[0] != offset:
            record = self.record(offset)
            deliveries = read_deliveries(record) if record is not None else None
            self._last = (offset, deliveries) if deliveries is not None else None
        return None if self._last is None else self._last[1]

    def _read(self, position: int, size: int, tries: int = TRIES_ALONE) -> Record | None:
        try:
            return stored_record(self._log, position, size)
        except DamagedRecordError as error:
            if not self._members.is_alone:
                raise
            if tries > 1:
                return self._read(position, size, tries - 1)
            logger.error("a record of the timer queue is damaged for good: %s", error)
            return None

    # -- files

    def _maintain_files(self) -> None:
        index = self.index
        if self._joining is None and index.wants_save and index.end >= self._unsaved_end:
            self._unsaved_end = index.end + SAVE_RETRY_RECORDS
            index.save()
            self._unsaved_end = 0
            self._joining = index.join_runs()
        if self._joining is not None and next(self._joining, _OVER) is _OVER:
            self._joining = None

    def _stop_joining(self) -> None:
        if self._joining is not None:
            self._joining.close()
            self._joining = None

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except DamagedRunError as error:
            self.rebuild(error)
        except OSError as error:
            self._joining = None
            logger.warning("the timer index is not saved: %s", error)


_OVER = object()
