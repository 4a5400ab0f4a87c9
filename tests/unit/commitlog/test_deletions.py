"""Topics that records of the log delete: on the leader that appends them, and on every node that reads it."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest

from commitlog.commit_log import CommitLog, RecordStoreConfig
from commitlog.consume_queues import CHECKPOINT_NAME, ConsumeQueueConfig
from commitlog.dispatch import STATE_TOPIC, Applied, topics_deleted_by
from commitlog.indexed_log import MessageLogConfig
from commitlog.log import PutStatus
from commitlog.record import Message, decode_record
from tests.support.memory_fs import MemoryFs, PowerLossError
from tests.unit.commitlog.test_dledger_commit_log import STORE, Bench

QUEUES = STORE / "consumequeue"


class Topics(Bench):
    """A node that deletes topics."""

    def send(self, *bodies: str, topic: str = "T", queue_id: int = 0) -> list[int]:
        status, offsets = self.put(*(Message(topic, queue_id, body.encode()) for body in bodies))
        assert status is PutStatus.PUT_OK
        return offsets

    def delete(self, *topics: str) -> None:
        result = self.log.put([Message(STATE_TOPIC, 0, b"change")], self.done.append, topics)
        assert result.status is PutStatus.PUT_OK

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[str]:
        """What the queue shows, from offset 0 on."""
        queue = self.log.queues.get(topic, queue_id)
        if queue is None:
            return []
        assert queue.min_offset == 0
        units = queue.units(0, 1000)
        assert len(units) == queue.max_offset
        records = [decode_record(self.log.read(position, size)) for position, size, _ in units]
        assert [record.queue_offset for record in records] == list(range(len(records)))
        return [bytes(record.body).decode() for record in records]

    def flush(self) -> None:
        queues = self.log.queues
        applied = Applied(self.log.applied_index, self.log.max_position)
        if (writes := queues.take_writes(applied)) is not None:
            queues.write(writes)
            queues.written(writes)

    async def commit(self) -> None:
        """All there is, and have it dispatched."""
        self.engine.commit()
        async with asyncio.timeout(10):
            while self.log.applied_index < self.store.end_index:
                assert not self.fatal
                await asyncio.sleep(0)

    async def again(self) -> "Topics":
        """The node after a restart; it leads."""
        self.store.close()
        other = Topics(self.fs)
        other.engine.lead(2)
        await other.commit()
        return other

    def directories(self) -> list[str]:
        """Of the queues of all topics but the system's."""
        found = {path.relative_to(QUEUES).parts[:2] for path in self.fs.paths() if QUEUES in path.parents}
        names = ("/".join(parts) for parts in found if len(parts) == 2)
        return sorted(name for name in names if not name.startswith("rmq_sys_"))


@pytest.fixture
def node() -> Topics:
    found = Topics()
    found.lead()
    return found


async def test_topic_that_is_made_again_is_empty_and_begins_at_offset_0(node: Topics) -> None:
    assert node.send("a", "b") == [0, 1]
    assert node.send("other", topic="U") == [0]
    node.delete("T")
    await node.commit()
    assert node.bodies() == []
    assert node.send("c") == [0]
    await node.commit()
    assert node.bodies() == ["c"]
    assert node.bodies("U") == ["other"]


@pytest.mark.parametrize("commits", list(product((False, True), repeat=6)))
async def test_offsets_go_by_the_places_in_the_log_whenever_it_is_committed(commits: Sequence[bool]) -> None:
    """The leader gives out offsets before it knows what is committed; a stretch of the dispatch may hold all
    of it or a part.
    """
    node = Topics()
    node.lead()
    given: list[list[int]] = []
    steps: Sequence[Callable[[], None]] = (
        lambda: given.append(node.send("a", "b")),
        lambda: node.delete("T", "U"),
        lambda: given.append(node.send("c")),
        lambda: node.delete("T"),
        lambda: given.append(node.send("d", "e")),
        lambda: given.append(node.send("f")),
    )
    for step, is_committed in zip(steps, commits, strict=True):
        step()
        if is_committed:
            await node.commit()
    assert given == [[0, 1], [0], [0, 1], [2]]
    await node.commit()
    assert node.bodies() == ["d", "e", "f"]
    assert node.send("g") == [3]
    await node.commit()
    again = await node.again()
    assert again.bodies() == ["d", "e", "f", "g"]
    assert again.send("h") == [4]


async def test_many_topics_in_one_record(node: Topics) -> None:
    names = [f"T{number}" for number in range(40)]
    for name in names:
        node.send("x", topic=name)
    node.delete(*names[1:])
    await node.commit()
    assert [node.bodies(name) for name in names] == [["x"], *[[]] * 39]
    [record] = [node.log.record_at(each.position) for each in node.heard if each.topic == STATE_TOPIC]
    assert record is not None
    assert topics_deleted_by(decode_record(record).properties) == names[1:]


async def test_new_leader_counts_from_what_is_committed(node: Topics) -> None:
    node.send("a", "b")
    node.delete("T")
    node.engine.follow(2)
    node.engine.lead(3)
    await node.commit()
    assert node.send("c") == [0]
    await node.commit()
    assert node.bodies() == ["c"]


async def test_a_clients_property_deletes_nothing(node: Topics) -> None:
    node.send("a")
    node.put(Message("T", 1, b"evil", b"LEDGERMQ_DELETED\x01T\x02"))
    await node.commit()
    assert node.bodies() == ["a"]


async def test_queues_built_again_from_the_log_show_what_they_showed(node: Topics) -> None:
    node.send("a", "b")
    node.send("u", topic="U")
    node.delete("T", "U")
    node.send("c")
    await node.commit()
    node.flush()
    node.fs.delete(QUEUES / CHECKPOINT_NAME)
    again = await node.again()
    assert (again.bodies(), again.bodies("U")) == (["c"], [])
    assert again.send("d") == [1]


async def test_replay_for_the_state_brings_nothing_back(
    node: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues are farther than the state, which is given the log again from before the deletion."""
    node.send("a", "b")
    node.delete("T")
    node.send("c")
    await node.commit()
    node.flush()
    node.store.close()
    again = Topics(node.fs)
    again.log.replay_from(0)
    again.engine.lead(2)
    monkeypatch.setattr("commitlog.dledger_commit_log.RANGE_ENTRIES_MAX", 4)
    again.engine.commit()
    assert (again.bodies(), len(again.heard)) == (["c"], 4)
    again.flush()
    assert Topics(node.fs).bodies() == ["c"], "flushed in the midst of it"
    await again.commit()
    assert again.bodies() == ["c"]
    assert [request.index for request in again.heard] == list(range(6))


async def test_deleted_topic_leaves_no_file(node: Topics) -> None:
    for number in range(30):
        for queue_id in range(4):
            node.send("x", topic=f"T{number}", queue_id=queue_id)
    await node.commit()
    node.flush()
    assert len(node.directories()) == 120
    node.delete(*(f"T{number}" for number in range(30)))
    node.send("y", topic="T3", queue_id=1)
    await node.commit()
    node.flush()
    assert node.directories() == ["T3/1"]
    assert node.fs.list(QUEUES / "T4") == []
    assert (await node.again()).bodies("T3", 1) == ["y"]


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
async def test_crash_at_any_step_of_the_flush_that_deletes(is_made_again: bool, is_power_lost: bool) -> None:
    changes = 0
    while await crashed_flush(changes, is_made_again, is_power_lost):
        changes += 1
    assert changes > 10


async def crashed_flush(steps: int, is_made_again: bool, is_power_lost: bool) -> bool:
    """Whether the machine stopped before its flush was done; its start reads none of the log again."""
    node = Topics()
    node.lead()
    node.send("a", *"bcdefghijklm")
    node.send("u", topic="U")
    await node.commit()
    node.flush()
    node.delete("T")
    left = [node.send("n") and "n"] if is_made_again else []
    await node.commit()
    try:
        with node.fs.stopping_after(steps):
            node.flush()
        is_crashed = False
    except PowerLossError:
        is_crashed = True
    fs = node.fs.crash(random.Random(steps)) if is_power_lost else node.fs
    again = Topics(fs)
    assert again.log.applied_index >= 0, "the queues were built again from the first entry"
    again.engine.lead(2)
    await again.commit()
    assert (again.bodies(), again.bodies("U")) == (left, ["u"])
    assert again.send("z") == [len(left)]
    await again.commit()
    again.flush()
    assert again.directories() == ["T/0", "U/0"]
    return is_crashed


async def test_files_that_no_checkpoint_speaks_of_are_deleted(node: Topics) -> None:
    node.send("a")
    await node.commit()
    node.flush()
    for name in ("GONE/0", "GONE/1", "T/7"):
        node.fs.make_directory(QUEUES / name)
        node.fs.close(node.fs.open(QUEUES / name / f"{0:020d}"))
    again = await node.again()
    assert "GONE/0" in again.directories()
    again.flush()
    assert again.directories() == ["T/0"]
    assert again.bodies() == ["a"]


async def test_plain_log_deletes_topics_alike() -> None:
    fs = MemoryFs()
    config = MessageLogConfig(ConsumeQueueConfig(file_bytes=200), message_bytes_max=500)
    path = Path("/plain")

    async def life(*steps: tuple[str, str]) -> list[str]:
        done: list[PutStatus] = []
        fatal: list[BaseException] = []
        log = CommitLog(path, config, RecordStoreConfig(file_bytes=4096), on_fatal=fatal.append, fs=fs)
        await log.start()
        for topic, body in steps:
            names = [body] if topic == STATE_TOPIC else []
            log.put([Message(topic, 0, body.encode())], done.append, names)
        async with asyncio.timeout(10):
            while len(done) < len(steps):
                await asyncio.sleep(0)
        queue = log.queues.get("T", 0)
        units = queue.units(0, 100) if queue is not None else []
        bodies = [bytes(decode_record(log.read(*unit[:2])).body).decode() for unit in units]
        await log.stop()
        assert not fatal
        return bodies

    assert await life(("T", "a"), ("T", "b")) == ["a", "b"]
    assert await life((STATE_TOPIC, "T"), ("T", "c")) == ["c"]
    fs.delete(path / "consumequeue" / CHECKPOINT_NAME)
    assert await life(("T", "d")) == ["c", "d"]
