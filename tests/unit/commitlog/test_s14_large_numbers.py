"""S14: indexes, positions and offsets on both sides of 2**31 and 2**32 compare right everywhere."""

import dataclasses
import errno
from pathlib import Path

import pytest

from commitlog.checkpoint import Checkpoint, decode_checkpoint
from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch import Applied, DispatchBatch, DispatchRequest
from commitlog.entry_store import EntryStore
from commitlog.record import Message, encode_record
from dledger.core.types import DamagedEntryError, Epoch
from tests.support.log_entries import DIRECTORY, SMALL, Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs

BOUNDARIES = (2**31, 2**32, 2**33)
COUNT = 40


def filled(fs: MemoryFs, boundary: int) -> EntryStore:
    """A log whose indexes and positions pass the boundary half way."""
    store = open_small(fs, dataclasses.replace(SMALL, cache_bytes_max=1))
    store.reset(boundary - COUNT // 2, boundary - 2048)
    for number in range(COUNT):
        store.append_bodies(store.end_index + 1, 1 + number // 20, [bytes([number]) * 52])
    write_all(store)
    return store


def expected(count: int) -> list[Stored]:
    return [Stored(1 + number // 20, bytes([number]) * 52) for number in range(count)]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_s14_log_is_found_again(boundary: int) -> None:
    fs = MemoryFs()
    store = filled(fs, boundary)
    assert store.position_of(store.begin_index) < boundary < store.position_of(store.end_index)
    assert store.begin_index < boundary < store.end_index
    store.save_checkpoint(store.end_index, boundary + 3)
    again = open_small(fs)
    assert (again.begin_index, read_all(again)) == (boundary - COUNT // 2, expected(COUNT))
    state = again.log_state()
    assert state.epochs == (Epoch(1, boundary - COUNT // 2), Epoch(2, boundary))
    assert state.commit_index == boundary + 3


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kept", [19, 20, 21])
def test_s14_cut_and_promises_around_the_boundary(boundary: int, kept: int) -> None:
    fs = MemoryFs()
    store = filled(fs, boundary)
    store.save_checkpoint(store.end_index, store.end_index)
    store.truncate_from(store.begin_index + kept)
    write_all(store)
    again = open_small(fs)  # neither mark nor checkpoint speak of more
    assert read_all(again) == expected(kept)
    again.append_bodies(again.end_index + 1, 9, [b"new"])
    write_all(again)
    assert read_all(open_small(fs))[-1] == Stored(9, b"new")


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_s14_damage_is_told_cut_found_and_mended(boundary: int) -> None:
    fs = MemoryFs()
    store = filled(fs, boundary)
    good = store.read_range(boundary - 15, boundary - 15, 1)
    position = store.position_of(boundary - 15)
    path = DIRECTORY / "data" / f"{position - position % 1024:020d}"
    fs.flip(path, position % 1024 + 60, 1)
    store.save_checkpoint(store.end_index, store.end_index)
    scrubbed = store.scrub(1 << 20)
    assert [(error.first_index, error.last_index) for error in scrubbed.damaged] == [(boundary - 15,) * 2]
    with pytest.raises(DamagedEntryError):
        store.read_bodies([(position + 48, 52)])
    store.replace_range(good)
    assert bytes(store.read_bodies([(position + 48, 52)])[0]) == bytes([5]) * 52
    last = store.position_of(store.end_index)
    fs.flip(DIRECTORY / "data" / f"{last - last % 1024:020d}", last % 1024 + 60, 1)
    told: list[str] = []
    assert open_small(fs, on_damage=told.append).end_index == store.end_index - 1
    assert len(told) == 1


@pytest.mark.parametrize("boundary", [*BOUNDARIES, 2**62])
def test_s14_checkpoint_round_trip(boundary: int) -> None:
    for number in (boundary - 1, boundary, boundary + 1):
        assert decode_checkpoint(Checkpoint(number, number - 2).encode()) == Checkpoint(number, number - 2)


class MadeUpLog:
    """Records at the positions that the test gave them."""

    def __init__(self) -> None:
        self.min_position = 0
        self.records: dict[int, bytes] = {}

    def record_at(self, position: int) -> bytes | None:
        return self.records.get(position)

    def store_timestamp_at(self, position: int) -> int | None:
        return position if position in self.records else None

    def request(self, offset: int, position: int) -> DispatchRequest:
        data = encode_record(Message("T", 0, b""), offset, 5)
        self.records[position] = data
        return DispatchRequest(position, "T", 0, offset, position, len(data), 7, position, 0)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_s14_queue_offsets_and_positions_pass_the_boundary(boundary: int) -> None:
    fs = MemoryFs()
    fs.make_directory(Path("/store"))
    log = MadeUpLog()
    config = ConsumeQueueConfig(file_bytes=200)
    queues = ConsumeQueues(fs, Path("/store"), config, log)
    queues.load(-1, 0)
    numbers = range(boundary - 15, boundary + 15)
    requests = [log.request(offset, boundary + 1000 * (offset - boundary)) for offset in numbers]
    queues.put_all(DispatchBatch.of(requests))
    queues.put_all(DispatchBatch.of(requests[:3]))  # repeats are passed over
    end = Applied(boundary + 15_000, boundary + 15_000)
    writes = queues.take_writes(end)
    assert writes is not None
    queues.write(writes)
    queues.written(writes)
    again = ConsumeQueues(fs, Path("/store"), config, log)
    assert again.load(end.index, end.position) == end
    queue = again.get("T", 0)
    assert queue is not None
    assert (queue.begin_offset, queue.min_offset, queue.max_offset) == (
        numbers[0],
        numbers[0],
        numbers[-1] + 1,
    )
    assert [unit[0] for unit in queue.units(numbers[0], 100)] == [request.position for request in requests]
    assert queue.offset_by_time(boundary) == boundary
    log.min_position = boundary
    assert queue.min_offset == boundary
    shorter = ConsumeQueues(fs, Path("/store"), config, log)
    assert shorter.load(end.index, end.position - 1) == Applied()  # the log ends before what they index


def test_s14_full_disk_at_a_large_position_is_told() -> None:
    fs = MemoryFs()
    store = filled(fs, 2**33)
    fs.fail({"allocate"}, errno.ENOSPC, is_lasting=True)
    store.append_bodies(store.end_index + 1, 2, [bytes(900)])
    with pytest.raises(OSError, match="No space left"):
        write_all(store)
