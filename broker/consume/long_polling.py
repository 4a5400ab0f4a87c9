"""Pulls that wait for a message, by queue and by deadline (PullRequestHoldService). Pure: no clock, no loop.

Deadlines are rounded up to the next bucket. So holding and removing a pull have constant cost, independent of
the number of held pulls, and a pull that is resumed before its deadline leaves no entry behind.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from broker.consume.filters import MessageFilter

HELD_PULLS_MAX = 100_000
DEADLINE_BUCKET_MS = 100

QueueKey = tuple[str, int]
"""Topic and queue id."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One pull without an answer yet. `offset` is the first message it has not been matched against;
    `request` is what the owner of the table needs to answer it.
    """

    key: QueueKey
    offset: int
    filter: MessageFilter
    connection_id: int
    deadline_ms: int
    request: T


class Arrived(Protocol):
    """A message new in its queue; the log's DispatchRequest is one."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def tags_code(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Messages new in one queue: the offset after the last one, and each one's (offset, tags code)."""

    end_offset: int
    codes: Sequence[tuple[int, int]]


class LongPollingTable(Generic[T]):
    """All held pulls of a broker. `held_max` bounds it: at the bound `hold` refuses, and `make_room` releases
    pulls of the connection that holds the most.
    """

    def __init__(self, held_max: int = HELD_PULLS_MAX) -> None:
        self._held_max = held_max
        self._count = 0
        self._queues: dict[QueueKey, dict[HeldPull[T], None]] = {}
        """Ordered sets, here and below: in order of arrival."""
        self._connections: dict[int, dict[HeldPull[T], None]] = {}
        self._buckets: dict[int, dict[HeldPull[T], None]] = {}
        self._bucket_order: list[int] = []

    def __len__(self) -> int:
        return self._count

    @property
    def waiting_queues(self) -> AbstractSet[QueueKey]:
        """Queues with held pulls: a live view."""
        return self._queues.keys()

    def hold(self, pull: HeldPull[T]) -> bool:
        """Keep the pull until it is woken, expires or is dropped; False when the table is full."""
        if self._count >= self._held_max:
            return False
        pull.deadline_ms = -(-pull.deadline_ms // DEADLINE_BUCKET_MS) * DEADLINE_BUCKET_MS
        bucket = self._buckets.get(pull.deadline_ms)
        if bucket is None:
            bucket = self._buckets[pull.deadline_ms] = {}
            heapq.heappush(self._bucket_order, pull.deadline_ms)
        bucket[pull] = None
        self._queues.setdefault(pull.key, {})[pull] = None
        self._connections.setdefault(pull.connection_id, {})[pull] = None
        self._count += 1
        return True

    def make_room(self, connection_id: int) -> list[HeldPull[T]]:
        """Remove and return the later half of the pulls of the connection that has the most, so that one
        cannot keep all others from waiting; none if that is this connection.
        """
        most_id, pulls = max(self._connections.items(), key=lambda item: len(item[1]), default=(0, {}))
        if most_id == connection_id or len(pulls) <= len(self._connections.get(connection_id, ())) + 1:
            return []
        latest = sorted(pulls, key=lambda pull: pull.deadline_ms)[-(len(pulls) // 2) :]
        return self._take_out(latest)

    def wake(self, key: QueueKey, arrivals: Arrivals) -> list[HeldPull[T]]:
        """Remove and return the pulls of the queue that want one of the new messages. The others wait on,
        behind these messages unless there is a gap between them and what the pull was matched against.
        """
        woken = []
        for pull in self._queues.get(key, ()):
            if arrivals.end_offset <= pull.offset:
                continue
            if _wants(pull, arrivals):
                woken.append(pull)
            elif arrivals.codes[0][0] <= pull.offset:
                pull.offset = arrivals.end_offset
        return self._take_out(woken)

    def expire(self, now_ms: int) -> list[HeldPull[T]]:
        """Remove and return the pulls whose deadline has passed."""
        expired: list[HeldPull[T]] = []
        while self._bucket_order and self._bucket_order[0] <= now_ms:
            expired.extend(self._buckets.pop(heapq.heappop(self._bucket_order), ()))
        return self._take_out(expired)

    def drop_connection(self, connection_id: int) -> None:
        """Drop the pulls of a closed connection."""
        self._take_out(list(self._connections.get(connection_id, ())))

    def take_queue(self, key: QueueKey) -> list[HeldPull[T]]:
        """Remove and return every pull of a queue."""
        return self._take_out(list(self._queues.get(key, ())))

    def take_all(self) -> list[HeldPull[T]]:
        """Remove and return every pull."""
        return self._take_out([pull for pulls in self._queues.values() for pull in pulls])

    def earliest_deadline_ms(self) -> int | None:
        """When `expire` has work next; None when no pull is held."""
        while self._bucket_order and not self._buckets[self._bucket_order[0]]:
            del self._buckets[heapq.heappop(self._bucket_order)]
        return self._bucket_order[0] if self._bucket_order else None

    def _take_out(self, pulls: list[HeldPull[T]]) -> list[HeldPull[T]]:
        for pull in pulls:
            _discard(self._queues, pull.key, pull)
            _discard(self._connections, pull.connection_id, pull)
            # An empty bucket stays until its time: made and dropped over and over it would fill the heap.
            if pull.deadline_ms in self._buckets:
                self._buckets[pull.deadline_ms].pop(pull, None)
        self._count -= len(pulls)
        return pulls


K = TypeVar("K")


def _discard(table: dict[K, dict[HeldPull[T], None]], key: K, pull: HeldPull[T]) -> None:
    pulls = table.get(key)
    if pulls is None:
        return
    pulls.pop(pull, None)
    if not pulls:
        del table[key]


def _wants(pull: HeldPull[T], arrivals: Arrivals) -> bool:
    matches = pull.filter.matches
    return any(matches(code) for offset, code in arrivals.codes if offset >= pull.offset)


def group_arrivals(keys: AbstractSet[QueueKey], messages: Iterable[Arrived]) -> dict[QueueKey, Arrivals]:
    """Arrivals by queue for the queues in `keys`, from messages in log order."""
    codes: defaultdict[QueueKey, list[tuple[int, int]]] = defaultdict(list)
    for message in messages:
        key = (message.topic, message.queue_id)
        if key in keys:
            codes[key].append((message.queue_offset, message.tags_code))
    return {key: Arrivals(rows[-1][0] + 1, rows) for key, rows in codes.items()}
