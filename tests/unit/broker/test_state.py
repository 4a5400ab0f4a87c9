"""The replicated state: proposals, log order, snapshots and what a restart or another node makes of the same
log.
"""

import asyncio
import threading
from pathlib import Path

import pytest

from broker.config import BrokerConfig, config_from
from broker.state import state as state_module
from broker.state.access import AccessList, Action, Decision, PolicyEntry, PolicyType, Resource, User
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteAccessList,
    DeleteGroup,
    DeleteTopic,
    DeleteUser,
    PutAccessList,
    PutGroup,
    PutSettings,
    PutTopic,
    PutUser,
    SetDelayOffset,
)
from broker.state.groups import EXPONENTIAL, GroupRetryPolicy, SubscriptionGroupConfig
from broker.state.snapshot import decode_snapshot
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import STATE_TOPIC, TopicConfig, inherited_topic, retry_topic
from commitlog.log import PutStatus
from commitlog.record import CorruptRecordError, Message
from dledger.core.membership import CHANGING_MEMBERS_LEVEL, FIXED_MEMBERS_LEVEL
from dledger.fs import Fs
from remoting.route import DEFAULT_TOPIC
from tests.support.fake_log import FakeLog
from tests.support.polling import until


def make_config(tmp_path: Path, **values: object) -> BrokerConfig:
    return config_from({"storePathRootDir": str(tmp_path), **values})


def make_state(tmp_path: Path, log: FakeLog, **values: object) -> ReplicatedState:
    state = ReplicatedState(make_config(tmp_path, **values), log, lambda: 1_700_000_000_000)
    state.restore()
    return state


def state_records(log: FakeLog) -> list[Message]:
    return [message for message in log.messages if message.topic == STATE_TOPIC]


async def test_an_offset_is_answered_only_when_committed_and_applied(tmp_path: Path) -> None:
    log = FakeLog(auto_commit=False)
    state = make_state(tmp_path, log)
    answer = state.propose(CommitOffsets("g", "t", {0: 5, 3: 7}))
    await asyncio.sleep(0)
    assert not answer.done()
    assert state.offsets.get("g", "t", 0) is None
    log.commit()
    assert await answer is PutStatus.PUT_OK
    assert (state.offsets.get("g", "t", 0), state.offsets.get("g", "t", 3)) == (5, 7)
    assert state.offsets.get("g", "t", 1) is None
    assert len(state.offsets) == 2


async def test_changes_of_one_turn_share_one_record_in_order(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    answers = [state.propose(CommitOffsets("g", "t", {0: offset})) for offset in range(10)]
    assert set(await asyncio.gather(*answers)) == {PutStatus.PUT_OK}
    assert len(state_records(log)) == 1
    assert state.offsets.get("g", "t", 0) == 9


async def test_a_turn_too_large_for_a_record_makes_several(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    wide = dict.fromkeys(range(18000), 2**60)
    answers = [state.propose(CommitOffsets(f"g{n}", "t", wide)) for n in range(4)]
    assert set(await asyncio.gather(*answers)) == {PutStatus.PUT_OK}
    assert len(state_records(log)) == 2
    assert all(len(record.body) <= 1024 * 1024 + 100 for record in state_records(log))
    assert state.offsets.get("g3", "t", 17_999) == 2**60


@pytest.mark.parametrize("status", [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY])
async def test_a_refused_put_is_the_answer(tmp_path: Path, status: PutStatus) -> None:
    log = FakeLog()
    log.next_status = status
    state = make_state(tmp_path, log)
    assert await state.propose(SetDelayOffset(1, 5)) is status
    assert dict(state.delay_offsets) == {}


async def test_a_put_that_fails_later_is_the_answer(tmp_path: Path) -> None:
    log = FakeLog(auto_commit=False)
    state = make_state(tmp_path, log)
    answer = state.propose(SetDelayOffset(1, 5))
    await asyncio.sleep(0)
    log.fail(PutStatus.UNKNOWN_ERROR)
    assert await answer is PutStatus.UNKNOWN_ERROR
    assert dict(state.delay_offsets) == {}


async def test_a_failed_record_does_not_hold_up_the_next(tmp_path: Path) -> None:
    log = FakeLog(auto_commit=False)
    state = make_state(tmp_path, log)
    lost = state.propose(SetDelayOffset(1, 5))
    await asyncio.sleep(0)
    log.fail(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    kept = state.propose(SetDelayOffset(1, 9))
    await asyncio.sleep(0)
    log.commit()
    assert (await lost, await kept) == (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, PutStatus.PUT_OK)
    assert dict(state.delay_offsets) == {1: 9}


async def test_changes_that_no_node_could_apply_never_reach_the_log(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    for change in (
        PutTopic(TopicConfig("bad name!")),
        PutTopic(TopicConfig("t", perm=99)),
        PutGroup(SubscriptionGroupConfig("")),
        CommitOffsets("g", "t", {-1: 3}),
        CommitOffsets("g", "t", {0: -3}),
        CommitOffsets("\ud800", "t", {0: 3}),
        SetDelayOffset(0, 1),
        SetDelayOffset(2**31, 1),
    ):
        assert await state.propose(change) is PutStatus.MESSAGE_ILLEGAL, change
    assert log.messages == []


async def test_full_tables_refuse_what_is_new_only(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log, offsetsMax=2, groupsMax=9, topicsMax=12)
    assert await state.propose(CommitOffsets("g", "t", {0: 1, 1: 1})) is PutStatus.PUT_OK
    assert await state.propose(CommitOffsets("g", "t", {2: 1})) is PutStatus.MESSAGE_ILLEGAL
    assert await state.propose(CommitOffsets("g", "t", {0: 2})) is PutStatus.PUT_OK
    assert await state.propose(PutGroup(SubscriptionGroupConfig("g1"))) is PutStatus.PUT_OK
    assert await state.propose(PutGroup(SubscriptionGroupConfig("g2"))) is PutStatus.MESSAGE_ILLEGAL
    assert await state.propose(PutTopic(TopicConfig("t1"))) is PutStatus.PUT_OK
    assert await state.propose(PutTopic(TopicConfig("t2"))) is PutStatus.MESSAGE_ILLEGAL


async def test_deleting_a_topic_that_is_gone_drops_what_a_late_consumer_committed_to_it(
    tmp_path: Path,
) -> None:
    state = make_state(tmp_path, FakeLog())
    await state.propose(PutTopic(TopicConfig("t")), DeleteTopic("t"), CommitOffsets("g", "t", {0: 39}))
    version = state.data_version
    await state.propose(DeleteTopic("t"))
    assert state.offsets.get("g", "t", 0) is None
    assert state.data_version == version


async def test_every_change_is_rebuilt_alike_on_another_node(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path / "a", log)
    topic = TopicConfig("t", 4, 8, 6, "MULTI_TAG", 1, True, {"k": "v"})
    group = SubscriptionGroupConfig("g", retry_max_times=3, consume_enable=False, attributes={"a": "b"})
    await state.propose(PutTopic(topic), PutGroup(group), CommitOffsets("g", "t", {0: 11, 1: 12}))
    await state.propose(
        SetDelayOffset(2, 40), PutTopic(TopicConfig("gone")), PutGroup(SubscriptionGroupConfig("out"))
    )
    await state.propose(CommitOffsets("out", "t", {0: 1}), CommitOffsets("g", "gone", {0: 1}))
    await state.propose(DeleteTopic("gone"), DeleteGroup("out", clean_offsets=True))
    other_log = log.reopened()
    other = make_state(tmp_path / "b", other_log)
    await other_log.start()
    for each in (state, other):
        assert each.topics["t"] == topic
        assert each.groups["g"] == group
        assert "gone" not in each.topics
        assert "out" not in each.groups
        assert each.offsets.to_json() == [["t", "g", [(0, 11), (1, 12)]]]
        assert dict(each.delay_offsets) == {2: 40}
    assert state.data_version == other.data_version
    assert state.data_version.counter == 3
    assert state.groups_version == other.groups_version


async def test_a_snapshot_and_the_rest_of_the_log_give_the_same_state(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    await state.propose(PutTopic(TopicConfig("t")), CommitOffsets("g", "t", {0: 1}))
    await state.stop()
    await state.propose(CommitOffsets("g", "t", {0: 2}))

    again = log.reopened()
    restarted = make_state(tmp_path, again)
    assert again.replayed_from == 1
    assert restarted.offsets.get("g", "t", 0) == 1
    assert restarted.topics["t"] == TopicConfig("t")
    assert restarted.data_version == state.data_version
    await again.start()
    assert restarted.offsets.get("g", "t", 0) == 2


async def test_records_the_snapshot_holds_are_not_applied_again(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    await state.propose(PutTopic(TopicConfig("t")))
    await state.stop()
    again = log.reopened()
    restarted = make_state(tmp_path, again)
    again.replay_from(0)
    await again.start()
    assert restarted.data_version == state.data_version


@pytest.mark.parametrize("damage", [b"", b"LMQSTATE", b"x" * 200])
async def test_a_damaged_snapshot_is_passed_over_for_the_log(tmp_path: Path, damage: bytes) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    await state.propose(CommitOffsets("g", "t", {0: 1}))
    await state.stop()
    (tmp_path / "state" / "snapshot").write_bytes(damage)
    again = log.reopened()
    restarted = make_state(tmp_path, again)
    assert again.replayed_from == 0
    await again.start()
    assert restarted.offsets.get("g", "t", 0) == 1


async def test_of_a_batch_with_an_unreadable_record_nothing_is_applied(tmp_path: Path) -> None:
    """The node stops there, and writes a snapshot of what was applied."""
    log = FakeLog()
    writer = make_state(tmp_path / "a", log)
    for offset in (3, 5):
        await writer.propose(CommitOffsets("g", "t", {0: offset}))
    state = ReplicatedState(make_config(tmp_path / "b"), FakeLog(), lambda: 0)
    requests = [request for request in log._committed if request.topic == STATE_TOPIC]
    batch = log._batch(requests)
    assert batch.records is not None
    whole = bytes(batch.records.data)
    batch.records.data = whole[:-9]
    with pytest.raises(CorruptRecordError):
        state.apply(batch)
    assert (state.offsets.get("g", "t", 0), state.applied_index) == (None, -1)
    batch.records.data = whole
    state.apply(batch)
    assert (state.offsets.get("g", "t", 0), state.applied_index) == (5, requests[1].index)


async def test_stop_answers_what_still_waits(tmp_path: Path) -> None:
    log = FakeLog(auto_commit=False)
    state = make_state(tmp_path, log)
    put = state.propose(SetDelayOffset(1, 1))
    await asyncio.sleep(0)
    queued = state.propose(SetDelayOffset(2, 1))
    await state.stop()
    assert (await put, await queued) == (PutStatus.UNKNOWN_ERROR, PutStatus.SERVICE_NOT_AVAILABLE)


async def test_a_topic_many_ask_for_is_created_once(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    created = await asyncio.gather(*(state.ensure_topic_config(TopicConfig("new", 4, 4)) for _ in range(50)))
    assert set(map(id, created)) == {id(state.topics["new"])}
    assert state.topics["new"] == TopicConfig("new", 4, 4)
    assert len(state_records(log)) == 1
    assert state_records(log)[0].body.count(b"putTopic") == 1


async def test_a_topic_has_no_more_queues_than_its_template(tmp_path: Path) -> None:
    state = make_state(tmp_path, FakeLog())
    topic = inherited_topic("wide", state.topics[DEFAULT_TOPIC], 1000)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (8, 8, 6)


async def test_topics_are_not_created_from_what_does_not_let_them(tmp_path: Path) -> None:
    state = make_state(tmp_path, FakeLog(), autoCreateTopicEnable=False)
    assert inherited_topic("new", state.topics.get(DEFAULT_TOPIC), 4) is None
    assert inherited_topic("new", state.topics["BenchmarkTest"], 4) is None


async def test_a_creation_that_fails_is_told_to_all_and_can_be_tried_again(tmp_path: Path) -> None:
    log = FakeLog()
    log.next_status = PutStatus.SERVICE_NOT_AVAILABLE
    state = make_state(tmp_path, log)
    results = await asyncio.gather(
        *(state.ensure_topic_config(retry_topic("g")) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StateChangeError] * 3
    log.next_status = PutStatus.PUT_OK
    assert (await state.ensure_topic_config(retry_topic("g"))).name == "%RETRY%g"


async def test_groups_are_created_by_the_same_rules(tmp_path: Path) -> None:
    state = make_state(tmp_path / "a", FakeLog())
    assert await state.ensure_group("g") == SubscriptionGroupConfig("g")
    assert "g" in state.groups
    assert await state.ensure_group("bad name!") is None
    closed = make_state(tmp_path / "b", FakeLog(), autoCreateSubscriptionGroup=False)
    assert await closed.ensure_group("g") is None


async def test_topic_changes_are_told_once_per_batch(tmp_path: Path) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    told: list[int] = []
    state.on_topics_changed(lambda: told.append(len(state.topics)))
    await state.propose(PutTopic(TopicConfig("a")), PutTopic(TopicConfig("b")))
    await state.propose(CommitOffsets("g", "a", {0: 1}))
    assert told == [len(state.topics)]


def test_system_topics_and_groups_are_there_without_a_log(tmp_path: Path) -> None:
    state = make_state(tmp_path, FakeLog())
    assert state.topics["TBW102"].perm == 7
    assert state.topics["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
    assert state.topics["DefaultCluster"].perm == 7
    assert {"SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "broker-a"} <= set(state.topics)
    assert "TOOLS_CONSUMER" in state.groups
    assert state.data_version.counter == 0


async def test_a_snapshot_does_not_wait_for_its_interval_when_many_entries_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "SNAPSHOT_ENTRIES_MAX", 3)
    state = make_state(tmp_path, FakeLog(), stateSnapshotIntervalMs=600_000)
    await state.start()
    path = tmp_path / "state" / "snapshot"
    for number in range(3):
        assert not path.exists()
        await state.propose(SetDelayOffset(1, number))
    await until(path.exists)
    assert decode_snapshot(path.read_bytes()).applied_index == 2
    await state.stop()


async def test_a_stop_during_a_snapshot_writes_the_last_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go to the same side file."""
    begun, released = threading.Event(), threading.Event()
    order: list[str] = []

    def write(fs: Fs, path: Path, data: bytes) -> None:
        order.append("begin")
        begun.set()
        released.wait(10)
        order.append("end")

    monkeypatch.setattr("broker.state.state.write_snapshot", write)
    state = make_state(tmp_path, FakeLog(), stateSnapshotIntervalMs=100)
    await state.propose(CommitOffsets("g", "t", {0: 1}))
    await state.start()
    await asyncio.to_thread(begun.wait, 10)
    await state.propose(CommitOffsets("g", "t", {0: 2}))
    stopping = asyncio.create_task(state.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, released.set)
    await stopping
    assert order == ["begin", "end", "begin", "end"]


ENTRY = PolicyEntry(Resource.parse("Topic:orders"), (Action.PUB,), Decision.ALLOW)
ACCESS = (
    PutUser(User("ann", "encrypted")),
    DeleteUser("ann"),
    PutAccessList(AccessList("ann", {PolicyType.CUSTOM: [ENTRY]})),
    DeleteAccessList("ann"),
)
RETRIED = PutGroup(SubscriptionGroupConfig("g", retry_policy=GroupRetryPolicy(kind=EXPONENTIAL)))
LINEARIZABLE = PutTopic(TopicConfig("t", attributes={"read.consistency": "linearizable"}))
COMMITTED = PutTopic(TopicConfig("t", attributes={"read.consistency": "committed"}))
SWITCHED_ON = PutSettings({"authenticationEnabled": "true"})


@pytest.mark.parametrize("change", [*ACCESS, RETRIED, SWITCHED_ON, LINEARIZABLE])
async def test_what_the_release_before_cannot_read_waits_for_the_format_level(
    tmp_path: Path, change: Change
) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    log.format_level = FIXED_MEMBERS_LEVEL
    assert await state.propose(CommitOffsets("g", "t", {0: 1}), change) is PutStatus.FORMAT_LEVEL_TOO_LOW
    assert state_records(log) == []
    log.format_level = CHANGING_MEMBERS_LEVEL
    assert await state.propose(change) is PutStatus.PUT_OK


@pytest.mark.parametrize(
    "change", [PutGroup(SubscriptionGroupConfig("g")), PutSettings({"topicsMax": "9"}), COMMITTED]
)
async def test_what_the_release_before_reads_is_written_at_its_level(tmp_path: Path, change: Change) -> None:
    log = FakeLog()
    state = make_state(tmp_path, log)
    log.format_level = FIXED_MEMBERS_LEVEL
    assert await state.propose(change) is PutStatus.PUT_OK
