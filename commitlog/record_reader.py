"""Reading committed records by position, whatever kind of log holds them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from commitlog.consume_queue import UNIT, UNIT_BYTES
from commitlog.entry import Buffer
from commitlog.errors import DamagedQueueError, PositionError
from commitlog.gathering import GAP_BYTES_MAX
from commitlog.record import (
    BORN_HOST_V6,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    CorruptRecordError,
    own_words,
    record_size,
)


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
