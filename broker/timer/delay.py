"""Delivers delayed messages when they are due (ScheduleMessageService), on the writable leader only.

Each delay level is a queue of SCHEDULE_TOPIC_XXXX whose messages come due in their order. One timer waits for
the earliest of all levels; what is due in a level goes to its real topics with one put, and when that is
committed the level's progress is proposed to the replicated state. A new leader goes on from the last
committed progress: a message may be delivered twice around a failover, never lost.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from broker.feature import Core
from broker.state.changes import SetDelayOffset
from broker.state.topics import HALF_TOPIC
from broker.timer.delay_levels import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError, PositionError
from commitlog.log import PutStatus
from commitlog.record import CorruptRecordError, Message, Record, decode_record, parse_properties
from remoting.record_layout import STORE_HOST_V6

BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 1024 * 1024
DELIVERY_STEP_MS = 10
"""Messages that come due within one step are put together."""
RETRY_MS = 200
"""After a put that failed."""
CLOCK_STEP_MAX_MS = 60_000
"""How far the clocks of two leaders may lie apart."""
TIMER_MAX_MS = 30_000
"""A longer wait is cut up, since the wall clock may be set meanwhile."""

_IN_THE_LOG = frozenset({PutStatus.PUT_OK, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH})
"""A batch that a majority did not have in time stands in the log, before the progress proposed after it: both
are committed, or the next leader delivers it. Put again and again it would come as often.
"""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Level:
    """One delay level. `due_ms` is when its next message is due, or a failed put is tried again; None when
    the queue is read to its end. While `is_busy` its batch is on its way into the log. `is_refused` since the
    log took none.
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
    """What is due of one level; `end_offset` is where the level goes on after it. `passed_over` messages
    cannot be read, or their topic is gone.
    """

    messages: list[Message]
    end_offset: int
    passed_over: int = 0


class DelayDelivery:
    """The delay levels of one broker. Idle unless this node is the writable leader."""

    def __init__(self, context: Core) -> None:
        self._context = context
        self._log = context.log
        self._state = context.state
        self._batch_max = min(BATCH_MESSAGES_MAX, context.config.pending_appends_max)
        self._levels = [
            _Level(number, delay_ms, batch_max=self._batch_max)
            for number, delay_ms in enumerate(context.config.delay_levels_ms, 1)
        ]
        self._leadership = 0
        self._is_leading = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        context.log.add_listener(self._on_dispatch)
        context.log.on_writable_change(self._on_writable_change)

    async def start(self) -> None:
        if self._log.is_writable() and not self._is_leading:
            self._lead()

    async def stop(self) -> None:
        self._follow()

    def deliver_due(self) -> None:
        """Put what is due now into the log, level by level, and wait for the next."""
        self._timer = None
        now_ms = self._context.clock()
        for level in self._levels:
            if not level.is_busy and level.due_ms is not None and _is_over(level, level.due_ms, now_ms):
                self._deliver(level, now_ms)
        self._arm()

    def _on_writable_change(self, is_writable: bool) -> None:
        if is_writable:
            self._lead()
        else:
            self._follow()

    def _lead(self) -> None:
        """Take over each level where its last committed progress stands."""
        self._leadership += 1
        self._is_leading = True
        now_ms = self._context.clock()
        for level in self._levels:
            level.next_offset = self._state.delay_offsets.get(level.number, 0)
            level.is_busy = False
            level.due_ms = now_ms
        self._arm()

    def _follow(self) -> None:
        self._leadership += 1
        self._is_leading = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        if not self._is_leading or SCHEDULE_TOPIC not in batch.topics:
            return
        is_news = False
        for request in batch:
            if request.topic == SCHEDULE_TOPIC and request.queue_id < len(self._levels):
                level = self._levels[request.queue_id]
                if level.due_ms is None:
                    level.due_ms = request.store_timestamp_ms + level.delay_ms
                    is_news = True
        if is_news:
            self._arm()

    def _arm(self) -> None:
        dues = [level.due_ms for level in self._levels if level.due_ms is not None and not level.is_busy]
        if not dues or not self._is_leading:
            return
        due_ms = -(-min(dues) // DELIVERY_STEP_MS) * DELIVERY_STEP_MS
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        wait_ms = min(max(due_ms - self._context.clock(), 0), TIMER_MAX_MS)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.deliver_due)

    def _deliver(self, level: _Level, now_ms: int) -> None:
        batch = self._due_batch(level, now_ms)
        if batch.passed_over:
            logger.warning("delay level %d: %d messages dropped", level.number, batch.passed_over)
        if not batch.messages:
            self._advance(level, batch.end_offset)
            return
        level.is_busy = True
        on_done = partial(self._on_put, self._leadership, level, batch)
        result = self._log.put(batch.messages, on_done)
        if result.status is not PutStatus.PUT_OK:
            self._on_refused(level, batch, result.status)

    def _on_put(self, leadership: int, level: _Level, batch: _Batch, status: PutStatus) -> None:
        if leadership != self._leadership:
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
                # Senders in great number leave little room, and a put is taken whole or not at all.
                level.batch_max = max(1, len(batch.messages) // 2)
            if not level.is_refused:
                logger.info("delay level %d: put failed (%s), tried again", level.number, status.name)
            level.is_refused = True
            level.due_ms = self._context.clock() + RETRY_MS
        self._arm()

    def _narrow_down(self, level: _Level, batch: _Batch) -> None:
        """One message of the batch cannot be stored: find it by itself, and pass over it."""
        if len(batch.messages) > 1:
            level.batch_max = 1
        else:
            offset = batch.end_offset - 1
            logger.error("delay level %d: the message at %d is illegal; dropped", level.number, offset)
            self._advance(level, batch.end_offset)

    def _advance(self, level: _Level, offset: int) -> None:
        """Progress is proposed without waiting: should it get lost, the messages come twice."""
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
                record = self._read(position, size)
            except DamagedRecordError:
                break  # a repair is on its way
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
        now_ms = self._context.clock()
        queue = self._log.queues.get(SCHEDULE_TOPIC, level.queue_id)
        for position, size, _ in queue.units(level.next_offset, 1) if queue is not None else ():
            try:
                record = self._read(position, size)
            except DamagedRecordError:
                return now_ms + RETRY_MS
            return now_ms if record is None else _due_ms(record, level, now_ms)
        return None

    def _read(self, position: int, size: int) -> Record | None:
        """None for a hole of the queue, and for a message that retention took before its time."""
        try:
            return decode_record(self._log.read(position, size)) if size else None
        except (PositionError, CorruptRecordError):
            return None

    def _delivered(self, record: Record) -> Message | None:
        """The message for its real topic: its properties stay as they are, DELAY and REAL_TOPIC among them
        (§ Java's messageTimeup). None when its topic is gone.
        """
        properties = parse_properties(record.properties)
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
        queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
        if topic not in self._state.topics or topic == HALF_TOPIC or not queue_id.isdecimal():
            return None
        return Message(
            topic=topic,
            queue_id=int(queue_id),
            body=record.body,
            properties=record.properties,
            flag=record.flag,
            sys_flag=record.sys_flag & ~STORE_HOST_V6,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            store_host=self._context.store_host,
            reconsume_times=record.reconsume_times,
        )


def _is_over(level: _Level, due_ms: int, now_ms: int) -> bool:
    """Also true for a time so far away that the clock must have been set back: the level is looked at
    anew.
    """
    return due_ms <= now_ms or due_ms > now_ms + level.delay_ms + CLOCK_STEP_MAX_MS


def _due_ms(record: Record, level: _Level, now_ms: int) -> int:
    """A message from the far future is due now: the clock was set back after it was stored."""
    stored_ms = record.store_timestamp_ms
    return now_ms if stored_ms > now_ms + CLOCK_STEP_MAX_MS else stored_ms + level.delay_ms
