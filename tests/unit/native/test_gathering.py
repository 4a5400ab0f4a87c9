"""A pull's records in one go: the same bytes as one by one, from memory, from files, and from kept blocks."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from commitlog.consume_queue import UNIT
from commitlog.dledger_commit_log import BLOCK_BYTES, BLOCKS_MAX, OVERLAP_BYTES, BatchReader
from commitlog.entry import write_physical_offset
from commitlog.entry_store import open_entry_store
from commitlog.record import Message, encode_record
from tests.support.log_entries import DIRECTORY, SMALL, write_all
from tests.support.memory_fs import MemoryFs

CONFIG = replace(
    SMALL,
    data_file_bytes=1 << 22,
    index_file_bytes=1 << 20,
    cache_bytes_max=200_000,
    chunk_bytes_max=20_000,
    unsynced_bytes_max=1 << 22,
)
COUNT = 3000
BATCH = 20
LARGE = 1500
"""A record larger than any block takes."""


class CountingFs(MemoryFs):
    """Counts the reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size_bytes, position)


def packed(units: list[tuple[int, int]]) -> bytes:
    return b"".join(UNIT.pack(position, size, 0) for position, size in units)


class Log:
    """3,000 records of up to 4 KiB over several files, in two terms; the last ones are in memory, too."""

    def __init__(self) -> None:
        self.fs = CountingFs()
        self.store = open_entry_store(DIRECTORY, CONFIG, write_physical_offset, self.fs, lambda: 0.0)
        self.reader = BatchReader(self.store.cache, self.store.cold)
        rng = random.Random(7)
        self.units: list[tuple[int, int]] = []
        for first in range(0, COUNT, BATCH):
            sizes = [
                OVERLAP_BYTES if n == LARGE else rng.randrange(4000) for n in range(first, first + BATCH)
            ]
            bodies = [encode_record(Message("t", 0, rng.randbytes(size)), 0, 1) for size in sizes]
            positions = self.store.append_bodies(first, 1 + first // 2000, bodies)
            self.units += [(at + 48, len(body)) for at, body in zip(positions, bodies, strict=True)]
            write_all(self.store)
        assert self.units[0][0] < self.store.cached_from < self.units[-BATCH][0]

    def gather(self, chosen: slice, readable_end: int | None = None) -> bytes | None:
        end = self.store.end_position if readable_end is None else readable_end
        return self.reader.read(packed(self.units[chosen]), end)

    def read_each(self, chosen: slice) -> bytes:
        cached_from = self.store.cached_from
        return b"".join(
            bytes(self.store.read(at, size) if at >= cached_from else self.store.read_bodies([(at, size)])[0])
            for at, size in self.units[chosen]
        )


@pytest.fixture
def log() -> Log:
    return Log()


def test_any_stretch_and_stride_is_read_as_one_by_one(log: Log) -> None:
    for first in range(0, COUNT, 97):
        for step in (1, 8, 17, 400):
            chosen = slice(first, first + 32 * step, step)
            assert log.gather(chosen) == log.read_each(chosen)


def test_every_record_is_found_across_the_edges_of_blocks(log: Log) -> None:
    for first in range(COUNT - 1):
        assert log.gather(slice(first, first + 2)) == log.read_each(slice(first, first + 2))


def test_pulls_of_queues_side_by_side_share_what_was_read(log: Log) -> None:
    queues = [slice(queue, 256, 8) for queue in range(8)]
    assert None not in [log.gather(chosen) for chosen in queues[:1]]
    first_reads, log.fs.reads = log.fs.reads, 0
    assert None not in [log.gather(chosen) for chosen in queues[1:]]
    assert first_reads > 0
    assert log.fs.reads <= 1


def test_records_in_long_runs_are_read_as_they_stand(log: Log) -> None:
    runs = [*log.units[100:150], *log.units[700:760]]
    log.fs.reads = 0
    got = log.reader.read(packed(runs), log.store.end_position)
    assert got == log.read_each(slice(100, 150)) + log.read_each(slice(700, 760))
    log.fs.reads = 0
    assert log.gather(slice(800, 900)) is not None
    assert log.fs.reads <= 2  # of two files at most
    assert log.reader._blocks == {}


def test_only_so_many_blocks_are_kept(log: Log) -> None:
    for first in range(0, LARGE - 32, 32):
        log.gather(slice(first, first + 32, 2))
    assert len(log.reader._blocks) == min(BLOCKS_MAX, log.units[LARGE - 32][0] // BLOCK_BYTES + 1)


def test_what_is_not_readable_yet_is_not_kept(log: Log) -> None:
    """It may be cut off and written anew with other entries."""
    chosen = slice(100, 110)
    end = sum(log.units[109])
    assert log.gather(chosen, end) == log.read_each(chosen)
    assert log.reader._blocks == {}
    assert log.gather(chosen) == log.read_each(chosen)
    assert log.reader._blocks != {}


def test_damage_is_left_to_who_can_name_it(log: Log) -> None:
    position, _ = log.units[200]
    log.fs.flip(log.store._files.data.path_of(position), position % CONFIG.data_file_bytes + 5, 0)
    assert log.gather(slice(190, 210)) is None
    assert log.gather(slice(190, 200)) is not None
    assert log.gather(slice(201, 210)) is not None


@pytest.mark.parametrize("chosen", [slice(0, 32), slice(0, 1000, 200)])
def test_files_that_cannot_be_read_are_left_to_who_can_say_so(log: Log, chosen: slice) -> None:
    log.fs.fail({"pread"}, errno.EIO)
    assert log.gather(chosen) is None


@pytest.mark.parametrize("numbers", [(5, 3), (5, 5), (2000, 3), (COUNT - 1, 3), (COUNT - 1, COUNT - 2)])
def test_units_out_of_order_are_right_or_left_to_python(log: Log, numbers: tuple[int, ...]) -> None:
    units = packed([log.units[number] for number in numbers])
    got = log.reader.read(units, log.store.end_position)
    expected = b"".join(log.read_each(slice(number, number + 1)) for number in numbers)
    assert got in (None, expected)
