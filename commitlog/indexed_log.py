"""A log of messages with consume queues: reading by position, and dispatch of what is committed.

Committed entries → consume queues → listeners, in log order. As RocketMQ's ReputMessageService, but driven by
the commit instead of polling: the first stretch is dispatched in the call that reports the commit, the rest
in bounded stretches, one per turn of the event loop, so that catching up with millions of entries does not
block anything else.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from commitlog.batch_read import GAP_BYTES_MAX
from commitlog.consume_queue import UNIT, UNIT_BYTES
from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues, QueueFlusher
from commitlog.dispatch import DispatchBatch
from commitlog.entry import Buffer
from commitlog.errors import DamagedQueueError, DamagedRecordError, PositionError
from commitlog.log import DispatchListener
from commitlog.queue_checkpoint import Applied
from commitlog.record import (
    BORN_HOST_V6,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    CorruptRecordError,
    own_words,
    record_size,
)
from dledger.core.types import NO_INDEX, DamagedEntryError
from dledger.fs import Fs
from telemetry.histogram import Histogram


class ByteSource(Protocol):
    """The bytes of a log; those asked for are known to be there."""

    def read(self, position: int, size_bytes: int) -> Buffer:
        """Shorter when the bytes are in memory in several pieces, which never divide a record."""

    def read_records(self, units: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Records at (position, size), ascending and close together, from the files in one go; checked, if
        the log can.

        Raises PositionError when there is none, DamagedRecordError.
        """

    def gather_records(self, units: bytes, readable_end: int) -> bytes | None:
        """The records of a consume queue's units, which lie between the log's ends, back to back, checked as
        `read_records` and `read` are; None when that cannot be done in one go, for whatever reason. What
        stands before `readable_end` never changes.
        """

    @property
    def cached_from(self) -> int:
        """The position from which on reading costs no call to the system."""


class RecordReader:
    """Reads records between two moving ends."""

    def __init__(
        self,
        source: ByteSource,
        min_position: Callable[[], int],
        max_position: Callable[[], int],
        on_wrong_unit: Callable[[DamagedQueueError], None],
    ) -> None:
        self._source = source
        self._min_position = min_position
        self._max_position = max_position
        self._on_wrong_unit = on_wrong_unit

    def read(self, position: int, size: int) -> bytes:
        """As MessageLog.read."""
        self._check_is_there(position, size)
        if position < self._source.cached_from:
            return bytes(self._span([(position, size)])[0])
        return bytes(self._queued(position, size))

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        """As MessageLog.read_many; a unit of size 0 adds nothing."""
        return self.read_units(b"".join(UNIT.pack(*unit, 0) for unit in units if unit[1] > 0))

    def read_units(self, units: bytes) -> bytes:
        """As MessageLog.read_units."""
        if not units:
            return b""
        readable_end = self._max_position()
        last, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
        if self._min_position() <= UNIT.unpack_from(units)[0] and last + last_size <= readable_end:
            gathered = self._source.gather_records(units, readable_end)
            if gathered is not None:
                return gathered
        return self._read_each([(position, size) for position, size, _ in UNIT.iter_unpack(units)])

    def _read_each(self, units: Sequence[tuple[int, int]]) -> bytes:
        pieces: list[Buffer] = []
        span: list[tuple[int, int]] = []
        end = 0
        cached_from = self._source.cached_from
        for position, size in units:
            is_cached = position >= cached_from
            if span and (is_cached or not end <= position <= end + GAP_BYTES_MAX):
                pieces += self._span(span)
                span = []
            if is_cached:
                pieces.append(self._queued(position, size))
            else:
                span.append((position, size))
                end = position + size
        if span:
            pieces += self._span(span)
        return b"".join(pieces)

    def record_at(self, position: int) -> bytes | None:
        """As MessageLog.record_at: the record must also say itself that it stands there."""
        if not self._is_there(position, RECORD_BYTES_MIN):
            return None
        try:
            size = record_size(bytes(self._source.read(position, RECORD_BYTES_MIN)))
        except CorruptRecordError:
            return None
        if not self._is_there(position, size):
            return None
        try:
            if position < self._source.cached_from:
                data = bytes(self._source.read_records([(position, size)])[0])
            else:
                data = bytes(self._cached(position, size))
        except PositionError:
            return None
        own_position = int.from_bytes(data[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big")
        return data if own_position == position else None

    def store_timestamp_at(self, position: int) -> int | None:
        """When the record at a position was stored; None when there is none. Raises DamagedRecordError."""
        if not self._is_there(position, RECORD_BYTES_MIN):
            return None
        head = bytes(self._source.read(position, RECORD_BYTES_MIN))
        try:
            size = record_size(head)
            if position < self._source.cached_from:
                head = self.read(position, size)
        except (CorruptRecordError, PositionError):
            return None
        return store_timestamp_of(head)

    def _wrong_unit(self, reason: str) -> DamagedQueueError:
        error = DamagedQueueError(reason)
        self._on_wrong_unit(error)
        return error

    def _is_there(self, position: int, size: int) -> bool:
        return self._min_position() <= position and position + size <= self._max_position()

    def _check_is_there(self, position: int, size: int) -> None:
        if not self._is_there(position, size):
            raise PositionError(
                f"{size} bytes at position {position}: the log has {self._min_position()} to "
                f"{self._max_position()}"
            )

    def _cached(self, position: int, size: int) -> Buffer:
        self._check_is_there(position, size)
        data = self._source.read(position, size)
        if len(data) != size:
            raise PositionError(f"no record of {size} bytes at position {position}")
        return data

    def _queued(self, position: int, size: int) -> Buffer:
        """A record in memory, which a queue says is there: what its unit says must be what it says itself."""
        if position < self._min_position():
            raise PositionError(f"position {position}: the log begins at {self._min_position()}")
        if position + size > self._max_position():
            raise self._wrong_unit(f"a queue's unit leads out of the log, to position {position}")
        try:
            data = self._cached(position, size)
        except PositionError as error:
            raise self._wrong_unit(f"a queue's unit leads nowhere: {error}") from error
        if own_words(data) != (size, position):
            raise self._wrong_unit(
                f"a queue's unit leads to position {position}, where no such record begins"
            )
        return data

    def _span(self, span: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Records that stand close together in the files, which a queue says are there."""
        start = span[0][0]
        last, last_size = span[-1]
        if start < 0 or last + last_size > self._max_position():
            raise self._wrong_unit(f"a queue's unit leads out of the log, to position {start} or {last}")
        self._check_is_there(start, last + last_size - start)
        try:
            return self._source.read_records(span)
        except PositionError as error:
            # Passed over it would be lost to the consumer.
            raise self._wrong_unit(f"a queue's unit leads nowhere: {error}") from error


def store_timestamp_of(head: bytes) -> int:
    """storeTimestamp of the record that begins with these bytes, at least RECORD_BYTES_MIN."""
    at = 68 if head[39] & BORN_HOST_V6 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


logger = logging.getLogger(__name__)

STRETCH_ENTRIES_MAX: Final = 1024
STRETCH_BYTES_MAX: Final = 512 * 1024
DAMAGE_RETRY_S: Final = 0.5
"""When the log is damaged where dispatching stands, it waits so long for the repair and looks again."""


class DispatchSource(Protocol):
    """Where the committed records come from."""

    def requests_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """The records of a bounded stretch that begins with entry `index`, and where it ends.

        When the log begins behind `index`, the stretch begins there. Raises DamagedRecordError.
        """


class Reput:
    """Feeds the queues and the listeners up to the committed index."""

    def __init__(
        self,
        source: DispatchSource,
        queues: ConsumeQueues,
        applied: Applied,
        on_queued: Callable[[], None],
        on_applied: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.applied = applied
        """How far the queues and the listeners are. Goes back once, by `replay_from`."""
        self._source = source
        self._queues = queues
        self._queued = applied
        self._target_index = applied.index
        self._on_queued = on_queued
        self._on_applied = on_applied
        self._on_error = on_error
        self._listeners: dict[DispatchListener, frozenset[str] | None] = {}
        """With the topics that each wants; None: all."""
        self._next: asyncio.Handle | None = None
        self._is_stopped = False
        self._waits_for_index = NO_INDEX
        self.seconds = Histogram()
        """How long each stretch took, if nothing held it up."""
        self._untold: list[tuple[DispatchListener, DispatchBatch]] = []
        self._behind: tuple[DispatchListener, Applied] | None = None
        """A listener that goes over what the others have taken already, and how far it is."""

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """Call `listener` with every stretch from now on, or with those that hold one of these topics. It may
        read the records: when it raises DamagedRecordError it gets the stretch again after a while, and must
        pass over what it has applied.
        """
        self._listeners[listener] = None if topics is None else frozenset(topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """It gets at most the stretch that is being dispatched."""
        self._listeners.pop(listener, None)

    def replay_from(self, index: int, position: int) -> None:
        """Begin with this entry, which stands at `position`; the queues are not given what they have."""
        assert self._next is None, "replay_from comes before the first commit"
        if index <= self.applied.index:
            self.applied = Applied(index - 1, position)

    def give_again(self, listener: DispatchListener, index: int, position: int) -> None:
        """For a listener while it is told: it alone gets the entries from this one on again, before any other
        gets what is new.
        """
        self._behind = listener, Applied(index - 1, position)

    @property
    def queued(self) -> Applied:
        """How far the queues are, which is farther than `applied` during a replay."""
        return max(self._queued, self.applied, key=lambda applied: applied.index)

    @property
    def told_index(self) -> int:
        """Every entry up to here is in the queues; the listeners took it, or are being given it."""
        if self._behind is not None:
            return self._behind[1].index
        is_waiting = bool(self._untold) and self._untold[0][1][0].index == self._waits_for_index
        return self._waits_for_index - 1 if is_waiting else self.applied.index

    def advance_to(self, index: int) -> None:
        """Everything up to `index` is committed and can be read."""
        self._target_index = max(self._target_index, index)
        if self._next is None:
            self._step()

    def resume(self) -> None:
        """Go on after a flush made room in the queues."""
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
            if self._untold:
                self._tell()
            elif self._behind is not None:
                self._go_over(*self._behind)
            elif self.applied.index < self._target_index and not self._queues.is_full:
                self._stretch()
            else:
                return
        except Exception as error:  # noqa: BLE001 (a top loop: what cannot be dispatched stops the node)
            self.stop()
            self._on_error(error)
            return
        if self._next is None and (self.applied.index < self._target_index or self._behind is not None):
            self._next = asyncio.get_running_loop().call_soon(self._step)

    def _stretch(self) -> None:
        begun_s = time.perf_counter()
        first_index = self.applied.index + 1
        # What the queues have they are not given again: a topic deleted since would come back, or lose more.
        is_replay = first_index <= self._queued.index
        last_index = min(self._target_index, self._queued.index) if is_replay else self._target_index
        try:
            batch, applied = self._source.requests_from(first_index, last_index)
        except DamagedRecordError as error:
            self._wait_for_repair(first_index, error)
            return
        assert applied.index >= first_index, (applied, first_index)
        if not is_replay:
            self._queues.put_all(batch)
        self.applied = applied
        self._on_queued()
        if batch:
            topics = batch.topics
            self._untold = [
                (listener, batch)
                for listener, wanted in self._listeners.items()
                if wanted is None or not wanted.isdisjoint(topics)
            ]
        self._tell()
        if not self._untold:
            self.seconds.observe(time.perf_counter() - begun_s)

    def _go_over(self, listener: DispatchListener, done: Applied) -> None:
        """One stretch more for a listener that is behind the others."""
        if done.index >= self.applied.index:
            self._behind = None
        else:
            try:
                batch, reached = self._source.requests_from(done.index + 1, self.applied.index)
                if batch:
                    listener(batch)
            except DamagedRecordError as error:
                self._wait_for_repair(done.index + 1, error)
                return
            self._behind = listener, reached
        self._on_applied()

    def _tell(self) -> None:
        """Give the stretch to the listeners that have not taken it yet."""
        while self._untold:
            listener, batch = self._untold[0]
            try:
                listener(batch)
            except DamagedRecordError as error:
                self._wait_for_repair(batch[0].index, error)
                return
            del self._untold[0]
        self._on_applied()

    def _wait_for_repair(self, index: int, error: DamagedRecordError) -> None:
        if self._waits_for_index != index:
            logger.warning("dispatching waits for the repair of the log: %s", error)
            self._waits_for_index = index
        self._next = asyncio.get_running_loop().call_later(DAMAGE_RETRY_S, self._step)


@dataclass(frozen=True, slots=True)
class MessageLogConfig:
    """What message logs of both kinds need to know."""

    queues: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    message_bytes_max: int = 4 * 1024 * 1024
    """The largest body; a larger one is MESSAGE_ILLEGAL."""
    delay_levels_ms: Sequence[int] = ()
    """The delay of each level from 1 on, for the tags code of SCHEDULE_TOPIC_XXXX."""


class RecordLog(ByteSource, DispatchSource, Protocol):
    """A log's bytes and committed records, as the indexer needs them."""

    @property
    def min_position(self) -> int: ...

    @property
    def end_index(self) -> int:
        """Last entry recovered."""

    @property
    def end_position(self) -> int:
        """First byte after it."""

    def end_of(self, index: int) -> int:
        """First byte after an entry; the log's begin for what comes before the first."""


class Indexer:
    """Keeps the queues of one log, which is open and recovered; made once for each log."""

    def __init__(
        self,
        fs: Fs,
        store: Path,
        config: MessageLogConfig,
        log: RecordLog,
        on_applied: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._readable_end = log.end_position
        self._on_error = on_error
        self.reader = RecordReader(
            log, lambda: log.min_position, lambda: self._readable_end, self._on_wrong_unit
        )
        self.queues = ConsumeQueues(fs, store, config.queues, self, self._on_wrong_unit)
        applied = self.queues.load(log.end_index, log.end_position)
        self._readable_end = max(applied.position, log.min_position)
        self._reput = Reput(log, self.queues, applied, self._after_queued, on_applied, on_error)
        self._flusher = QueueFlusher(self.queues, lambda: self._reput.queued, self._reput.resume, on_error)

    @property
    def min_position(self) -> int:
        """The first position that can be read."""
        return self._log.min_position

    @property
    def max_position(self) -> int:
        """The end of what can be read."""
        return self._readable_end

    @property
    def applied_index(self) -> int:
        """Every entry up to here is in the queues and was given to the listeners."""
        return self._reput.told_index

    @property
    def queued_index(self) -> int:
        """Every entry up to here is in the queues."""
        return self._reput.queued.index

    @property
    def dispatch_seconds(self) -> Histogram:
        """How long each stretch took to come into the queues and to the listeners."""
        return self._reput.seconds

    def record_at(self, position: int) -> bytes | None:
        """For the queues' self-check."""
        return self.reader.record_at(position)

    def store_timestamp_at(self, position: int) -> int | None:
        """For the queues' search by time."""
        return self.reader.store_timestamp_at(position)

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None) -> None:
        """As MessageLog.add_listener."""
        self._reput.add_listener(listener, topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """As MessageLog.remove_listener."""
        self._reput.remove_listener(listener)

    def replay_from(self, index: int) -> None:
        """As MessageLog.replay_from."""
        self._reput.replay_from(index, self._log.end_of(index - 1))

    def give_again(self, listener: DispatchListener, index: int) -> None:
        """As MessageLog.give_again."""
        self._reput.give_again(listener, index, self.end_of(index - 1))

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As MessageLog.batch_from."""
        assert last_index <= self.applied_index, (last_index, self.applied_index)
        return self._log.requests_from(index, last_index)

    def end_of(self, index: int) -> int:
        """As MessageLog.end_of."""
        try:
            return self._log.end_of(index)
        except DamagedEntryError as error:
            raise DamagedRecordError(str(error)) from error

    def advance_to(self, index: int) -> None:
        """Everything up to `index` is committed and can be read: dispatch it."""
        self._reput.advance_to(index)

    def start(self) -> None:
        """Begin to flush the queues at their interval."""
        self._flusher.start()

    def halt(self) -> None:
        """Dispatch nothing more."""
        self._reput.stop()

    async def stop(self) -> None:
        """Dispatch nothing more and bring the queues to the disk. Raises OSError."""
        self.halt()
        await self._flusher.stop()
        self.queues.close()

    def _after_queued(self) -> None:
        # Before the listeners hear of the messages: they may read them.
        self._readable_end = max(self._readable_end, self._reput.applied.position)
        if self.queues.wants_flush or self.queues.is_full:
            self._flusher.flush_soon()

    def _on_wrong_unit(self, error: DamagedQueueError) -> None:
        """The queues' files are damaged. The node stops, so that others serve; its next start builds them
        again.
        """
        self.queues.distrust()
        self._on_error(error)


class IndexedLog:
    """The reading side of `commitlog.log.MessageLog`. A log adds how it puts and when it dispatches."""

    _index: Indexer

    @property
    def queues(self) -> ConsumeQueues:
        """As MessageLog."""
        return self._index.queues

    @property
    def min_position(self) -> int:
        """As MessageLog."""
        return self._index.min_position

    @property
    def max_position(self) -> int:
        """As MessageLog."""
        return self._index.max_position

    @property
    def applied_index(self) -> int:
        """As MessageLog."""
        return self._index.applied_index

    @property
    def queued_index(self) -> int:
        """As MessageLog."""
        return self._index.queued_index

    @property
    def dispatch_seconds(self) -> Histogram:
        """How long stretches took to be dispatched."""
        return self._index.dispatch_seconds

    def read(self, position: int, size: int) -> bytes:
        """As MessageLog."""
        return self._index.reader.read(position, size)

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        """As MessageLog."""
        return self._index.reader.read_many(units)

    def read_units(self, units: bytes) -> bytes:
        """As MessageLog."""
        return self._index.reader.read_units(units)

    def record_at(self, position: int) -> bytes | None:
        """As MessageLog."""
        return self._index.reader.record_at(position)

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """As MessageLog."""
        self._index.add_listener(listener, topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """As MessageLog."""
        self._index.remove_listener(listener)

    def give_again(self, listener: DispatchListener, index: int) -> None:
        """As MessageLog."""
        self._index.give_again(listener, index)

    def replay_from(self, index: int) -> None:
        """As MessageLog."""
        self._index.replay_from(index)

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As MessageLog."""
        return self._index.batch_from(index, last_index)

    def end_of(self, index: int) -> int:
        """As MessageLog."""
        return self._index.end_of(index)
