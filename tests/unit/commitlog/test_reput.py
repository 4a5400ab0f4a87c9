"""Dispatching in stretches, against a source of made-up records."""

import asyncio
from pathlib import Path

import pytest

from commitlog import indexed_log as reput
from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch import Applied, DispatchBatch, DispatchRequest
from commitlog.errors import DamagedRecordError
from commitlog.indexed_log import Reput
from tests.support.memory_fs import MemoryFs

STRETCH = 10


class Source:
    """Entry i is message i of queue 0, 100 bytes at position 100·i."""

    min_position = 0

    def __init__(self) -> None:
        self.broken_at: int | None = None

    def record_at(self, position: int) -> bytes | None:
        return None

    def store_timestamp_at(self, position: int) -> int | None:
        return None

    def requests_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        last_index = min(last_index, index + STRETCH - 1)
        if self.broken_at is not None and index <= self.broken_at <= last_index:
            raise RuntimeError("broken")
        found = [
            DispatchRequest(at, "T", 0, at, at * 100, 100, 0, 0, 0) for at in range(index, last_index + 1)
        ]
        return DispatchBatch.of(found), Applied(last_index, (last_index + 1) * 100)


class Bench:
    """A Reput with all its surroundings."""

    def __init__(self, applied: Applied | None = None, buffered_bytes_max: int = 1 << 20) -> None:
        self.source = Source()
        config = ConsumeQueueConfig(buffered_bytes_max=buffered_bytes_max)
        self.queues = ConsumeQueues(MemoryFs(), Path("/store"), config, self.source)
        self.queues.load(-1, 0)
        self.heard: list[int] = []
        self.applied_at: list[int] = []
        self.errors: list[Exception] = []
        self.reput = Reput(
            self.source.requests_from,
            self.queues,
            applied or Applied(),
            lambda: None,
            lambda: self.applied_at.append(self.reput.applied.index),
            self.errors.append,
        )
        self.reput.add_listener(self.listen)

    def listen(self, requests: DispatchBatch) -> None:
        assert self.queues.next_offset("T", 0) > requests[-1].queue_offset
        self.heard += [request.index for request in requests]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_first_stretch_is_dispatched_at_once_and_the_rest_turn_by_turn() -> None:
    bench = Bench()
    bench.reput.advance_to(34)
    assert bench.heard == list(range(10))
    await asyncio.sleep(0)
    assert len(bench.heard) == 20
    bench.reput.advance_to(35)
    assert len(bench.heard) == 20
    await settle()
    assert bench.heard == list(range(36))
    assert bench.applied_at == [9, 19, 29, 35]
    assert bench.reput.seconds.count == 4
    assert bench.reput.applied == Applied(35, 3600)


async def test_commit_index_that_does_not_grow_changes_nothing() -> None:
    bench = Bench()
    bench.reput.advance_to(5)
    bench.reput.advance_to(3)
    assert bench.heard == list(range(6))


async def test_replay_gives_listeners_the_messages_again_and_the_queues_keep_theirs() -> None:
    bench = Bench(Applied(19, 2000))
    for first, last in ((0, 9), (10, 19)):
        bench.queues.put_all(bench.source.requests_from(first, last)[0])
    bench.reput.replay_from(7, 700)
    assert bench.reput.queued == Applied(19, 2000)
    bench.reput.advance_to(21)
    await settle()
    assert bench.heard == list(range(7, 22))
    assert bench.queues.next_offset("T", 0) == 22
    assert bench.reput.queued == Applied(21, 2200)


async def test_listener_that_asks_for_it_is_given_a_part_again_alone_before_anything_new() -> None:
    bench = Bench()
    again: list[int] = []

    def ask(requests: DispatchBatch) -> None:
        is_first = not again
        again.extend(request.index for request in requests)
        if is_first and requests[-1].index == 29:
            again.clear()
            bench.reput.redeliver_from(ask, 4, 400)
            assert bench.reput.delivered_index == 3
        elif not again:
            again.append(-1)

    def wait_for_29(requests: DispatchBatch) -> None:
        if requests[-1].index == 29 or again:
            ask(requests)

    bench.reput.add_listener(wait_for_29)
    bench.reput.advance_to(45)
    await settle()
    await settle()
    assert bench.heard == list(range(46))
    assert again == [*range(4, 30), *range(30, 46)]
    assert bench.reput.delivered_index == 45


async def test_replay_from_behind_the_queues_begins_with_the_queues() -> None:
    bench = Bench(Applied(4, 500))
    bench.reput.replay_from(9, 900)
    bench.reput.advance_to(10)
    assert bench.heard == list(range(5, 11))


async def test_full_queues_hold_dispatching_until_a_flush() -> None:
    bench = Bench(buffered_bytes_max=300)
    bench.reput.advance_to(49)
    await settle()
    assert len(bench.heard) == 20
    writes = bench.queues.take_writes(bench.reput.queued)
    assert writes is not None
    bench.queues.write(writes)
    bench.queues.written(writes)
    bench.reput.resume()
    await settle()
    assert len(bench.heard) == 40


async def test_error_stops_dispatching_and_is_told_once() -> None:
    bench = Bench()
    bench.source.broken_at = 25
    bench.reput.advance_to(40)
    await settle()
    bench.reput.advance_to(41)
    await settle()
    assert bench.heard == list(range(20))
    assert [str(error) for error in bench.errors] == ["broken"]


async def test_listener_that_finds_damage_is_given_the_stretch_again_and_nothing_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reput, "DAMAGE_RETRY_S", 0.0)
    bench = Bench()
    told_at: list[int] = []
    late: list[int] = []

    def read(requests: DispatchBatch) -> None:
        told_at.append(bench.reput.delivered_index)
        if len(told_at) in {2, 3}:
            raise DamagedRecordError("of entry 15")
        late.extend(request.index for request in requests)

    bench.reput.add_listener(read)
    bench.reput.advance_to(34)
    assert late == list(range(10))
    await asyncio.sleep(0)
    assert bench.heard == list(range(20))
    assert (bench.reput.applied.index, bench.reput.delivered_index) == (19, 9)
    await settle()
    assert late == bench.heard == list(range(35))
    assert bench.applied_at == [9, 19, 29, 34]
    assert (bench.errors, bench.reput.delivered_index) == ([], 34)


async def test_stop_ends_dispatching() -> None:
    bench = Bench()
    bench.reput.advance_to(40)
    bench.reput.stop()
    await settle()
    assert len(bench.heard) == 10
