"""Checkpoints of the state in the log: their parts, and what a node makes of the whole."""

import asyncio
from pathlib import Path

import pytest

from broker.admin.feature import admin_feature
from broker.state.changes import CommitOffsets, DeleteTopic, DropOffsets, PutTopic, TrimLog, TrimQueues
from broker.state.checkpoints import (
    CHECKPOINT_TOPIC,
    Assembler,
    Base,
    CheckpointRecordError,
    CompleteCheckpoint,
    piece_of,
    split,
)
from broker.state.state import ReplicatedState
from broker.state.topics import STATE_TOPIC, TopicConfig
from commitlog.log import PutStatus
from commitlog.record import Message
from tests.support.broker_parts import make_parts
from tests.support.fake_log import FakeLog
from tests.unit.broker.test_state import make_config, make_state


def put(log: FakeLog, topic: str, count: int) -> None:
    for _ in range(count):
        log.put([Message(topic, 0, b"x")], lambda _: None)
    log.commit()


def test_parts_are_put_together_again() -> None:
    data = bytes(range(200)) * 5
    parts = list(split(41, data, 64))
    assert len(parts) == 16
    assert b"".join(map(piece_of, parts)) == data
    assembler = Assembler()
    found = [assembler.add(part, (number, 64)) for number, part in enumerate(parts)]
    assert found == [None] * 15 + [CompleteCheckpoint(41, tuple((number, 64) for number in range(16)))]


def test_part_that_is_told_again_changes_nothing() -> None:
    parts = list(split(41, bytes(200), 64))
    assembler = Assembler()
    for number in (0, 1, 0, 1, 2, 1, 2):
        assert assembler.add(parts[number], (number, 9)) is None
    whole = assembler.add(parts[3], (3, 9))
    assert whole == CompleteCheckpoint(41, ((0, 9), (1, 9), (2, 9), (3, 9)))
    assert assembler.add(parts[3], (3, 9)) == whole


def test_checkpoint_that_lacks_a_part_is_none() -> None:
    """Its leader died, or the log begins within it; the next one counts."""
    one, two = list(split(41, bytes(200), 64)), list(split(50, bytes(100), 64))
    assembler = Assembler()
    assert [assembler.add(part, (0, 1)) for part in (*one[1:], one[0], one[1])] == [None] * 5
    assert assembler.add(one[3], (0, 1)) is None
    assert assembler.add(two[0], (7, 1)) is None
    assert assembler.add(two[1], (8, 1)) == CompleteCheckpoint(50, ((7, 1), (8, 1)))


@pytest.mark.parametrize(
    "body", [b"", bytes(16), bytes(17), b"\x01" + bytes(16), b"\x02" + b"\0" * 15 + b"\x01"]
)
def test_what_is_no_part_is_refused(body: bytes) -> None:
    with pytest.raises(CheckpointRecordError):
        Assembler().add(body, (0, 1))


async def test_checkpoint_is_found_in_the_log_and_kept_with_the_snapshot(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    put(log, "T", 5)
    covered = state.applied_index
    assert await state.write_checkpoint(40) is PutStatus.PUT_OK
    assert len([message for message in log.messages if message.topic == CHECKPOINT_TOPIC]) > 3
    assert state.base.covered_index == covered == 4
    assert state.base.known_index == state.applied_index
    assert ["T", [[0, 5]]] in state.base.offsets
    assert state.saved_covered_index == -1
    await state.stop()
    assert state.saved_covered_index == covered
    again = make_state(tmp_path, log.reopened())
    assert (again.base, again.saved_covered_index) == (state.base, covered)


async def test_topic_that_was_made_again_keeps_its_messages_over_a_start(tmp_path: Path) -> None:
    """The last checkpoint knows the queue of the deleted topic, which had come farther."""
    log = FakeLog()
    state = make_state(tmp_path, log)
    put(log, "T", 5)
    put(log, "U", 5)
    assert await state.write_checkpoint(4000) is PutStatus.PUT_OK
    assert await state.propose(DeleteTopic("T")) is PutStatus.PUT_OK
    put(log, "T", 2)
    await state.stop()
    again = FakeLog()
    again.fake_queues = log.fake_queues
    again._readable_end, again._applied_index = log._readable_end, log._applied_index
    del again.fake_queues.by_key["U", 0]  # not written, since it has no message
    make_state(tmp_path, again)
    queue = again.fake_queues.get("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 2)
    assert again.fake_queues.next_offset("U", 0) == 5


async def test_queues_go_on_where_they_were_before_a_new_leader_puts_anything(tmp_path: Path) -> None:
    """Though the last entry that they have to pass is one of which nobody is told."""
    log = FakeLog()
    state = make_state(tmp_path, log)
    put(log, "T", 5)
    assert await state.write_checkpoint(4000) is PutStatus.PUT_OK
    await state.stop()
    again = FakeLog(is_writable=False)
    again._applied_index = state.base.known_index - 1
    make_state(tmp_path, again)
    assert again.fake_queues.next_offset("T", 0) == 0
    again._applied_index += 1
    again.set_writable(True)
    assert again.fake_queues.next_offset("T", 0) == 5


class CutLog(FakeLog):
    """A log whose first entries are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.first_index = 0
        self.calls: list[object] = []

    @property
    def begin_index(self) -> int:
        return self.first_index

    def suspend_writes(self, is_suspended: bool) -> None:
        self.calls.append(is_suspended)

    def redeliver_from(self, listener: object, index: int) -> None:
        self.calls.append(index)


async def test_node_without_the_begin_of_its_log_takes_the_state_from_a_checkpoint(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path / "one", log)
    await asyncio.gather(
        state.propose(PutTopic(TopicConfig("T")), CommitOffsets("g", "T", {0: 3}), TrimLog(77)),
        state.propose(TrimQueues("T", {0: 2}), TrimQueues("T", {0: 1, 1: 4})),
    )
    put(log, "T", 5)
    covered = state.applied_index
    assert await state.write_checkpoint(100) is PutStatus.PUT_OK
    await state.propose(CommitOffsets("g", "T", {0: 4}))

    late = CutLog()
    late.first_index = covered + 1
    other = ReplicatedState(make_config(tmp_path / "two"), late, lambda: 0)
    other.restore()
    other._tables.topics["gone"] = TopicConfig("gone")  # deleted by an entry that the log has no more
    deleted: list[str] = []
    other.on_topic_deleted(deleted.append)
    topics = other.topics
    late._records = log._records
    late._readable_end, late._applied_index = log._readable_end, log._applied_index
    remaining = [request for request in log._committed if request.index > covered]
    for number in range(0, len(remaining), 2):
        other.apply(log._batch(remaining[number : number + 2]))
    assert late.calls == [True, covered + 1, False]
    assert late.fake_queues.next_offset("T", 0) == 5
    assert dict(other.topics) == dict(state.topics)
    assert topics is other.topics, "who holds the table sees the new one"
    assert deleted == ["gone"]
    assert other.first_shown == {"T": {0: 2, 1: 4}}
    assert other.trim_position == 77
    other.apply(log._batch(remaining))  # what the log gives again
    assert other.offsets.get("g", "T", 0) == 4
    assert other.applied_index == state.applied_index


async def test_resets_before_a_checkpoint_and_right_behind_what_it_covers_are_heard_of(
    tmp_path: Path,
) -> None:
    """Its parts stand later in the log than the entry whose state they hold."""
    log = FakeLog()
    state = make_state(tmp_path / "one", log)
    await state.propose(PutTopic(TopicConfig("T")), CommitOffsets("g", "T", {0: 3, 1: 3}, is_reset=True))
    covered = state.applied_index
    writing = asyncio.create_task(state.write_checkpoint(100))
    await asyncio.sleep(0)
    await state.propose(CommitOffsets("g", "T", {1: 1}, is_reset=True))
    assert await writing is PutStatus.PUT_OK
    remaining = [request for request in log._committed if request.index > covered]
    assert [request.topic for request in remaining[:2]] == [STATE_TOPIC, CHECKPOINT_TOPIC]

    late = CutLog()
    late.first_index = covered + 1
    late._records, late._readable_end, late._applied_index = log._records, log._readable_end, covered
    late.set_writable(False)
    parts = make_parts(tmp_path / "two", late)
    parts.add(admin_feature(parts.core, parts.consumers))
    parts.state.apply(log._batch(remaining))
    assert late.calls == [True, covered + 1, False]
    targets = [parts.consumers.resets.send("g", "T", queue_id, 9, now_ms=0) for queue_id in (0, 1)]
    assert targets == [3, 3], "as it was at the checkpoint"
    parts.state.apply(log._batch(remaining))  # what the log gives again
    assert parts.consumers.resets.send("g", "T", 1, 9, now_ms=0) == 1
    assert parts.state.offsets.queues("g", "T") == {0: 3, 1: 1}
    assert list(parts.state.resets.items()) == list(state.resets.items())


async def test_dropped_offsets_are_gone(tmp_path: Path) -> None:
    state = make_state(tmp_path, FakeLog())
    await state.propose(
        CommitOffsets("g", "T", {0: 3}), CommitOffsets("g", "U", {0: 3}), DropOffsets("g", "T")
    )
    assert state.offsets.to_json() == [["U", "g", [(0, 3)]]]
    assert len(state.offsets) == 1
    await state.propose(DropOffsets("g", "T"))
    assert len(state.offsets) == 1


@pytest.mark.parametrize("data", [{"base": [1]}, {"base": [1, 2]}, {"base": [1, "x"], "queues": []}])
def test_base_that_is_none_is_told(data: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Base.from_json(data)
