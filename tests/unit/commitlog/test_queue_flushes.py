"""Flushes of the consume queues, and the checkpoint they leave."""

import contextlib
import random

import pytest

from commitlog import consume_queues
from commitlog.checkpoint import seal
from commitlog.consume_queues import (
    SYNCED_EACH_MAX,
    ConsumeQueueConfig,
    ConsumeQueues,
    decode_queue_checkpoint,
    encode_queue_checkpoint,
)
from commitlog.dispatch import Applied, DispatchBatch
from tests.support.made_up_log import (
    ROOT,
    STORE,
    MadeUpLog,
    flush,
    open_queues,
    positions,
    put,
)
from tests.support.memory_fs import MemoryFs, PowerLossError


@pytest.fixture
def log() -> MadeUpLog:
    return MadeUpLog()


@pytest.fixture
def fs() -> MemoryFs:
    return MemoryFs()


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
    with contextlib.suppress(PowerLossError), fs.stopping_after(rng.randrange(300)):
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
