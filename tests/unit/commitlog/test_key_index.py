"""The key index over a replicated log: built, kept, lost and built again, against the messages themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dledger_commit_log import DLedgerCommitLog, store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from commitlog.indexed_log import MessageLogConfig
from commitlog.key_index import KeyIndex, KeyIndexConfig, KeyMaintenance
from commitlog.key_segment import key_hash
from commitlog.log import PutStatus
from commitlog.record import Message, decode_record
from tests.support.fake_engine import FakeEngine, as_server
from tests.support.long_runs import examples
from tests.support.memory_fs import MemoryFs
from tests.support.polling import until

STORE = Path("/store")
FOLDER = STORE / "keyindex"
QUEUES = MessageLogConfig(ConsumeQueueConfig(file_bytes=2000), message_bytes_max=500)
ENTRIES = EntryStoreConfig(data_file_bytes=8192, index_file_bytes=3200, cache_bytes_max=500)
SMALL = KeyIndexConfig(units_max=20, span_bytes_max=6000)
ALL_TIMES = (0, 2**62)
START_MS = 1000


def ignore(status: PutStatus) -> None:
    """For puts whose end is of no interest."""


class Bench:
    """One node with its index, over one file system; every message's store time is the next millisecond."""

    def __init__(self, fs: MemoryFs | None = None, now_ms: int = START_MS) -> None:
        self.fs = fs = fs or MemoryFs()
        fs.make_directory(STORE)
        self.now_ms = now_ms
        self.store = open_entry_store(store_directory(STORE, "n0"), ENTRIES, write_physical_offset, fs)
        self.engine = FakeEngine(self.store)
        self.fatal: list[BaseException] = []
        self.log = DLedgerCommitLog(
            as_server(self.engine),
            self.store,
            STORE,
            QUEUES,
            on_fatal=self.fatal.append,
            fs=fs,
            clock=lambda: self.now_ms,
        )
        self.index = KeyIndex(fs, STORE, self.log, SMALL, self.store.end_position)
        self.log.add_listener(self.index.on_batch)
        self.maintenance = KeyMaintenance(self.index)

    def lead(self) -> None:
        self.engine.lead(self.engine.term + 1 or 1)
        self.engine.commit()

    def put(self, *keys: str, topic: str = "T") -> None:
        """One message for each text, which is its KEYS; a few of them are committed together."""
        for number, text in enumerate(keys, 1):
            self.now_ms += 1
            message = Message(topic, 0, b"body", f"KEYS\x01{text}\x02".encode())
            assert self.log.put([message], ignore).status is PutStatus.PUT_OK
            if number % 5 == 0 or number == len(keys):
                self.engine.commit()

    async def find(self, key: str, times: tuple[int, int] = ALL_TIMES, topic: str = "T") -> list[int]:
        """Store times of the messages with the key, in the order found; each hit is looked at."""
        found: dict[int, int] = {}
        async for position in self.index.hits(key_hash(topic, key), *times):
            data = self.log.record_at(position)
            assert data is not None
            record = decode_record(data)
            if key.encode() in record.properties[5:-1].split(b" ") and record.topic == topic:
                found[position] = record.store_timestamp_ms
        return [each for each in found.values() if times[0] <= each <= times[1]]

    async def restarted(self) -> Bench:
        """The node after a crash of its process."""
        self.fs.end_process()
        bench = Bench(self.fs, self.now_ms)
        bench.engine.term = self.engine.term
        bench.lead()
        await until(bench.log.is_writable)
        return bench

    @property
    def files(self) -> list[str]:
        return self.fs.list(FOLDER)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.lead()
    return made


def times(first: int, count: int) -> list[int]:
    """Store times of the first, second ... of `count` messages, the newest first."""
    return list(range(START_MS + first + count - 1, START_MS + first - 1, -1))


async def test_a_message_is_found_once_it_is_committed(bench: Bench) -> None:
    bench.put("red green", "blue", "red")
    assert await bench.find("red") == [START_MS + 3, START_MS + 1]
    assert await bench.find("green") == [START_MS + 1]
    assert await bench.find("black") == []
    assert await bench.find("red", topic="Other") == []


async def test_what_is_not_committed_is_not_found(bench: Bench) -> None:
    assert bench.log.put([Message("T", 0, b"", b"KEYS\x01red\x02")], ignore).status is PutStatus.PUT_OK
    assert await bench.find("red") == []
    bench.engine.commit()
    assert len(await bench.find("red")) == 1


async def test_full_segments_go_to_files_and_are_searched_there(bench: Bench) -> None:
    bench.put(*(f"all k{number}" for number in range(100)))
    await bench.maintenance.work()
    assert len(bench.files) >= 5
    assert bench.index.unwritten == []
    assert await bench.find("all") == times(1, 100)
    assert await bench.find("k40") == [START_MS + 41]
    assert await bench.find("all", (START_MS + 30, START_MS + 34)) == times(30, 5)


async def test_a_stop_leaves_nothing_to_read_again(bench: Bench) -> None:
    bench.put(*(f"all k{number}" for number in range(14)))
    await bench.maintenance.stop()
    again = await bench.restarted()
    assert await again.find("all") == times(1, 14)
    assert [last - first for first, last in again.index.gaps()] == []


async def test_a_crash_loses_nothing(bench: Bench) -> None:
    bench.put(*(f"all k{number}" for number in range(33)))
    await bench.maintenance.work()
    bench.put(*(f"all k{number}" for number in range(5)))
    again = await bench.restarted()
    again.put("all")
    assert again.index.gaps()
    await again.maintenance.work()
    assert again.index.gaps() == []
    assert await again.find("all") == times(1, 39)


async def test_deleted_files_are_built_again(bench: Bench) -> None:
    bench.put(*["all"] * 90)
    await bench.maintenance.stop()
    for name in bench.files[::2]:
        bench.fs.delete(FOLDER / name)
    again = await bench.restarted()
    again.put("all")
    await again.maintenance.work()
    assert await again.find("all") == times(1, 91)


async def test_a_file_found_damaged_by_a_query_is_built_again(bench: Bench) -> None:
    bench.put(*["all"] * 90)
    await bench.maintenance.work()
    path = FOLDER / bench.files[1]
    bench.fs.overwrite(path, len(bench.fs.content(path)) - 20, bytes(20))
    assert len(await bench.find("all")) < 90
    await bench.maintenance.work()
    assert await bench.find("all") == times(1, 90)


async def test_files_found_damaged_while_they_are_made_one_are_built_again_at_once(bench: Bench) -> None:
    for _ in range(2):
        bench.put(*["all"] * 3)
        await bench.maintenance.stop()
    path = FOLDER / bench.files[1]
    bench.fs.overwrite(path, len(bench.fs.content(path)) - 20, bytes(20))
    await bench.maintenance.work()
    assert bench.index.gaps() == []
    assert await bench.find("all") == times(1, 6)


async def test_files_of_another_log_are_dropped(bench: Bench) -> None:
    bench.put(*["all"] * 30)
    await bench.maintenance.stop()
    foreign = {name: bench.fs.content(FOLDER / name) for name in bench.files}
    other = Bench()
    other.lead()
    other.put("none", "longer than the others", "none", *["none"] * 40)
    await other.maintenance.work()
    for name in other.files:
        other.fs.delete(FOLDER / name)
    for name, content in foreign.items():
        fd = other.fs.open(FOLDER / name)
        other.fs.pwrite(fd, [content], 0)
        other.fs.close(fd)
    again = await other.restarted()
    await again.maintenance.work()
    assert len(await again.find("none")) == 42


async def test_files_beyond_the_end_of_the_log_are_dropped(bench: Bench) -> None:
    bench.put(*["all"] * 30)
    await bench.maintenance.stop()
    index = KeyIndex(bench.fs, STORE, bench.log, SMALL, bench.index.sealed[0].extent.end_position)
    assert len(index.sealed) == 1


async def test_small_neighbours_become_one_file(bench: Bench) -> None:
    for _ in range(4):
        bench.put("all", "all")
        await bench.maintenance.stop()
        bench = await bench.restarted()
    await bench.maintenance.work()
    assert len(bench.files) == 1
    assert len(await bench.find("all")) == 8
    assert len(await (await bench.restarted()).find("all")) == 8


async def test_files_wholly_before_a_position_are_deleted(bench: Bench) -> None:
    bench.put(*["all"] * 90)
    await bench.maintenance.stop()
    third = bench.index.sealed[2].extent
    bench.index.drop_before(third.end_position - 1)
    assert bench.index.sealed[0].extent == third
    assert len(bench.files) == len(bench.index.sealed)
    assert all(first > third.last_index for first, _ in bench.index.gaps())


async def test_memory_is_bounded_when_files_cannot_be_written(bench: Bench) -> None:
    bench.fs.fail({"pwrite"}, is_lasting=True, folder=FOLDER)
    bench.put(*["all"] * 200)
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        await bench.maintenance.work()
    assert len(bench.index.unwritten) <= 2
    bench.fs.heal()
    await bench.maintenance.work()
    assert await bench.find("all") == times(1, 200)


async def test_the_log_goes_on_when_the_index_cannot_be_written_at_the_end(bench: Bench) -> None:
    bench.put("all")
    bench.fs.fail({"pwrite"}, is_lasting=True, folder=FOLDER)
    await bench.maintenance.stop()
    assert bench.files == ["00000000000000000000.tmp"]
    bench.fs.heal()
    again = await bench.restarted()
    await again.maintenance.work()
    assert len(await again.find("all")) == 1


async def test_the_task_does_it_by_itself(bench: Bench) -> None:
    await bench.maintenance.start()
    bench.put(*["all"] * 50)
    await until(lambda: len(bench.files) >= 2 and not bench.index.unwritten)
    await bench.maintenance.stop()
    assert await bench.find("all") == times(1, 50)


async def test_a_search_goes_on_while_files_are_made_one(bench: Bench) -> None:
    for _ in range(3):
        bench.put(*["all"] * 3)
        await bench.maintenance.stop()
    found: list[int] = []
    async for position in bench.index.hits(key_hash("T", "all"), *ALL_TIMES):
        if not found:
            await bench.maintenance.work()
            assert len(bench.index.sealed) == 1
        found.append(position)
    assert len(set(found)) == 9


def test_the_last_update_is_that_of_the_newest(bench: Bench) -> None:
    assert bench.index.last_update[0] == 0
    bench.put("a", "b")
    assert bench.index.last_update == (START_MS + 2, bench.log.max_position)


words = st.lists(st.sampled_from(["a", "b", "c d", "a a"]), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), words),
        st.tuples(st.sampled_from(["work", "stop", "crash", "power", "delete", "damage"]), st.just([])),
    ),
    max_size=14,
)


instants = st.integers(START_MS, START_MS + 60)


@settings(max_examples=examples(40), deadline=None)
@given(steps, st.integers(0, 2**32), instants, instants)
def test_whatever_happens_the_index_ends_up_with_what_the_log_has(
    steps: Sequence[tuple[str, list[str]]], seed: int, begin_ms: int, end_ms: int
) -> None:
    rng = random.Random(seed)

    async def run() -> None:
        bench = Bench()
        bench.lead()
        model: list[tuple[int, str]] = []
        for step, keys in steps:
            if step == "put":
                bench.put(*keys)
                first = bench.now_ms - len(keys) + 1
                model += [(first + number, text) for number, text in enumerate(keys)]
            else:
                bench = await _disturb(bench, step, rng)
        for key in ("a", "b", "c", "d", "x"):
            await bench.find(key, (begin_ms, end_ms))  # which finds what is damaged
        await bench.maintenance.work()
        assert bench.index.gaps() == []
        for key in ("a", "b", "c", "d", "x"):
            wanted = [at for at, text in reversed(model) if key in text.split() and begin_ms <= at <= end_ms]
            assert await bench.find(key, (begin_ms, end_ms)) == wanted

    asyncio.run(run())


async def _disturb(bench: Bench, step: str, rng: random.Random) -> Bench:
    if step == "work":
        await bench.maintenance.work()
        return bench
    if step == "stop":
        await bench.maintenance.stop()
    elif step == "power":
        bench.fs = bench.fs.crash(rng)
    elif bench.files and step != "crash":
        path = FOLDER / rng.choice(bench.files)
        if step == "delete":
            bench.fs.delete(path)
        else:
            bench.fs.overwrite(path, rng.randrange(len(bench.fs.content(path)) or 1), rng.randbytes(9))
    return await bench.restarted()
