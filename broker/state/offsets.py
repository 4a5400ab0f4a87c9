"""Consumer offsets: for each (topic, group) the next message to consume in each queue."""

from collections.abc import Iterator, Mapping
from operator import index
from typing import Any


class OffsetTable:
    """The last committed offset of every queue a group has consumed. Changed only by records of the log."""

    __slots__ = ("_count", "_own", "_table")

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._count = 0
        self._own: set[tuple[str, str]] | None = None
        """The rows that no copy shares; None: all."""

    def __len__(self) -> int:
        """Number of (group, topic, queue) with an offset."""
        return self._count

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None when the group never committed one for the queue."""
        queues = self._table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed offset of every queue of the topic that the group has one for."""
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Topics the group has committed offsets for, in alphabetical order."""
        return sorted(topic for topic, owner in self._table if owner == group)

    def items(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """All (topic, group, offsets by queue)."""
        for (topic, group), queues in self._table.items():
            yield topic, group, queues

    def pairs(self) -> list[tuple[str, str]]:
        """All (topic, group) pairs at this moment, as a list that callers may read over several turns of the
        event loop.
        """
        return list(self._table)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        key = (topic, group)
        queues = self._table.get(key, {})
        if not queues or (self._own is not None and key not in self._own):
            queues = self._table[key] = dict(queues)
            if self._own is not None:
                self._own.add(key)
        before = len(queues)
        queues.update(offsets)
        self._count += len(queues) - before

    def copy(self) -> "OffsetTable":
        """A copy of the current offsets. Both tables share each row until one of them changes it."""
        other = OffsetTable()
        other._table = dict(self._table)
        other._count = self._count
        self._own, other._own = set(), set()
        return other

    def drop_topic(self, topic: str) -> None:
        self._drop([key for key in self._table if key[0] == topic])

    def drop_group(self, group: str) -> None:
        self._drop([key for key in self._table if key[1] == group])

    def drop(self, group: str, topic: str) -> None:
        self._drop([key for key in ((topic, group),) if key in self._table])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._count -= len(self._table.pop(key))
            if self._own is not None:
                self._own.discard(key)

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot, one by one: there may be a million."""
        for (topic, group), queues in self._table.items():
            yield [topic, group, sorted(queues.items())]

    def to_json(self) -> list[list[Any]]:
        return list(self.rows())

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> "OffsetTable":
        table = cls()
        for topic, group, queues in rows:
            offsets = {index(queue_id): index(offset) for queue_id, offset in queues}
            table.commit(str(group), str(topic), offsets)
        return table
