"""Queues over a log that the test makes up: what is put, what the files hold, what a restart finds."""

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from commitlog import consume_queues
from commitlog.checkpoint import seal
from commitlog.consume_queue import Boundary, ConsumeQueue
from commitlog.consume_queues import SYNCED_EACH_MAX, ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch_batch import DispatchBatch, DispatchRequest
from commitlog.queue_checkpoint import Applied, decode_queue_checkpoint, encode_queue_checkpoint
from commitlog.record import Message, encode_record
from tests.support.memory_fs import MemoryFs

STORE = Path("/store")
ROOT = STORE / "consumequeue"
SMALL = ConsumeQueueConfig(file_bytes=200, open_files_max=3)
STEP = 1000


class MadeUpLog:
    """Every multiple of 1000 is the position of a record that the test named."""

    def __init__(self) -> None:
        self.min_position = 0
        self.records: dict[int, bytes] = {}
        self.times_ms: dict[int, int] = {}

    @property
    def end_position(self) -> int:
        return max(self.records, default=-STEP) + STEP

    def record_at(self, position: int) -> bytes | None:
        return self.records.get(position)

    def store_timestamp_at(self, position: int) -> int | None:
        return self.times_ms.get(position)

    def request(self, topic: str, queue_id: int, queue_offset: int, sys_flag: int = 0) -> DispatchRequest:
        position = self.end_position
        data = encode_record(Message(topic, queue_id, b"", sys_flag=sys_flag), queue_offset, 5)
        self.records[position] = data
        self.times_ms[position] = position
        return DispatchRequest(
            position // STEP, topic, queue_id, queue_offset, position, len(data), 77, position, sys_flag
        )

    def applied(self) -> Applied:
        return Applied(self.end_position // STEP - 1, self.end_position)


@pytest.fixture
def log() -> MadeUpLog:
    return MadeUpLog()


@pytest.fixture
def fs() -> MemoryFs:
    return MemoryFs()


def open_queues(fs: MemoryFs, log: MadeUpLog) -> tuple[ConsumeQueues, Applied]:
    queues = ConsumeQueues(fs, STORE, SMALL, log)
    return queues, queues.load(log.end_position // STEP - 1, log.end_position)


def flush(queues: ConsumeQueues, applied: Applied) -> None:
    writes = queues.take_writes(applied)
    if writes is not None:
        queues.write(writes)
        queues.written(writes)


def positions(queue: ConsumeQueue | None, start: int = 0, count: int = 10_000) -> list[int]:
    assert queue is not None
    return [position for position, _, _ in queue.units(start, count)]


def put(queues: ConsumeQueues, log: MadeUpLog, topic: str, queue_id: int, offsets: Sequence[int]) -> None:
    queues.put_all(DispatchBatch.of([log.request(topic, queue_id, offset) for offset in offsets]))


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


def test_flush_of_many_queues_syncs_once_and_survives_a_power_failure(fs: MemoryFs, log: MadeUpLog) -> None:
    queues, _ = open_queues(fs, log)
    count = SYNCED_EACH_MAX + 1
    for number in range(count):
        put(queues, log, f"T{number % 7}", number, range(3))
    before = fs.sync_count
    flush(queues, log.applied())
    assert fs.sync_count - before == 2  # the file system, the checkpoint
    again, applied = open_queues(fs.crash(random.Random(1)), log)
    assert applied == log.applied()
    assert len(list(again)) == count
    assert positions(again.get("T3", 3)) == positions(queues.get("T3", 3))


@pytest.mark.parametrize("seed", range(30))
def test_power_failure_in_a_flush_of_many_queues_leaves_the_old_or_the_new(
    fs: MemoryFs, log: MadeUpLog, seed: int
) -> None:
    queues, _ = open_queues(fs, log)
    for number in range(40):
        put(queues, log, "T", number, range(2))
    flush(queues, log.applied())
    old = log.applied()
    for number in range(50):
        put(queues, log, "T", number, range(2, 5) if number < 40 else range(2))
    rng = random.Random(seed)
    steps = rng.randrange(300)

    def count() -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise KeyboardInterrupt

    fs.on_change = count
    with contextlib.suppress(KeyboardInterrupt):
        flush(queues, log.applied())
    again, applied = open_queues(fs.crash(rng), log)
    assert applied in (old, log.applied())
    ends = {queue.max_offset for queue in again}
    assert ends == ({2} if applied == old else {2, 5})
    for queue in again:
        expected = queues.get("T", queue.queue_id)
        assert expected is not None
        assert positions(queue) == positions(expected)[: queue.max_offset]


def test_messages_that_come_while_a_flush_looks_at_the_queues_are_in_it_once(
    fs: MemoryFs, log: MadeUpLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queues, "TAKEN_PER_TURN", 1)
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(2))
    put(queues, log, "T", 1, range(2))
    applied = log.applied()
    parts = queues.take_writes_in_parts(applied)
    assert next(parts) is None
    later = [log.request("T", 1, 2), log.request("T", 0, 2)]
    queues.put_all(DispatchBatch.of(later))
    *_, writes = parts
    assert writes is not None
    queues.write(writes)
    queues.written(writes)
    again, found = open_queues(fs, log)
    assert found == applied
    again.put_all(DispatchBatch.of(later))
    assert [positions(again.get("T", number)) for number in (0, 1)] == [[0, 1000, 5000], [2000, 3000, 4000]]


def test_topic_deleted_while_a_flush_looks_at_the_queues_is_gone(
    fs: MemoryFs, log: MadeUpLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queues, "TAKEN_PER_TURN", 1)
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(2))
    flush(queues, log.applied())
    put(queues, log, "T", 0, range(2, 4))
    put(queues, log, "U", 0, range(2))
    given_up = queues.take_writes_in_parts(log.applied())
    assert next(given_up) is None
    given_up.close()
    parts = queues.take_writes_in_parts(log.applied())
    assert next(parts) is None
    queues.delete("T")
    *_, writes = parts
    assert writes is not None
    assert [part.queue.topic for part in writes.units] == ["U"]
    queues.write(writes)
    queues.written(writes)
    cancelled = queues.take_writes_in_parts(log.applied())
    put(queues, log, "U", 0, range(2, 3))
    assert next(cancelled) is None
    cancelled.close()
    flush(queues, log.applied())
    assert fs.list(ROOT) == [".checkpoint", "U"]
    again, _ = open_queues(fs, log)
    assert [queue.topic for queue in again] == ["U"]


def test_flush_is_wanted_early_but_not_for_a_few_units_of_each_of_many_queues(
    fs: MemoryFs, log: MadeUpLog
) -> None:
    config = ConsumeQueueConfig(200, 3, flush_bytes=100, flush_bytes_per_queue=40)
    queues = ConsumeQueues(fs, STORE, config, log)
    queues.load(-1, 0)
    put(queues, log, "T", 0, range(4))
    assert not queues.wants_flush
    put(queues, log, "T", 0, [4])
    assert queues.wants_flush
    put(queues, log, "T", 1, [0])
    put(queues, log, "T", 2, [0])
    put(queues, log, "T", 3, [0])
    assert queues.wants_flush  # 8 units in 4 queues
    put(queues, log, "T", 4, [0])
    assert not queues.wants_flush
    flush(queues, log.applied())
    assert not queues.wants_flush


@pytest.mark.parametrize(
    "row",
    [
        ["T"],
        [1, 0, 0, 1, 0, 1, 0],
        ["T", 0, 1, 1, 0, 1, 0],
        ["T", -1, 0, 1, 0, 1, 0],
        ["T", 0, 0, 1.5, 0, 1, 0],
        ["T", 0, -1, 1, 0, 1, 0],
        "T",
        None,
    ],
)
def test_checkpoint_with_a_row_that_is_no_queue_says_nothing(row: object) -> None:
    fields = {"version": 3, "appliedIndex": 5, "appliedPosition": 9}
    good = ["T", 0, 0, 1, 0, 1, 0]
    found = decode_queue_checkpoint(seal(fields | {"queues": [good]}))
    assert found is not None
    assert encode_queue_checkpoint(found.applied, found.extents) == seal(fields | {"queues": [good]})
    assert decode_queue_checkpoint(seal(fields | {"queues": [good, row]})) is None
    assert decode_queue_checkpoint(seal(fields)) is None


VERSION_2 = {
    "version": 2,
    "appliedIndex": 17,
    "appliedPosition": 18_000,
    "queues": 2,
    "begins": 4,
    "ends": 18,
}


@pytest.mark.parametrize("wrong", [{}, {"ends": 19}, {"queues": 3}, {"begins": "4"}, {"version": 4}])
def test_checkpoint_of_the_version_before_is_taken_over(
    fs: MemoryFs, log: MadeUpLog, wrong: dict[str, object]
) -> None:
    queues, _ = open_queues(fs, log)
    put(queues, log, "T", 0, range(4, 15))
    put(queues, log, "U", 3, range(3))
    flush(queues, log.applied())
    for number in range(4):
        log.request("V", 0, number)
    at_checkpoint = Applied(17, 18_000)
    put(queues, log, "T", 0, range(15, 18))
    flush(queues, log.applied())
    fs.plant(ROOT / ".checkpoint", seal(VERSION_2 | wrong))
    again, applied = open_queues(fs, log)
    if wrong:
        assert applied == Applied()
        return
    assert applied == at_checkpoint
    found = again.get("T", 0)
    assert found is not None
    assert (found.begin_offset, found.max_offset) == (4, 15)
    assert positions(again.get("U", 3)) == [11_000, 12_000, 13_000]
    put(again, log, "T", 0, [15])
    flush(again, log.applied())
    assert open_queues(fs, log)[1] == log.applied()
