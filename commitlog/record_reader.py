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

GAP_BYTES_MAX: Final = 8 * 1024
"""Records no farther apart than this are read from the files in one go."""


class ByteSource(Protocol):
    """The bytes of a log; those asked for are known to be there."""

    def read(self, position: int, size_bytes: int) -> Buffer:
        """Shorter when the bytes are in memory in several pieces, which never divide a record."""

    @property
    def cached_from(self) -> int:
        """The position from which on reading costs no call to the system."""


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
        pieces: list[Buffer] = []
        span: list[tuple[int, int]] = []
        end = 0
        cached_from = self._source.cached_from
        for position, size in units:
            if size <= 0:
                continue
            is_cached = position >= cached_from
            if span and (is_cached or not end <= position <= end + GAP_BYTES_MAX):
                pieces += self._pieces_of_span(span)
                span = []
            if is_cached:
                pieces.append(self._piece(position, size))
            else:
                span.append((position, size))
                end = position + size
        if span:
            pieces += self._pieces_of_span(span)
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

    def _pieces_of_span(self, span: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Records that stand close together in the files, read in one go."""
        start = span[0][0]
        last, last_size = span[-1]
        data = memoryview(self._piece(start, last + last_size - start))
        return [data[position - start : position - start + size] for position, size in span]
