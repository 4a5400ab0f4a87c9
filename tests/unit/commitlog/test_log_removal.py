"""The begin of an entry store and the files of consume queues go: in order, for good, over any crash."""

import random
from typing import cast

import pytest

from commitlog.dispatch import DispatchBatch
from commitlog.entry import HEADER_BYTES
from commitlog.entry_store import EntryStore
from commitlog.errors import DamagedRecordError
from commitlog.indexed_log import IndexedLog
from commitlog.log_removal import LogRemoval, OldFile
from tests.support.log_entries import DIRECTORY, Stored, open_small, read_all, write_all
from tests.support.made_up_log import ROOT, STEP, MadeUpLog, flush, open_queues, positions, put
from tests.support.memory_fs import MemoryFs


def fill(store: EntryStore, count: int = 100) -> None:
    """Ten entries a file."""
    for index in range(store.end_index + 1, store.end_index + 1 + count):
        store.append_bodies(index, 1 + index // 30, [bytes([index % 256]) * 52])
    write_all(store)


def expected(begin: int, end: int) -> list[Stored]:
    return [Stored(1 + index // 30, bytes([index % 256]) * 52) for index in range(begin, end)]


def file_starts(fs: MemoryFs, name: str) -> list[int]:
    return sorted(int(path.name) for path in fs.paths() if path.parent == DIRECTORY / name)


def remove(store: EntryStore, begin_index: int) -> int:
    store.begin_at(begin_index)
    return store.remove_files()


def test_files_go_and_the_log_goes_on() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    fill(store)
    assert list(store.old_files())[:2] == [(1024, 10), (2048, 20)]
    assert remove(store, 40) == 4
    assert (store.begin_index, store.begin.begin_position) == (40, 4096)
    assert file_starts(fs, "data")[0] == 4096
    assert file_starts(fs, "index")[0] == 40 * 32 // 256 * 256
    assert read_all(store) == expected(40, 100)
    assert [(each.term, each.first_index) for each in store.log_state().epochs] == [(2, 40), (3, 60), (4, 90)]
    assert next(iter(store.old_files())) == (5120, 50)
    fill(store, 20)
    store.close()
    again = open_small(fs)
    assert (again.begin_index, again.begin.begin_position, again.end_index) == (40, 4096, 119)
    assert read_all(again) == expected(40, 120)
    assert again.log_state().epochs == store.log_state().epochs
    assert remove(again, 110) == 7
    assert read_all(open_small(fs)) == expected(110, 120)


async def test_room_of_deleted_files_is_given_back_though_nothing_is_written() -> None:
    """Else a nearly full disk, whose leader takes no sends, stays full and loses one file after another."""
    fs = MemoryFs()
    store = open_small(fs)
    fill(store)

    async def remove_before(begin_index: int) -> int:
        return remove(store, begin_index)

    removal = LogRemoval(store, cast("IndexedLog", None), lambda: 99, remove_before)
    files = len(file_starts(fs, "data")) + len(file_starts(fs, "index"))
    open_files = fs.open_files
    assert await removal.remove_before(OldFile(4096, 40, 0)) == 4
    gone = files - len(file_starts(fs, "data")) - len(file_starts(fs, "index"))
    assert gone > 4
    assert fs.open_files == open_files - gone
    assert read_all(store) == expected(40, 100)


def test_file_whose_last_record_is_damaged_has_no_time() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    fill(store)

    class DamagedIndex:
        def store_timestamp_at(self, position: int) -> int | None:
            if position < 1024:
                raise DamagedRecordError("damaged")
            return position

    async def remove_before(begin_index: int) -> int:
        return remove(store, begin_index)

    removal = LogRemoval(store, cast("IndexedLog", DamagedIndex()), lambda: 99, remove_before)
    found = [(file.next_index, file.newest_ms is None) for file in removal.old_files()]
    assert found[:3] == [(10, True), (20, False), (30, False)]


def test_file_is_as_old_as_the_later_of_its_first_and_its_last_record() -> None:
    """A leader whose clock is days behind, and which writes a file's last record, does not make it old."""
    store = open_small(MemoryFs())
    fill(store)

    class IndexOfTimes:
        def store_timestamp_at(self, position: int) -> int | None:
            return {first: 9_000, last: 1_000}.get(position - HEADER_BYTES, 5_000)

    async def remove_before(begin_index: int) -> int:
        return remove(store, begin_index)

    first, last = store.position_of(10), store.position_of(19)
    removal = LogRemoval(store, cast("IndexedLog", IndexOfTimes()), lambda: 99, remove_before)
    found = [(file.next_index, file.newest_ms) for file in removal.old_files()]
    assert found[:3] == [(10, 5_000), (20, 9_000), (30, 5_000)]


def test_removal_that_a_reset_overtakes_is_void() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    fill(store)
    store.begin_at(40)
    store.reset(200, 20480)
    assert store.remove_files() == 0
    write_all(store)
    again = open_small(fs)
    assert (again.begin_index, again.end_index) == (200, 199)


class Stopped(BaseException):
    """The process dies."""


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_crash_at_any_step_leaves_a_log_with_one_of_both_begins(is_power_lost: bool) -> None:
    steps = 0
    for step in range(100):
        fs = MemoryFs()
        store = open_small(fs)
        fill(store)
        store.save_checkpoint(99, 99)
        left = [step]

        def die(left: list[int] = left) -> None:
            if left[0] == 0:
                raise Stopped
            left[0] -= 1

        fs.on_change = die
        try:
            remove(store, 70)
        except Stopped:
            pass
        else:
            steps = step
            break
        fs.on_change = lambda: None
        fs.end_process()
        if is_power_lost:
            fs = fs.crash(random.Random(step))
        again = open_small(fs)
        assert again.begin_index in (0, 70), step
        assert read_all(again) == expected(again.begin_index, 100)
        if again.begin_index == 70:
            assert file_starts(fs, "data")[0] == 7168
        fill(again, 10)
        assert read_all(open_small(fs)) == expected(again.begin_index, 110)
    assert steps > 10


# -- consume queues ----------------------------------------------------------------------------------------


def test_queue_files_follow_the_log() -> None:
    fs, log = MemoryFs(), MadeUpLog()
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(35))
    flush(queues, log.applied())
    queue = queues.get("T", 0)
    assert queue is not None
    log.min_position = 24 * STEP
    assert not queues.wants_flush
    assert queues.cut_files(queue)
    assert not queues.cut_files(queue)
    assert positions(queue, 20) == [number * STEP for number in range(20, 35)]
    assert queue.units(19, 5) == []
    flush(queues, log.applied())
    directory = ROOT / "T" / "0"
    assert sorted(int(path.name) for path in fs.paths() if path.parent == directory) == [400, 600]
    again, applied = open_queues(fs, log)
    assert applied == log.applied()
    found = again.get("T", 0)
    assert found is not None
    assert (found.begin_offset, found.min_offset, found.max_offset) == (20, 24, 35)
    put(again, log, "T", 0, range(35, 36))
    assert found.max_offset == 36


def test_last_file_of_a_queue_whose_messages_are_gone_stays_and_is_believed() -> None:
    fs, log = MemoryFs(), MadeUpLog()
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(35))
    put(queues, log, "U", 0, range(1))
    log.min_position = 35 * STEP
    for position in range(0, 35 * STEP, STEP):
        del log.records[position]
    flush(queues, log.applied())
    queue = queues.get("T", 0)
    assert queue is not None
    assert queues.cut_files(queue)
    flush(queues, log.applied())
    again, applied = open_queues(fs, log)
    assert applied == log.applied()
    found = again.get("T", 0)
    assert found is not None
    assert found.min_offset == found.max_offset == 35


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_crash_while_queue_files_go_loses_no_offset(is_power_lost: bool) -> None:
    for step in range(60):
        fs, log = MemoryFs(), MadeUpLog()
        queues, _ = open_queues(fs, log)
        put(queues, log, "T", 0, range(55))
        flush(queues, log.applied())
        log.min_position = 44 * STEP
        queue = queues.get("T", 0)
        assert queue is not None
        queues.cut_files(queue)
        writes = queues.take_writes(log.applied())
        assert writes is not None
        left = [step]

        def die(left: list[int] = left) -> None:
            if left[0] == 0:
                raise Stopped
            left[0] -= 1

        fs.on_change = die
        try:
            queues.write(writes)
        except Stopped:
            pass
        else:
            assert step > 5
            break
        fs.on_change = lambda: None
        fs.end_process()
        if is_power_lost:
            fs = fs.crash(random.Random(step))
        again, applied = open_queues(fs, log)
        assert applied == log.applied(), "they are not built again"
        found = again.get("T", 0)
        assert found is not None
        assert (found.min_offset, found.max_offset) == (44, 55)
        assert positions(found, 44) == [number * STEP for number in range(44, 55)]


def test_queue_goes_on_at_the_offset_that_it_had() -> None:
    fs, log = MemoryFs(), MadeUpLog()
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(5))
    queues.raise_to("T", 0, 5, 5 * STEP)
    queues.raise_to("T", 0, 3, 5 * STEP)
    queue = queues.get("T", 0)
    assert queue is not None
    assert len(queue.units(0, 10)) == 5
    queues.raise_to("U", 1, 7, 5 * STEP)
    assert queues.next_offset("U", 1) == 7
    raised = queues.get("U", 1)
    assert raised is not None
    assert (raised.min_offset, raised.max_offset) == (7, 7)
    put(queues, log, "U", 1, range(7, 9))
    assert (raised.min_offset, raised.max_offset) == (7, 9)
    flush(queues, log.applied())
    again = open_queues(fs, log)[0].get("U", 1)
    assert again is not None
    assert (again.min_offset, again.max_offset) == (7, 9)


def test_queue_with_a_later_message_is_not_raised() -> None:
    """Its topic was deleted, and made again behind what is said of it."""
    fs, log = MemoryFs(), MadeUpLog()
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(5))
    queues.raise_to("T", 0, 50, 4 * STEP)
    queue = queues.get("T", 0)
    assert queue is not None
    assert (len(queue.units(0, 10)), queue.max_offset) == (5, 5)
    queues.raise_to("T", 0, 50, 5 * STEP)
    assert queue.max_offset == 50


def test_messages_that_come_with_lower_offsets_than_raised_take_their_place() -> None:
    """A queue that is built again from the log, after it was said how far it had come."""
    fs, log = MemoryFs(), MadeUpLog()
    queues, _ = open_queues(fs, log)
    queues.raise_to("T", 0, 9, 9 * STEP)
    queues.put_all(DispatchBatch.of([log.request("T", 0, offset) for offset in range(6, 9)]))
    queue = queues.get("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (6, 9)


def test_hidden_messages_stay_hidden_and_later_ones_show() -> None:
    fs, log = MemoryFs(), MadeUpLog()
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(10))
    queue = queues.get("T", 0)
    assert queue is not None
    queue.hide_before(4)
    queue.hide_before(2)
    assert queue.min_offset == 4
    queue.hide_before(99)
    assert queue.min_offset == queue.max_offset == 10
