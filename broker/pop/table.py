"""All lanes of a broker, and what each op does to them. Pure: the same ops give the same table; the times at
which checkouts end are on the clock of whoever leads.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from broker.pop.deadlines import Deadlines
from broker.pop.group_queue import Checkout, Lane, OrderBatch, Pending, left_ms
from broker.pop.ops import (
    Changed,
    Dropped,
    Finished,
    LaneKey,
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


class PopTable:
    """`in_flight` counts the messages that are out, of all lanes."""

    def __init__(self) -> None:
        self.lanes: dict[LaneKey, Lane] = {}
        self.in_flight = 0
        self.deadlines: Deadlines[Checkout] = Deadlines()
        """When each checkout ends that has something out; empty until `start_clock`."""
        self._is_ticking = False

    def start_clock(self, wall_ms: int, now_ms: int) -> None:
        """Set the end of all that is out, on a monotonic clock that shows `now_ms`. The wall clock says how
        much of its time each has had, and may be wrong: none ends later than its whole time from now.
        """
        self._is_ticking = True
        for lane in self.lanes.values():
            if lane.order is not None:
                lane.order.start_clock(wall_ms, now_ms)
            for checkout in dict.fromkeys(lane.out.values()):
                left = left_ms(checkout.pop_time_ms, checkout.invisible_ms, wall_ms)
                self.deadlines.add(checkout, now_ms + left)

    def apply(self, op: Op, now_ms: int = 0) -> None:
        """Take in what happened, at this time of the monotonic clock."""
        key = op.key
        match op:
            case Finished(_, offsets):
                lane = self.lanes.get(key)
                if lane is not None:
                    self._finish(lane, offsets)
            case Popped(_, offsets, next_offset, pop_time_ms, invisible_ms):
                lane = self._lane(key)
                self._finish(lane, offsets)
                self.check_out(lane, offsets, pop_time_ms, invisible_ms, now_ms)
                lane.next_offset = next_offset
            case PoppedInOrder():
                self._pop_in_order(self._lane(key), op, now_ms)
            case Changed(_, offset, pop_time_ms, invisible_ms):
                lane = self.lanes.get(key)
                if lane is not None:
                    self._change(lane, offset, pop_time_ms, invisible_ms, now_ms)
            case Sought(_, next_offset):
                self._clear(self._lane(key)).next_offset = next_offset
            case Dropped():
                if key in self.lanes:
                    self._clear(self.lanes.pop(key))

    def forget(self, key: LaneKey) -> None:
        """Drop a lane that is idle, and of which the replicated offsets say all."""
        lane = self.lanes.pop(key)
        assert lane.is_idle(), f"{key} has {lane.in_flight} messages out"

    def _lane(self, key: LaneKey) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key)
        return lane

    def check_out(
        self, lane: Lane, offsets: tuple[int, ...], pop_time_ms: int, invisible_ms: int, now_ms: int
    ) -> None:
        """These are out from now on. Part of an op."""
        if not offsets:
            return
        checkout = Checkout(lane, offsets, pop_time_ms, invisible_ms, len(offsets))
        lane.out.update(dict.fromkeys(offsets, checkout))
        self.in_flight += len(offsets)
        if self._is_ticking:
            self.deadlines.add(checkout, now_ms + invisible_ms)

    def _finish(self, lane: Lane, offsets: Iterable[int]) -> None:
        for offset in offsets:
            checkout = lane.out.pop(offset, None)
            if checkout is not None:
                self._leave(checkout)
            elif lane.order is not None and lane.order.pending.pop(offset, None) is not None:
                self.in_flight -= 1

    def _leave(self, checkout: Checkout) -> None:
        self.in_flight -= 1
        checkout.left -= 1
        if not checkout.left:
            self.deadlines.discard(checkout)

    def _change(self, lane: Lane, offset: int, pop_time_ms: int, invisible_ms: int, now_ms: int) -> None:
        old = lane.out.get(offset)
        if old is not None:
            self._leave(old)
            self.check_out(lane, (offset,), pop_time_ms, invisible_ms, now_ms)
        elif lane.order is not None and offset in lane.order.pending:
            lane.order.pending[offset] = Pending(pop_time_ms, invisible_ms, now_ms + invisible_ms)

    def _pop_in_order(self, lane: Lane, op: PoppedInOrder, now_ms: int) -> None:
        before = lane.order
        counts: dict[int, int] = {}
        if before is not None:
            self.in_flight -= len(before.pending)
            step = 0 if before.is_same_attempt(op.attempt_id) else 1
            known = {offset: before.counts.get(offset, 0) + step for offset in before.offsets}
            counts = {offset: known[offset] for offset in op.offsets if known.get(offset)}
        ends_ms = now_ms + op.invisible_ms
        pending = {offset: Pending(op.pop_time_ms, op.invisible_ms, ends_ms) for offset in op.offsets}
        lane.order = OrderBatch(op.pop_time_ms, op.invisible_ms, op.attempt_id, op.offsets, pending, counts)
        lane.next_offset = op.next_offset
        self.in_flight += len(pending)

    def _clear(self, lane: Lane) -> Lane:
        for checkout in dict.fromkeys(lane.out.values()):
            self.deadlines.discard(checkout)
        self.in_flight -= lane.in_flight
        lane.out = {}
        lane.order = None
        return lane

    def rows(self, without: AbstractSet[LaneKey] = frozenset()) -> Iterator[list[Any]]:
        """What `restored` makes the table of, these lanes aside. The list that ends an `l` is for nodes of
        earlier versions, which had there what was acknowledged behind what was not. Those pass over the list
        that ends an `o`: for how long each of `pending` is invisible.
        """
        for lane in [lane for lane in self.lanes.values() if lane.key not in without]:
            yield ["l", *lane.key, lane.next_offset, []]
            for checkout in dict.fromkeys(lane.out.values()):
                is_whole = checkout.left == len(checkout.offsets)
                runs = to_runs(checkout.offsets if is_whole else tuple(checkout.still_out()))
                yield ["c", checkout.pop_time_ms, checkout.invisible_ms, runs]
            order = lane.order
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
        self._lane: Lane | None = None

    def add(self, rows: Iterable[list[Any]]) -> None:
        """The next rows. Raises PopRecordError."""
        table = self._table
        try:
            for row in rows:
                if row[0] == "l":
                    self._lane = table.lanes.setdefault(key := read_key(row), Lane(key))
                    self._lane.next_offset = whole(row[4])
                elif self._lane is None:
                    raise ValueError(f"a row {row[0]!r} of no lane")
                elif row[0] == "c":
                    table.check_out(self._lane, from_runs(row[3]), whole(row[1]), whole(row[2]), 0)
                else:
                    order = self._lane.order = _order_batch(row)
                    table.in_flight += len(order.pending)
        except (ValueError, TypeError, IndexError) as error:
            raise PopRecordError(f"a snapshot of what is out cannot be read: {error!r}") from error

    def table(self) -> PopTable:
        """Made of all of them."""
        for lane in self._table.lanes.values():
            lane.out = dict(sorted(lane.out.items()))
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
