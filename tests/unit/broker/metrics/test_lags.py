"""How far groups are behind: of the node that takes messages only, and a bounded number of them."""

from dataclasses import dataclass, field

from broker.monitoring.lags import REFRESH_INTERVAL_S, ConsumerLags, QueueEnds
from broker.state.tables import OffsetTable


@dataclass(slots=True)
class Queue:
    max_offset: int


@dataclass(frozen=True, slots=True)
class Topic:
    read_queue_nums: int


@dataclass(slots=True)
class Queues:
    by_key: dict[tuple[str, int], Queue] = field(default_factory=dict)

    def get(self, topic: str, queue_id: int) -> Queue | None:
        return self.by_key.get((topic, queue_id))


@dataclass(slots=True)
class World:
    """A table of offsets, queues, and whether the node takes messages."""

    table: OffsetTable = field(default_factory=OffsetTable)
    queues: Queues = field(default_factory=Queues)
    is_writable: bool = True

    def lags(self, pairs_max: int = 10) -> ConsumerLags:
        return ConsumerLags(
            lambda: self.table,
            lambda: QueueEnds({"t": Topic(4)}.get, self.queues.get),
            lambda: self.is_writable,
            pairs_max,
        )


async def test_a_lag_is_what_lies_between_the_offsets_and_the_ends() -> None:
    world = World()
    world.table.commit("g", "t", {0: 10, 1: 5, 2: 0})
    world.queues.by_key = {("t", 0): Queue(30), ("t", 1): Queue(5), ("t", 3): Queue(9)}
    lags = world.lags()
    assert (lags.shown, lags.other) == ({}, None)
    await lags.refresh()
    assert (lags.shown, lags.other) == ({("t", "g"): 20}, 0)


async def test_those_that_are_behind_the_most_are_shown_and_the_others_as_one() -> None:
    world = World()
    for number in range(500):
        world.table.commit(f"g{number:03}", "t", {0: number})
    world.queues.by_key = {("t", 0): Queue(500)}
    lags = world.lags(pairs_max=2)
    await lags.refresh()
    assert lags.shown == {("t", "g000"): 500, ("t", "g001"): 499}
    assert lags.other == sum(range(1, 499))


async def test_a_node_that_takes_no_messages_any_more_tells_nothing() -> None:
    world = World()
    world.table.commit("g", "t", {0: 0})
    world.queues.by_key = {("t", 0): Queue(5)}
    lags = world.lags()
    await lags.refresh()
    world.is_writable = False
    await lags.refresh()
    assert (lags.shown, lags.other) == ({}, None)


async def test_who_asks_often_gets_the_same_again() -> None:
    world = World()
    world.table.commit("g", "t", {0: 0})
    world.queues.by_key = {("t", 0): Queue(5)}
    lags = world.lags()
    await lags.refresh()
    world.queues.by_key[("t", 0)].max_offset = 9
    await lags.refresh()
    assert lags.shown == {("t", "g"): 5}
    assert REFRESH_INTERVAL_S > 1
