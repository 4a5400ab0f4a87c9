"""What groups have in flight by POP, queue by queue, and what each op changes. Pure: the same ops give the
same table.

The wall-clock times in it are those of the leader that wrote the op; the times at which batches end are on
the monotonic clock of the present leader.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from broker.pop.deadlines import Deadlines
from broker.pop.ops import (
    Changed,
    Dropped,
    Finished,
    GroupQueueKey,
    Op,
    Popped,
    PoppedInOrder,
    PopRecordError,
    Sought,
    from_runs,
    read_attempt,
    read_key,
    to_runs,
    whole,
)


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
    """The rest of a message's invisible time at this wall-clock time: never more than the whole of it, since
    the clock may have been set back.
    """
    return min(max(since_ms + invisible_ms - wall_ms, 0), invisible_ms)


@dataclass(slots=True)
class OrderBatch:
    """What a group that consumes in order has of the queue. `pending` are those that it did not acknowledge,
    by offset; `counts`, how often each was handed out before. When the invisible times of all of these ended,
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
        """Whether nothing is in flight: then the next offset is its whole state."""
        return not self.out and (self.order is None or not self.order.pending)


class PopTable:
    """`in_flight` counts the messages in flight, of all queues."""

    def __init__(self) -> None:
        self.group_queues: dict[GroupQueueKey, GroupQueue] = {}
        self.in_flight = 0
        self.deadlines: Deadlines[InFlightBatch] = Deadlines()
        """When each batch ends that has messages in flight; empty until `start_clock`."""
        self._is_ticking = False

    def start_clock(self, wall_ms: int, now_ms: int) -> None:
        """Set the end of every in-flight message's invisible time, on a monotonic clock that shows `now_ms`.
        The elapsed part is computed from the wall clock, which may be wrong: no message ends later than its
        whole invisible time from now.
        """
        self._is_ticking = True
        for group_queue in self.group_queues.values():
            if group_queue.order is not None:
                group_queue.order.start_clock(wall_ms, now_ms)
            for in_flight_batch in dict.fromkeys(group_queue.out.values()):
                left = left_ms(in_flight_batch.pop_time_ms, in_flight_batch.invisible_ms, wall_ms)
                self.deadlines.add(in_flight_batch, now_ms + left)

    def apply(self, op: Op, now_ms: int = 0) -> None:
        """Apply one op, at this time of the monotonic clock."""
        key = op.key
        match op:
            case Finished(_, offsets):
                group_queue = self.group_queues.get(key)
                if group_queue is not None:
                    self._finish(group_queue, offsets)
            case Popped(_, offsets, next_offset, pop_time_ms, invisible_ms):
                group_queue = self._group_queue(key)
                # A group that was moved back pops messages that are in flight by an ordered pop, too.
                self._finish(group_queue, offsets)
                self.hand_out(group_queue, offsets, pop_time_ms, invisible_ms, now_ms)
                group_queue.next_offset = next_offset
            case PoppedInOrder():
                self._pop_in_order(self._group_queue(key), op, now_ms)
            case Changed(_, offset, pop_time_ms, invisible_ms):
                group_queue = self.group_queues.get(key)
                if group_queue is not None:
                    self._change(group_queue, offset, pop_time_ms, invisible_ms, now_ms)
            case Sought(_, next_offset):
                self._clear(self._group_queue(key)).next_offset = next_offset
            case Dropped():
                if key in self.group_queues:
                    self._clear(self.group_queues.pop(key))

    def drop_idle(self, key: GroupQueueKey) -> None:
        """Drop a queue that is idle: the replicated offsets say all of it."""
        group_queue = self.group_queues.pop(key)
        assert group_queue.is_idle(), f"{key} has {group_queue.in_flight} messages out"

    def _group_queue(self, key: GroupQueueKey) -> GroupQueue:
        group_queue = self.group_queues.get(key)
        if group_queue is None:
            group_queue = self.group_queues[key] = GroupQueue(key)
        return group_queue

    def hand_out(
        self,
        group_queue: GroupQueue,
        offsets: tuple[int, ...],
        pop_time_ms: int,
        invisible_ms: int,
        now_ms: int,
    ) -> None:
        """These are in flight from now on. Part of an op."""
        if not offsets:
            return
        in_flight_batch = InFlightBatch(group_queue, offsets, pop_time_ms, invisible_ms, len(offsets))
        group_queue.out.update(dict.fromkeys(offsets, in_flight_batch))
        self.in_flight += len(offsets)
        if self._is_ticking:
            self.deadlines.add(in_flight_batch, now_ms + invisible_ms)

    def _finish(self, group_queue: GroupQueue, offsets: Iterable[int]) -> None:
        for offset in offsets:
            in_flight_batch = group_queue.out.pop(offset, None)
            if in_flight_batch is not None:
                self._leave(in_flight_batch)
            elif group_queue.order is not None and group_queue.order.pending.pop(offset, None) is not None:
                self.in_flight -= 1

    def _leave(self, in_flight_batch: InFlightBatch) -> None:
        self.in_flight -= 1
        in_flight_batch.left -= 1
        assert in_flight_batch.left >= 0, f"{in_flight_batch.offsets} left their batch more often than once"
        assert self.in_flight >= 0, f"{self.in_flight} messages are in flight"
        if not in_flight_batch.left:
            self.deadlines.discard(in_flight_batch)

    def _change(
        self, group_queue: GroupQueue, offset: int, pop_time_ms: int, invisible_ms: int, now_ms: int
    ) -> None:
        old = group_queue.out.get(offset)
        if old is not None:
            self._leave(old)
            self.hand_out(group_queue, (offset,), pop_time_ms, invisible_ms, now_ms)
        elif group_queue.order is not None and offset in group_queue.order.pending:
            group_queue.order.pending[offset] = Pending(pop_time_ms, invisible_ms, now_ms + invisible_ms)

    def _pop_in_order(self, group_queue: GroupQueue, op: PoppedInOrder, now_ms: int) -> None:
        before = group_queue.order
        counts: dict[int, int] = {}
        if before is not None:
            self.in_flight -= len(before.pending)
            step = 0 if before.is_same_attempt(op.attempt_id) else 1
            known = {offset: before.counts.get(offset, 0) + step for offset in before.offsets}
            counts = {offset: known[offset] for offset in op.offsets if known.get(offset)}
        ends_ms = now_ms + op.invisible_ms
        pending = {offset: Pending(op.pop_time_ms, op.invisible_ms, ends_ms) for offset in op.offsets}
        group_queue.order = OrderBatch(
            op.pop_time_ms, op.invisible_ms, op.attempt_id, op.offsets, pending, counts
        )
        group_queue.next_offset = op.next_offset
        self.in_flight += len(pending)

    def _clear(self, group_queue: GroupQueue) -> GroupQueue:
        for in_flight_batch in dict.fromkeys(group_queue.out.values()):
            self.deadlines.discard(in_flight_batch)
        self.in_flight -= group_queue.in_flight
        assert self.in_flight >= 0, f"{self.in_flight} messages are in flight"
        group_queue.out = {}
        group_queue.order = None
        return group_queue

    def rows(self, without: AbstractSet[GroupQueueKey] = frozenset()) -> Iterator[list[Any]]:
        """What `restored` makes the table of, without these queues. The list that ends an `l` is for nodes of
        earlier versions, which had there what was acknowledged behind what was not. Those pass over the list
        that ends an `o`: for how long each of `pending` is invisible.
        """
        for group_queue in [
            group_queue for group_queue in self.group_queues.values() if group_queue.key not in without
        ]:
            yield ["l", *group_queue.key, group_queue.next_offset, []]
            for in_flight_batch in dict.fromkeys(group_queue.out.values()):
                is_whole = in_flight_batch.left == len(in_flight_batch.offsets)
                runs = to_runs(in_flight_batch.offsets if is_whole else tuple(in_flight_batch.still_out()))
                yield ["c", in_flight_batch.pop_time_ms, in_flight_batch.invisible_ms, runs]
            order = group_queue.order
            if order is not None:
                pending = [(offset, each.until_ms) for offset, each in order.pending.items()]
                times = [each.invisible_ms for each in order.pending.values()]
                batch = order.pop_time_ms, order.invisible_ms, order.attempt_id, list(order.offsets)
                yield ["o", *batch, pending, list(order.counts.items()), times]

    @classmethod
    def restored(cls, rows: Iterable[list[Any]]) -> "PopTable":
        """The table that had these rows. Raises PopRecordError."""
        restoring = Restoring()
        restoring.add(rows)
        return restoring.table()


class Restoring:
    """Makes a table of its rows, a part at a time: there may be very many."""

    def __init__(self) -> None:
        self._table = PopTable()
        self._group_queue: GroupQueue | None = None

    def add(self, rows: Iterable[list[Any]]) -> None:
        """The next rows. Raises PopRecordError."""
        table = self._table
        try:
            for row in rows:
                if row[0] == "l":
                    self._group_queue = table.group_queues.setdefault(key := read_key(row), GroupQueue(key))
                    self._group_queue.next_offset = whole(row[4])
                elif self._group_queue is None:
                    raise ValueError(f"a row {row[0]!r} of no queue")
                elif row[0] == "c":
                    table.hand_out(self._group_queue, from_runs(row[3]), whole(row[1]), whole(row[2]), 0)
                else:
                    order = self._group_queue.order = _order_batch(row)
                    table.in_flight += len(order.pending)
        except (ValueError, TypeError, IndexError) as error:
            raise PopRecordError(f"a snapshot of messages in flight cannot be read: {error!r}") from error

    def table(self) -> PopTable:
        """Made of all of them."""
        for group_queue in self._table.group_queues.values():
            group_queue.out = dict(sorted(group_queue.out.items()))
        return self._table


def _order_batch(row: list[Any]) -> OrderBatch:
    """Raises ValueError, TypeError, IndexError."""
    pop_time_ms = whole(row[1])
    until = {whole(offset): whole(until_ms) for offset, until_ms in row[5]}
    if len(row) > 7:
        times = [whole(invisible_ms) for invisible_ms in row[7]]
    else:  # of an earlier version: none was invisible for longer than from the pop to its end
        times = [max(until_ms - pop_time_ms, 0) for until_ms in until.values()]
    return OrderBatch(
        pop_time_ms,
        whole(row[2]),
        read_attempt(row[3]),
        tuple(whole(offset) for offset in row[4]),
        {
            offset: Pending(until_ms - invisible_ms, invisible_ms, 0)
            for (offset, until_ms), invisible_ms in zip(until.items(), times, strict=True)
        },
        {whole(offset): whole(count) for offset, count in row[6]},
    )
