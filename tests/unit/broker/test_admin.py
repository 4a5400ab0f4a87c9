"""What operators ask a broker, and how it answers."""

import asyncio
from functools import partial
from pathlib import Path

import orjson
import pytest

from broker.admin.types import NodeRole, NodeStatusMessage
from broker.monitoring.statistics import RateMeter
from broker.state.changes import CommitOffsets, DeleteTopic, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from commitlog.dispatch import DispatchBatch, DispatchRequest
from commitlog.log import PutStatus
from dledger.core.status import ElectionRecord, NodeStatus, PeerStatus
from dledger.core.types import Epoch, PushState, Role
from dledger.core.types import ResponseCode as EngineCode
from remoting.codes import RequestCode
from remoting.fastjson import loads
from tests.support.broker_parts import NOW_MS, FakeEngine
from tests.support.operator import Operator, connect_client

UPDATE_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path, FakeEngine())


async def test_a_topic_is_created_changed_shown_and_deleted(operator: Operator) -> None:
    fields = {
        "topic": "t",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
    }
    created = await operator.ask(
        UPDATE_TOPIC,
        **fields,
        topicFilterType="SINGLE_TAG",
        attributes="+message.type=FIFO,+retention.ms=60000",
    )
    assert created.code == 0
    assert operator.parts.state.topics["t"] == TopicConfig(
        "t", 4, 4, attributes={"message.type": "FIFO", "retention.ms": "60000"}
    )
    records = len(operator.log.messages)
    again = await operator.ask(UPDATE_TOPIC, **fields, attributes="+message.type=FIFO")
    assert again.code == 0
    assert len(operator.log.messages) == records, "an unchanged topic needs no record"
    await operator.ask(UPDATE_TOPIC, **{**fields, "perm": "4"}, attributes="-message.type")
    shown = await operator.read(RequestCode.GET_TOPIC_CONFIG, topic="t")
    assert (shown["perm"], shown["attributes"], shown["readQueueNums"]) == (4, {"retention.ms": "60000"}, 4)
    everything = await operator.read(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert everything["topicConfigTable"]["t"] == shown
    assert everything["dataVersion"] == {"counter": 2, "stateVersion": 3, "timestamp": operator.log.now_ms}
    assert (await operator.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
    assert (await operator.ask(RequestCode.GET_TOPIC_CONFIG, topic="t")).code == 17
    assert "t" not in (await operator.read(RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "bad name!"},
        {"topic": "TBW102"},
        {"topic": "rmq_sys_LEDGERMQ_STATE"},
        {"topic": "DefaultCluster"},
        {"perm": "16"},
        {"readQueueNums": "-1"},
        {"writeQueueNums": "65537"},
        {"topicFilterType": "ANY"},
    ],
)
async def test_bad_topics_are_refused(operator: Operator, change: dict[str, str]) -> None:
    answer = await operator.ask(UPDATE_TOPIC, **{"topic": "t", **change})
    assert answer.code == 29
    assert operator.log.messages == []


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("+colour=blue", "unsupported key: colour"),
        ("+message.type=fifo", "value is not in set: [UNSPECIFIED, NORMAL, FIFO"),
        ("+queue.type=BatchCQ", "BatchCQ is not supported"),
        ("+cleanup.policy=COMPACTION", "COMPACTION is not supported"),
        ("+cleanup.policy=NEVER", "value is not in set"),
        ("+message.type=LITE", "lite topics are not supported"),
        ("+lite.topic.expiration=60", "lite topics are not supported"),
        ("+reserve.time=-2", "value is not in range(-1, "),
        ("+reserve.time=9223372036854775808", "value is not in range"),
        ("+retention.ms=soon", "value is not in range(0, "),
        ("+retention.ms=-1", "value is not in range(0, "),
        ("+retention.ms=", "value is not in range(0, "),
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type", "delete attribute format is wrong: +message.type"),
        ("-message.type", "only add attribute is supported while creating topic. key: message.type"),
        ("+=FIFO", "kv string format wrong."),
        ("++message.type=FIFO", "kv string format wrong."),
        ("+message.type=FIFO,+message.type=NORMAL", "key duplication: +message.type"),
    ],
)
async def test_attributes_that_mean_nothing_make_no_topic(
    operator: Operator, attributes: str, said: str
) -> None:
    answer = await operator.ask(UPDATE_TOPIC, topic="t", attributes=attributes)
    assert (answer.code, said in str(answer.remark)) == (1, True), answer.remark
    assert operator.log.messages == []


async def test_topics_of_mixed_messages_are_refused_as_by_rocketmq(operator: Operator) -> None:
    answer = await operator.ask(UPDATE_TOPIC, topic="t", attributes="+message.type=MIXED")
    assert (answer.code, answer.remark) == (29, "MIXED message type is not supported.")


async def test_attributes_of_a_topic_that_is_there(operator: Operator) -> None:
    put = partial(operator.ask, UPDATE_TOPIC, topic="t")
    await operator.parts.state.propose(PutTopic(TopicConfig("t", attributes={"old name": "1"})))
    assert (await put(attributes="+message.type=FIFO,+reserve.time=-1")).code == 0
    for attributes, said in (
        ("-retention.ms", "attempt to delete a nonexistent key: retention.ms"),
        ("-colour", "attempt to delete a nonexistent key: colour"),
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("+old name=2", "unsupported key: old name"),
        ("+message.type=DELAY,-message.type", "alter duplication key. key: message.type"),
    ):
        answer = await put(attributes=attributes)
        assert (answer.code, said in str(answer.remark)) == (1, True), answer.remark
    assert (await put(attributes="-old name,+message.type=DELAY")).code == 0
    assert operator.parts.state.topics["t"].attributes == {"message.type": "DELAY", "reserve.time": "-1"}


async def test_attributes_of_groups_are_changes_too(operator: Operator) -> None:
    async def put(**attributes: str) -> tuple[int, str]:
        body = orjson.dumps({"groupName": "g", "attributes": attributes})
        answer = await operator.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        return answer.code, str(answer.remark)

    assert await put(**{"+colour": "blue"}) == (1, "unsupported key: colour")
    assert await put(**{"+priority.factor": "101"}) == (1, "value is not in range(0, 100)")
    assert (await put(**{"+priority.factor": "50"}))[0] == 0
    assert (await put())[0] == 0
    assert operator.parts.state.groups["g"].attributes == {"priority.factor": "50"}
    assert (await put(**{"-priority.factor": ""}))[0] == 0
    assert operator.parts.state.groups["g"].attributes == {}


async def test_system_topics_cannot_be_deleted(operator: Operator) -> None:
    assert (await operator.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="SCHEDULE_TOPIC_XXXX")).code == 29


async def test_a_follower_sends_operators_elsewhere(operator: Operator) -> None:
    operator.log.set_writable(False)
    for code, ext, body in (
        (UPDATE_TOPIC, {"topic": "t"}, b""),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}'),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""),
    ):
        assert (await operator.ask(code, body, **ext)).code == 14


async def test_a_change_that_is_not_committed_is_no_success(operator: Operator) -> None:
    operator.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    assert (await operator.ask(UPDATE_TOPIC, topic="t")).code == 2


async def test_topic_stats_name_every_queue(operator: Operator) -> None:
    await operator.start_counting()
    await operator.parts.state.propose(PutTopic(TopicConfig("t", 2, 2)))
    await operator.store("t", 1, 3)
    answer = await operator.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    assert answer.body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"t"}:'
        b'{"lastUpdateTimestamp":%d,"maxOffset":3,"minOffset":0}},"topicPutTps":0.3}' % operator.log.now_ms
    )


RETRIES = {
    "customizedRetryPolicy": {"next": [1_000, 2_000, 3_000, 60_000]},
    "exponentialRetryPolicy": {"initial": 3_000, "max": 60_000, "multiplier": 3},
}


@pytest.mark.parametrize(
    ("kind", "pauses_ms"),
    [("CUSTOMIZED", [3_000, 60_000, 60_000, 60_000]), ("EXPONENTIAL", [3_000, 9_000, 27_000, 60_000])],
)
async def test_a_group_keeps_its_own_retry_policy(
    operator: Operator, kind: str, pauses_ms: list[int]
) -> None:
    policy = {**RETRIES, "type": kind}
    body = orjson.dumps({"groupName": "g", "groupRetryPolicy": policy})
    assert (await operator.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 0
    shown = await operator.read(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert shown["groupRetryPolicy"] == policy
    kept = operator.parts.state.groups["g"]
    assert SubscriptionGroupConfig.from_json(shown) == kept
    assert [kept.retry_policy.pause_ms(tried) for tried in (0, 1, 2, 99)] == pauses_ms


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ([], "groupRetryPolicy is no table"),
        ({"type": "RANDOM"}, "neither CUSTOMIZED nor EXPONENTIAL"),
        ({"customizedRetryPolicy": {"next": []}}, "not a list of 1 to 128 numbers"),
        ({"customizedRetryPolicy": {"next": [1] * 129}}, "not a list of 1 to 128 numbers"),
        ({"customizedRetryPolicy": {"next": [43_200_001]}}, "next is not a whole number from 0 to 43200000"),
        ({"exponentialRetryPolicy": {"initial": -1}}, "initial is not a whole number"),
        ({"exponentialRetryPolicy": {"max": 10**9}}, "max is not a whole number from 0 to 43200000"),
        ({"exponentialRetryPolicy": {"multiplier": 2.5}}, "multiplier is not a whole number"),
    ],
)
async def test_a_retry_policy_that_makes_no_sense_is_refused(
    operator: Operator, policy: object, said: str
) -> None:
    body = orjson.dumps({"groupName": "g", "groupRetryPolicy": policy})
    answer = await operator.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    assert (answer.code, said in str(answer.remark)) == (29, True), answer.remark
    assert "g" not in operator.parts.state.groups


async def test_groups_are_created_shown_and_deleted(operator: Operator) -> None:
    body = (
        b'{"groupName":"g","retryMaxTimes":3,"consumeEnable":false,"groupRetryPolicy":{"type":"CUSTOMIZED"}}'
    )
    assert (await operator.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 0
    shown = await operator.read(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert (shown["groupName"], shown["retryMaxTimes"], shown["consumeEnable"]) == ("g", 3, False)
    everything = await operator.read(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert everything["subscriptionGroupTable"]["g"] == shown
    await operator.parts.state.propose(CommitOffsets("g", "t", {0: 1}))
    deleted = await operator.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset="true")
    assert deleted.code == 0
    assert "g" not in operator.parts.state.groups
    assert len(operator.parts.state.offsets) == 0
    assert (await operator.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")).code == 26


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"{}", b'{"groupName":""}', b'{"groupName":"g","retryMaxTimes":"x"}']
)
async def test_bad_groups_are_refused(operator: Operator, body: bytes) -> None:
    assert (await operator.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 29


async def test_connections_of_groups_are_listed(operator: Operator) -> None:
    connect_client(operator)
    expected = [{"clientAddr": "10.0.0.9:1234", "clientId": "c1", "language": "JAVA", "version": 409}]
    consumers = await operator.read(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    assert consumers["connectionSet"] == expected
    assert (consumers["consumeType"], consumers["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert consumers["subscriptionTable"]["t"]["subString"] == "*"
    producers = await operator.read(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
    assert producers == {"connectionSet": expected}
    assert (await operator.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="x")).code == 206
    assert (await operator.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="x")).code == 1


async def test_consume_stats_show_what_is_left(operator: Operator) -> None:
    state = operator.parts.state
    await state.propose(PutTopic(TopicConfig("t", 2, 2)), CommitOffsets("g", "t", {1: 2}))
    await operator.store("t", 1, 5)
    stats = await operator.read(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    rows = {loads(key)["queueId"]: row for key, row in stats["offsetTable"].items()}
    assert rows[1] == {
        "brokerOffset": 5,
        "consumerOffset": 2,
        "lastTimestamp": operator.log.now_ms,
        "pullOffset": 2,
    }
    assert rows[0]["brokerOffset"] == 0
    connect_client(operator)
    by_topic = await operator.read(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="t")
    assert len(by_topic["offsetTable"]) == 2
    absent = await operator.read(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="absent")
    assert absent == {"consumeTps": 0, "offsetTable": {}}


async def test_configuration_and_figures_are_shown(operator: Operator) -> None:
    answer = await operator.ask(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert (lines["brokerName"], lines["autoCreateTopicEnable"]) == ("broker-a", "true")
    assert orjson.loads(answer.ext_fields["version"])["counter"] == 0
    records = [DispatchRequest(n, "t", 0, n, 1_000 * n, 150, 0, 0, 0) for n in range(7)]
    operator.parts.statistics.put(DispatchBatch.of(records))
    table = (await operator.read(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert (table["putMessageTimesTotal"], table["brokerActive"]) == ("7", "true")
    assert (table["putMessageSizeTotal"], table["putMessageAverageSize"]) == ("1050", "150.00")
    assert all(isinstance(value, str) for value in table.values())


async def test_the_counters_of_a_deleted_topic_go_though_another_one_is_made(operator: Operator) -> None:
    state, statistics = operator.parts.state, operator.parts.statistics
    await state.propose(PutTopic(TopicConfig("old")))
    statistics.got("old", "g", 0, 1, 100, 1)
    await state.propose(DeleteTopic("old"), PutTopic(TopicConfig("new")))
    await asyncio.sleep(0)
    assert statistics.view("GROUP_GET_NUMS", "old@g") is None


def test_rates_are_over_their_windows() -> None:
    count = 0
    meter = RateMeter(lambda: (count,))
    assert meter.rates(0, 0.0) == [0.0, 0.0, 0.0]
    for step in range(100):
        meter.add(step * 10.0)
        count += 50
    meter.add(1000.0)
    assert meter.rates(0, 1000.0) == [5.0, 5.0, 5.0]
    assert meter.rates(0, 1010.0) == [0.0, pytest.approx(250 / 60), pytest.approx(2950 / 600)]


async def test_a_leader_tells_of_its_peers(tmp_path: Path) -> None:
    status = NodeStatus(
        Role.LEADER,
        3,
        "n0",
        0,
        9,
        8,
        9,
        4,
        (Epoch(1, 0), Epoch(3, 4)),
        (PeerStatus("n1", PushState.APPEND, 7, 8, 2, 200, 12, True, 700, 50, 4_000),),
        {3: {"n0": 9, "n1": 7}},
        (ElectionRecord(NOW_MS - 5_000, 3, "n0", "votes"),),
    )
    engine = FakeEngine(
        node_status=status, client_addresses={"n1": "127.0.0.1:10921"}, connected=frozenset({"n1"})
    )
    operator = Operator(tmp_path, engine)
    operator.parts.stored_ms_of = {8: NOW_MS - 1_500}.__getitem__
    answer = await operator.ask(RequestCode.LEDGERMQ_NODE_STATUS)
    wire = orjson.loads(answer.body)
    assert wire["peers"] == [
        {
            "id": "n1",
            "replicationAddress": "127.0.0.1:10924",
            "remotingAddress": "127.0.0.1:10921",
            "isConnected": True,
            "pushState": "APPEND",
            "matchIndex": 7,
            "nextIndex": 8,
            "lagEntries": 2,
            "lagBytes": 200,
            "lagMs": 1_500,
            "lastContactMs": 12,
            "isThrottled": True,
            "bytesPerS": 50,
            "heldBytes": 700,
            "caughtUpInMs": 4_000,
        }
    ]
    assert wire["watermarksByTerm"] == {"3": {"n0": 9, "n1": 7}}
    assert wire["epochs"] == [{"term": 1, "firstIndex": 0}, {"term": 3, "firstIndex": 4}]
    read = NodeStatusMessage.from_json(answer.body)
    assert (read.role, read.term, read.committed_index, read.persisted_index) == (NodeRole.LEADER, 3, 8, 9)
    assert (read.replication_address, read.remoting_address) == ("127.0.0.1:10914", "127.0.0.1:10911")
    assert read.elections[0].at_ms == NOW_MS - 5_000


async def test_what_a_follower_does_not_know_is_null(tmp_path: Path) -> None:
    status = NodeStatus(Role.FOLLOWER, 3, None, 0, 9, 8, 9, -1, (), (), {}, ())
    operator = Operator(tmp_path, FakeEngine(node_status=status))
    wire = orjson.loads((await operator.ask(RequestCode.LEDGERMQ_NODE_STATUS)).body)
    (peer,) = wire["peers"]
    assert (peer["id"], peer["isConnected"]) == ("n1", False)
    assert {peer[key] for key in ("pushState", "matchIndex", "lagEntries", "remotingAddress")} == {None}
    assert (wire["leaderId"], wire["endPosition"]) == (None, None)


async def test_a_node_without_a_group_leads_itself(tmp_path: Path) -> None:
    operator = Operator(tmp_path, None)
    read = NodeStatusMessage.from_json((await operator.ask(RequestCode.LEDGERMQ_NODE_STATUS)).body)
    assert (read.role, read.is_writable, read.peers, read.committed_index) == (
        NodeRole.LEADER,
        True,
        (),
        None,
    )


@pytest.mark.parametrize(
    ("engine_code", "code"),
    [
        (EngineCode.SUCCESS, 0),
        (EngineCode.NOT_LEADER, 14),
        (EngineCode.UNKNOWN_MEMBER, 29),
        (EngineCode.FALL_BEHIND_TOO_MUCH, 1),
    ],
)
async def test_leadership_is_handed_over_by_the_engine(
    operator: Operator, engine_code: EngineCode, code: int
) -> None:
    assert operator.engine is not None
    operator.engine.transfer_code = engine_code
    assert (await operator.ask(RequestCode.LEDGERMQ_TRANSFER_LEADER, transferee="n1")).code == code
    assert operator.engine.transferees == ["n1"]


async def test_without_a_group_there_is_nobody_to_hand_over_to(tmp_path: Path) -> None:
    operator = Operator(tmp_path, None)
    assert (await operator.ask(RequestCode.LEDGERMQ_TRANSFER_LEADER, transferee="n1")).code == 16
