"""How far each sequenced writer is, as the committed records say. Pure: no clock, the same on every node.

The table is bounded. Time here is the log's: the highest store time of any sequenced record so far, so that
every node forgets the same writers at the same record, whatever its own clock says and however it cut the log
into stretches.
"""

from collections.abc import Iterator
from itertools import islice
from operator import index
from typing import Any, Final, NamedTuple

from commitlog.sequences import SequenceRun

WRITERS_MAX: Final = 50_000
"""Writer and partition pairs that are remembered. No setting: nodes that disagreed here would remember
different writers.
"""
FORGET_AFTER_MS: Final = 7 * 24 * 3_600_000
"""A writer that is silent for so long is forgotten."""
KEEP_MS: Final = 3_600_000
"""In a full table no new writer is taken while it would drive out one that wrote within this time."""


class Progress(NamedTuple):
    """The batch a writer is at, and the number its next record in it has."""

    batch_id: int
    next_sequence: int


class WriterTable:
    """By key (WRITER|PARTITION), the one that wrote last at the end."""

    __slots__ = ("_now_ms", "_rows")

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, int, int]] = {}
        """Batch, next number, time of the last record."""
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> Progress | None:
        """None: never heard of, or forgotten."""
        row = self._rows.get(key)
        return None if row is None else Progress(row[0], row[1])

    def has_room(self, more: int, now_ms: int) -> bool:
        """Whether so many new writers drive out none that wrote within KEEP_MS."""
        excess = len(self._rows) + more - WRITERS_MAX
        if excess <= 0:
            return True
        leaving = next(islice(self._rows.values(), excess - 1, None), None)
        return leaving is not None and leaving[2] + KEEP_MS <= max(now_ms, self._now_ms)

    def take(self, run: SequenceRun, applied_index: int) -> None:
        """Take in a committed run, but for what of it stands at or before `applied_index`."""
        key, batch_id, first, count, first_index, stored_ms = run
        if first_index + count - 1 <= applied_index:
            return
        self._pass_time(stored_ms)
        row = self._rows.pop(key, None)
        if row is None and len(self._rows) >= WRITERS_MAX:
            del self._rows[next(iter(self._rows))]
        reached = (batch_id, first + count)
        if row is not None and row[:2] > reached:
            reached = row[:2]
        self._rows[key] = (*reached, self._now_ms)

    def _pass_time(self, stored_ms: int) -> None:
        if stored_ms <= self._now_ms:
            return
        self._now_ms = stored_ms
        while self._rows:
            key = next(iter(self._rows))
            if self._rows[key][2] + FORGET_AFTER_MS >= stored_ms:
                return
            del self._rows[key]

    def copy(self) -> "WriterTable":
        other = WriterTable()
        other._rows = dict(self._rows)
        other._now_ms = self._now_ms
        return other

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot, in the order in which they will be forgotten."""
        for key, row in self._rows.items():
            yield [key.decode(), *row]

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> "WriterTable":
        table = cls()
        for key, batch_id, next_sequence, time_ms in rows:
            table._rows[str(key).encode()] = index(batch_id), index(next_sequence), index(time_ms)
            table._now_ms = max(table._now_ms, index(time_ms))
        return table
