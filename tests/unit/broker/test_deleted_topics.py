"""What the state knows of deleted topics, and what is refused or dropped while one is on its way out."""

import asyncio
from pathlib import Path

from broker.consume.offset_commits import OffsetCommits
from broker.state.changes import (
    CommitOffsets,
    DeleteTopic,
    PutTopic,
    TrimLog,
    TrimQueues,
    decode_changes,
    encode_change,
    join_changes,
)
from broker.state.checkpoints import Base, kept_offsets, merged_offsets
from broker.state.state import ReplicatedState
from broker.state.tables import StateTables
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from commitlog.record import Message
from remoting.codes import RequestCode
from tests.support.broker_parts import FakeEngine
from tests.support.fake_log import FakeLog
from tests.support.operator import Operator
from tests.unit.broker.test_state import make_state


def put(log: FakeLog, *bodies: str, topic: str = "t") -> None:
    log.put([Message(topic, 0, body.encode()) for body in bodies], lambda _: None)
    log.commit()


def ends(log: FakeLog, topic: str = "t") -> int:
    return log.fake_queues.next_offset(topic, 0)


async def made(tmp_path: Path) -> tuple[FakeLog, ReplicatedState]:
    log = FakeLog()
    state = make_state(tmp_path, log)
    assert await state.propose(PutTopic(TopicConfig("t"))) is PutStatus.PUT_OK
    put(log, "a", "b")
    return log, state


async def test_topic_made_again_begins_at_0_on_every_node(tmp_path: Path) -> None:
    log, state = await made(tmp_path / "a")
    assert await state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t"))) is PutStatus.PUT_OK
    assert ends(log) == 0
    put(log, "c")
    reopened = log.reopened()
    other = make_state(tmp_path / "b", reopened)
    await reopened.start()
    assert (ends(log), ends(reopened)) == (1, 1)
    assert dict(other.deleted_at) == dict(state.deleted_at) != {}


async def test_what_came_late_goes_when_the_topic_is_made_again(tmp_path: Path) -> None:
    log, state = await made(tmp_path)
    await state.propose(DeleteTopic("t"))
    put(log, "late")
    await state.propose(CommitOffsets("g", "t", {0: 9}))
    await state.propose(PutTopic(TopicConfig("t")))
    assert (ends(log), state.offsets.get("g", "t", 0)) == (0, None)
    put(log, "new")
    await state.propose(PutTopic(TopicConfig("t", 4, 4)))
    assert ends(log) == 1


async def test_topic_that_is_being_made_is_not_emptied_by_the_next_one_who_makes_it(tmp_path: Path) -> None:
    """The first creation was answered as failed, and is in the log all the same."""
    log, state = await made(tmp_path)
    await state.propose(DeleteTopic("t"))
    log.auto_commit = False
    first = state.propose(PutTopic(TopicConfig("t")))
    await asyncio.sleep(0)
    log.time_out()
    assert await first is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    assert state.is_changing("t")
    log.put([Message("t", 0, b"new")], lambda _: None)
    second = state.propose(PutTopic(TopicConfig("t")))
    await asyncio.sleep(0)
    log.commit()
    assert await second is PutStatus.PUT_OK
    assert (ends(log), state.is_changing("t")) == (1, False)


async def test_offsets_of_a_topic_that_is_being_deleted_are_refused(tmp_path: Path) -> None:
    log, state = await made(tmp_path)
    log.auto_commit = False
    deletion = state.propose(DeleteTopic("t"))
    for _ in range(2):  # on its way to the log, then in the log
        for change in (CommitOffsets("g", "t", {0: 2}), TrimQueues("t", {0: 2})):
            assert await state.propose(change) is PutStatus.OS_PAGE_CACHE_BUSY
        await asyncio.sleep(0)
    log.set_writable(True)  # a leader that begins anew has applied all that is in its log
    log.commit()
    assert await deletion is PutStatus.PUT_OK
    assert not state.is_changing("t")


async def test_offsets_that_came_with_pulls_go_with_the_topic(tmp_path: Path) -> None:
    log, state = await made(tmp_path)
    await state.propose(PutTopic(TopicConfig("other")))
    commits = OffsetCommits(state, log)
    commits.note("g", "t", 0, 2)
    commits.note("g", "other", 0, 2)
    await state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t")))
    assert (commits.current("g", "t", 0), commits.current("g", "other", 0)) == (None, 2)
    await commits.stop()


async def test_offsets_of_the_deleted_topic_are_not_stored_for_the_one_made_again(tmp_path: Path) -> None:
    """Its consumers may still run: what they have consumed must not make their group skip anything."""
    log, state = await made(tmp_path)
    commits = OffsetCommits(state, log)
    await state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t")))
    put(log, "new")
    assert commits.commit("g", "t", 0, 2) is None
    commits.note("g", "t", 0, 2)
    assert commits.current("g", "t", 0) is None
    log.is_behind = True  # followers may have shown more than this leader has
    assert commits.commit("g", "t", 0, 2) is not None
    log.is_behind = False
    future = commits.commit("g", "t", 0, 1)
    assert future is not None
    assert await future is PutStatus.PUT_OK
    assert state.offsets.get("g", "t", 0) == 1
    await commits.stop()


async def test_creation_behind_a_deletion_that_is_not_applied_yet_is_done(tmp_path: Path) -> None:
    """The topic is still in the table as it is asked for, and would be gone a moment later."""
    operator = Operator(tmp_path, FakeEngine())
    fields = {"topic": "t", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    await operator.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
    deletion = operator.parts.state.propose(DeleteTopic("t"))
    assert (await operator.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)).code == 0
    assert await deletion is PutStatus.PUT_OK
    assert "t" in operator.parts.state.topics


async def test_many_deletions_of_a_turn_take_several_records(tmp_path: Path) -> None:
    log, state = await made(tmp_path)
    names = [f"{'n' * 120}{number}" for number in range(400)]
    done = [state.propose(DeleteTopic(name)) for name in [*names, "t"]]
    assert set(await asyncio.gather(*done)) == {PutStatus.PUT_OK}
    assert ends(log) == 0
    assert len(state.deleted_at) == 401
    assert await state.propose(*map(DeleteTopic, names)) is PutStatus.MESSAGE_ILLEGAL
    assert await state.propose(DeleteTopic("a,b")) is PutStatus.MESSAGE_ILLEGAL


def test_deletions_that_an_earlier_version_wrote_keep_their_meaning() -> None:
    old, new = b'["deleteTopic","t"]', b'["deleteTopic","t",true]'
    assert decode_changes(join_changes([old, new])) == [DeleteTopic("t", False), DeleteTopic("t", True)]
    assert [encode_change(DeleteTopic("t", is_new)) for is_new in (False, True)] == [old, new]


def test_deletions_before_the_log_s_begin_are_forgotten() -> None:
    tables = StateTables({}, {})
    for position, name in enumerate("abc"):
        tables.apply(DeleteTopic(name), 0, position * 100)
    tables.apply(DeleteTopic("old", has_messages_gone=False), 0, 900)
    tables.apply(TrimLog(100), 0, 1_000)
    assert tables.deleted_at == {"b": 100, "c": 200}
    again = StateTables({}, {})
    again.load_json(tables.to_json())
    assert again.deleted_at == tables.copy().deleted_at == tables.deleted_at


def test_offsets_of_a_checkpoint_count_no_more_for_a_topic_deleted_since() -> None:
    base = Base(5, 6, (["a", [[0, 3]]], ["b", [[0, 4]]]), 700)
    kept = list(kept_offsets(base, {"a": 700, "b": 600}))
    assert kept == [["b", [[0, 4]]]]
    assert merged_offsets(kept, [["b", [[0, 2], [1, 1]]]]) == (["b", [[0, 4], [1, 1]]],)
