"""Many topics or groups at once, queues and progress as operators see them, and what is answered 3."""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import pytest

from broker.admin import feature as admin
from broker.admin.feature import make_runtime_info
from broker.admin.lists import LIST_MAX
from broker.consume.queue_reader import QueueReader, ReadLimits
from broker.feature import Feature
from broker.monitoring.runtime_info import RANGES
from broker.send.turn import Turn
from broker.state.changes import CommitOffsets, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from remoting.codes import RequestCode
from remoting.fastjson import loads
from remoting.tag_filters import MATCH_ALL
from tests.support.broker_parts import BrokerParts, FakeEngine
from tests.support.fake_log import as_message_log
from tests.support.operator import Operator, connect_client
from tests.support.reserving_disk import BLOCK, reserve_blocks

TOPICS = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
GROUPS = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path, FakeEngine())


def topics_body(*rows: Any) -> bytes:
    return orjson.dumps({"topicConfigList": rows})


async def test_topics_are_created_and_their_attributes_changed(operator: Operator) -> None:
    names = [f"t{number}" for number in range(700)]
    rows = [
        {"topicName": name, "attributes": {"+message.type": "FIFO", "+reserve.time": "1"}} for name in names
    ]
    assert (await operator.ask(TOPICS, topics_body(*rows))).code == 0
    topics = operator.parts.state.topics
    assert all(topics[name].attributes == {"message.type": "FIFO", "reserve.time": "1"} for name in names)
    records = len(operator.log.messages)
    assert records == 1, "what one turn proposes shares a record"
    changed = {"topicName": "t7", "perm": 4, "attributes": {"-reserve.time": ""}}
    assert (await operator.ask(TOPICS, topics_body(changed, rows[8]))).code == 0
    assert (topics["t7"].perm, topics["t7"].attributes) == (4, {"message.type": "FIFO"})
    assert len(operator.log.messages) == records + 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"topicConfigList":7}',
        b'{"topicConfigList":[7]}',
        topics_body({"topicName": "good"}, {"topicName": "bad name!"}),
        topics_body({"topicName": "good"}, {"topicName": "TBW102"}),
        topics_body({"topicName": "good"}, {"topicName": "t", "perm": 99}),
        topics_body({"topicName": "good"}, {"topicName": "t", "attributes": [1]}),
    ],
)
async def test_of_a_list_with_a_fault_nothing_is_made(operator: Operator, body: bytes) -> None:
    assert (await operator.ask(TOPICS, body)).code == 29
    assert operator.log.messages == []


@pytest.mark.parametrize("key", ["no sign", "+colour", "-message.type"])
async def test_of_a_list_with_an_attribute_that_means_nothing_nothing_is_made(
    operator: Operator, key: str
) -> None:
    rows = {"topicName": "good"}, {"topicName": "t", "attributes": {key: "1"}}
    assert (await operator.ask(TOPICS, topics_body(*rows))).code == 1
    assert operator.log.messages == []


async def test_groups_are_created(operator: Operator) -> None:
    body = orjson.dumps({"groupConfigList": [{"groupName": "g", "retryMaxTimes": 3}, {"groupName": "h"}]})
    assert (await operator.ask(GROUPS, body)).code == 0
    groups = operator.parts.state.groups
    assert (groups["g"].retry_max_times, "h" in groups) == (3, True)
    for bad in (b"", b"{}", orjson.dumps({"groupConfigList": [{"groupName": "k"}, {"groupName": ""}]})):
        assert (await operator.ask(GROUPS, bad)).code == 29
    assert "k" not in groups
    operator.log.set_writable(False)
    assert (await operator.ask(GROUPS, body)).code == 14
    assert (await operator.ask(TOPICS, topics_body())).code == 14


async def test_a_list_at_its_bound_is_read_with_all_fields_and_a_longer_one_refused(
    operator: Operator,
) -> None:
    retries = {"groupRetryPolicy": {"type": "CUSTOMIZED"}, "attributes": {"+priority.factor": "1"}}
    rows = [SubscriptionGroupConfig(f"g{number}").to_json() | retries for number in range(LIST_MAX)]
    topics = [TopicConfig(f"t{number}").to_json() for number in range(LIST_MAX)]
    for code, key, most in ((GROUPS, "groupConfigList", rows), (TOPICS, "topicConfigList", topics)):
        answer = await operator.ask(code, orjson.dumps({key: [*most, most[0]]}))
        assert (answer.code, str(LIST_MAX) in (answer.remark or "")) == (29, True)
        assert (await operator.ask(code, orjson.dumps({key: most}))).code == 0
    assert len(operator.parts.state.groups) >= LIST_MAX


async def test_the_brokers_own_topics_are_listed(operator: Operator) -> None:
    listed = (await operator.read(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= set(listed)


async def test_units_of_a_queue_are_shown(operator: Operator) -> None:
    await operator.store("t", 0, 5)
    asked = {"topic": "t", "queueId": "0", "index": "3", "count": "10"}
    read = await operator.read(RequestCode.QUERY_CONSUME_QUEUE, **asked)
    assert (read["minQueueIndex"], read["maxQueueIndex"], len(read["queueData"])) == (0, 5, 2)
    position, size, _ = operator.log.fake_queues.by_key["t", 0].rows[3]
    assert (read["queueData"][0]["physicOffset"], read["queueData"][0]["physicSize"]) == (position, size)
    offline = await operator.read(RequestCode.QUERY_CONSUME_QUEUE, **asked, consumerGroup="g")
    assert "not online" in offline["filterData"]
    connect_client(operator)
    online = await operator.read(RequestCode.QUERY_CONSUME_QUEUE, **asked, consumerGroup="g")
    assert online["subscriptionData"]["topic"] == "t"
    beyond = await operator.read(RequestCode.QUERY_CONSUME_QUEUE, **{**asked, "index": "9"})
    assert beyond["queueData"] == []
    for bad, code in (({"queueId": "1"}, 1), ({"index": "-1"}, 29), ({"count": "0"}, 29)):
        assert (await operator.ask(RequestCode.QUERY_CONSUME_QUEUE, **{**asked, **bad})).code == code


async def test_the_progress_of_all_groups_is_told_in_pieces(operator: Operator) -> None:
    state = operator.parts.state
    await state.propose(
        PutTopic(TopicConfig("t", 2, 150)),
        PutTopic(TopicConfig("o", 1, 1, is_ordered=True)),
        PutGroup(SubscriptionGroupConfig("g")),
        CommitOffsets("g", "t", {0: 1}),
        CommitOffsets("g", "o", {0: 0}),
        CommitOffsets("g", "gone", {0: 4}),
    )
    await operator.store("t", 0, 5)
    others_ran = asyncio.ensure_future(asyncio.sleep(0))
    read = await operator.read(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert others_ran.done()
    assert (read["totalDiff"], read["brokerAddr"]) == (4, "127.0.0.1:10911")
    ((group, stats),) = [each for row in read["consumeStatsList"] for each in row.items()]
    assert (group, sorted(len(each["offsetTable"]) for each in stats)) == ("g", [1, 150])
    ordered = await operator.read(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
    ((_, stats),) = [each for row in ordered["consumeStatsList"] for each in row.items()]
    assert [loads(key)["topic"] for each in stats for key in each["offsetTable"]] == ["o"]


async def test_statistics_are_told_over_three_windows(operator: Operator) -> None:
    await operator.store("old", 0, 5)
    await operator.start_counting()
    await operator.store("t", 0, 5)
    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"}
    read = await operator.read(RequestCode.VIEW_BROKER_STATS_DATA, **asked)
    assert read["statsMinute"] == {"avgpt": 1.0, "sum": 5, "tps": 0.5}
    assert (read["statsHour"]["sum"], read["statsDay"]["sum"]) == (5, 5)
    size = await operator.read(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_SIZE", statsKey="t")
    assert size["statsDay"]["sum"] == sum(row[1] for row in operator.log.fake_queues.by_key["t", 0].rows)
    for bad in ({"statsKey": "x"}, {"statsKey": "old"}, {"statsName": "NO_SUCH"}):
        assert (await operator.ask(RequestCode.VIEW_BROKER_STATS_DATA, **{**asked, **bad})).code == 1


async def test_a_topic_that_is_deleted_loses_its_statistics(operator: Operator) -> None:
    await operator.start_counting()
    await operator.parts.state.propose(PutTopic(TopicConfig("t", 1, 1)))
    await operator.store("t", 0, 5)
    await operator.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"}
    assert (await operator.ask(RequestCode.VIEW_BROKER_STATS_DATA, **asked)).code == 1


async def test_runtime_info_has_what_rocketmqs_tools_read(operator: Operator) -> None:
    await operator.start_counting()
    await operator.store("t", 0, 5)
    operator.runtime_figures.append(lambda: {"timerReadBehind": "3"})
    table = (await operator.read(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    for key in ("msgPutTotalYesterdayMorning", "sendThreadPoolQueueSize", "scheduleMessageOffset_18"):
        assert key in table
    assert (table["msgPutTotalTodayNow"], table["timerReadBehind"]) == ("5", "3")
    assert int(table["earliestMessageTimeStamp"]) == operator.log.now_ms
    assert table["commitLogDirCapacity"].startswith("Total : ")
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
    assert 0 < int(table["diskFreeBytes"]) < int(table["diskTotalBytes"])


async def test_a_disk_is_shown_as_full_as_df_and_its_own_limit_say(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """clusterList shows this figure as #SPACE, as of a stock broker, which counts so, too."""
    reserve_blocks(monkeypatch, used=9, free=24, total=100)
    table = (await operator.read(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert (table["commitLogDiskRatio"], table["consumeQueueDiskRatio"]) == ("0.2727", "0.2727")
    assert (table["diskTotalBytes"], table["diskFreeBytes"]) == (str(100 * BLOCK), str(24 * BLOCK))
    assert table["commitLogDirCapacity"] == "Total : 400.0 KiB, Free : 96.0 KiB."


def put_that_took(parts: BrokerParts, seconds: float) -> None:
    now_s = perf_counter()
    parts.core.puts.done(Turn([], [], 0, begun_s=now_s - seconds, laid_out_s=now_s), now_s)


async def test_runtime_info_tells_how_long_puts_and_reads_took_and_what_they_found(
    operator: Operator,
) -> None:
    """In RocketMQ's formats: its exporter takes each of them apart, and fails where one is missing."""
    parts, now_s = operator.parts, 0.0
    info = make_runtime_info(parts.core)
    info._now_s = lambda: now_s
    for meter in (info.rates, info.put_spread.meter):
        meter.add(now_s)
    assert info.table()["putMessageDistributeTime"].split() == [f"{name}:0" for name in RANGES]
    for seconds in (0.0, 0.007, 0.03, 12.0):
        put_that_took(parts, seconds)
    await operator.store("t", 0, 5)
    reader = QueueReader(as_message_log(operator.log), lambda units, offset: ReadLimits(), parts.core.reads)
    for offset in (0, 5, 99, 100):
        reader.read("t", 0, offset, MATCH_ALL, 32, None)
    parts.core.reads.longest_s, now_s = 0.0129, 8.0
    table = info.table()
    counts = dict(part.rsplit(":", 1) for part in table["putMessageDistributeTime"].split())
    assert list(counts) == list(RANGES)
    counted = {name for name, count in counts.items() if count == "1"}
    assert {"[<=0ms]", "[0~10ms]", "[10~50ms]", "[10s~]"} == counted
    assert int(table["putMessageEntireTimeMax"]) // 1_000 == 12
    assert (table["getMessageEntireTimeMax"], table["dispatchMaxBuffer"]) == ("12", "5")
    rates = [table[key].split() for key in ("getFoundTps", "getMissTps", "getTotalTps")]
    assert rates == [["0.12"] * 3, ["0.38"] * 3, ["0.50"] * 3]
    info.put_spread.meter.add(50.0)
    now_s = 120.0
    assert info.table()["putMessageDistributeTime"].split()[0] == "[<=0ms]:0"


async def test_what_is_not_supported_is_refused_with_a_reason(operator: Operator) -> None:
    served = operator.parts.router.codes
    operator.parts.add(Feature(handlers=admin.unsupported_handlers(served)))
    for code in (RequestCode.SWITCH_TIMER_ENGINE, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC):
        answer = await operator.ask(code)
        assert (answer.code, answer.remark) == (3, admin.REASONS[code])
    assert (await operator.ask(RequestCode.GET_BROKER_CONFIG)).code == 0, "what is served stays so"
