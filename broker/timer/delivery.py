"""Delivers timer messages when they are due, on the writable leader only.

One put writes a record of deliveries (records.py) and, directly behind it, the messages that it names. So
each timer message is delivered once. Only one such put is in flight at a time: the next one is made after the
index has read the record of the last one. When the last leader crashed during its put, only the first of
these messages may be in the log: a new leader counts them (LogTail) and delivers the missing ones again.

A leader whose clock is ahead stores a relative delay with an absolute time that is too late for the other
nodes, and for itself once its clock is corrected. As with delay levels, such a message is due as soon as it
is found (ClockSteps). A message whose sender named the absolute time (TIMER_DELIVER_MS) waits for that time.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from broker.config import BrokerConfig
from broker.state.state import ReplicatedState
from broker.state.topics import HALF_TOPIC
from broker.store.redelivery import LogTail, property_of, real_place
from broker.timer.index_store import DamagedRunError
from broker.timer.journal import TimerJournal
from broker.timer.recalls import Recall, Recalls
from broker.timer.records import (
    ALL_KEPT,
    Deliveries,
    Row,
    TimerRecordError,
    delivered,
    deliveries_message,
    out_ms,
    rolled,
    row_of,
)
from broker.timer.scheduling import PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC, PROPERTY_RECALL_KEY
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import RETRY_MS, LogMachine, is_ahead
from commitlog.record import Message, Record

RECORDS_MAX = 5_000
"""Last records of the timer queue among which a check for clock steps searches."""
CHECKED_AT_ONCE = 200
"""Records of them that one turn of the event loop checks."""

logger = logging.getLogger(__name__)


class ClockSteps:
    """Finds timer messages whose store time is in the future. It searches the end of the timer queue when the
    node becomes leader, when its clock was set back, and when a record arrives that was being written while
    the clock was ahead.

    Records of a correct clock end no search: a leader may have stored some between the moment at which its
    clock was set back and its own search, and may have failed before that.
    """

    def __init__(self, journal: TimerJournal) -> None:
        self._journal = journal
        self._last_ms: int | None = None
        self._unchecked = range(0)
        """Offsets in the timer queue."""
        self._early: dict[int, None] = {}

    def reset(self) -> None:
        """Drop everything found so far: the node has just become leader, or leads again."""
        self._last_ms = None
        self._unchecked = range(0)
        self._early.clear()

    @property
    def is_searching(self) -> bool:
        """Whether `due` may find more when it is called again."""
        return bool(self._unchecked)

    def due(self, now_ms: int, most: int) -> list[Row]:
        """Rows of the messages whose store time is in the future, treated as due; at most `most`. Raises
        DamagedRecordError.
        """
        newest_ms = self._journal.take_newest_ms()
        if self._last_ms is None or is_ahead(max(self._last_ms, newest_ms), now_ms):
            end = self._journal.index.end
            self._unchecked = range(max(end - RECORDS_MAX, 0), end)
        self._last_ms = now_ms
        if not self._early:
            self._check_next(now_ms)
        rows: list[Row] = []
        for offset in list(self._early):
            if len(rows) >= most:
                break
            record = self._journal.record(offset) if offset in self._journal.index.pending else None
            if record is None:
                del self._early[offset]
            else:
                rows.append(row_of(record, self._journal.roll_ms)._replace(wake_ms=out_ms(record)))
        return rows

    def _check_next(self, now_ms: int) -> None:
        found = [
            offset for offset in self._unchecked[:CHECKED_AT_ONCE] if self._waits_too_long(offset, now_ms)
        ]
        self._unchecked = self._unchecked[CHECKED_AT_ONCE:]
        if found:
            logger.warning("%d timer messages were stored by a clock that was ahead", len(found))
        self._early = dict.fromkeys(found)

    def _waits_too_long(self, offset: int, now_ms: int) -> bool:
        record = self._journal.record(offset) if offset in self._journal.index.pending else None
        if record is None or not is_ahead(record.store_timestamp_ms, now_ms):
            return False
        return bool(property_of(record, PROPERTY_DELAY_MS) or property_of(record, PROPERTY_DELAY_SEC))


BATCH_MESSAGES_MAX = 200
BATCH_BYTES_MAX = 1024 * 1024
_IN_THE_LOG = frozenset({PutStatus.PUT_OK, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH})
"""A put that no majority acknowledged in time is still in the leader's log, and may be committed later."""


@dataclass(slots=True)
class _Batch:
    """Waiting messages that end with one put. `messages` are delivered from the offsets in `delivered`, in
    this order.
    """

    messages: list[Message] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    dropped: dict[int, None] = field(default_factory=dict)
    size_bytes: int = 0
    lost: int = 0
    """Number of dropped messages that no recall requested."""
    recalls: list[Recall] = field(default_factory=list)


class TimerDelivery(LogMachine):
    """The deliveries of one broker. Idle unless this node is the writable leader.

    Its table, the index, is kept by TimerJournal on every node; a leader adds how much of the last deliveries
    is in the log.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        store_host: bytes,
        clock: Callable[[], int],
        journal: TimerJournal,
        recalls: Recalls,
    ) -> None:
        """`clock` is the wall clock in ms."""
        super().__init__(log)
        self._state = state
        self._store_host = store_host
        self._clock = clock
        self._journal = journal
        self._index = journal.index
        self._recalls = recalls
        self._tail = LogTail(log, config)
        self._clock_steps = ClockSteps(journal)
        self._precision_ms = config.timer_precision_ms
        self._most = max(1, min(BATCH_MESSAGES_MAX, config.pending_appends_max - 1))
        self._batch_max = self._most
        self._kept: int | None = None
        """How many messages of the last deliveries are in the log; None until this leader checked it."""
        self._life = 0
        """The index's `life` at that check: an index that is built again needs another one."""
        self._in_flight = -1
        """Offset of the deliveries that were written and are not in the index yet."""
        self._put_end = -1
        """Position of the last message that this node wrote."""
        self._damaged: dict[int, None] = {}
        self._is_refused = False
        self._timer = self.timer(self.deliver_due)
        journal.on_advance(self.deliver_due)
        recalls.on_recall(self.deliver_due)

    def deliver_due(self) -> None:
        """Write what is due now to the log, and set the timer for the next."""
        if not self.is_leader or self._in_flight >= self._index.end:
            return
        try:
            if self._is_ready():
                self._deliver_due()
        except DamagedRecordError:
            self._arm(self._clock() + RETRY_MS)  # it is being repaired
        except (DamagedRunError, OSError) as error:
            self._journal.rebuild(error)

    def late_ms(self) -> int:
        """For how many ms the earliest waiting message has been due; 0 on a node that does not lead."""
        try:
            wake_ms = self._index.next_wake_ms() if self.is_leader else None
        except (DamagedRunError, OSError):
            return 0
        return 0 if wake_ms is None else max(self._clock() - wake_ms - self._precision_ms, 0)

    def become_leader(self) -> None:
        """Before its first delivery the node checks which messages of the last leader's deliveries are in the
        log.
        """
        self._kept, self._in_flight, self._put_end = None, -1, -1
        self._clock_steps.reset()
        self._batch_max = self._most
        self._arm(self._clock())

    def become_follower(self) -> None:
        """Pending recalls are refused; clients send them again to the new leader."""
        self._recalls.refuse_all(PutStatus.SERVICE_NOT_AVAILABLE)

    def _is_ready(self) -> bool:
        """Whether this leader has checked which messages the last leader delivered."""
        journal = self._journal
        if self._kept is None or self._life != journal.index.life:
            self._kept = None
            if self._log.max_position <= self._put_end:
                self._arm(self._clock() + RETRY_MS)
            elif journal.is_caught_up:
                self._kept, self._life = self._take_over(), journal.index.life
        return self._kept is not None

    def _take_over(self) -> int:
        """Count the messages of the last deliveries that are in the log; the missing ones wait for delivery
        again.
        """
        journal, last = self._journal, self._journal.last_deliveries()
        record = journal.record(self._index.last_delivery) if last is not None else None
        if last is None or record is None:
            return ALL_KEPT
        kept = self._tail.messages_behind(record, [journal.position(each) for each in last.delivered])
        missing = last.delivered[kept:]
        if missing:
            logger.info("%d timer messages are delivered again: their leader failed", len(missing))
            journal.reopen(missing)
        return kept

    def _deliver_due(self) -> None:
        now_ms = self._clock()
        batch = self._recalled() or self._due(now_ms)
        if batch.messages or batch.dropped:
            self._put(batch, now_ms)
            return
        wake_ms = self._index.next_wake_ms()
        if self._clock_steps.is_searching:
            self._arm(now_ms)
        elif self._damaged:
            self._damaged.clear()
            self._arm(now_ms + RETRY_MS)
        elif wake_ms is not None:
            self._arm(wake_ms + self._precision_ms)

    # -- what is due

    def _due(self, now_ms: int) -> _Batch:
        batch = _Batch()
        rows = self._clock_steps.due(now_ms, self._batch_max)
        rows = rows or self._index.due(now_ms - self._precision_ms, self._batch_max, self._damaged)
        for row in rows:
            if row.offset not in batch.dropped:
                try:
                    self._add(row, now_ms, batch)
                except DamagedRecordError:
                    self._damaged[row.offset] = None
            if batch.size_bytes >= BATCH_BYTES_MAX:
                break
        return batch

    def _add(self, row: Row, now_ms: int, batch: _Batch) -> None:
        record = self._journal.record(row.offset)
        self._compare(row, record)
        message = None
        if record is not None and row.wake_ms < out_ms(record):
            message = rolled(record, self._store_host)
        elif record is not None and not row.is_message:
            self._drop_recalled(row, record, batch)
            return
        elif record is not None:
            message = self._delivered(record, now_ms)
        if message is None:
            batch.dropped[row.offset] = None
            batch.lost += 1
            return
        batch.delivered.append(row.offset)
        batch.messages.append(message)
        batch.size_bytes += len(message.body)

    def _compare(self, row: Row, record: Record | None) -> None:
        """Raise DamagedRunError when the row does not match its record: an index that was built from another
        log would end messages that are still waiting.
        """
        try:
            found = row_of(record, self._journal.roll_ms) if record is not None else row
        except TimerRecordError as error:
            raise DamagedRunError(str(error)) from error
        if (found.key, found.is_message) != (row.key, row.is_message):
            raise DamagedRunError(f"the record {row.offset} is not the one that the index was made of")

    def _delivered(self, record: Record, now_ms: int) -> Message | None:
        """The message to deliver; None when its topic does not exist."""
        place = real_place(record)
        if place is None or place[0] not in self._state.topics or place[0] == HALF_TOPIC:
            return None
        return delivered(record, *place, self._store_host, now_ms)

    def _drop_recalled(self, row: Row, record: Record, batch: _Batch) -> None:
        """Process a recall that was sent as a message; it has the same delivery time as the message that it
        names.
        """
        named = property_of(record, PROPERTY_RECALL_KEY)
        targets = self._recalls.targets(named, row.key, row.wake_ms, row.wake_ms + 1)
        batch.dropped.update(dict.fromkeys([row.offset, *targets]))

    def _recalled(self) -> _Batch | None:
        """The waiting messages that are recalled now; None when there are none."""
        batch = _Batch()
        for recall, targets in self._recalls.ready(self._batch_max):
            batch.recalls.append(recall)
            batch.dropped.update(dict.fromkeys(targets))
        return batch if batch.recalls else None

    # -- putting

    def _put(self, batch: _Batch, now_ms: int) -> None:
        assert self._kept is not None, "deliveries before the last leader's are known"
        assert self._in_flight < self._index.end, f"the deliveries at {self._in_flight} are still in flight"
        assert len(batch.messages) == len(batch.delivered), f"{len(batch.messages)} of {batch.delivered}"
        if batch.lost:
            logger.warning("%d timer messages dropped: they cannot be read, or have no topic", batch.lost)
        deliveries = Deliveries(self._kept, tuple(batch.delivered), tuple(batch.dropped))
        mark = deliveries_message(deliveries, self._store_host, now_ms)
        on_done = partial(self._done, self.leadership, batch)
        # The record of deliveries comes first: by it a new leader knows which messages must follow.
        result = self._log.put([mark, *batch.messages], on_done)
        if result.status is not PutStatus.PUT_OK:
            self._refused(batch, result.status)
            return
        self._kept = len(batch.delivered)
        self._in_flight, self._put_end = result.queue_offsets[0], result.positions[-1]
        self._batch_max, self._is_refused = self._most, False

    def _done(self, leadership: int, batch: _Batch, status: PutStatus) -> None:
        self._recalls.answer(batch.recalls, status)
        is_in_log = status is PutStatus.PUT_OK or status in _IN_THE_LOG
        if not is_in_log and leadership == self.leadership and self._log.is_writable():
            # The node leads in a later term without having followed: the end of its log may be another now.
            self.begin_again()

    def _refused(self, batch: _Batch, status: PutStatus) -> None:
        self._recalls.answer(batch.recalls, status)
        if status is PutStatus.MESSAGE_ILLEGAL and len(batch.messages) > 1:
            self._batch_max = 1
        elif status is PutStatus.MESSAGE_ILLEGAL and batch.messages:
            self._drop_illegal(batch)
            return
        elif status is PutStatus.OS_PAGE_CACHE_BUSY:
            # A put is accepted as a whole or not at all, and many senders leave room for few messages.
            self._batch_max = max(1, len(batch.messages) // 2)
        if not self._is_refused:
            logger.info("timer messages: put failed (%s), tried again", status.name)
        self._is_refused = True
        self._arm(self._clock() + RETRY_MS)

    def _drop_illegal(self, batch: _Batch) -> None:
        logger.error("the timer message %d is illegal; dropped", batch.delivered[0])
        self._put(_Batch(dropped=dict.fromkeys(batch.delivered)), self._clock())

    def _arm(self, due_ms: int) -> None:
        self._timer.arm_at(due_ms, self._clock())
