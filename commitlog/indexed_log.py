"""A log of messages with consume queues: queue offsets of new messages, reading by position, and dispatch of
what is committed.

Committed entries → consume queues → listeners, in log order. As RocketMQ's ReputMessageService, but driven by
the commit instead of polling: the first range is dispatched in the call that reports the commit, the rest in
bounded ranges, one per turn of the event loop, so that dispatching millions of entries does not block
requests.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commitlog.consume_queue import UNIT, UNIT_BYTES
from commitlog.consume_queues import NOT_QUEUED, ConsumeQueueConfig, ConsumeQueues, QueueFlusher
from commitlog.dispatch import Applied, DispatchBatch, is_topic_name
from commitlog.entry import Buffer
from commitlog.errors import DamagedQueueError, DamagedRecordError, PositionError
from commitlog.log import DispatchListener
from commitlog.record import (
    CorruptRecordError,
    Message,
    MessageIllegalError,
    OffsetKey,
    encode_ordinary,
    encode_record,
    record_size,
    size_and_position,
)
from dledger.core.types import NO_INDEX
from dledger.fs import Fs
from remoting.record_layout import AT, BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, RECORD_BYTES_MIN
from telemetry.histogram import Histogram

logger = logging.getLogger(__name__)

RANGE_ENTRIES_MAX: Final = 1024
RANGE_BYTES_MAX: Final = 512 * 1024
GAP_BYTES_MAX: Final = 8 * 1024
"""Records no farther apart than this are read from the files with one call."""
DAMAGE_RETRY_S: Final = 0.5
"""Delay before a damaged range is read again: its repair was requested."""


@dataclass(frozen=True, slots=True)
class MessageLogConfig:
    """Settings of both kinds of message logs."""

    queues: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    message_bytes_max: int = 4 * 1024 * 1024
    """The largest body; a larger one is MESSAGE_ILLEGAL."""
    delay_levels_ms: Sequence[int] = ()
    """The delay of each level from 1 on, for the tags code of SCHEDULE_TOPIC_XXXX."""


def store_timestamp_of(head: bytes) -> int:
    """storeTimestamp of the record that begins with these bytes, at least RECORD_BYTES_MIN."""
    at = AT["store_timestamp_ms"]
    if head[AT["sys_flag"] + 3] & BORN_HOST_V6:
        at += HOST_V6_BYTES - HOST_V4_BYTES
    return int.from_bytes(head[at : at + 8], "big", signed=True)


class Reput:
    """Dispatches committed messages to the consume queues and then to the listeners.

    In this order, since a listener may read the messages of its batch through the queues.
    """

    def __init__(
        self,
        read_batch: Callable[[int, int], tuple[DispatchBatch, Applied]],
        queues: ConsumeQueues,
        applied: Applied,
        on_queued: Callable[[], None],
        on_applied: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """`read_batch` as `IndexedLog._read_batch`."""
        self.applied = applied
        """How far the queues and the listeners are. Goes back only once, by `replay_from`."""
        self._read_batch = read_batch
        self._queues = queues
        self._queued = applied
        self._target_index = applied.index
        self._on_queued = on_queued
        self._on_applied = on_applied
        self._on_error = on_error
        self._listeners: dict[DispatchListener, frozenset[str] | None] = {}
        """With the topics of each listener; None: all."""
        self._next: asyncio.Handle | None = None
        self._is_stopped = False
        self._waits_for_index = NO_INDEX
        self.seconds = Histogram()
        """How long each range took, unless it had to wait for a repair."""
        self.messages_most = 0
        """The most messages in one range."""
        self._undelivered: list[tuple[DispatchListener, DispatchBatch]] = []
        self._redelivery: tuple[DispatchListener, Applied] | None = None
        """A listener to which old messages are delivered again, and how far that is."""

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """Call `listener` with every batch from now on, or with those that have one of these topics. It may
        read the records: when it raises DamagedRecordError, it gets the same batch again after
        `DAMAGE_RETRY_S`, and must skip the messages that it has handled already.
        """
        self._listeners[listener] = None if topics is None else frozenset(topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """The listener gets at most the batch that is being delivered."""
        self._listeners.pop(listener, None)

    def replay_from(self, index: int, position: int) -> None:
        """Begin dispatch with this entry, which is at `position`. Queues get no message a second time."""
        assert self._next is None, "replay_from comes before the first commit"
        if index <= self.applied.index:
            self.applied = Applied(index - 1, position)

    def redeliver_from(self, listener: DispatchListener, index: int, position: int) -> None:
        """Called by `listener` while it is called: it alone gets the entries from this one on again, before
        any listener gets new ones.
        """
        self._redelivery = listener, Applied(index - 1, position)

    @property
    def queued(self) -> Applied:
        """How far the queues are: ahead of `applied` during a replay."""
        return max(self._queued, self.applied, key=lambda applied: applied.index)

    @property
    def delivered_index(self) -> int:
        """Every entry up to here is in the queues, and has been or is being delivered to the listeners."""
        if self._redelivery is not None:
            return self._redelivery[1].index
        is_waiting = bool(self._undelivered) and self._undelivered[0][1][0].index == self._waits_for_index
        return self._waits_for_index - 1 if is_waiting else self.applied.index

    def advance_to(self, index: int) -> None:
        """Dispatch up to `index`: everything up to there is committed and can be read."""
        self._target_index = max(self._target_index, index)
        if self._next is None:
            self._step()

    def resume(self) -> None:
        """Continue after a flush made room in the queues' buffers."""
        self.advance_to(self._target_index)

    def stop(self) -> None:
        """Dispatch nothing more."""
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()

    def _step(self) -> None:
        self._next = None
        if self._is_stopped:
            return
        try:
            if self._undelivered:
                self._deliver()
            elif self._redelivery is not None:
                self._redeliver(*self._redelivery)
            elif self.applied.index < self._target_index and not self._queues.is_full:
                self._dispatch_range()
            else:
                return
        except Exception as error:  # noqa: BLE001 (a top loop: what cannot be dispatched stops the node)
            self.stop()
            self._on_error(error)
            return
        if self._next is None and (self.applied.index < self._target_index or self._redelivery is not None):
            self._next = asyncio.get_running_loop().call_soon(self._step)

    def _dispatch_range(self) -> None:
        begun_s = time.perf_counter()
        first_index = self.applied.index + 1
        # During a replay the queues get nothing: the queues of a topic that was deleted since would come
        # back, and those of a topic that was created again since would lose messages.
        is_replay = first_index <= self._queued.index
        last_index = min(self._target_index, self._queued.index) if is_replay else self._target_index
        try:
            batch, applied = self._read_batch(first_index, last_index)
        except DamagedRecordError as error:
            self._wait_for_repair(first_index, error)
            return
        assert first_index <= applied.index <= last_index, (first_index, applied, last_index)
        # The queues first, then the readable end (`_on_queued`), then the listeners: each may use the one
        # before.
        if not is_replay:
            self._queues.put_all(batch)
        self.applied = applied
        self._on_queued()
        if batch.message_count:
            self.messages_most = max(self.messages_most, batch.message_count)
            topics = batch.topics
            self._undelivered = [
                (listener, batch)
                for listener, wanted in self._listeners.items()
                if wanted is None or not wanted.isdisjoint(topics)
            ]
        self._deliver()
        if not self._undelivered:
            self.seconds.observe(time.perf_counter() - begun_s)

    def _redeliver(self, listener: DispatchListener, done: Applied) -> None:
        """The next batch for a listener to which old messages are delivered again."""
        if done.index >= self.applied.index:
            self._redelivery = None
        else:
            try:
                batch, reached = self._read_batch(done.index + 1, self.applied.index)
                if batch:
                    listener(batch)
            except DamagedRecordError as error:
                self._wait_for_repair(done.index + 1, error)
                return
            self._redelivery = listener, reached
        self._on_applied()

    def _deliver(self) -> None:
        """Call the listeners that have not accepted the batch yet."""
        while self._undelivered:
            listener, batch = self._undelivered[0]
            try:
                listener(batch)
            except DamagedRecordError as error:
                self._wait_for_repair(batch[0].index, error)
                return
            del self._undelivered[0]
        self._on_applied()

    def _wait_for_repair(self, index: int, error: DamagedRecordError) -> None:
        if self._waits_for_index != index:
            logger.warning("dispatch waits for the repair of the log: %s", error)
            self._waits_for_index = index
        self._next = asyncio.get_running_loop().call_later(DAMAGE_RETRY_S, self._step)


@dataclass(slots=True)
class EncodedBatch:
    """Records with their queue offsets, which count as assigned only after `QueueOffsets.assign`."""

    bodies: Sequence[bytes]
    queue_offsets: list[int]
    next_offsets: dict[OffsetKey, int]


class QueueOffsets:
    """The next offset of each queue, counting messages that are appended but not yet committed.

    A queue that is not in the table has no such message: its next offset is the consume queue's.
    """

    def __init__(self, queues: ConsumeQueues, body_bytes_max: int, record_bytes_max: int) -> None:
        """`record_bytes_max` is what a file of the log can hold."""
        self._queues = queues
        self._body_bytes_max = body_bytes_max
        self._record_bytes_max = record_bytes_max
        self._next: dict[OffsetKey, int] = {}
        self._deleted: Counter[str] = Counter()
        """By topic, how many records that delete it are appended but not dispatched. Until the last one is
        dispatched, the consume queue still has the offsets of the deleted topic, and is not asked."""
        queues.on_delete(self._queues_emptied)

    def encode(self, messages: Sequence[Message], store_timestamp_ms: int) -> EncodedBatch:
        """Lay out the records with the offsets they would get. Raises MessageIllegalError."""
        found = encode_ordinary(
            messages, self._next, store_timestamp_ms, self._body_bytes_max, self._record_bytes_max
        )
        if found is not None:
            return EncodedBatch(*found)
        return self._encode_any(messages, store_timestamp_ms)

    def _encode_any(self, messages: Sequence[Message], store_timestamp_ms: int) -> EncodedBatch:
        next_offsets: dict[OffsetKey, int] = {}
        bodies = []
        queue_offsets = []
        for message in messages:
            if len(message.body) > self._body_bytes_max:
                raise MessageIllegalError(
                    f"body of {len(message.body)} bytes, at most {self._body_bytes_max}"
                )
            offset = 0
            if not message.sys_flag & NOT_QUEUED:
                key = (message.topic, message.queue_id)
                known = next_offsets.get(key)
                offset = self._next_of(key) if known is None else known
                next_offsets[key] = offset + 1
            body = encode_record(message, offset, store_timestamp_ms)
            if len(body) > self._record_bytes_max:
                raise MessageIllegalError(
                    f"record of {len(body)} bytes, at most {self._record_bytes_max} fit into a file"
                )
            bodies.append(body)
            queue_offsets.append(offset)
        return EncodedBatch(bodies, queue_offsets, next_offsets)

    def assign(self, batch: EncodedBatch, deleted_topics: Sequence[str] = ()) -> None:
        """The batch was appended, so its offsets are used. After it the queues of `deleted_topics` begin at
        0.
        """
        self._next.update(batch.next_offsets)
        if deleted_topics:
            self._deleted.update(deleted_topics)
            gone = frozenset(deleted_topics)
            for key in [key for key in self._next if key[0] in gone]:
                del self._next[key]

    def clear(self) -> None:
        """Drop the table: leadership was lost or won, so messages that are not in the queues may be gone."""
        self._next.clear()
        self._deleted.clear()

    def _next_of(self, key: OffsetKey) -> int:
        offset = self._next.get(key)
        if offset is not None:
            return offset
        topic, queue_id = key
        if not is_topic_name(topic) or queue_id < 0:
            raise MessageIllegalError(f"topic {topic!r}, queue {queue_id}")
        return 0 if topic in self._deleted else self._queues.next_offset(topic, queue_id)

    def _queues_emptied(self, topic: str) -> None:
        """A record that deletes the topic was dispatched. Messages appended behind it keep their offsets."""
        if self._deleted[topic] > 1:
            self._deleted[topic] -= 1
        else:
            del self._deleted[topic]


class IndexedLog(ABC):
    """The half of `commitlog.log.MessageLog` that both logs share: queue offsets, consume queues, dispatch,
    reading.

    A log adds how it puts, when it dispatches, and where its bytes are: the abstract methods below. Their
    positions are between `min_position` and the end of the recovered or committed log.
    """

    def __init__(
        self,
        fs: Fs,
        store: Path,
        config: MessageLogConfig,
        end: Applied,
        record_bytes_max: int,
        on_applied: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Loads the queues of a log that is open, recovered and ends at `end`. `record_bytes_max` is what one
        of its files can hold. Raises OSError.
        """
        self._on_error = on_error
        self._readable_end = end.position  # while loading, the queues compare themselves with the whole log
        self.queues = ConsumeQueues(fs, store, config.queues, self, self._on_wrong_unit)
        """As MessageLog."""
        applied = self.queues.load(end.index, end.position)
        self._readable_end = max(applied.position, self.min_position)
        self._offsets = QueueOffsets(self.queues, config.message_bytes_max, record_bytes_max)
        self._reput = Reput(self._read_batch, self.queues, applied, self._after_queued, on_applied, on_error)
        self._flusher = QueueFlusher(self.queues, lambda: self._reput.queued, self._reput.resume, on_error)

    # -- where the bytes are -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def min_position(self) -> int:
        """As MessageLog."""

    @abstractmethod
    def end_of(self, index: int) -> int:
        """As MessageLog; the log's begin for an entry before the first. Raises DamagedRecordError."""

    @abstractmethod
    def _cached_from(self) -> int:
        """The position from which on `_read_bytes` needs no system call."""

    @abstractmethod
    def _read_bytes(self, position: int, size_bytes: int) -> Buffer:
        """Fewer bytes than requested when they are in several pieces in memory; a record is in one piece."""

    @abstractmethod
    def _read_records(self, units: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Records at (position, size), ascending and close together, from the files in one read; checked, if
        the log has checksums of them.

        Raises PositionError when there is none, DamagedRecordError.
        """

    @abstractmethod
    def _read_units(self, units: bytes, readable_end: int) -> bytes | None:
        """The records of a consume queue's units, back to back, checked as by `_read_records`; None when that
        is not possible in one step, for any reason. What is before `readable_end` never changes again.
        """

    @abstractmethod
    def _read_batch(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """The records of a bounded range that begins with entry `index`, and where it ends.

        When the log begins behind `index`, so does the range. Raises DamagedRecordError.
        """

    # -- what is dispatched --------------------------------------------------------------------------------

    @property
    def max_position(self) -> int:
        """As MessageLog."""
        return self._readable_end

    @property
    def applied_index(self) -> int:
        """As MessageLog."""
        return self._reput.delivered_index

    @property
    def queued_index(self) -> int:
        """As MessageLog."""
        return self._reput.queued.index

    @property
    def dispatch_seconds(self) -> Histogram:
        """How long each range took to reach the queues and the listeners."""
        return self._reput.seconds

    @property
    def dispatched_most(self) -> int:
        """As MessageLog."""
        return self._reput.messages_most

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """As MessageLog."""
        self._reput.add_listener(listener, topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """As MessageLog."""
        self._reput.remove_listener(listener)

    def redeliver_from(self, listener: DispatchListener, index: int) -> None:
        """As MessageLog."""
        self._reput.redeliver_from(listener, index, self.end_of(index - 1))

    def replay_from(self, index: int) -> None:
        """As MessageLog."""
        self._reput.replay_from(index, self.end_of(index - 1))

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As MessageLog."""
        assert last_index <= self.applied_index, (last_index, self.applied_index)
        return self._read_batch(index, last_index)

    def _halt_dispatch(self) -> None:
        self._reput.stop()

    async def _stop_dispatch(self) -> None:
        """Dispatch nothing more, and flush the queues. Raises OSError."""
        self._halt_dispatch()
        await self._flusher.stop()
        self.queues.close()

    def _after_queued(self) -> None:
        # Before the listeners are called: they may read the messages.
        self._readable_end = max(self._readable_end, self._reput.applied.position)
        if self.queues.wants_flush:
            self._flusher.flush_soon()

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes:
        """As MessageLog."""
        self._check_is_there(position, size)
        if position < self._cached_from():
            return bytes(self._read_span([(position, size)])[0])
        return bytes(self._read_queued(position, size))

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        """As MessageLog; a unit of size 0 adds nothing."""
        return self.read_units(b"".join(UNIT.pack(*unit, 0) for unit in units if unit[1] > 0))

    def read_units(self, units: bytes) -> bytes:
        """As MessageLog."""
        if not units:
            return b""
        readable_end = self._readable_end
        last, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
        if self.min_position <= UNIT.unpack_from(units)[0] and last + last_size <= readable_end:
            records = self._read_units(units, readable_end)
            if records is not None:
                return records
        return self._read_each([(position, size) for position, size, _ in UNIT.iter_unpack(units)])

    def _read_each(self, units: Sequence[tuple[int, int]]) -> bytes:
        pieces: list[Buffer] = []
        span: list[tuple[int, int]] = []
        end = 0
        cached_from = self._cached_from()
        for position, size in units:
            is_cached = position >= cached_from
            if span and (is_cached or not end <= position <= end + GAP_BYTES_MAX):
                pieces += self._read_span(span)
                span = []
            if is_cached:
                pieces.append(self._read_queued(position, size))
            else:
                span.append((position, size))
                end = position + size
        if span:
            pieces += self._read_span(span)
        return b"".join(pieces)

    def record_at(self, position: int) -> bytes | None:
        """As MessageLog: the record itself must also name this position."""
        if not self._is_there(position, RECORD_BYTES_MIN):
            return None
        try:
            size = record_size(bytes(self._read_bytes(position, RECORD_BYTES_MIN)))
        except CorruptRecordError:
            return None
        if not self._is_there(position, size):
            return None
        try:
            if position < self._cached_from():
                data = bytes(self._read_records([(position, size)])[0])
            else:
                data = bytes(self._read_cached(position, size))
        except PositionError:
            return None
        return data if size_and_position(data)[1] == position else None

    def store_timestamp_at(self, position: int) -> int | None:
        """When the record at a position was stored; None when there is none. Raises DamagedRecordError."""
        if not self._is_there(position, RECORD_BYTES_MIN):
            return None
        head = bytes(self._read_bytes(position, RECORD_BYTES_MIN))
        try:
            size = record_size(head)
            if position < self._cached_from():
                head = self.read(position, size)
        except (CorruptRecordError, PositionError):
            return None
        return store_timestamp_of(head)

    def _is_there(self, position: int, size: int) -> bool:
        return self.min_position <= position and position + size <= self._readable_end

    def _check_is_there(self, position: int, size: int) -> None:
        if not self._is_there(position, size):
            raise PositionError(
                f"{size} bytes at position {position}: the log has {self.min_position} to "
                f"{self._readable_end}"
            )

    def _read_cached(self, position: int, size: int) -> Buffer:
        """A record in memory, between the log's begin and its readable end."""
        data = self._read_bytes(position, size)
        if len(data) != size:
            raise PositionError(f"no record of {size} bytes at position {position}")
        return data

    def _read_queued(self, position: int, size: int) -> Buffer:
        """A record in memory that a queue's unit names: the unit must agree with the record itself."""
        if position < self.min_position:
            raise PositionError(f"position {position}: the log begins at {self.min_position}")
        if position + size > self._readable_end:
            raise self._wrong_unit(f"a queue's unit points behind the log, to position {position}")
        try:
            data = self._read_cached(position, size)
        except PositionError as error:
            raise self._wrong_unit(f"a queue's unit points to no record: {error}") from error
        if size_and_position(data) != (size, position):
            raise self._wrong_unit(
                f"a queue's unit points to position {position}, where no such record begins"
            )
        return data

    def _read_span(self, span: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Records close together in the files that units of a queue name."""
        start = span[0][0]
        last, last_size = span[-1]
        if start < 0 or last + last_size > self._readable_end:
            raise self._wrong_unit(f"a queue's unit points outside the log, to position {start} or {last}")
        self._check_is_there(start, last + last_size - start)
        try:
            return self._read_records(span)
        except PositionError as error:
            # Not skipped: the consumer would lose the message.
            raise self._wrong_unit(f"a queue's unit points to no record: {error}") from error

    def _wrong_unit(self, reason: str) -> DamagedQueueError:
        error = DamagedQueueError(reason)
        self._on_wrong_unit(error)
        return error

    def _on_wrong_unit(self, error: DamagedQueueError) -> None:
        """The queues' files are damaged: stop the node, so that another one serves. Its next start builds the
        queues again.
        """
        self.queues.invalidate()
        self._on_error(error)
