"""Whatever happens to the files of the consume queues: rows of the table in docs/crash_safety.md, and S20."""

import asyncio
import contextlib
import copy
import errno
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dledger_commit_log import DLedgerCommitLog, store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from commitlog.errors import DamagedQueueError
from commitlog.indexed_log import MessageLogConfig
from commitlog.record import Message, decode_record
from tests.support.fake_engine import FakeEngine, as_server
from tests.support.memory_fs import CHANGES, SYNCS, WRITES, MemoryFs, PowerLossError
from tests.support.storage_damage import Outcome

STORE = Path("/store")
QUEUES = STORE / "consumequeue"
QUEUE = QUEUES / "T" / "0"
UNITS = 5
CONFIG = MessageLogConfig(ConsumeQueueConfig(file_bytes=20 * UNITS), message_bytes_max=500)
ENTRIES = EntryStoreConfig(data_file_bytes=4096, index_file_bytes=256, cache_bytes_max=1)
COUNT = 24
Damage = Callable[[MemoryFs], None]


class Node:
    """One life of a leader with its queues."""

    def __init__(self, fs: MemoryFs, term: int) -> None:
        self.fs = fs
        fs.make_directory(STORE)
        self.store = open_entry_store(store_directory(STORE, "n0"), ENTRIES, write_physical_offset, fs)
        self.engine = FakeEngine(self.store)
        self.fatal: list[BaseException] = []
        self.log = DLedgerCommitLog(
            as_server(self.engine),
            self.store,
            STORE,
            CONFIG,
            on_fatal=self.fatal.append,
            fs=fs,
            clock=lambda: 1,
        )
        self.term = term

    async def lead(self) -> None:
        self.engine.lead(self.term)
        await self.commit()

    async def commit(self) -> None:
        self.engine.commit()
        while self.log.applied_index < self.store.end_index and not self.fatal:
            await asyncio.sleep(0)
        if self.fatal:
            raise self.fatal[0]

    def bodies(self, topic: str) -> list[bytes]:
        """Every message of a topic's queue, a few at a time, as consumers read them."""
        queue = self.log.queues.get(topic, 0)
        assert queue is not None
        found: list[bytes] = []
        for start in range(0, queue.max_offset, 3):
            units = [(position, size) for position, size, _ in queue.units(start, 3)]
            data = self.log.read_many(units)
            while data:
                record = decode_record(data, check_crc=True)
                assert (record.topic, record.queue_offset) == (topic, len(found))
                found.append(bytes(record.body))
                data = data[record.size :]
        return found


def expected(topic: str) -> list[bytes]:
    return [f"{topic}{number}".encode() * 9 for number in range(COUNT)]


async def image() -> MemoryFs:
    """Two queues of 24 messages, 20 of them flushed, as a killed process leaves them."""
    node = Node(MemoryFs(), 1)
    await node.lead()
    for number in range(COUNT):
        messages = [Message(topic, 0, expected(topic)[number], b"TAGS\x01A\x02") for topic in ("T", "U")]
        node.log.put(messages, lambda status: None)
        await node.commit()
        if number == 19:
            flush(node)
    node.fs.end_process()
    return node.fs


def flush(node: Node) -> None:
    writes = node.log.queues.take_writes(node.log._reput.queued)
    assert writes is not None
    node.log.queues.write(writes)
    node.log.queues.written(writes)


def file(number: int) -> Path:
    return QUEUE / f"{number * 20 * UNITS:020d}"


def flips_of_last_unit() -> Iterator[Damage]:
    for bit in range(12 * 8):
        yield lambda fs, bit=bit: fs.flip(file(3), 80 + bit // 8, bit % 8)  # type: ignore[misc]


def flips_of_middle_units() -> Iterator[Damage]:
    for bit in range(12 * 8):
        yield lambda fs, bit=bit: fs.flip(file(1), 40 + bit // 8, bit % 8)  # type: ignore[misc]


def flips_of_tag_hashes() -> Iterator[Damage]:
    for bit in range(8 * 8):
        yield lambda fs, bit=bit: fs.flip(file(1), 40 + 12 + bit // 8, bit % 8)  # type: ignore[misc]


def half_written() -> Iterator[Damage]:
    """The units behind the checkpoint, torn at any byte."""
    for size in range(0, 81, 3):
        yield (
            lambda fs, size=size: fs.plant(  # type: ignore[misc]
                file(4), (b"\x00\x00\x00\x00\x00\x00\x70\x00\x00\x00\x00\x77" * 8)[:size].ljust(100, b"\0")
            )
        )


def remove_all(folder: Path, fs: MemoryFs) -> None:
    for path in fs.paths():
        if path.is_relative_to(folder):
            fs.remove(path)


def missing() -> Iterator[Damage]:
    for number in (0, 2, 3):
        yield lambda fs, number=number: fs.remove(file(number))  # type: ignore[misc]
    yield partial(remove_all, QUEUE)
    yield partial(remove_all, QUEUES)


def short() -> Iterator[Damage]:
    for size in range(0, 100, 7):
        yield lambda fs, size=size: fs.cut(file(3), size)  # type: ignore[misc]


def checkpoints() -> Iterator[Damage]:
    yield lambda fs: fs.remove(QUEUES / ".checkpoint")
    for size in range(0, 90, 5):
        yield lambda fs, size=size: fs.cut(QUEUES / ".checkpoint", size)  # type: ignore[misc]
    for at in range(90):
        yield lambda fs, at=at: fs.flip(QUEUES / ".checkpoint", at, at % 8)  # type: ignore[misc]


def extra() -> Iterator[Damage]:
    yield lambda fs: fs.plant(file(4), b"\x77" * 100)
    yield lambda fs: fs.plant(file(9), b"\x77" * 100)
    yield lambda fs: fs.plant(QUEUE / "7", b"x")
    yield lambda fs: fs.plant(QUEUE / "note", b"x")


ROWS: tuple[tuple[str, str, Outcome, Callable[[], Iterator[Damage]]], ...] = (
    ("consume queue", "the units behind its checkpoint half written", Outcome.REBUILT, half_written),
    ("consume queue", "files missing", Outcome.REBUILT, missing),
    ("consume queue", "last file too short", Outcome.REBUILT, short),
    ("consume queue", "a bit of place or size of its last unit", Outcome.REBUILT, flips_of_last_unit),
    ("consume queue", "a bit of place or size of another unit", Outcome.STOPS, flips_of_middle_units),
    ("consume queue", "a bit of the hash of a tag in a unit", Outcome.UNSEEN, flips_of_tag_hashes),
    ("consume queue", "a file too many", Outcome.REBUILT, extra),
    ("consume queues' `.checkpoint`", "missing, or any bit or length wrong", Outcome.REBUILT, checkpoints),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
async def test_row_of_the_queues_damage_table(
    row: tuple[str, str, Outcome, Callable[[], Iterator[Damage]]],
) -> None:
    whole = await image()
    stops = 0
    for number, damage in enumerate(row[3]()):
        fs = copy.deepcopy(whole)
        damage(fs)
        node = Node(fs, 2)
        await node.lead()
        try:
            assert node.bodies("T") == expected("T"), number
        except DamagedQueueError:
            stops += 1
            assert len(node.fatal) == 1
            flush(node)  # as the node does when it stops
            fs.end_process()
            node = Node(fs, 3)
            await node.lead()
            assert node.bodies("T") == expected("T"), number
        assert node.bodies("U") == expected("U"), number
        flush(node)
        fs.end_process()
        again = Node(fs, 4)
        await again.lead()
        assert again.bodies("T") == expected("T"), number
    assert (stops > 0) == (row[2] is Outcome.STOPS)


async def is_told(fs: MemoryFs, operations: frozenset[str], error: int, after: int) -> bool:
    """Whether the disk failed at all: not, once `after` is more than there are operations."""
    fault = fs.fail(operations, error, after, folder=QUEUES)
    node = None
    try:
        node = Node(fs, 2)
        await node.lead()
        for _ in range(2):
            flush(node)
            node.log.put([Message("T", 0, b"more", b"")], lambda status: None)
            await node.commit()
    except OSError as caught:
        told = caught.errno
        if node is not None:
            flush(node)  # as the node does when it stops; the disk takes it now
    else:
        assert not fault.strikes, "an error that nobody was told of"
        return False
    assert told == error
    fs.heal()
    fs.end_process()
    for found in (fs.crash(random.Random(after)), fs):
        again = Node(found, 3)
        await again.lead()
        assert again.bodies("T")[:COUNT] == expected("T")
        assert again.bodies("U") == expected("U")
    return True


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("is_rebuilt", [False, True])
async def test_error_at_any_operation_of_the_queues_is_told_and_loses_nothing(
    is_rebuilt: bool, error: int
) -> None:
    """Whoever starts the queues or flushes them hears of it, and the next start has all messages in them."""
    whole = await image()
    if is_rebuilt:
        whole.remove(QUEUES / ".checkpoint")
    for operations in (WRITES, SYNCS, CHANGES - WRITES - SYNCS):
        after = 0
        while await is_told(copy.deepcopy(whole), operations, error, after):
            after += 1
        assert after > 1, operations


@pytest.mark.parametrize("seed", range(60))
async def test_s20_kill_in_the_middle_of_writing_index_or_queues_boots_unaided(seed: int) -> None:
    """The process is killed, or the power fails, at any file operation of a flush or of a rebuild."""
    rng = random.Random(seed)
    fs = copy.deepcopy(await image())
    if seed % 3 == 1:
        for path in [path for path in fs.paths() if path.parent.name == "index"]:
            fs.remove(path)
    if seed % 3 == 2:
        fs.remove(QUEUES / ".checkpoint")
    with contextlib.suppress(PowerLossError), fs.stopping_after(rng.randrange(60)):
        node = Node(fs, 2)
        await node.lead()
        for _ in range(3):
            flush(node)
            node.log.put([Message("T", 0, b"more", b"")], lambda status: None)
            await node.commit()
    fs.end_process()
    found = fs.crash(rng) if rng.random() < 0.5 else fs
    again = Node(found, 3)
    await again.lead()
    assert again.bodies("T")[:COUNT] == expected("T")
    assert again.bodies("U") == expected("U")


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("after", range(0, 12, 3))
async def test_unreadable_sector_at_a_start_has_the_queues_built_again(number: int, after: int) -> None:
    fs = await image()
    fs.fail({"pread"}, errno.EIO, after, is_lasting=True, folder=file(number))
    node = Node(fs, 2)
    await node.lead()
    fs.heal()
    assert node.bodies("T") == expected("T")


async def test_unreadable_sector_under_a_pull_stops_the_node_and_the_queues_are_built_again() -> None:
    fs = await image()
    node = Node(fs, 2)
    await node.lead()
    fs.fail({"pread"}, errno.EIO, is_lasting=True, folder=file(1))
    with pytest.raises(DamagedQueueError):
        node.bodies("T")
    assert len(node.fatal) == 1
    fs.heal()
    flush(node)
    fs.end_process()
    again = Node(fs, 3)
    await again.lead()
    assert again.bodies("T") == expected("T")
