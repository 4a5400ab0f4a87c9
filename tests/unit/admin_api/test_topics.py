"""Topics over HTTP, of LedgerMQ and of stock brokers."""

from typing import Any

import pytest

from admin_api.gateway import Gateway
from admin_api.settings import Settings
from admin_api.sources.topics import TopicSource
from broker.admin.types import NodeRole
from remoting.codes import RequestCode
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import answered, asking

A, B = "127.0.0.1:10911", "127.0.0.1:20911"


def two_brokers() -> FakeBrokers:
    a, b = FakeBroker("broker-a", A), FakeBroker("broker-b", B)
    for broker in (a, b):
        broker.add_topic("orders", 4, attributes={"message.type": "NORMAL", "retention.ms": "60000"})
        broker.add_topic("TBW102", 8, 7, attributes={})
        broker.add_topic("broker-a", 1, 7, attributes={})
    a.add_topic("%RETRY%payers", 1, attributes={})
    a.add_topic("%DLQ%payers", 1, 2, attributes={})
    a.add_topic("alone", 2, attributes={})
    return FakeBrokers(a, b)


async def test_list_joins_brokers_and_marks_kinds() -> None:
    async with asking(two_brokers()) as client:
        page = answered(await client.get("/topics"))
    assert {row["name"]: row["kind"] for row in page["items"]} == {
        "%DLQ%payers": "dlq",
        "%RETRY%payers": "retry",
        "TBW102": "system",
        "alone": "normal",
        "broker-a": "system",
        "orders": "normal",
    }
    orders = page["items"][-1]
    assert (orders["brokers"], orders["readQueues"]) == (["broker-a", "broker-b"], 8)
    assert (page["total"], page["isPartial"], page["problems"]) == (6, False, [])
    assert [row["canRead"] for row in page["items"]][:2] == [False, True]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("name=ORD", ["orders"]),
        ("kind=normal", ["alone", "orders"]),
        ("kind=retry&kind=dlq", ["%DLQ%payers", "%RETRY%payers"]),
        ("kind=normal&sort=queues&descending=true", ["orders", "alone"]),
        ("kind=normal&descending=true", ["orders", "alone"]),
        ("pageSize=2&page=2", ["TBW102", "alone"]),
        ("pageSize=2&page=9", []),
    ],
)
async def test_list_is_filtered_sorted_and_in_pages(query: str, names: list[str]) -> None:
    async with asking(two_brokers()) as client:
        page = answered(await client.get(f"/topics?{query}"))
    assert [row["name"] for row in page["items"]] == names


async def test_list_with_a_silent_broker_is_partial() -> None:
    brokers = two_brokers()
    brokers.hanging = {B}
    async with asking(brokers) as client:
        page = answered(await client.get("/topics?name=orders"))
    assert (page["items"][0]["brokers"], page["isPartial"]) == (["broker-a"], True)
    assert [problem["address"] for problem in page["problems"]] == [B]


@pytest.mark.parametrize("query", ["page=0", "pageSize=1001", "kind=odd", "sort=odd"])
async def test_list_bad_query_is_a_problem(query: str) -> None:
    async with asking(two_brokers()) as client:
        answered(await client.get(f"/topics?{query}"), 422)


async def test_one_has_each_brokers_configuration_and_the_groups() -> None:
    brokers = two_brokers()
    brokers.brokers[A].groups["orders"] = ["payers", "auditors"]
    brokers.brokers[B].groups["orders"] = ["payers"]
    async with asking(brokers) as client:
        topic = answered(await client.get("/topics/orders"))
    assert topic["consumerGroups"] == ["auditors", "payers"]
    assert [config["brokerName"] for config in topic["configs"]] == ["broker-a", "broker-b"]
    config = topic["configs"][0]
    assert (config["retentionMs"], config["messageType"], config["canWrite"]) == (60000, "NORMAL", True)


async def test_one_unknown_is_404_and_with_a_silent_broker_503() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        problem = answered(await client.get("/topics/nowhere"), 404)
        assert problem["detail"] == "The topic nowhere does not exist."
        brokers.hanging = {B}
        problem = answered(await client.get("/topics/nowhere"), 503)
    assert "is unknown" in problem["detail"]


async def test_where_no_broker_is_listed_nobody_can_say_whether_a_topic_exists() -> None:
    async with asking(FakeBrokers()) as client:
        problem = answered(await client.get("/topics/orders"), 503)
    assert "the name server lists no broker" in problem["detail"]


async def test_route_is_what_the_name_server_says() -> None:
    async with asking(two_brokers()) as client:
        route = answered(await client.get("/topics/alone/route"))
        answered(await client.get("/topics/nowhere/route"), 404)
    assert route["brokers"] == [
        {
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
            "readQueues": 2,
            "writeQueues": 2,
            "canRead": True,
            "canWrite": True,
            "addresses": {"0": A},
        }
    ]


async def test_queues_have_null_where_nothing_was_stored() -> None:
    brokers = two_brokers()
    brokers.brokers[A].bounds["orders"] = [(5, 25, 1700000000000), (0, 0, 0)]
    async with asking(brokers) as client:
        queues = answered(await client.get("/topics/orders/queues"))
    assert queues["messageCount"] == 20
    assert [
        (q["queueId"], q["minOffset"], q["maxOffset"], q["lastMessageAtMs"]) for q in queues["queues"]
    ] == [
        (0, 5, 25, 1700000000000),
        (1, 0, 0, None),
    ]


async def test_stats_add_up_brokers_and_have_null_where_nobody_counted() -> None:
    brokers = two_brokers()
    a, b = brokers.brokers[A], brokers.brokers[B]
    a.groups["orders"] = ["payers", "sleepers"]
    a.stats = {("TOPIC_PUT_NUMS", "orders"): 60, ("GROUP_GET_NUMS", "orders@payers"): 3}
    b.stats = {("TOPIC_PUT_NUMS", "orders"): 120}
    async with asking(brokers) as client:
        stats = answered(await client.get("/topics/orders/stats"))
    assert stats["putMessages"] == {"lastMinute": 180, "lastHour": 1800, "lastDay": 18000, "perSecond": 3.0}
    assert stats["putBytes"] is None
    assert [each["putMessages"]["lastMinute"] for each in stats["brokers"]] == [60, 120]
    assert [(g["group"], g["gotMessages"] and g["gotMessages"]["lastMinute"]) for g in stats["groups"]] == [
        ("payers", 3),
        ("sleepers", None),
    ]


async def test_group_without_a_leader_is_read_from_a_node_that_answers() -> None:
    facts = {"role": NodeRole.CANDIDATE, "is_writable": False}
    lone = FakeBroker("broker-a", A, facts=facts)
    lone.add_topic("orders", attributes={})
    async with asking(FakeBrokers(lone)) as client:
        page = answered(await client.get("/topics"))
        answered(await client.get("/topics/orders/queues"))
        problem = answered(await client.delete("/topics/orders"), 503)
        answered(await client.post("/topics", json={"name": "new"}), 503)
    assert ([row["name"] for row in page["items"]], page["isPartial"]) == (["orders"], True)
    assert "broker-a accepts no writes" in problem["detail"]


async def test_stock_brokers_tell_no_attributes_and_that_is_null() -> None:
    stock = FakeBroker("broker-a", A, is_stock=True)
    stock.add_topic("orders")
    stock.bounds["orders"] = [(0, 3, 1)]
    async with asking(FakeBrokers(stock)) as client:
        topic = answered(await client.get("/topics/orders"))
        queues = answered(await client.get("/topics/orders/queues"))
    (config,) = topic["configs"]
    assert (config["attributes"], config["retentionMs"], config["messageType"]) == (None, None, None)
    assert (queues["messageCount"], topic["isPartial"]) == (3, False)


async def test_list_of_two_thousand_topics_and_five_thousand_groups_asks_each_master_once() -> None:
    a, b = FakeBroker("broker-a", A), FakeBroker("broker-b", B)
    for broker in (a, b):
        for number in range(2_000):
            broker.add_topic(f"topic-{number:04}")
        for number in range(5_000):
            broker.add_topic(f"%RETRY%group-{number:04}", 1)
    brokers = FakeBrokers(a, b)
    async with asking(brokers, brokers_cache_ms=60_000, history_interval_ms=600_000) as client:
        first = await client.get("/topics?kind=normal&pageSize=100")
        asked = brokers.asked.copy()
        answered(await client.get("/topics?kind=normal&pageSize=100&page=20"))
    assert answered(first)["total"] == 2_000
    assert len(first.content) < 40_000
    assert brokers.asked == asked
    assert asked[A, RequestCode.GET_ALL_TOPIC_CONFIG] == asked[B, RequestCode.GET_ALL_TOPIC_CONFIG] == 1
    assert sum(asked.values()) <= 3 + 4
    assert brokers.answered_bytes < 3_500_000


async def test_same_answer_is_not_read_again() -> None:
    brokers = two_brokers()
    source = TopicSource(Gateway(brokers, Settings(namesrv=NAMESRV)))
    first = await source.configs(A)
    assert await source.configs(A) is first
    brokers.brokers[A].add_topic("late")
    assert "late" in await source.configs(A)


def effects_of(result: Any) -> list[tuple[str, str | None, str | None]]:
    return [(effect["subject"], effect["before"], effect["after"]) for effect in result["effects"]]


async def test_create_makes_it_on_every_broker() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        body = {"name": "new", "readQueues": 2, "attributes": {"retention.ms": "5000"}}
        preview = answered(await client.post("/topics?dryRun=true", json=body))
        assert "new" not in brokers.brokers[A].topics
        result = answered(await client.post("/topics", json=body))
    assert (preview["isDestructive"], preview["confirmation"], result["isDryRun"]) == (False, None, False)
    assert effects_of(preview)[:3] == [
        ("broker-a: readQueues", None, "2"),
        ("broker-a: writeQueues", None, "8"),
        ("broker-a: permissions", None, "rw"),
    ]
    for broker in brokers.brokers.values():
        row = broker.topics["new"]
        assert (row["readQueueNums"], row["writeQueueNums"], row["perm"]) == (2, 8, 6)
        assert row["attributes"] == {"retention.ms": "5000"}
    assert [outcome["ok"] for outcome in result["outcomes"]] == [True, True]


async def test_create_one_that_is_there_is_refused() -> None:
    async with asking(two_brokers()) as client:
        problem = answered(await client.post("/topics", json={"name": "alone"}), 409)
    assert "exists already, on broker-a" in problem["detail"]


async def test_create_on_a_broker_nobody_knows_is_refused() -> None:
    async with asking(two_brokers()) as client:
        body = {"name": "new", "brokers": ["broker-z"]}
        answered(await client.post("/topics", json=body), 404)


@pytest.mark.parametrize("body", [{"name": "a b"}, {"name": "x", "readQueues": 0}, {"readQueues": 1}, {}])
async def test_create_bad_body_is_a_problem(body: dict[str, Any]) -> None:
    async with asking(two_brokers()) as client:
        answered(await client.post("/topics", json=body), 422)


async def test_edit_that_takes_nothing_needs_no_confirmation() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        spec = {"writeQueues": 6, "attributes": {"retention.ms": None}}
        result = answered(await client.patch("/topics/orders", json=spec))
    assert effects_of(result)[:2] == [
        ("broker-a: writeQueues", "4", "6"),
        ("broker-a: attribute retention.ms", "60000", None),
    ]
    assert brokers.brokers[B].topics["orders"]["writeQueueNums"] == 6
    assert brokers.brokers[B].topics["orders"]["attributes"] == {"message.type": "NORMAL"}


async def test_edit_that_takes_from_consumers_is_previewed_and_confirmed() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        spec = {"readQueues": 1, "canWrite": False, "brokers": ["broker-a"]}
        preview = answered(await client.patch("/topics/orders", json=spec))
        assert brokers.brokers[A].topics["orders"]["readQueueNums"] == 4
        answered(await client.patch("/topics/orders?dryRun=false", json=spec), 428)
        confirmed = {"dryRun": False, "confirmation": preview["confirmation"]}
        answered(await client.patch("/topics/orders", params=confirmed, json=spec))
    assert preview["isDryRun"] is True
    assert preview["warnings"] == [
        "broker-a: consumers no longer receive the messages in queues 1 to 3.",
        "broker-a: producers can no longer send to it.",
    ]
    row = brokers.brokers[A].topics["orders"]
    assert (row["readQueueNums"], row["perm"]) == (1, 4)
    assert brokers.brokers[B].topics["orders"]["readQueueNums"] == 4


async def test_another_number_of_queues_of_an_ordered_topic_needs_a_look_at_the_order() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        ordered = {"attributes": {"message.type": "FIFO"}}
        calm = answered(await client.patch("/topics/orders?dryRun=true", json=ordered))
        result = answered(
            await client.patch("/topics/orders?dryRun=true", json={"writeQueues": 6, **ordered})
        )
        flag = answered(
            await client.patch("/topics/orders?dryRun=true", json={"writeQueues": 6, "isOrdered": True})
        )
    assert calm["warnings"] == []
    (warning,) = result["warnings"]
    assert "keys move to other queues" in warning
    assert flag["warnings"] == [warning]


async def test_edit_nothing_says_so() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        result = answered(await client.patch("/topics/orders", json={"readQueues": 4}))
    assert (result["effects"], result["warnings"]) == ([], ["Nothing would change."])
    assert brokers.asks_of(RequestCode.UPDATE_AND_CREATE_TOPIC) == 0


async def test_edit_failing_on_one_broker_is_partial() -> None:
    brokers = two_brokers()
    brokers.refusing[B, RequestCode.UPDATE_AND_CREATE_TOPIC] = (1, "no")
    async with asking(brokers) as client:
        result = answered(await client.patch("/topics/orders", json={"writeQueues": 9}))
    assert [(o["subject"], o["ok"]) for o in result["outcomes"]] == [("broker-a", True), ("broker-b", False)]
    assert result["isPartial"] is True


async def test_change_of_a_system_topic_is_refused() -> None:
    async with asking(two_brokers()) as client:
        answered(await client.patch("/topics/TBW102", json={"readQueues": 1}), 409)
        answered(await client.delete("/topics/TBW102"), 409)


async def test_delete_tells_who_loses_what_and_ends_the_route() -> None:
    brokers = two_brokers()
    brokers.brokers[A].bounds["orders"] = [(0, 7, 1)]
    brokers.brokers[A].groups["orders"] = ["payers"]
    async with asking(brokers) as client:
        preview = answered(await client.delete("/topics/orders"))
        assert "orders" in brokers.brokers[A].topics
        brokers.brokers[A].bounds["orders"] = [(0, 9, 1)]  # more messages came: the confirmation holds
        confirmed = {"dryRun": False, "confirmation": preview["confirmation"]}
        result = answered(await client.delete("/topics/orders", params=confirmed))
    assert effects_of(preview) == [
        ("broker-a", "4 queues, 7 messages", None),
        ("broker-b", "4 queues, 0 messages", None),
        ("name server 127.0.0.1:9876", "a route", None),
    ]
    assert preview["warnings"] == ["These groups lose their offsets in the topic: payers."]
    assert [outcome["ok"] for outcome in result["outcomes"]] == [True, True, True]
    assert "orders" not in brokers.brokers[B].topics
    assert brokers.routes_deleted == ["orders"]


async def test_delete_after_another_group_came_needs_a_new_confirmation() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        preview = answered(await client.delete("/topics/orders"))
        brokers.brokers[B].groups["orders"] = ["late"]
        confirmed = {"dryRun": False, "confirmation": preview["confirmation"]}
        problem = answered(await client.delete("/topics/orders", params=confirmed), 409)
    assert problem["result"]["warnings"] == ["These groups lose their offsets in the topic: late."]
    assert "orders" in brokers.brokers[A].topics


async def test_delete_on_one_broker_keeps_the_route() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        preview = answered(await client.delete("/topics/orders?broker=broker-b"))
        confirmed = {"broker": "broker-b", "dryRun": False, "confirmation": preview["confirmation"]}
        answered(await client.delete("/topics/orders", params=confirmed))
        answered(await client.delete("/topics/alone?broker=broker-b"), 400)
    assert "orders" in brokers.brokers[A].topics
    assert "orders" not in brokers.brokers[B].topics
    assert brokers.routes_deleted == []
