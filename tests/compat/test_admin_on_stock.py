"""The admin service and the command line over RocketMQ's own brokers, 4.9 and 5: all that is not about
replication works there and tells what the broker itself tells; what is about it says that it is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from remoting.codes import RequestCode
from remoting.properties_text import parse_properties_text
from tests.compat.stock_cluster import (
    GROUP,
    LIMIT_S,
    QUEUES,
    SENT,
    TOPIC,
    VERSIONS,
    StockCluster,
    stock_clusters,
)
from tests.integration.waiting import wait_for
from tests.integration.wire import call
from tests.unit.ledgermq.running import CommandLine, Ran

pytestmark = pytest.mark.integration
IN_QUEUE = SENT // QUEUES


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StockCluster]]:
    with stock_clusters(tmp_path_factory.mktemp("stock")) as clusters:
        yield clusters


@pytest.fixture(params=list(VERSIONS))
def stock(request: pytest.FixtureRequest, stocks: dict[str, StockCluster]) -> StockCluster:
    return stocks[request.param]


def test_cluster_is_there_and_its_replication_is_not(stock: StockCluster) -> None:
    (group,) = stock.get("/cluster")["groups"]
    (node,) = group["nodes"]
    assert (group["group"], group["state"], group["leaderId"], group["durability"]) == (
        "stock",
        "writable",
        None,
        None,
    )
    assert (node["state"], node["isLedgermq"], node["role"], node["term"]) == ("up", False, None, None)
    assert {*node["log"].values(), node["lagEntries"], node["lagMs"], node["isInSync"], node["push"]} == {
        None
    }
    assert node["remotingAddress"] == stock.broker.address
    assert stock.http.get("/readyz").status_code == 200
    for method, path, body in (
        ("GET", "/replication/stock", None),
        ("POST", "/replication/stock/transfer", {"nodeId": None}),
        ("PUT", "/replication/stock/preferred-leader", {"nodeId": "n1"}),
    ):
        answer = stock.http.request(method, f"/api/v1{path}", json=body)
        assert (answer.status_code, "has no DLedger group view" in answer.text) == (404, True), answer.text
    report = stock.get("/doctor")
    assert (report["lookedAt"]["nodes"], report["isPartial"]) == (1, False)
    of_groups = {"no-leader", "no-quorum", "group-down", "single-node", "even-members", "leader-not-in-route"}
    assert not of_groups & {finding["code"] for finding in report["findings"]}


def test_figures_storage_and_settings_are_the_brokers(stock: StockCluster) -> None:
    address = stock.broker.address
    (row,) = stock.get("/brokers")["items"]
    told = stock.table(RequestCode.GET_BROKER_RUNTIME_INFO, "table")
    assert (row["product"], row["role"], row["state"]) == ("rocketmq", "MASTER", "up")
    assert row["version"] == told["brokerVersionDesc"] == "V" + stock.version.replace(".", "_")
    assert row["startedAtMs"] == int(told["bootTimestamp"])
    assert row["isWritable"] is (None if stock.is_4 else True), "4.9 does not tell"
    figures = stock.get(f"/brokers/{address}/runtime")["figures"]
    assert figures.keys() == told.keys()
    storage = stock.get(f"/brokers/{address}/storage")
    told = stock.table(RequestCode.GET_BROKER_RUNTIME_INFO, "table")
    assert (storage["log"]["beginPosition"], storage["log"]["fileCount"]) == (0, 1)
    assert 0 < storage["log"]["endPosition"] <= int(told["commitLogMaxOffset"])
    assert 0 < storage["disk"]["freeBytes"] < storage["disk"]["totalBytes"]
    settings = stock.get(f"/brokers/{address}/config")["settings"]
    own = parse_properties_text(stock.ask(RequestCode.GET_BROKER_CONFIG).body)
    assert {each["key"] for each in settings} == own.keys()
    assert {each["canChange"] for each in settings} == {None}
    changed = stock.change("PATCH", f"/brokers/{address}/config", {"settings": {"maxMessageSize": "4194305"}})
    assert changed == {"maxMessageSize": ("4194304", "4194305")}
    own = parse_properties_text(stock.ask(RequestCode.GET_BROKER_CONFIG).body)
    assert own["maxMessageSize"] == "4194305"
    refused = stock.try_change(
        "PATCH", f"/brokers/{address}/config", {"settings": {"maxMessageSize": "abc"}}, 502
    )
    assert "kept the old value" in refused["detail"]
    for garbage in ("commit-log", "consume-queues", "unused-topics"):
        stock.change("POST", "/brokers/clean", {"garbage": garbage})


def test_topic_lives_from_its_making_to_its_end(stock: StockCluster) -> None:
    def told() -> Any:
        return stock.table(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")

    kinds = {row["name"]: row["kind"] for row in stock.get("/topics", pageSize=1000)["items"]}
    assert kinds.keys() == told().keys()
    mine = {name for name, kind in kinds.items() if kind == "normal"}
    assert TOPIC in mine
    assert not {name for name in mine if name.casefold().startswith("rmq_sys")}
    stock.change("POST", "/topics", {"name": "Made", "readQueues": 4, "writeQueues": 4})
    assert "exists already" in stock.try_change("POST", "/topics", {"name": "Made"}, 409)["detail"]
    edited = stock.change("PATCH", "/topics/Made", {"readQueues": 3, "writeQueues": 2, "canWrite": False})
    assert edited["stock: permissions"] == ("rw", "r")
    row = told()["Made"]
    assert (row["readQueueNums"], row["writeQueueNums"], row["perm"]) == (3, 2, 4)
    (config,) = stock.get("/topics/Made")["configs"]
    assert (config["readQueues"], config["writeQueues"], config["canWrite"]) == (3, 2, False)
    route = wait_for("the route", lambda: stock.http.get("/api/v1/topics/Made/route"), LIMIT_S).json()
    assert route["brokers"][0]["addresses"] == {"0": stock.broker.address}
    _check_attributes(stock)
    gone = stock.change("DELETE", "/topics/Made")
    assert gone["stock"][1] is None
    assert "Made" not in told()
    stock.get("/topics/Made", 404)
    stock.get("/topics/Made/route", 404)


def _check_attributes(stock: StockCluster) -> None:
    """RocketMQ 5 keeps a type and knows which attributes there are; 4.9 would forget it without a word."""
    wanted = {"attributes": {"message.type": "FIFO"}}
    if stock.is_4:
        refused = stock.try_change("POST", "/topics", {"name": "Typed", **wanted}, 409)
        assert "does not store topic attributes" in refused["detail"]
        assert stock.get(f"/topics/{TOPIC}")["configs"][0]["messageType"] is None
        return
    stock.change("POST", "/topics", {"name": "Typed", **wanted})
    assert stock.get("/topics/Typed")["configs"][0]["messageType"] == "FIFO"
    wrong = stock.try_change("PATCH", "/topics/Typed", {"attributes": {"retention.ms": "60000"}}, 502)
    assert "unsupported key: retention.ms" in wrong["detail"]
    stock.change("DELETE", "/topics/Typed")


def test_messages_are_found_every_way(stock: StockCluster) -> None:
    ids = stock.ids
    by_id = stock.get(f"/messages/{ids[7]}")
    assert (by_id["topic"], by_id["queueId"], by_id["queueOffset"]) == (TOPIC, 7 % QUEUES, 7 // QUEUES)
    assert (by_id["keys"], by_id["tags"], by_id["isCrcRight"]) == (["key-7", "all"], "t1", True)
    assert by_id["body"]["content"] == '{\n  "number": 7\n}'
    assert stock.get(f"/messages/{7:032X}", topic=TOPIC) == by_id
    assert stock.http.get(f"/api/v1/messages/{ids[7]}/body").content == b'{"number":7}'
    found = stock.get("/messages", topic=TOPIC, key="key-9")["items"]
    assert [item["id"] for item in found] == [ids[9]]
    everything = stock.get("/messages", topic=TOPIC, limit=200)["items"]
    sent = [item for item in everything if item["id"] in ids]
    assert sorted(item["id"] for item in sent) == sorted(ids)
    begin, end = sent[15]["storedAtMs"], sent[5]["storedAtMs"]
    inner = stock.get("/messages", topic=TOPIC, limit=200, **{"from": begin, "to": end})["items"]
    assert inner == [item for item in everything if begin <= item["storedAtMs"] <= end]
    tagged = stock.get("/messages", topic=TOPIC, tag="t2", limit=200)["items"]
    assert {item["id"] for item in tagged} == {ids[number] for number in range(2, SENT, 3)}
    at = stock.get("/messages", topic=TOPIC, brokerName="stock", queueId=1, offset=2)["items"]
    assert at[0]["id"] == ids[1 + 2 * QUEUES]
    stock.get(f"/messages/{'0' * 32}", 404)
    stock.get(f"/messages/{ids[0][:-8]}00FFFFFF", 404)


def test_test_message_its_trace_and_who_consumed_it(stock: StockCluster) -> None:
    unique_key = f"{5:032X}"
    told = f"SubBefore\x012000\x01R\x01{GROUP}\x01Q\x01{unique_key}\x010\x01\x02"
    told += f"SubAfter\x01Q\x01{unique_key}\x015\x01true\x01\x010\x012005\x02"
    stock.send("Traces", told.encode(), KEYS=unique_key)
    path = f"/messages/{stock.ids[5]}/trace"
    (span,) = wait_for("the trace", lambda: stock.get(path, traceTopic="Traces")["spans"], LIMIT_S)
    assert (span["kind"], span["group"], span["costMs"]) == ("consume", GROUP, 5)
    tracks = {row["group"]: row for row in stock.get(f"/messages/{stock.ids[5]}/track")["items"]}
    assert (tracks[GROUP]["state"], tracks[GROUP]["isOnline"]) == ("consumed", True)
    stock.change("POST", "/topics", {"name": "Tests", "readQueues": 1, "writeQueues": 1})
    result = stock.try_change("POST", "/topics/Tests/messages", {"text": "Grüße", "tags": "x", "keys": ["k"]})
    message_id = result["outcomes"][0]["subject"].split(": ")[1].split(" ")[0]
    assert stock.get(f"/messages/{message_id}")["body"]["content"] == "Grüße"
    stock.change("POST", f"/messages/{message_id}/resend", {"target": "topic"})
    wait_for("both are in the queue", lambda: _stored(stock, "Tests") >= 2, LIMIT_S)
    (queue,) = stock.get("/topics/Tests/queues")["queues"]
    own = stock.table(RequestCode.GET_TOPIC_STATS_INFO, "offsetTable", topic="Tests")
    assert [(row["minOffset"], row["maxOffset"]) for row in own.values()] == [(0, 2)]
    assert (queue["minOffset"], queue["maxOffset"], queue["messageCount"]) == (0, 2, 2)
    (row,) = own.values()
    assert queue["lastMessageAtMs"] == row["lastUpdateTimestamp"]
    assert stock.get("/topics/Tests/stats")["putMessages"] is not None


def listed(stock: StockCluster) -> tuple[str, int]:
    """The group's presence and members in the list of groups."""
    (item,) = [row for row in stock.get("/consumer-groups")["items"] if row["group"] == GROUP]
    return item["presence"], item["members"]


def test_consumer_that_runs_is_shown(stock: StockCluster) -> None:
    shown = stock.get(f"/consumer-groups/{GROUP}")
    assert (shown["presence"], shown["memberCount"], shown["lag"]) == ("online", 1, 0)
    (member,) = shown["members"]
    assert (member["language"], member["version"]) == ("JAVA", VERSIONS[stock.version])
    assert stock.get(f"/consumer-groups/{GROUP}/members")["members"] == [member]
    path = f"/consumer-groups/{GROUP}/members/{quote(member['clientId'], safe='')}/running"
    running = stock.get(path, stack=True)
    assert running["properties"]["consumerGroup"] == GROUP
    assert len([queue for queue in running["queues"] if queue["topic"] == TOPIC]) == QUEUES
    assert running["stack"]
    (progress,) = stock.get(f"/consumer-groups/{GROUP}/progress", topic=TOPIC)["topics"]
    own = stock.table(RequestCode.GET_CONSUME_STATS, "offsetTable", consumerGroup=GROUP, topic=TOPIC)
    told = {json.loads(key)["queueId"]: row for key, row in own.items()}
    for queue in progress["queues"]:
        row = told[queue["queueId"]]
        assert (queue["offset"], queue["maxOffset"]) == (row["consumerOffset"], row["brokerOffset"])
        assert (queue["lastConsumedAtMs"], queue["lag"]) == (row["lastTimestamp"], 0)
        assert queue["clientId"] == member["clientId"]
    wait_for("the list, at most 10 s old, has it", lambda: listed(stock) == ("online", 1), LIMIT_S)
    (makers,) = stock.get("/producer-groups", group="CLIENT_INNER_PRODUCER")["items"]
    assert makers["clients"][0]["address"] == member["address"]
    before = stock.got()
    done = {"target": "consumer", "consumerGroup": GROUP}
    stock.change("POST", f"/messages/{stock.ids[3]}/resend", done)
    wait_for("it consumed it", lambda: stock.got()[3, 0] > before[3, 0], LIMIT_S)


def test_consumers_that_run_are_sent_back(stocks: dict[str, StockCluster]) -> None:
    """Some 10 s later beside 4.9, which moves single queues only of a group that is not there."""
    path = f"/consumer-groups/{GROUP}/offsets/reset"
    single = {"topic": TOPIC, "to": "offset", "queues": [{"brokerName": "stock", "queueId": 1, "offset": 2}]}
    before = {version: stock.got() for version, stock in stocks.items()}
    for stock in stocks.values():
        if stock.is_4:
            refused = stock.try_change("POST", path, single, 409)
            assert "moves single queues only while no consumer of the group runs" in refused["detail"]
            result = stock.try_change("POST", path, {"topic": TOPIC, "to": "earliest"}, 502)
            assert "its consumers have not gone there yet" in result["detail"]
        else:
            moved = stock.change("POST", path, single)
            assert moved == {"stock/1": (str(IN_QUEUE), f"2, {IN_QUEUE - 2} messages again")}
            stock.change("POST", path, {"topic": TOPIC, "to": "earliest"})
    for version, stock in stocks.items():

        def has_all_again(stock: StockCluster = stock, then: Any = before[version]) -> bool:
            return len(+(stock.got() - then)) == SENT

        wait_for(f"everything is consumed again beside {version}", has_all_again, LIMIT_S)


def test_group_without_consumers_is_moved(stock: StockCluster) -> None:
    stock.change("PUT", "/consumer-groups/audit", {"retryMaxTimes": 3})
    stock.commit("audit", {0: 3, 1: 1})
    shown = stock.get("/consumer-groups/audit/progress", topic=TOPIC)["topics"][0]
    assert [queue["offset"] for queue in shown["queues"]] == [3, 1, None, None], "missing ones are not 0"
    assert [queue["lag"] for queue in shown["queues"]] == [IN_QUEUE - 3, IN_QUEUE - 1, None, None]
    assert (shown["unknownQueues"], shown["queues"][2]["delayMs"]) == (2, None)
    reset = "/consumer-groups/audit/offsets/reset"
    effects = stock.change("POST", reset, {"topic": TOPIC, "to": "earliest"})
    assert effects["stock/0"] == ("3", "0, 3 messages again")
    assert effects["stock/2"] == (None, f"0, {IN_QUEUE} messages to consume")
    assert stock.stored("audit") == dict.fromkeys(range(QUEUES), 0)
    times = sorted(item["storedAtMs"] for item in stock.get("/messages", topic=TOPIC, limit=200)["items"])
    effects = stock.change("POST", reset, {"topic": TOPIC, "to": "time", "timeMs": times[SENT // 2]})
    wanted = {f"stock/{queue_id}": offset for queue_id, offset in stock.stored("audit").items()}
    assert {name: int(after.split(",")[0]) for name, (_, after) in effects.items() if after} == wanted
    assert all(abs(offset - IN_QUEUE // 2) <= 1 for offset in wanted.values()), "4.9 takes the nearest"
    one = {"topic": TOPIC, "to": "offset", "queues": [{"brokerName": "stock", "queueId": 1, "offset": 2}]}
    stock.change("POST", reset, one)
    assert stock.stored("audit")[1] == 2
    stock.change("POST", reset, {"topic": TOPIC, "to": "latest"})
    assert stock.stored("audit") == dict.fromkeys(range(QUEUES), IN_QUEUE)
    stock.change("POST", reset, {"topic": TOPIC, "to": "offset", "offset": 4})
    effects = stock.change("POST", "/consumer-groups/audit/offsets/clone", {"targetGroup": "copy"})
    assert effects["stock/0"] == (None, f"4, {IN_QUEUE - 4} messages to consume")
    assert stock.stored("copy") == dict.fromkeys(range(QUEUES), 4)
    assert stock.change("POST", "/consumer-groups/audit/offsets/skip", {})["stock/3"][0] == "4"
    assert stock.get("/consumer-groups/audit")["lag"] == 0
    mode = stock.try_change(
        "PUT",
        "/consumer-groups/audit/consume-mode",
        {"topic": TOPIC, "mode": "POP"},
        409 if stock.is_4 else 200,
    )
    assert ("RocketMQ 5 does" in mode.get("detail", "")) is stock.is_4
    stock.change("DELETE", "/consumer-groups/audit")
    stock.get("/consumer-groups/audit", 404)
    assert stock.stored("audit") == {}, "its offsets went with it"


def test_dead_letters_are_shown_saved_and_sent_again(stock: StockCluster) -> None:
    stock.change("PUT", "/consumer-groups/failing", {"retryMaxTimes": 1})
    for number in range(3):
        origin = {"RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": stock.ids[number], "KEYS": f"dead-{number}"}
        stock.send("%DLQ%failing", b"dead", 0, UNIQ_KEY=f"{number + 100:032X}", **origin)
    row = wait_for("all are there", lambda: _dlq_of(stock, "failing", 3), LIMIT_S)
    assert row["topic"] == "%DLQ%failing"
    letters = stock.get("/dlq/failing/messages")["items"]
    assert [(item["keys"], item["originalTopic"]) for item in letters][::-1] == [
        ([f"dead-{number}"], TOPIC) for number in range(3)
    ]
    lines = stock.http.get("/api/v1/dlq/failing/export").text.splitlines()
    assert [json.loads(line)["originalId"] for line in lines] == stock.ids[:3]
    assert stock.http.get("/api/v1/dlq/failing/export", params={"format": "csv"}).text.count("dead-") >= 3
    stock.change("POST", "/dlq/failing/resend", {"ids": [letters[0]["id"]]})
    effects = stock.change("POST", "/dlq/failing/resend", {})
    assert set(effects.values()) == {(None, "once more in %RETRY%failing")}
    assert len(effects) == 2, "the one that was resent before is left out"
    wait_for("each was sent again once", lambda: _stored(stock, "%RETRY%failing") >= 3, LIMIT_S)
    assert _stored(stock, "%RETRY%failing") == 3


def _stored(stock: StockCluster, topic: str) -> int:
    """Messages in the queues, to which a stock broker adds them some time after its answer."""
    own = stock.table(RequestCode.GET_TOPIC_STATS_INFO, "offsetTable", topic=topic)
    return sum(each["maxOffset"] for each in own.values())


def _dlq_of(stock: StockCluster, group: str, count: int) -> Any:
    rows = [row for row in stock.get("/dlq")["items"] if row["group"] == group and row["count"] == count]
    return rows[0] if rows else None


def test_name_server_is_shown_and_changed(stock: StockCluster) -> None:
    own = parse_properties_text(call(stock.broker.namesrv, RequestCode.GET_NAMESRV_CONFIG).body)
    assert stock.get("/name-server")["config"].keys() == own.keys()
    path = "/name-server/items/ORDER_TOPIC_CONFIG"
    stock.get(path, 404)
    stock.change("PUT", f"{path}/{TOPIC}", {"value": "stock:4"})
    assert stock.get(path)["items"] == {TOPIC: "stock:4"}
    stock.change("DELETE", f"{path}/{TOPIC}")
    assert stock.get(path)["items"] == {}
    unknown = stock.try_change("PATCH", "/name-server", {"values": {"noSuchKey": "1"}}, 400)
    assert unknown["detail"] == "The name server has no key noSuchKey."
    stock.change("PATCH", "/name-server", {"values": {"serverOnewaySemaphoreValue": "255"}})
    wrong = stock.try_change("PATCH", "/name-server", {"values": {"serverWorkerThreads": "many"}}, 502)
    assert "kept the old value" in wrong["detail"]
    for is_writable in (False, True):
        stock.change("PUT", "/name-server/brokers/stock/write-permission", {"isWritable": is_writable})
        (broker,) = stock.get(f"/topics/{TOPIC}/route")["brokers"]
        assert (broker["canRead"], broker["canWrite"]) == (True, is_writable)


def test_command_line(
    stock: StockCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = CommandLine(monkeypatch, capsys)

    def run(*args: str, code: int = 0) -> Ran:
        ran = line(*args, "--namesrv", stock.broker.namesrv)
        assert ran.code == code, (args, ran)
        return ran

    words = "a stock RocketMQ broker, which reports nothing about replication"
    assert words in run("status").out
    assert words in run("watch").out
    assert "up, stock" in run("node", "list").out
    (node,) = run("status", "--json").json["groups"][0]["nodes"]
    assert run("node", "show", stock.broker.address, "--json").json["node"] == node
    for command in (["transfer-leader"], ["transfer-leader", "n1"], ["preferred-leader", "n1"]):
        assert "RocketMQ's own brokers have none" in run(*command, code=1).err
    assert run("doctor", "--json").json["lookedAt"]["nodes"] == 1
    run("topic", "create", "Cli", "--queues", "2")
    assert TOPIC in run("topic", "list").out
    run("message", "send", "Cli", "hello", "--key", "cli-key")
    find = ("message", "find", "Cli", "--key", "cli-key", "--json")
    (found,) = wait_for("the message by its key", lambda: run(*find).json["items"], LIMIT_S)
    assert "hello" in run("message", "show", found["id"]).out
    assert stock.broker.address in run("topic", "route", "Cli").out
    assert "5 acknowledged" in run("produce", "Cli", "--count", "5", "--size", "10").err
    run("consume", "Cli", "--group", "cli", "--count", "6")
    assert run("offset", "show", "cli", "--json").json["lag"] == 0
    run("offset", "reset", "cli", "Cli", "--to", "earliest", "--yes")
    assert run("offset", "show", "cli", "--json").json["lag"] == 6
    assert GROUP in run("group", "list").out
    assert "retryMaxTimes" in run("group", "show", "cli").out
    assert run("dlq", "list", "--json").json["page"] == 1
    get = ("config", "get", stock.broker.address, "fileReservedTime", "--json")
    run("config", "set", stock.broker.address, "fileReservedTime=71", "--yes")
    assert [each["value"] for each in run(*get).json["settings"]] == ["71"]
    run("topic", "delete", "Cli", "--yes")
