"""A broker that does not answer is left out of a change, and nobody is told that the change is done there."""

from typing import Any

import pytest
from httpx import AsyncClient

from admin_api.app import create_app
from admin_api.settings import Settings
from remoting.codes import RequestCode, ResponseCode
from tests.unit.admin_api import fake_groups
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS
from tests.unit.admin_api.fake_groups import sample
from tests.unit.admin_api.serving import answered, asking, asking_app

A, B = "127.0.0.1:10911", "127.0.0.1:20911"


def two_brokers() -> FakeBrokers:
    a, b = FakeBroker("broker-a", A, is_stock=True), FakeBroker("broker-b", B, is_stock=True)
    for broker in (a, b):
        broker.add_topic("orders")
    return FakeBrokers(a, b)


def two_of_groups() -> tuple[fake_groups.FakeBrokers, str]:
    """The second one hangs; with its address."""
    first, second = sample("ledgermq"), sample("ledgermq", "broker-b")
    second.is_hanging = True
    return fake_groups.FakeBrokers(first, second), second.address


async def made(client: AsyncClient, method: str, path: str, body: object = None, status: int = 200) -> Any:
    """The change, confirmed where it has to be."""
    answer = await client.request(method, path, json=body, params={"dryRun": "false"})
    if answer.status_code == 428:
        confirmation = answer.json()["result"]["confirmation"]
        confirmed = {"dryRun": "false", "confirmation": confirmation}
        answer = await client.request(method, path, json=body, params=confirmed)
    return answered(answer, status)


async def audited(client: AsyncClient) -> dict[str, Any]:
    newest: dict[str, Any] = answered(await client.get("/audit"))["items"][0]
    return newest


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/topics", {"name": "new"}),
        ("PATCH", "/topics/orders", {"writeQueues": 6}),
        ("DELETE", "/topics/orders", None),
    ],
)
@pytest.mark.parametrize("how", ["hanging", "dead"])
async def test_topics(method: str, path: str, body: object, how: str) -> None:
    brokers = two_brokers()
    getattr(brokers, how).add(B)
    async with asking(brokers) as client:
        result = await made(client, method, path, body)
        entry = await audited(client)
    assert [(each["subject"], each["ok"]) for each in result["outcomes"]] == [("broker-a", True), (B, False)]
    assert result["isPartial"] is True
    assert any(B in warning for warning in result["warnings"])
    assert (entry["outcome"], f"{B}: left out" in entry["problem"]) == ("partial", True)
    assert brokers.routes_deleted == []


async def test_who_is_not_meant_is_not_left_out() -> None:
    brokers = two_brokers()
    brokers.hanging.add(B)
    async with asking(brokers) as client:
        body = {"writeQueues": 6, "brokers": ["broker-a"]}
        result = await made(client, "PATCH", "/topics/orders", body)
    assert ([each["subject"] for each in result["outcomes"]], result["isPartial"]) == (["broker-a"], False)


async def test_where_only_the_silent_one_would_change_nothing_is_done() -> None:
    brokers = two_brokers()
    brokers.hanging.add(B)
    async with asking(brokers) as client:
        problem = await made(client, "PATCH", "/topics/orders", {"writeQueues": 4}, 502)
    assert [(each["subject"], each["ok"]) for each in problem["result"]["outcomes"]] == [(B, False)]


@pytest.mark.parametrize(
    ("method", "path", "body", "done"),
    [
        ("PUT", "/consumer-groups/g", {"retryMaxTimes": 5}, ["broker-a"]),
        ("DELETE", "/consumer-groups/g", None, ["broker-a"]),
        ("PUT", "/consumer-groups/g/consume-mode", {"topic": "t", "mode": "POP"}, ["broker-a"]),
        (
            "POST",
            "/consumer-groups/g/offsets/reset",
            {"topic": "t", "to": "earliest"},
            ["broker-a/0", "broker-a/1"],
        ),
        ("POST", "/consumer-groups/g/offsets/skip", {}, ["broker-a/0", "broker-a/1"]),
        ("POST", "/consumer-groups/g/offsets/clone", {"targetGroup": "h"}, ["broker-a/0", "broker-a/1"]),
    ],
)
async def test_groups(method: str, path: str, body: object, done: list[str]) -> None:
    brokers, silent = two_of_groups()
    async with asking_app(create_app(Settings(namesrv=NAMESRV_ADDRESS), brokers)) as client:
        result = await made(client, method, path, body)
        entry = await audited(client)
    assert [each["subject"] for each in result["outcomes"] if each["ok"]] == done
    assert [each["subject"] for each in result["outcomes"] if not each["ok"]] == [silent]
    assert (result["isPartial"], entry["outcome"]) == (True, "partial")


async def test_a_named_queue_of_another_broker_leaves_nobody_out() -> None:
    brokers, _ = two_of_groups()
    body = {"topic": "t", "to": "earliest", "queues": [{"brokerName": "broker-a", "queueId": 0}]}
    async with asking_app(create_app(Settings(namesrv=NAMESRV_ADDRESS), brokers)) as client:
        result = await made(client, "POST", "/consumer-groups/g/offsets/reset", body)
    assert ([each["ok"] for each in result["outcomes"]], result["isPartial"]) == ([True], False)


async def test_a_refusal_to_clean_up_has_its_code() -> None:
    brokers = two_brokers()
    brokers.bodies[RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE] = b""
    brokers.refusing[B, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE] = (ResponseCode.NO_PERMISSION, "no")
    async with asking(brokers) as client:
        result = await made(client, "POST", "/brokers/clean", {"garbage": "consume-queues"})
        brokers.refusing[A, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE] = (ResponseCode.NO_PERMISSION, "no")
        refused = await made(client, "POST", "/brokers/clean", {"garbage": "consume-queues"}, 409)
    assert [(each["subject"], each["code"]) for each in result["outcomes"]] == [
        (A, None),
        (B, ResponseCode.NO_PERMISSION),
    ]
    assert {each["code"] for each in refused["result"]["outcomes"]} == {ResponseCode.NO_PERMISSION}
