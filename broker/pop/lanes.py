"""One queue as one group pops it: where it goes on, and what is out. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.pop.ops import LaneKey

CLOCK_STEP_MAX_MS = 60_000
"""How far the clocks of two leaders may lie apart."""


@dataclass(slots=True, eq=False)
class Checkout:
    """Messages that were handed out together. Those of `offsets` that are out still are `left` in number."""

    lane: "Lane"
    offsets: tuple[int, ...]
    pop_time_ms: int
    invisible_ms: int
    left: int

    def still_out(self) -> Iterator[int]:
        """The offsets that nobody finished or changed since."""
        out = self.lane.out
        return (offset for offset in self.offsets if out.get(offset) is self)


@dataclass(slots=True)
class OrderBatch:
    """What a group that consumes in order has of the queue. `pending` are those that it did not acknowledge,
    with the time from which each may be handed out again; `counts`, how often each was before. When all of
    these times are over, the next batch begins at the first that is pending, with all that follows it: what
    was acknowledged behind it comes again, as in RocketMQ, where the order is whole for whoever gets it.
    """

    pop_time_ms: int
    invisible_ms: int
    attempt_id: str | None
    offsets: tuple[int, ...]
    pending: dict[int, int]
    counts: dict[int, int] = field(default_factory=dict)

    def free_at_ms(self, now_ms: int) -> int:
        """When all that is pending may be handed out again; a time that is over if it may now. A batch from
        the far future may: the clock was set back since.
        """
        if not self.pending or self.pop_time_ms > now_ms + CLOCK_STEP_MAX_MS:
            return now_ms
        return max(self.pending.values())

    def is_same_attempt(self, attempt_id: str | None) -> bool:
        return attempt_id is not None and attempt_id == self.attempt_id


class Lane:
    """The next pop begins at `next_offset`; `out` has each invisible message's checkout, lowest first."""

    __slots__ = ("key", "next_offset", "order", "out")

    def __init__(self, key: LaneKey, next_offset: int = 0) -> None:
        self.key = key
        self.next_offset = next_offset
        self.out: dict[int, Checkout] = {}
        self.order: OrderBatch | None = None

    @property
    def in_order(self) -> int:
        """So many are out in order; the next pop in order takes their place."""
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
        """Whether its next offset is all there is to know."""
        return not self.out and (self.order is None or not self.order.pending)
