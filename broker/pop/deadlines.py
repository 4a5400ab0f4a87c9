"""Items by deadline, for timers of many items. Pure: the time is an argument.

Deadlines are rounded up to whole buckets, so that adding and removing have constant cost, independent of the
number of items, and an item that is removed before its deadline leaves no entry behind.
"""

import heapq
from typing import Generic, TypeVar

BUCKET_MS = 50
EMPTY_MAX = 1_024
"""More empty buckets than this, and than items, are removed."""

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Items by deadline; an item is there once at most."""

    def __init__(self, bucket_ms: int = BUCKET_MS) -> None:
        self._bucket_ms = bucket_ms
        self._buckets: dict[int, dict[T, None]] = {}
        self._order: list[int] = []
        self._bucket_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def add(self, item: T, deadline_ms: int) -> None:
        """Set the item's deadline; an item that is there already gets the new one."""
        self.discard(item)
        at = -(-deadline_ms // self._bucket_ms)
        bucket = self._buckets.get(at)
        if bucket is None:
            bucket = self._buckets[at] = {}
            heapq.heappush(self._order, at)
        bucket[item] = None
        self._bucket_of[item] = at

    def discard(self, item: T) -> None:
        at = self._bucket_of.pop(item, None)
        if at is not None:
            del self._buckets[at][item]
            if len(self._buckets) > 2 * len(self._bucket_of) + EMPTY_MAX:
                self._buckets = {at: bucket for at, bucket in self._buckets.items() if bucket}
                self._order = sorted(self._buckets)

    def pop_due(self, now_ms: int) -> list[T]:
        """Remove and return the due items, the earliest first."""
        due: list[T] = []
        while self._order and self._order[0] * self._bucket_ms <= now_ms:
            due.extend(self._buckets.pop(heapq.heappop(self._order)))
        for item in due:
            del self._bucket_of[item]
        return due

    def earliest_ms(self) -> int | None:
        """When something is due next; None when nothing waits."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return self._order[0] * self._bucket_ms if self._order else None
