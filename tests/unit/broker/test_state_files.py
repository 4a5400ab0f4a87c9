"""The forms of the state: snapshot file and log records, whole and damaged."""

from pathlib import Path

import orjson
import pytest

from broker.config import config_from
from broker.responses import PUT_ERRORS
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    PutGroup,
    PutTopic,
    SetDelayOffset,
    StateRecordError,
    decode_changes,
    encode_change,
    join_changes,
)
from broker.state.groups import SubscriptionGroupConfig, group_name_error
from broker.state.snapshot import (
    CorruptSnapshotError,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)
from broker.state.state import ReplicatedState
from broker.state.tables import OffsetTable, StateTables
from broker.state.topics import TopicConfig
from broker.timer.scheduling import effective_level, parse_delay_levels, to_scheduled
from commitlog.log import PutStatus
from commitlog.record import Message, parse_properties
from dledger.fs import OsFs
from remoting.slices import finish
from remoting.topic_names import topic_name_error
from tests.support.fake_log import FakeLog

CHANGES: list[Change] = [
    PutTopic(TopicConfig("t", 1, 2, 6, "MULTI_TAG", 3, True, {"k": "v"})),
    DeleteTopic("gone"),
    PutGroup(SubscriptionGroupConfig("g", False, False, False, True, 2, 3, 1, 2, False, 4, 5, {"a": "b"})),
    DeleteGroup("old", True),
    CommitOffsets("g", "t", {0: 0, 7: 2**62}),
    SetDelayOffset(3, 9),
]


def test_every_change_comes_back_from_its_record() -> None:
    assert decode_changes(join_changes([encode_change(change) for change in CHANGES])) == CHANGES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2,"changes":[]}',
        b'{"version":1}',
        b'{"version":1,"changes":[["moveTopic","t"]]}',
        b'{"version":1,"changes":[["putTopic"]]}',
        b'{"version":1,"changes":[["putTopic",{"topicName":"bad name!"}]]}',
        b'{"version":1,"changes":[["commitOffsets","g","t",[[0]]]]}',
        b'{"version":1,"changes":[["commitOffsets","g","t",[[0,1e26]]]]}',
        b'{"version":1,"changes":[["setDelayOffset",1e26,9]]}',
        b'{"version":1,"changes":[["endWriter","w",[1e26]]]}',
        b'{"version":1,"changes":[["lockQueues","g","c",{"t":[1e26]},true]]}',
        b'{"version":1,"changes":[["putTopic",{"topicName":"t","readQueueNums":1e26}]]}',
        b'{"version":1,"changes":[["putTopic",{"topicName":"t","topicSysFlag":1e26}]]}',
        b'{"version":1,"changes":[["putGroup",{"groupName":"g","retryMaxTimes":1e26}]]}',
        b'{"version":1,"changes":[["putGroup",{"groupName":"g","brokerId":1e26}]]}',
        b'{"version":1,"changes":[["setRequestMode",{"topic":"t","consumerGroup":"g","popShareQueueNum":1e26}]]}',
    ],
)
def test_records_that_cannot_be_applied_are_named_as_such(body: bytes) -> None:
    with pytest.raises(StateRecordError):
        decode_changes(body)


def test_a_snapshot_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "snapshot"
    assert read_snapshot(OsFs(), path) is None
    for index in (7, 8):
        write_snapshot(OsFs(), path, Snapshot(index, {"topics": []}))
        assert read_snapshot(OsFs(), path) == Snapshot(index, {"topics": []})
    assert [file.name for file in path.parent.iterdir()] == ["snapshot"]


def test_a_snapshot_cut_or_changed_at_any_byte_is_refused() -> None:
    data = encode_snapshot(Snapshot(7, {"offsets": [["t", "g", [[0, 1]]]]}))
    for at in range(len(data)):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(data[:at])
        changed = bytearray(data)
        changed[at] ^= 0x40
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(changed))
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data + b"x")


@pytest.mark.parametrize("tables", [{}, {"topics": [5]}, {"topics": 5}])
def test_a_snapshot_whose_tables_cannot_be_read_is_passed_over(
    tmp_path: Path, tables: dict[str, object]
) -> None:
    write_snapshot(OsFs(), tmp_path / "state" / "snapshot", Snapshot(7, tables))
    log = FakeLog()
    state = ReplicatedState(config_from({"storePathRootDir": str(tmp_path)}), log, lambda: 0)
    state.restore(9)
    assert (state.applied_index, log.replayed_from) == (-1, 0)


def test_a_snapshot_ahead_of_its_log_is_not_used_when_the_log_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "state" / "snapshot"
    tables = StateTables({}, {})
    tables.apply(CommitOffsets("g", "t", {0: 5}), 0)
    write_snapshot(OsFs(), path, Snapshot(7, tables.to_json()))
    config = config_from({"storePathRootDir": str(tmp_path)})
    for log_end_index in (3, 9):
        state = ReplicatedState(config, FakeLog(), lambda: 0)
        state.restore(log_end_index)
        assert (state.applied_index, state.offsets.get("g", "t", 0)) == (-1, None)


def test_offsets_are_counted_by_queue() -> None:
    table = OffsetTable()
    table.commit("g", "t", {0: 1, 1: 2})
    table.commit("g", "t", {1: 3})
    table.commit("h", "t", {0: 4})
    table.commit("g", "u", {0: 5})
    assert (len(table), finish(table.topics_of("g"))) == (4, ["t", "u"])
    assert OffsetTable.from_json(orjson.loads(orjson.dumps(table.to_json()))).to_json() == table.to_json()
    table.drop_topic("t")
    assert (len(table), table.get("h", "t", 0), table.get("g", "u", 0)) == (1, None, 5)
    table.drop_group("g")
    assert len(table) == 0


def test_groups_and_topics_have_rocketmqs_wire_form() -> None:
    group = SubscriptionGroupConfig("g", retry_max_times=3)
    assert SubscriptionGroupConfig.from_json(group.to_json()) == group
    assert group.to_json()["whichBrokerWhenConsumeSlowly"] == 1
    topic = TopicConfig("t", 4, 8)
    assert TopicConfig.from_json(topic.to_json()) == topic
    assert topic.to_json() == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "t",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }


@pytest.mark.parametrize("name", ["t", "%RETRY%g", "a|b_c-d9", "T" * 127])
def test_good_topic_names(name: str) -> None:
    assert topic_name_error(name) is None


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "ü", "a\n", "T" * 128])
def test_bad_topic_names(name: str) -> None:
    assert topic_name_error(name)


@pytest.mark.parametrize("name", ["", "a b", "g" * 256, "g\n"])
def test_bad_group_names(name: str) -> None:
    assert group_name_error(name)


def test_every_failure_of_a_put_has_an_answer() -> None:
    assert set(PUT_ERRORS) == set(PutStatus) - {PutStatus.PUT_OK}


def test_delay_levels_are_read_and_kept_in_their_bounds() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
    assert [effective_level(text, 18) for text in (None, "", "x", "-1", "0", "1", "19")] == [
        0,
        0,
        0,
        0,
        0,
        1,
        18,
    ]
    for bad in ("1", "s", "1x", "-1s", " ".join(["1s"] * 65)):
        with pytest.raises(ValueError, match=r"level"):
            parse_delay_levels(bad)


def test_a_scheduled_message_remembers_where_it_belongs() -> None:
    message = Message("t", 3, b"x", b"K\x01v\x02DELAY\x0199\x02", reconsume_times=2)
    scheduled = to_scheduled(message, 18)
    assert (scheduled.topic, scheduled.queue_id, scheduled.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 17, 2)
    assert parse_properties(scheduled.properties) == {
        "K": "v",
        "DELAY": "18",
        "REAL_TOPIC": "t",
        "REAL_QID": "3",
    }


def test_a_copy_of_the_offsets_stands_still() -> None:
    table = OffsetTable()
    table.commit("g", "t", {0: 1, 1: 2})
    table.commit("g", "u", {0: 5})
    first = table.copy()
    table.commit("g", "t", {1: 3, 2: 4})
    table.commit("g", "v", {0: 9})
    second = table.copy()
    table.commit("g", "t", {1: 6})
    table.drop_topic("u")
    first.commit("g", "u", {0: 7})
    assert first.to_json() == [["t", "g", [(0, 1), (1, 2)]], ["u", "g", [(0, 7)]]]
    rows = [["t", "g", [(0, 1), (1, 3), (2, 4)]], ["u", "g", [(0, 5)]], ["v", "g", [(0, 9)]]]
    assert second.to_json() == rows
    assert table.to_json() == [["t", "g", [(0, 1), (1, 6), (2, 4)]], ["v", "g", [(0, 9)]]]
    assert [len(each) for each in (first, second, table)] == [3, 5, 4]


def test_many_rows_are_encoded_in_pieces_that_make_one_snapshot() -> None:
    tables = StateTables({}, {})
    for number in range(1_234):
        tables.apply(CommitOffsets("g", f"t{number}", {0: number}), 0)
    tables.apply(PutTopic(TopicConfig("topic")), 5)
    copy = tables.copy()
    tables.apply(CommitOffsets("g", "t3", {0: 99}), 0)
    found = decode_snapshot(encode_snapshot(Snapshot(7, copy.rows())))
    again = StateTables({}, {})
    again.load_json(found.tables)
    assert found.applied_index == 7
    assert again.offsets.get("g", "t3", 0) == 3
    assert again.to_json() == copy.to_json() != tables.to_json()
