"""Progress of each sequenced writer, as read from the committed records. Pure: no clock, the same on every
node.

The table is bounded. Its time is computed from store timestamps in the log: it advances by the difference
between the store times of two successive sequenced records, but by at most STEP_MAX_MS at once. So every node
drops the same writers at the same record, independently of its own clock and of how it divided the log into
batches. A leader's clock that is a week ahead drops no writer by itself.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import index
from typing import Any, Final, NamedTuple

from commitlog.sequences import NO_DIGEST, SequenceRun

WRITERS_MAX: Final = 50_000
"""Most (writer, partition) pairs in the table. Not configurable: nodes with different values would hold
different writers.
"""
FORGET_AFTER_MS: Final = 7 * 24 * 3_600_000
"""A writer that wrote nothing for this long is dropped."""
KEEP_MS: Final = 3_600_000
"""A full table accepts no new writer that would replace one that wrote within this time. A writer that has
ended is kept for as long: attempts of its tasks may still be running.
"""
STEP_MAX_MS: Final = 3_600_000


class Progress(NamedTuple):
    """The batch a writer is at, the number its next record in it has, and the digest before that record."""

    batch_id: int
    next_sequence: int
    digest: bytes = NO_DIGEST


_Row = tuple[int, int, int, bytes]
"""Batch, next number, table's time of the last record, digest."""


class WriterTable:
    """By key (WRITER|PARTITION), the one that wrote last at the end."""

    __slots__ = ("_ended", "_now_ms", "_rows", "_stored_ms")

    def __init__(self) -> None:
        self._rows: dict[bytes, _Row] = {}
        self._ended: dict[bytes, _Row] = {}
        """Writers that have ended; they are dropped first."""
        self._now_ms = 0
        self._stored_ms = 0
        """When the last sequenced record was stored."""

    def __len__(self) -> int:
        return len(self._rows) + len(self._ended)

    def get(self, key: bytes) -> Progress | None:
        """None: unknown, or dropped."""
        row = self._rows.get(key) or self._ended.get(key)
        return None if row is None else Progress(row[0], row[1], row[3])

    def has_room(self, more: int, now_ms: int) -> bool:
        """Whether so many new writers drive out none that wrote within KEEP_MS."""
        excess = len(self) + more - WRITERS_MAX - len(self._ended)
        if excess <= 0:
            return True
        leaving = next(islice(self._rows.values(), excess - 1, None), None)
        since_ms = min(max(0, now_ms - self._stored_ms), STEP_MAX_MS)
        return leaving is not None and leaving[2] + KEEP_MS <= self._now_ms + since_ms

    def of_batch(self, batch_id: int) -> Iterator[tuple[bytes, Progress]]:
        """The keys that are at this batch."""
        for key, row in chain(self._rows.items(), self._ended.items()):
            if row[0] == batch_id:
                yield key, Progress(row[0], row[1], row[3])

    def apply(self, run: SequenceRun, applied_index: int) -> None:
        """Apply a committed run of records, except its records at or before entry `applied_index`."""
        key, batch_id, first, count, first_index, stored_ms, digest = run
        if first_index + count - 1 <= applied_index:
            return
        self._pass_time(stored_ms)
        row = self._rows.pop(key, None) or self._ended.pop(key, None)
        if row is None and len(self) >= WRITERS_MAX:
            leaving = self._ended or self._rows
            del leaving[next(iter(leaving))]
        reached = (batch_id, first + count)
        if row is not None and row[:2] > reached:
            reached, digest = row[:2], row[3]
        self._rows[key] = (*reached, self._now_ms, digest)

    def end(self, keys: Iterable[bytes]) -> None:
        """Mark these writers as ended. Requests for their progress are still answered for KEEP_MS, unless new
        writers need their places.
        """
        for key in keys:
            row = self._rows.pop(key, None)
            if row is not None:
                self._ended[key] = (row[0], row[1], self._now_ms, row[3])

    def _pass_time(self, stored_ms: int) -> None:
        step_ms = stored_ms - self._stored_ms
        self._stored_ms = stored_ms
        if step_ms <= 0:
            return
        self._now_ms += min(step_ms, STEP_MAX_MS)
        for rows, keep_ms in ((self._rows, FORGET_AFTER_MS), (self._ended, KEEP_MS)):
            while rows:
                key = next(iter(rows))
                if rows[key][2] + keep_ms >= self._now_ms:
                    break
                del rows[key]

    def copy(self) -> "WriterTable":
        other = WriterTable()
        other._rows, other._ended = dict(self._rows), dict(self._ended)
        other._now_ms, other._stored_ms = self._now_ms, self._stored_ms
        return other

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot, in the order in which they will be dropped. A row: key, batch, next number, time,
        digest, whether it has ended.
        """
        for key, row in self._rows.items():
            yield [key.decode(), *row[:3], row[3].decode(), False]
        for key, row in self._ended.items():
            yield [key.decode(), *row[:3], row[3].decode(), True]

    def times(self) -> tuple[int, int]:
        """For a snapshot."""
        return self._now_ms, self._stored_ms

    @classmethod
    def from_json(cls, rows: list[list[Any]], times: list[int] | None = None) -> "WriterTable":
        """Snapshots of an older version have no `times`, and rows that end with the time, which was that of
        the log.
        """
        table = cls()
        for key, batch_id, next_sequence, time_ms, *more in rows:
            digest, is_ended = more or ("", False)
            row = (index(batch_id), index(next_sequence), index(time_ms), str(digest).encode())
            (table._ended if is_ended else table._rows)[str(key).encode()] = row
            table._now_ms = max(table._now_ms, row[2])
        table._stored_ms = table._now_ms
        if times is not None:
            table._now_ms, table._stored_ms = map(index, times)
        return table
