"""Takes messages by their properties (ExpressionMessageFilter.isMatchedByCommitLog): reads a stretch of
records in one go, looks at nothing but each one's properties, and keeps what is wanted of what was read.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from broker.filters import MessageFilter
from commitlog.errors import PositionError
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, properties_of

Unit = tuple[int, int, int]
"""Position, size and tags code of one message; size 0 is a hole, an offset that no message has."""

READ_BYTES_MAX = 256 * 1024
"""Of one read of the log; a larger record is read alone."""


class Units(Protocol):
    """The units of a queue; ConsumeQueue has them."""

    def units(self, start: int, count: int) -> list[Unit]: ...

    def packed_units(self, start: int, count: int) -> bytes: ...


class PropertyBatch:
    """Takes wanted messages until it is full. `examined` messages were passed or taken.

    It is full, too, when `read_bytes_max` were read: how much a filter that passes little may cost at once.
    """

    __slots__ = ("_count_max", "_filter", "_left_bytes", "_log", "_pieces", "_room", "examined", "is_full")

    def __init__(
        self, log: MessageLog, wanted: MessageFilter, count_max: int, bytes_max: int, read_bytes_max: int
    ) -> None:
        self._log = log
        self._filter = wanted
        self._count_max = count_max
        self._room = bytes_max
        self._left_bytes = read_bytes_max
        self._pieces: list[bytes] = []
        self.examined = 0
        self.is_full = False

    @property
    def count(self) -> int:
        return len(self._pieces)

    @property
    def unread_from(self) -> int:
        """Which message, counted from the first looked at, was not there when reading failed."""
        return self.examined

    def add_from(self, queue: Units, start: int, count: int) -> bool:
        """Look at the next messages of the queue, at most so many; whether there were any.

        Raises PositionError when the first that was not looked at is not there any more and none was taken,
        DamagedRecordError.
        """
        units = queue.units(start, count)
        for stretch in _stretches(units):
            try:
                self._add(stretch)
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
            if len(self._pieces) >= self._count_max:
                self.is_full = True
                return
        self._left_bytes -= end
        self.is_full = self._left_bytes <= 0

    def _is_wanted(self, data: bytes, start: int, size: int) -> bool:
        try:
            properties = properties_of(data, start, size)
        except CorruptRecordError:
            return False  # no client could read it
        return self._filter.wants(properties)


def _stretches(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
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
