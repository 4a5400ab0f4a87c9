"""Delivers delayed messages when they are due (ScheduleMessageService), on the writable leader only.

Each delay level is a queue of SCHEDULE_TOPIC_XXXX whose messages become due in queue order. One timer is set
for the earliest of all levels. The due messages of a level are written to their real topics with one put, and
when that is committed, the level's progress is proposed to the replicated state. A new leader continues from
the last committed progress: a message may be delivered twice around a failover, but is never lost.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from broker.config import BrokerConfig
from broker.state.changes import SetDelayOffset
from broker.state.state import ReplicatedState
from broker.state.topics import HALF_TOPIC
from broker.store.redelivery import copy_of, real_place, stored_record
from broker.timer.scheduling import SCHEDULE_TOPIC
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import RETRY_MS, LogMachine, is_ahead
from commitlog.record import Message, Record

BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 1024 * 1024
DELIVERY_STEP_MS = 10
"""Messages that become due within one step are written with one put."""

_IN_THE_LOG = frozenset({PutStatus.PUT_OK, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH})
"""A batch that no majority acknowledged in time is still in the log, before the progress proposed after it:
either both are committed, or the next leader delivers the batch. Put again, it would be delivered twice.
"""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Level:
    """One delay level. `due_ms` is when its next message is due, or a failed put is tried again; None when
    the queue is read to its end. `is_busy`: a batch is written and not committed. `is_refused`: the log
    refused the last one.
    """

    number: int
    delay_ms: int
    next_offset: int = 0
    due_ms: int | None = None
    is_busy: bool = False
    is_refused: bool = False
    batch_max: int = BATCH_MESSAGES_MAX

    @property
    def queue_id(self) -> int:
        return self.number - 1


@dataclass(slots=True)
class _Batch:
    """The due messages of one level; the level continues at `end_offset`. `passed_over` messages cannot be
    read, or their topic does not exist any more.
    """

    messages: list[Message]
    end_offset: int
    passed_over: int = 0


class DelayDelivery(LogMachine):
    """The delay levels of one broker. Idle unless this node is the writable leader."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        store_host: bytes,
        clock: Callable[[], int],
    ) -> None:
        """`clock` is the wall clock in ms."""
        super().__init__(log)
        self._state = state
        self._store_host = store_host
        self._clock = clock
        self._batch_max = min(BATCH_MESSAGES_MAX, config.pending_appends_max)
        self._levels = [
            _Level(number, delay_ms, batch_max=self._batch_max)
            for number, delay_ms in enumerate(config.delay_levels_ms, 1)
        ]
        self._timer = self.timer(self.deliver_due)
        self.follow_log({SCHEDULE_TOPIC})

    def deliver_due(self) -> None:
        """Write what is due now to the log, level by level, and set the timer for the next."""
        now_ms = self._clock()
        for level in self._levels:
            if not level.is_busy and level.due_ms is not None and _is_due(level, level.due_ms, now_ms):
                self._deliver(level, now_ms)
        self._arm()

    def become_leader(self) -> None:
        """Continue each level at its last committed progress."""
        now_ms = self._clock()
        for level in self._levels:
            level.next_offset = self._state.delay_offsets.get(level.number, 0)
            level.is_busy = False
            level.due_ms = now_ms
        self._arm()

    def apply(self, batch: DispatchBatch) -> None:
        """New delayed messages: a level that was read to its end has a next message."""
        if not self.is_leader:
            return
        is_new = False
        for request in batch:
            if request.topic == SCHEDULE_TOPIC and request.queue_id < len(self._levels):
                level = self._levels[request.queue_id]
                if level.due_ms is None:
                    level.due_ms = request.store_timestamp_ms + level.delay_ms
                    is_new = True
        if is_new:
            self._arm()

    def _arm(self) -> None:
        dues = [level.due_ms for level in self._levels if level.due_ms is not None and not level.is_busy]
        if dues and self.is_leader:
            due_ms = -(-min(dues) // DELIVERY_STEP_MS) * DELIVERY_STEP_MS
            self._timer.arm_at(due_ms, self._clock())

    def _deliver(self, level: _Level, now_ms: int) -> None:
        assert not level.is_busy, f"delay level {level.number}: a batch is being written"
        batch = self._due_batch(level, now_ms)
        if batch.passed_over:
            logger.warning("delay level %d: %d messages dropped", level.number, batch.passed_over)
        if not batch.messages:
            self._advance(level, batch.end_offset)
            return
        level.is_busy = True
        on_done = partial(self._on_put, self.leadership, level, batch)
        result = self._log.put(batch.messages, on_done)
        if result.status is not PutStatus.PUT_OK:
            self._on_refused(level, batch, result.status)

    def _on_put(self, leadership: int, level: _Level, batch: _Batch, status: PutStatus) -> None:
        if leadership != self.leadership:
            return
        if status not in _IN_THE_LOG:
            self._on_refused(level, batch, status)
            return
        level.is_busy = level.is_refused = False
        level.batch_max = self._batch_max
        self._advance(level, batch.end_offset)
        self._arm()

    def _on_refused(self, level: _Level, batch: _Batch, status: PutStatus) -> None:
        level.is_busy = False
        if status is PutStatus.MESSAGE_ILLEGAL:
            self._narrow_down(level, batch)
        else:
            if status is PutStatus.OS_PAGE_CACHE_BUSY:
                # A put is accepted as a whole or not at all, and many senders leave room for few messages.
                level.batch_max = max(1, len(batch.messages) // 2)
            if not level.is_refused:
                logger.info("delay level %d: put failed (%s), tried again", level.number, status.name)
            level.is_refused = True
            level.due_ms = self._clock() + RETRY_MS
        self._arm()

    def _narrow_down(self, level: _Level, batch: _Batch) -> None:
        """One message of the batch cannot be stored: put them one by one, and pass over that one."""
        if len(batch.messages) > 1:
            level.batch_max = 1
        else:
            offset = batch.end_offset - 1
            logger.error("delay level %d: the message at %d is illegal; dropped", level.number, offset)
            self._advance(level, batch.end_offset)

    def _advance(self, level: _Level, offset: int) -> None:
        """Continue the level at this offset. The progress is proposed after the messages are in the log: when
        the proposal is lost, a new leader delivers them again.
        """
        assert offset >= level.next_offset, f"delay level {level.number}: {level.next_offset} to {offset}"
        if offset != level.next_offset:
            level.next_offset = offset
            self._state.propose(SetDelayOffset(level.number, offset))
        level.due_ms = self._next_due_ms(level)

    def _due_batch(self, level: _Level, now_ms: int) -> _Batch:
        queue = self._log.queues.get(SCHEDULE_TOPIC, level.queue_id)
        if queue is None:
            return _Batch([], level.next_offset)
        batch = _Batch([], max(level.next_offset, queue.min_offset))
        room = BATCH_BYTES_MAX
        for position, size, _ in queue.units(batch.end_offset, level.batch_max):
            try:
                record = stored_record(self._log, position, size)
            except DamagedRecordError:
                break  # repaired from the peers; a level keeps its order, so it waits for this one
            if record is not None and (room <= 0 or _due_ms(record, level, now_ms) > now_ms):
                break
            message = self._delivered(record) if record is not None else None
            if message is None:
                batch.passed_over += 1
            else:
                batch.messages.append(message)
                room -= size
            batch.end_offset += 1
        return batch

    def _next_due_ms(self, level: _Level) -> int | None:
        now_ms = self._clock()
        queue = self._log.queues.get(SCHEDULE_TOPIC, level.queue_id)
        for position, size, _ in queue.units(level.next_offset, 1) if queue is not None else ():
            try:
                record = stored_record(self._log, position, size)
            except DamagedRecordError:
                return now_ms + RETRY_MS
            return now_ms if record is None else _due_ms(record, level, now_ms)
        return None

    def _delivered(self, record: Record) -> Message | None:
        """The message for its real topic: its properties stay as they are, DELAY and REAL_TOPIC among them
        (ScheduleMessageService.messageTimeUp). None when its topic does not exist any more.
        """
        place = real_place(record)
        if place is None or place[0] not in self._state.topics or place[0] == HALF_TOPIC:
            return None
        return copy_of(record, *place, self._store_host)


def _is_due(level: _Level, due_ms: int, now_ms: int) -> bool:
    """Also true for a time so far away that the clock must have been set back: the level is checked again."""
    return due_ms <= now_ms or is_ahead(due_ms - level.delay_ms, now_ms)


def _due_ms(record: Record, level: _Level, now_ms: int) -> int:
    """Due time of a message; now for one with a store time in the future: its leader's clock was ahead."""
    stored_ms = record.store_timestamp_ms
    return now_ms if is_ahead(stored_ms, now_ms) else stored_ms + level.delay_ms
