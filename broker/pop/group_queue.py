"""One queue as one group pops it: where the next pop begins, and what is in flight. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.pop.ops import GroupQueueKey


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """Messages that were handed out together; `left` of them are still in flight."""

    group_queue: "GroupQueue"
    offsets: tuple[int, ...]
    pop_time_ms: int
    invisible_ms: int
    left: int

    def still_out(self) -> Iterator[int]:
        """The offsets that were neither finished nor changed since."""
        out = self.group_queue.out
        return (offset for offset in self.offsets if out.get(offset) is self)


@dataclass(slots=True)
class Pending:
    """A message in flight in order, for `invisible_ms` from `since_ms` on: by the wall clock of the leader
    that wrote it. `ends_ms` is on the monotonic clock of the present leader, so that a wall clock that is set
    neither hands it out too early nor blocks the queue for as long as the step was.
    """

    since_ms: int
    invisible_ms: int
    ends_ms: int

    @property
    def until_ms(self) -> int:
        """When it may be handed out again, by the wall clock: as it is written to the log."""
        return self.since_ms + self.invisible_ms


def left_ms(since_ms: int, invisible_ms: int, wall_ms: int) -> int:
    """How much of its time a message has left when the wall clock, which may be wrong, shows this: never more
    than all of it.
    """
    return min(max(since_ms + invisible_ms - wall_ms, 0), invisible_ms)


@dataclass(slots=True)
class OrderBatch:
    """What a group that consumes in order has of the queue. `pending` are those that it did not acknowledge,
    by offset; `counts`, how often each was handed out before. When the times of all that is pending are over,
    the next batch begins at the first that is pending, with all that follows it: what was acknowledged behind
    it comes again, as in RocketMQ: each consumer gets the order without gaps.
    """

    pop_time_ms: int
    invisible_ms: int
    attempt_id: str | None
    offsets: tuple[int, ...]
    pending: dict[int, Pending]
    counts: dict[int, int] = field(default_factory=dict)

    def free_at_ms(self, now_ms: int) -> int:
        """When all that is pending may be handed out again, by the monotonic clock; `now_ms` when nothing is
        pending.
        """
        return max((pending.ends_ms for pending in self.pending.values()), default=now_ms)

    def start_clock(self, wall_ms: int, now_ms: int) -> None:
        """Set the end of each pending message: none is later than its whole time from now."""
        for pending in self.pending.values():
            pending.ends_ms = now_ms + left_ms(pending.since_ms, pending.invisible_ms, wall_ms)

    def is_same_attempt(self, attempt_id: str | None) -> bool:
        return attempt_id is not None and attempt_id == self.attempt_id


class GroupQueue:
    """The next pop begins at `next_offset`; `out` has the batch of each invisible message, lowest first."""

    __slots__ = ("key", "next_offset", "order", "out")

    def __init__(self, key: GroupQueueKey, next_offset: int = 0) -> None:
        self.key = key
        self.next_offset = next_offset
        self.out: dict[int, InFlightBatch] = {}
        self.order: OrderBatch | None = None

    @property
    def in_order(self) -> int:
        """How many are in flight in order; the next pop in order replaces them."""
        return len(self.order.pending) if self.order is not None else 0

    @property
    def in_flight(self) -> int:
        return len(self.out) + self.in_order

    @property
    def order_start(self) -> int:
        """Where the next pop in order begins: at the first that was not acknowledged."""
        if self.order is not None and self.order.pending:
            return min(self.order.pending)
        return self.next_offset

    @property
    def floor(self) -> int:
        """Everything below was finished: the group's offset, as tools see it."""
        lowest = self.order_start if self.order is not None else self.next_offset
        return min(lowest, next(iter(self.out), lowest), self.next_offset)

    def is_idle(self) -> bool:
        """Whether its next offset is all that is known of it."""
        return not self.out and (self.order is None or not self.order.pending)
