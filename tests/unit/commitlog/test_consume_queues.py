"""Queues over a log that the test makes up: what is put, what the files hold, what a restart finds."""

import pytest

from commitlog.consume_queue import Boundary
from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch import Applied, DispatchBatch, DispatchRequest
from commitlog.record import Message, encode_record
from tests.support.made_up_log import (
    ROOT,
    STEP,
    STORE,
    MadeUpLog,
    flush,
    open_queues,
    positions,
    put,
)
from tests.support.memory_fs import MemoryFs


@pytest.fixture
def log() -> MadeUpLog:
    return MadeUpLog()


@pytest.fixture
def fs() -> MemoryFs:
    return MemoryFs()


def test_unit_vector_is_exact(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    queues.put_all(
        DispatchBatch.of(
            [
                DispatchRequest(0, "T", 1, 0, 1048, 107, 2598919, 0, 0),
                DispatchRequest(1, "T", 1, 1, 2000, 107, -(2**31), 0, 0),
            ]
        )
    )
    flush(queues, Applied(1, 3000))
    content = fs.content(ROOT / "T" / "1" / f"{0:020d}")
    assert len(content) == 200
    assert content[:20] == bytes.fromhex("00000000 00000418 0000006b 00000000 0027a807")
    assert content[32:40] == bytes.fromhex("ffffffff 80000000")


def test_queue_reads_the_same_before_during_and_after_a_flush(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, applied = open_queues(fs, log)
    assert applied == Applied()
    put(queues, log, "T", 0, range(25))
    queue = queues.get("T", 0)
    before = positions(queue)
    assert before == list(range(0, 25_000, STEP))
    writes = queues.take_writes(log.applied())
    assert writes is not None
    put(queues, log, "T", 0, range(25, 30))
    queues.write(writes)
    assert positions(queue)[:25] == before
    queues.written(writes)
    assert positions(queue) == list(range(0, 30_000, STEP))
    assert positions(queue, 18, 4) == [18_000, 19_000, 20_000, 21_000]
    assert positions(queue, 23, 4) == [23_000, 24_000, 25_000, 26_000]
    assert positions(queue, 30) == positions(queue, -1) == []
    assert queues.next_offset("T", 0) == 30
    assert queues.next_offset("T", 1) == queues.next_offset("U", 0) == 0
    assert queues.get("T", 1) is None
    assert (queues.topics(), queues.queue_ids("T")) == (["T"], [0])


def test_prepared_and_rollback_records_get_no_unit(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    requests = [log.request("T", 0, offset, flag) for offset, flag in ((0, 0), (0, 4), (0, 12), (1, 8))]
    queues.put_all(DispatchBatch.of(requests))
    assert positions(queues.get("T", 0)) == [0, 3000]


def test_repeats_are_passed_over(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    requests = [log.request("T", 0, offset) for offset in range(5)]
    queues.put_all(DispatchBatch.of(requests))
    queues.put_all(DispatchBatch.of(requests[2:]))
    assert len(positions(queues.get("T", 0))) == 5


def test_restart_finds_what_the_checkpoint_covers_and_takes_the_rest_again(
    fs: MemoryFs, log: MadeUpLog
) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(12))
    put(queues, log, "%RETRY%G", 3, range(1))
    at_checkpoint = log.applied()
    flush(queues, at_checkpoint)
    later = [log.request("T", 0, offset) for offset in range(12, 15)]
    queues.put_all(DispatchBatch.of(later))
    writes = queues.take_writes(log.applied())
    assert writes is not None
    checkpoint = fs.content(ROOT / ".checkpoint")
    queues.write(writes)
    fd = fs.open(ROOT / ".checkpoint")  # the crash comes between the units and the checkpoint
    fs.set_size(fd, 0)
    fs.pwrite(fd, [checkpoint], 0)

    again, applied = open_queues(fs, log)
    assert applied == at_checkpoint
    assert len(positions(again.get("T", 0))) == 12
    assert len(positions(again.get("%RETRY%G", 3))) == 1
    assert fs.content(ROOT / "T" / "0" / f"{200:020d}")[40:] == bytes(160)
    again.put_all(DispatchBatch.of(later))
    assert positions(again.get("T", 0)) == positions(queues.get("T", 0))


def test_queue_that_begins_above_zero_has_javas_units_before_it(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(23, 35))
    flush(queues, log.applied())
    assert fs.list(ROOT / "T" / "0") == [f"{400:020d}", f"{600:020d}"]
    prefix = bytes.fromhex("00000000 00000000 7fffffff 00000000 00000000")
    assert fs.content(ROOT / "T" / "0" / f"{400:020d}")[:60] == prefix * 3
    for found in (queues, open_queues(fs, log)[0]):
        queue = found.get("T", 0)
        assert queue is not None
        assert (queue.begin_offset, queue.min_offset, queue.max_offset) == (23, 23, 35)
        assert len(positions(queue, 23)) == 12
        assert positions(queue, 22) == []


def test_hole_keeps_the_later_offsets_right_and_reads_as_size_zero(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, [0, 1, 5, 6])
    flush(queues, log.applied())
    for found in (queues, open_queues(fs, log)[0]):
        queue = found.get("T", 0)
        assert queue is not None
        units = queue.units(0, 100)
        assert [size > 0 for _, size, _ in units] == [True, True, False, False, False, True, True]
        assert units[5][0] == 2000
        log.min_position = 2000
        assert queue.min_offset == 5
        log.min_position = 0


def test_queue_made_again_after_its_topic_was_deleted_begins_anew(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    deleted: list[str] = []
    queues.on_delete(deleted.append)
    put(queues, log, "T", 0, range(25))
    put(queues, log, "U", 0, range(2))
    flush(queues, log.applied())
    queues.delete("T")
    assert deleted == ["T"]
    assert queues.get("T", 0) is None
    put(queues, log, "T", 0, range(2))
    flush(queues, log.applied())
    assert fs.list(ROOT / "T" / "0") == [f"{0:020d}"]
    again, _ = open_queues(fs, log)
    assert positions(again.get("T", 0)) == [27_000, 28_000]
    again.delete("T")
    flush(again, log.applied())
    assert fs.list(ROOT) == [".checkpoint", "U"]
    assert again.topics() == ["U"]


def test_rebuild_that_sees_a_deleted_topics_records_ends_with_the_new_ones(
    fs: MemoryFs, log: MadeUpLog
) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, [*range(7), *range(3)])
    assert positions(queues.get("T", 0)) == [7000, 8000, 9000]
    flush(queues, log.applied())
    assert positions(open_queues(fs, log)[0].get("T", 0)) == [7000, 8000, 9000]


def test_queue_begun_anew_during_a_flush_keeps_only_the_new_units(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(7))
    writes = queues.take_writes(log.applied())
    assert writes is not None
    put(queues, log, "T", 0, range(3))
    queues.write(writes)
    queues.written(writes)
    assert positions(queues.get("T", 0)) == [7000, 8000, 9000]
    flush(queues, log.applied())
    assert positions(open_queues(fs, log)[0].get("T", 0)) == [7000, 8000, 9000]


def damage_nothing(fs: MemoryFs, log: MadeUpLog) -> None:
    pass


def damage_wrong_record(fs: MemoryFs, log: MadeUpLog) -> None:
    log.records[11_000] = encode_record(Message("T", 0, b""), 10, 5)


def damage_no_record(fs: MemoryFs, log: MadeUpLog) -> None:
    log.records[11_000] = b"x" * len(log.records[11_000])


def damage_lost_queue(fs: MemoryFs, log: MadeUpLog) -> None:
    fs.delete(ROOT / "U" / "0" / f"{0:020d}")


def damage_lost_file(fs: MemoryFs, log: MadeUpLog) -> None:
    fs.delete(ROOT / "T" / "0" / f"{200:020d}")


def damage_lost_checkpoint(fs: MemoryFs, log: MadeUpLog) -> None:
    fs.delete(ROOT / ".checkpoint")


def damage_checkpoint(fs: MemoryFs, log: MadeUpLog) -> None:
    fs.overwrite(ROOT / ".checkpoint", 12, b"9")


def damage_shorter_log(fs: MemoryFs, log: MadeUpLog) -> None:
    for position in (12_000, 13_000):
        del log.records[position]


@pytest.mark.parametrize(
    "damage",
    [
        damage_wrong_record,
        damage_no_record,
        damage_lost_queue,
        damage_lost_file,
        damage_lost_checkpoint,
        damage_checkpoint,
        damage_shorter_log,
        damage_nothing,
    ],
)
def test_queues_that_disagree_with_the_log_are_dropped(fs: MemoryFs, log: MadeUpLog, damage: object) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(12))
    put(queues, log, "U", 0, range(2))
    flush(queues, log.applied())
    assert callable(damage)
    damage(fs, log)
    again, applied = open_queues(fs, log)
    if damage is damage_nothing:
        assert applied == log.applied()
        assert len(list(again)) == 2
    else:
        assert applied == Applied()
        assert fs.list(ROOT) == [".checkpoint"]
        assert again.topics() == []
        assert open_queues(fs, log)[1] == Applied()


def test_flush_without_news_writes_nothing(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(3))
    flush(queues, log.applied())
    assert queues.take_writes(log.applied()) is None


def test_full_buffer_is_said_until_the_flush(fs: MemoryFs, log: MadeUpLog) -> None:
    queues = ConsumeQueues(fs, STORE, ConsumeQueueConfig(200, 3, buffered_bytes_max=100), log)
    queues.load(-1, 0)
    put(queues, log, "T", 0, range(4))
    assert not queues.is_full
    put(queues, log, "T", 0, [4])
    assert queues.is_full
    flush(queues, log.applied())
    assert not queues.is_full


def test_reading_many_queues_keeps_few_files_open(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    for queue_id in range(10):
        put(queues, log, "T", queue_id, range(12))
    flush(queues, log.applied())
    for _ in range(2):
        for queue in queues:
            assert len(positions(queue)) == 12
            assert fs.open_files <= 3
    queues.close()
    assert fs.open_files == 0


def test_min_offset_follows_the_log(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(10))
    queue = queues.get("T", 0)
    assert queue is not None
    assert queue.min_offset == 0
    log.min_position = 3500
    assert queue.min_offset == 4
    log.min_position = 100_000
    assert queue.min_offset == queue.max_offset == 10


@pytest.mark.parametrize(
    ("timestamp_ms", "lower", "upper"),
    [(-5, 2, 2), (2000, 2, 2), (2001, 3, 2), (3000, 3, 3), (8999, 9, 8), (9000, 9, 9), (9001, 10, 9)],
)
def test_offset_by_time_finds_the_first_at_or_after_and_the_last_at_or_before(
    fs: MemoryFs, log: MadeUpLog, timestamp_ms: int, lower: int, upper: int
) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(10))
    queue = queues.get("T", 0)
    assert queue is not None
    log.min_position = 2000
    assert queue.offset_by_time(timestamp_ms, Boundary.LOWER) == lower
    assert queue.offset_by_time(timestamp_ms, Boundary.UPPER) == upper


def test_offset_by_time_of_equal_times_gives_both_ends(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(10))
    for position in range(3000, 7000, STEP):
        log.times_ms[position] = 5000
    queue = queues.get("T", 0)
    assert queue is not None
    assert queue.offset_by_time(5000, Boundary.LOWER) == 3
    assert queue.offset_by_time(5000, Boundary.UPPER) == 6
