"""Reading committed records by position, whatever kind of log holds them."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from commitlog.entry import Buffer
from commitlog.log import PositionError
from commitlog.record import (
    BORN_HOST_V6,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    CorruptRecordError,
    record_size,
)

SPAN_WASTE_BYTES_MAX: Final = 64 * 1024
"""Records apart by no more than this in all are read in one go."""


class ByteSource(Protocol):
    """The bytes of a log; those asked for are known to be there."""

    def read(self, position: int, size_bytes: int) -> Buffer:
        """Shorter when the bytes are in memory in several pieces, which never divide a record."""

    def is_cached(self, position: int) -> bool:
        """Whether a read there costs no call to the system."""


class RecordReader:
    """Reads records between two moving ends."""

    def __init__(
        self, source: ByteSource, min_position: Callable[[], int], max_position: Callable[[], int]
    ) -> None:
        self._source = source
        self._min_position = min_position
        self._max_position = max_position

    def read(self, position: int, size: int) -> bytes:
        """As MessageLog.read."""
        return bytes(self._piece(position, size))

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        """As MessageLog.read_many; a unit of size 0 adds nothing."""
        units = [unit for unit in units if unit[1] > 0]
        if len(units) > 1 and not self._source.is_cached(units[0][0]):
            return b"".join(self._pieces_of_files(units))
        return b"".join([self._piece(position, size) for position, size in units])

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
        data = self.read(position, size)
        own_position = int.from_bytes(data[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big")
        return data if own_position == position else None

    def store_timestamp_at(self, position: int) -> int | None:
        """When the record at a position was stored; None when there is none."""
        if not self._is_there(position, RECORD_BYTES_MIN):
            return None
        head = bytes(self._source.read(position, RECORD_BYTES_MIN))
        try:
            record_size(head)
        except CorruptRecordError:
            return None
        at = 68 if head[39] & BORN_HOST_V6 else 56
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def _is_there(self, position: int, size: int) -> bool:
        return self._min_position() <= position and position + size <= self._max_position()

    def _piece(self, position: int, size: int) -> Buffer:
        if not self._is_there(position, size):
            raise PositionError(
                f"{size} bytes at position {position}: the log has {self._min_position()} to "
                f"{self._max_position()}"
            )
        data = self._source.read(position, size)
        if len(data) != size:
            raise PositionError(f"no record of {size} bytes at position {position}")
        return data

    def _pieces_of_files(self, units: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Read in one go the records that stand close together, up to what is in memory."""
        count = 0
        wasted = 0
        start = end = units[0][0]
        for position, size in units:
            wasted += position - end
            if position < end or wasted > SPAN_WASTE_BYTES_MAX or self._source.is_cached(position):
                break
            end = position + size
            count += 1
        span = self._piece(start, end - start)
        pieces: list[Buffer] = [
            span[position - start : position - start + size] for position, size in units[:count]
        ]
        return pieces + [self._piece(position, size) for position, size in units[count:]]
