"""Offset resets that the consumers have not followed yet, as far as the log shows. A node that loads its
state from a snapshot restores its marks (broker/consume/offset_resets.py) from this table. Pure: no clock,
the same on every node.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import index
from typing import Any, Final, NamedTuple

PENDING_RESETS_MAX: Final = 100_000
"""Most (group, topic, queue) rows; beyond them the oldest are dropped. Not configurable: nodes with different
values would hold different rows.
"""
HEARD_OF_MS: Final = 600_000
"""After this time every running consumer has followed a reset: a node that did not make it, or finds it in
the log when it starts, sends no consumer there any more.
"""

_Key = tuple[str, str, int]
"""Group, topic and queue id."""


class PendingReset(NamedTuple):
    offset: int
    stored_ms: int
    """The store time of its record."""


class PendingResets:
    """The last reset of each queue, the latest at the end. Changed only by records of the log."""

    __slots__ = ("_pairs", "_rows")

    def __init__(self) -> None:
        self._rows: dict[_Key, PendingReset] = {}
        self._pairs: Counter[tuple[str, str]] = Counter()
        """How many rows a group has in a topic: most that are dropped have none."""

    def __len__(self) -> int:
        return len(self._rows)

    def items(self) -> Iterator[tuple[_Key, PendingReset]]:
        return iter(self._rows.items())

    def put(self, group: str, topic: str, offsets: Mapping[int, int], stored_ms: int) -> None:
        """A reset was stored; those of long before it are over."""
        for queue_id, offset in offsets.items():
            self._remove((group, topic, queue_id))
            self._add((group, topic, queue_id), PendingReset(offset, stored_ms))
        while self._rows:
            oldest = next(iter(self._rows))
            is_over = self._rows[oldest].stored_ms + HEARD_OF_MS <= stored_ms
            if not is_over and len(self._rows) <= PENDING_RESETS_MAX:
                break
            self._remove(oldest)

    def _add(self, key: _Key, row: PendingReset) -> None:
        self._rows[key] = row
        self._pairs[key[:2]] += 1

    def _remove(self, key: _Key) -> None:
        if self._rows.pop(key, None) is not None:
            self._pairs[key[:2]] -= 1
            if not self._pairs[key[:2]]:
                del self._pairs[key[:2]]

    def end(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The group stored these offsets: its consumer has followed the reset."""
        for queue_id, offset in offsets.items():
            row = self._rows.get((group, topic, queue_id))
            if row is not None and row.offset != offset:
                self._remove((group, topic, queue_id))

    def drop(self, group: str | None = None, topic: str | None = None) -> None:
        """Drop the resets of this group in this topic, since its offsets there were removed; None: of every
        group, in every topic.
        """
        gone = {pair for pair in self._pairs if group in (None, pair[0]) and topic in (None, pair[1])}
        for key in [key for key in self._rows if key[:2] in gone] if gone else ():
            self._remove(key)

    def copy(self) -> "PendingResets":
        other = PendingResets()
        other._rows, other._pairs = dict(self._rows), Counter(self._pairs)
        return other

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot, in order."""
        for key, row in self._rows.items():
            yield [*key, *row]

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> "PendingResets":
        """Raises ValueError or TypeError when the rows are none of these."""
        resets = cls()
        for group, topic, queue_id, offset, stored_ms in rows:
            key = str(group), str(topic), index(queue_id)
            resets._add(key, PendingReset(index(offset), index(stored_ms)))
        return resets
