"""Selects messages by their properties (ExpressionMessageFilter.isMatchedByCommitLog): reads many records at
once, decodes only the properties of each, and keeps the matching ones.

Reads a batch of messages from one queue (DefaultMessageStore.getMessage): units, filter, one read of
the log.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Final, Protocol

from broker.config import BrokerConfig
from broker.consume.filters import MessageFilter
from broker.consume.read_advice import machine_memory_bytes, warm_bytes
from commitlog.consume_queue import UNIT
from commitlog.errors import PositionError
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, properties_of
from native import function

Unit = tuple[int, int, int]
"""Position, size and tags code of one message; size 0 is a hole, an offset that no message has."""

READ_BYTES_MAX = 256 * 1024
"""Of one read of the log; a larger record is read alone."""
WORK_US_MAX: Final = 4_000
"""Of the filter in one answer, by its own estimate: simple ones look at all that the other bounds allow."""


class Units(Protocol):
    """The units of a queue; ConsumeQueue has them."""

    def units(self, start: int, count: int) -> list[Unit]: ...

    def packed_units(self, start: int, count: int) -> bytes: ...


class PropertyBatch:
    """Collects wanted messages until it is full. `examined`: how many messages were skipped or collected.

    It is also full when `read_bytes_max` bytes were read, or so much was worked: a filter that selects few
    messages must not read without a bound.
    """

    __slots__ = (
        *("_count_max", "_filter", "_left_bytes", "_left_us", "_log", "_pieces", "_room", "examined"),
        "is_full",
    )

    def __init__(
        self, log: MessageLog, wanted: MessageFilter, count_max: int, bytes_max: int, read_bytes_max: int
    ) -> None:
        self._log = log
        self._filter = wanted
        self._count_max = count_max
        self._room = bytes_max
        self._left_bytes = read_bytes_max
        self._left_us = WORK_US_MAX
        self._pieces: list[bytes] = []
        self.examined = 0
        self.is_full = False

    @property
    def count(self) -> int:
        return len(self._pieces)

    @property
    def unread_from(self) -> int:
        """Index of the message that was missing when reading failed, counted from the first examined one."""
        return self.examined

    def add_from(self, queue: Units, start: int, count: int) -> bool:
        """Examine the next messages of the queue, at most `count`; return whether there were any.

        Raises PositionError when the next message to examine was deleted and none was collected,
        DamagedRecordError.
        """
        units = queue.units(start, count)
        for run in _contiguous_runs(units):
            try:
                self._add(run)
            except PositionError:
                if not self._pieces:
                    raise
                self.is_full = True
            if self.is_full:
                break
        return bool(units)

    def body(self) -> bytes:
        """The records taken, back to back."""
        return b"".join(self._pieces)

    def _add(self, units: Sequence[Unit]) -> None:
        data = self._log.read_many([(position, size) for position, size, _ in units if size])
        end = 0
        for _, size, _ in units:
            start, end = end, end + size
            if size and self._is_wanted(data, start, size):
                if self._pieces and self._room < size:
                    self.is_full = True
                    return
                self._pieces.append(data[start:end])
                self._room -= size
            self.examined += 1
            if len(self._pieces) >= self._count_max or self._left_us <= 0:
                self.is_full = True
                return
        self._left_bytes -= end
        self.is_full = self._left_bytes <= 0

    def _is_wanted(self, data: bytes, start: int, size: int) -> bool:
        try:
            properties = properties_of(data, start, size)
        except CorruptRecordError:
            return False  # no client could read it
        self._left_us -= self._filter.work_us(properties)
        return self._filter.wants(properties)


def _contiguous_runs(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """The units in runs of at most READ_BYTES_MAX, at least one unit each."""
    first = 0
    size_bytes = 0
    for number, (_, size, _) in enumerate(units):
        if number > first and size_bytes + size > READ_BYTES_MAX:
            yield units[first:number]
            first, size_bytes = number, 0
        size_bytes += size
    if units:
        yield units[first:]


_take_units = function("_remoting", "take_units")

NO_BYTES_MAX: Final = 0x7FFFFFFF
"""What Java's pull and lite pull consumers name, which have no maximum of their own (PullAPIWrapper)."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of one answer. A message larger than `bytes_max` is still returned, alone.

    messages_max: a client that asks for fewer gets no more than these. asked_bytes_max: for a client that
    sets a maximum of bytes itself, as readers of full topics do. examined_max: units examined when a filter
    selects few of them (Java: 16,000 bytes of a consume queue). examined_bytes_max: records read for a filter
    by properties.
    """

    messages_max: int = 1_024
    bytes_max: int = 256 * 1024
    asked_bytes_max: int = 512 * 1024
    examined_max: int = 800
    examined_bytes_max: int = 4 * 1024 * 1024


LimitsAt = Callable[[Units, int], ReadLimits]
"""The bounds of an answer that begins with this offset of a queue."""
ASKED_FACTOR: Final = 2
"""A client that names its own maximum of bytes gets so many times more than one that names none."""


def transfer_limits(config: BrokerConfig, log: MessageLog, memory_bytes: int | None = None) -> LimitsAt:
    """Those of maxTransferCountOnMessageInMemory and its three kin, as they are at each read. On the disk is
    what is farther before the log's end than accessMessageInMemoryMaxRatio of the memory.
    """
    machine_bytes = machine_memory_bytes() if memory_bytes is None else memory_bytes

    def limits_at(queue: Units, offset: int) -> ReadLimits:
        in_memory = config.memory_messages_max, config.memory_bytes_max
        on_disk = config.disk_messages_max, config.disk_bytes_max
        count_max, bytes_max = in_memory
        if on_disk != in_memory:
            units = queue.units(offset, 1)
            warm_from = log.max_position - warm_bytes(config, machine_bytes)
            count_max, bytes_max = on_disk if units and units[0][0] < warm_from else in_memory
        return ReadLimits(count_max, bytes_max, ASKED_FACTOR * bytes_max)

    return limits_at


class ReadStatus(Enum):
    """GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """All examined messages were filtered out."""
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """The message's file was deleted while the queue still referred to it."""
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """The offset is the queue's end: the consumer has read everything."""
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"
    """An operator has set the group's offset."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`next_offset`: the offset at which the consumer continues; `body` holds `count` records back to
    back.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    body: bytes = b""


class _Batch:
    """Collects wanted units until it is full. `examined`: how many units were skipped or collected; `taken`:
    the units of `count` messages, as the queue stores them.
    """

    __slots__ = ("_codes", "_count_max", "_log", "_room", "count", "examined", "is_full", "taken")
    unread_from = 0

    def __init__(self, log: MessageLog, wanted: MessageFilter, count_max: int, bytes_max: int) -> None:
        self._log = log
        self._codes = wanted.codes
        self._count_max = count_max
        self._room = bytes_max
        self.taken = b""
        self.count = 0
        self.examined = 0
        self.is_full = False

    def body(self) -> bytes:
        """The collected records, back to back. Raises PositionError, DamagedRecordError."""
        return self._log.read_units(self.taken)

    def add_from(self, queue: Units, start: int, count: int) -> bool:
        """Examine the next units of the queue, at most `count`; return whether there were any."""
        if _take_units is not None:
            packed = queue.packed_units(start, count)
            found = _take_units(packed, self._codes, self._count_max, self._room, self.count)
            if found is not None:
                taken, count, record_bytes, examined, self.is_full = found
                self.taken += taken
                self.count += count
                self.examined += examined
                self._room -= record_bytes
                return bool(packed)
        units = queue.units(start, count)
        self.add(units)
        return bool(units)

    def add(self, units: Sequence[Unit]) -> None:
        """Examine these units."""
        codes = self._codes
        taken = []
        for unit in units:
            _, size, code = unit
            if size and (codes is None or code in codes):
                if self.count and self._room < size:
                    self.is_full = True
                    break
                taken.append(unit)
                self.count += 1
                self._room -= size
            self.examined += 1
            if self.count >= self._count_max:
                self.is_full = True
                break
        self.taken += b"".join(UNIT.pack(*unit) for unit in taken)


@dataclass(slots=True)
class ReadMetrics:
    """The reads of all consumers of one broker, by pull or pop: how many found messages and how many none,
    and the duration of the slowest one.
    """

    found: int = 0
    missed: int = 0
    longest_s: float = 0.0

    def done(self, result: ReadResult, took_s: float) -> None:
        """Count one read."""
        if result.status is ReadStatus.FOUND:
            self.found += 1
        else:
            self.missed += 1
        if took_s > self.longest_s:
            self.longest_s = took_s


class QueueReader:
    """Reads queues of one log."""

    def __init__(self, log: MessageLog, limits_at: LimitsAt, watch: ReadMetrics | None = None) -> None:
        self._log = log
        self._limits_at = limits_at
        self._watch = watch or ReadMetrics()

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        wanted: MessageFilter,
        messages_max: int,
        bytes_max: int | None,
    ) -> ReadResult:
        """The messages from `offset` on, as many as the bounds and the client's own maxima allow, at least
        one.
        """
        begun_s = perf_counter()
        result = self._read(topic, queue_id, offset, wanted, messages_max, bytes_max)
        self._watch.done(result, perf_counter() - begun_s)
        return result

    def _read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        wanted: MessageFilter,
        messages_max: int,
        bytes_max: int | None,
    ) -> ReadResult:
        queue = self._log.queues.get(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        first, end = queue.min_offset, queue.max_offset
        if offset == end:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, first, end)
        if offset > end:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, end, first, end)
        if offset < first:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, first, first, end)
        limits = self._limits_at(queue, offset)
        count_max = max(1, min(messages_max, limits.messages_max))
        if bytes_max is None or bytes_max == NO_BYTES_MAX:
            most_bytes = limits.bytes_max
        else:
            most_bytes = min(bytes_max, limits.asked_bytes_max)
        batch = self._batch(wanted, count_max, most_bytes, limits)
        try:
            self._fill(batch, queue, offset, count_max, _looked_at(wanted, count_max, limits))
            body = batch.body() if batch.count else b""
        except PositionError:
            next_offset = offset + batch.unread_from + 1
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, next_offset, first, end)
        status = ReadStatus.FOUND if batch.count else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, offset + batch.examined, first, end, batch.count, body)

    def _batch(
        self, wanted: MessageFilter, count_max: int, bytes_max: int, limits: ReadLimits
    ) -> _Batch | PropertyBatch:
        if not wanted.reads_properties:
            return _Batch(self._log, wanted, count_max, bytes_max)
        return PropertyBatch(self._log, wanted, count_max, bytes_max, limits.examined_bytes_max)

    @staticmethod
    def _fill(
        batch: _Batch | PropertyBatch, queue: Units, offset: int, count_max: int, looked_at: int
    ) -> None:
        step = count_max
        while not batch.is_full and batch.examined < looked_at:
            # Read further only as the filter turns out to pass few: most pass nearly everything.
            count = min(step, looked_at - batch.examined)
            if not batch.add_from(queue, offset + batch.examined, count):
                break
            step *= 2


def _looked_at(wanted: MessageFilter, count_max: int, limits: ReadLimits) -> int:
    """Most units to examine."""
    takes_all = wanted.codes is None and not wanted.reads_properties
    return count_max if takes_all else max(count_max, limits.examined_max)
