"""How many messages of the last deliveries are in the log, whose writer may have died while it wrote them.

They were put together with the record that names them, so that they stand right behind it, as far as they are
there at all.
"""

from collections.abc import Sequence

from commitlog.entry import HEADER_BYTES
from commitlog.log import MessageLog
from commitlog.record import Record, decode_record


class LogTail:
    """Reads one log. `file_bytes`: of its data files, of which each begins with a record."""

    def __init__(self, log: MessageLog, file_bytes: int, is_replicated: bool) -> None:
        self._log = log
        self._file_bytes = file_bytes
        self._header_bytes = HEADER_BYTES if is_replicated else 0

    def messages_behind(self, record: Record, origins: Sequence[int | None]) -> int:
        """How many messages follow the record that come of the records at these positions, in this order;
        None for one that is not known any more, of which any message may come.

        Raises DamagedRecordError.
        """
        end = record.physical_offset + record.size
        for number, origin in enumerate(origins):
            found = self._next(end, origin)
            if found is None:
                return number
            end = found
        return len(origins)

    def _next(self, end: int, origin: int | None) -> int | None:
        next_file = -(-end // self._file_bytes) * self._file_bytes
        for position in (end, next_file):
            data = self._log.record_at(position + self._header_bytes)
            if data is None:
                continue
            record = decode_record(data)
            comes_of = record.prepared_transaction_offset
            if comes_of == origin or (origin is None and comes_of > 0):
                return record.physical_offset + record.size
        return None
