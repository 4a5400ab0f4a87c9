"""Producers over HTTP."""

from typing import Any

from remoting.codes import RequestCode
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import answered, asking

A, B = "127.0.0.1:10911", "127.0.0.1:20911"


def client_row(client_id: str, at_ms: int = 1) -> dict[str, Any]:
    return {
        "clientId": client_id,
        "remoteIP": "10.0.0.9:5000",
        "language": "JAVA",
        "version": 409,
        "lastUpdateTimestamp": at_ms,
    }


def two_brokers(*, is_stock: bool = False) -> FakeBrokers:
    a, b = FakeBroker("broker-a", A, is_stock=is_stock), FakeBroker("broker-b", B, is_stock=is_stock)
    a.add_topic("orders")
    a.producers = {"shop": [client_row("one", 5), client_row("two")], "audit": [client_row("three")]}
    b.producers = {"shop": [client_row("one", 9)]}
    return FakeBrokers(a, b)


async def test_list_joins_a_client_over_brokers() -> None:
    async with asking(two_brokers()) as client:
        page = answered(await client.get("/producer-groups"))
    assert [group["group"] for group in page["items"]] == ["audit", "shop"]
    one, two = page["items"][1]["clients"]
    assert one == {
        "clientId": "one",
        "address": "10.0.0.9:5000",
        "language": "JAVA",
        "version": "4.9.8",
        "lastHeartbeatAtMs": 9,
        "brokers": ["broker-a", "broker-b"],
    }
    assert two["brokers"] == ["broker-a"]


async def test_list_of_a_topic_asks_only_brokers_that_have_it() -> None:
    brokers = two_brokers()
    async with asking(brokers) as client:
        page = answered(await client.get("/producer-groups?topic=orders&group=SH"))
        answered(await client.get("/producer-groups?topic=nowhere"), 404)
    assert [group["group"] for group in page["items"]] == ["shop"]
    assert brokers.asked[B, RequestCode.GET_ALL_PRODUCER_INFO] == 0


async def test_list_of_brokers_that_cannot_list_says_what_can_be_asked() -> None:
    brokers = two_brokers(is_stock=True)
    for address in (A, B):
        brokers.refusing[address, RequestCode.GET_ALL_PRODUCER_INFO] = (3, "not supported")
    async with asking(brokers) as client:
        page = answered(await client.get("/producer-groups"))
        one = answered(await client.get("/producer-groups?group=shop"))
        none = answered(await client.get("/producer-groups?group=nobody"))
    assert (page["items"], page["isPartial"]) == ([], True)
    assert "give a group's whole name" in page["problems"][0]["problem"]
    assert [len(group["clients"]) for group in one["items"]] == [2]
    assert (one["isPartial"], none["items"], none["isPartial"]) == (False, [], False)
