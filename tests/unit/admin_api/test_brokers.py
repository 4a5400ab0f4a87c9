"""Brokers over HTTP: figures, configuration, storage."""

from typing import Any

import pytest

from broker.admin.types import NodeRole
from remoting.codes import RequestCode
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.node_samples import peer
from tests.unit.admin_api.serving import answered, asking

N0, N1, N2 = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"


def group_of_three() -> FakeBrokers:
    peers = (peer("n1", remoting_address=N1), peer("n2", remoting_address=N2))
    facts = {"peers": peers, "end_position": 3500}
    leader = FakeBroker("broker-a", N0, facts=facts)
    return FakeBrokers(leader, FakeBroker("broker-a", N1, 2), FakeBroker("broker-a", N2, 3))


def stock_master() -> FakeBrokers:
    stock = FakeBroker("broker-a", N0, is_stock=True)
    stock.runtime = {key: value for key, value in stock.runtime.items() if not key.startswith("disk")}
    stock.runtime |= {"brokerVersionDesc": "V4_9_7", "dispatchBehindBytes": "40"}
    return FakeBrokers(stock)


async def test_list_has_role_version_and_traffic() -> None:
    async with asking(group_of_three()) as client:
        page = answered(await client.get("/brokers"))
    assert [(row["address"], row["role"], row["state"]) for row in page["items"]] == [
        (N0, "LEADER", "up"),
        (N1, "FOLLOWER", "up"),
        (N2, "FOLLOWER", "up"),
    ]
    leader = page["items"][0]
    assert leader["product"] == "ledgermq"
    assert (leader["putPerSecond"], leader["getPerSecond"]) == (12.5, 25.0)
    assert (leader["putToday"], leader["getToday"], leader["diskUsedRatio"]) == (50, 30, 0.42)
    assert page["isPartial"] is False


async def test_list_node_that_died_and_left_the_name_server_is_down() -> None:
    brokers = group_of_three()
    del brokers.listed[N2]
    brokers.dead = {N2}
    async with asking(brokers) as client:
        page = answered(await client.get("/brokers"))
        answered(await client.get(f"/brokers/{N2}/config"), 503)
        assert answered(await client.get(f"/brokers/{N2}"))["state"] == "down"
    gone = page["items"][-1]
    assert (gone["address"], gone["state"], gone["brokerName"], gone["brokerId"]) == (
        N2,
        "down",
        "broker-a",
        None,
    )
    assert (gone["role"], gone["putToday"], gone["product"], gone["isWritable"]) == (None, None, None, None)
    assert (page["isPartial"], page["problems"][0]["address"]) == (True, N2)


async def test_stock_broker_has_null_for_what_only_ledgermq_knows() -> None:
    async with asking(stock_master()) as client:
        row = answered(await client.get(f"/brokers/{N0}"))
        storage = answered(await client.get(f"/brokers/{N0}/storage"))
        config = answered(await client.get(f"/brokers/{N0}/config"))
    assert (row["product"], row["role"], row["nodeId"], row["version"]) == (
        "rocketmq",
        "MASTER",
        None,
        "V4_9_7",
    )
    assert {setting["canChange"] for setting in config["settings"]} == {None}
    assert storage["log"]["endPosition"] == 3000
    assert storage["log"]["dispatchedPosition"] == 2960
    assert storage["disk"]["totalBytes"] == 40 * 1024**3


async def test_storage_counts_files_and_names_limits() -> None:
    async with asking(group_of_three()) as client:
        storage = answered(await client.get(f"/brokers/{N0}/storage"))
    assert storage == {
        "address": N0,
        "directory": "/store",
        "log": {
            "beginPosition": 0,
            "endPosition": 3500,
            "dispatchedPosition": 3000,
            "sizeBytes": 3500,
            "fileBytes": 1000,
            "fileCount": 4,
            "earliestMessageAtMs": 1700000001000,
        },
        "disk": {
            "totalBytes": 42949672960,
            "freeBytes": 10737418240,
            "usedRatio": 0.42,
            "cleanAboveRatio": 0.75,
            "fullAboveRatio": 0.9,
        },
        "retention": {"keepHours": 72, "deleteHours": "04"},
    }


async def test_storage_of_a_broker_that_tells_nothing_is_null() -> None:
    brokers = group_of_three()
    brokers.brokers[N0].runtime = {"commitLogDiskRatio": "-1.0", "earliestMessageTimeStamp": "-1"}
    brokers.brokers[N0].settings = {"listenPort": "1"}
    async with asking(brokers) as client:
        storage = answered(await client.get(f"/brokers/{N0}/storage"))
    told = [*storage["disk"].values(), *storage["retention"].values(), storage["log"]["sizeBytes"]]
    assert set(told) == {None}
    assert (storage["log"]["fileCount"], storage["log"]["earliestMessageAtMs"]) == (None, None)


async def test_address_the_cluster_does_not_name_is_never_asked() -> None:
    brokers = group_of_three()
    async with asking(brokers) as client:
        for part in ("", "/config", "/runtime", "/storage"):
            answered(await client.get(f"/brokers/127.0.0.1:22{part}"), 404)
    assert not [address for address, _ in brokers.asked if address.endswith(":22")]


async def test_runtime_is_told_in_the_brokers_words() -> None:
    async with asking(group_of_three()) as client:
        runtime = answered(await client.get(f"/brokers/{N1}/runtime"))
    assert runtime["figures"]["putTps"] == "12.50 11.00 10.00"
    assert runtime["broker"]["role"] == "FOLLOWER"


async def test_config_masks_secrets_and_says_what_can_change() -> None:
    async with asking(group_of_three()) as client:
        config = answered(await client.get(f"/brokers/{N0}/config"))
    by_key = {setting["key"]: setting for setting in config["settings"]}
    assert by_key["someSecretKey"]["value"] == "********"
    assert (by_key["deleteWhen"]["canChange"], by_key["listenPort"]["canChange"]) == (True, False)


async def patched(client: Any, settings: dict[str, str], status: int = 200, **params: Any) -> Any:
    body = {"settings": settings}
    return answered(await client.patch(f"/brokers/{N0}/config", json=body, params=params), status)


async def test_change_shows_before_and_after_then_does_it() -> None:
    brokers = group_of_three()
    async with asking(brokers) as client:
        wanted = {"fileReservedTime": "48", "deleteWhen": "04"}
        preview = await patched(client, wanted)
        assert brokers.brokers[N0].settings["fileReservedTime"] == "72"
        await patched(client, wanted, dryRun=False, confirmation=preview["confirmation"])
    assert preview["effects"] == [{"subject": "fileReservedTime", "before": "72", "after": "48"}]
    assert preview["warnings"] == ["This holds for every node of broker-a, also after a restart."]
    assert brokers.brokers[N0].settings["fileReservedTime"] == "48"
    (sent,) = [c for _, c in brokers.commands if c.code == RequestCode.UPDATE_BROKER_CONFIG]
    assert sent.body == b"fileReservedTime=48\n"


async def test_change_key_without_a_value_yet() -> None:
    brokers = group_of_three()
    async with asking(brokers) as client:
        preview = await patched(client, {"preferredLeaderId": "n1"})
    assert preview["effects"] == [{"subject": "preferredLeaderId", "before": None, "after": "n1"}]


async def test_change_unknown_key_is_refused_with_near_names() -> None:
    brokers = group_of_three()
    async with asking(brokers) as client:
        problem = await patched(client, {"fileReservdTime": "1"}, 400)
    assert problem["detail"] == "the broker has no key fileReservdTime (near: fileReservedTime)."
    assert brokers.asks_of(RequestCode.UPDATE_BROKER_CONFIG) == 0


async def test_change_key_that_needs_a_restart_is_named() -> None:
    async with asking(group_of_three()) as client:
        problem = await patched(client, {"listenPort": "1", "deleteWhen": "05"}, 409)
    assert problem["detail"].startswith("listenPort: cannot be changed while the broker runs.")


async def test_change_on_a_stock_broker_says_that_it_does_not_tell() -> None:
    async with asking(stock_master()) as client:
        preview = await patched(client, {"listenPort": "1"})
    assert preview["warnings"] == ["The broker does not report which keys take effect only after a restart."]


async def test_change_secret_is_masked_in_preview_and_audit() -> None:
    brokers = group_of_three()
    brokers.brokers[N0].runtime_keys = "someSecretKey"
    async with asking(brokers) as client:
        preview = await patched(client, {"someSecretKey": "hunter3"})
        await patched(
            client, {"someSecretKey": "hunter3"}, dryRun=False, confirmation=preview["confirmation"]
        )
        audit = (await client.get("/audit")).text
    assert preview["effects"][0]["after"] == "********"
    assert "broker.config" in audit
    assert "hunter" not in audit
    assert brokers.brokers[N0].settings["someSecretKey"] == "hunter3"


async def test_change_refused_by_the_broker_is_a_problem_with_its_words() -> None:
    brokers = group_of_three()
    brokers.refusing[N0, RequestCode.UPDATE_BROKER_CONFIG] = (29, "fileReservedTime: must be at least 1")
    async with asking(brokers) as client:
        preview = await patched(client, {"fileReservedTime": "0"})
        problem = await patched(
            client, {"fileReservedTime": "0"}, 409, dryRun=False, confirmation=preview["confirmation"]
        )
    assert "must be at least 1" in problem["detail"]


@pytest.mark.parametrize("settings", [{}, {"a b": "1"}, {"x": "1\ny=2"}])
async def test_change_bad_body_is_a_problem(settings: dict[str, str]) -> None:
    async with asking(group_of_three()) as client:
        await patched(client, settings, 422)


async def test_list_election_is_no_missing_answer() -> None:
    brokers = group_of_three()
    brokers.brokers[N0].facts |= {"role": NodeRole.CANDIDATE, "is_writable": False}
    async with asking(brokers) as client:
        page = answered(await client.get("/brokers"))
    assert [row["role"] for row in page["items"]] == ["CANDIDATE", "FOLLOWER", "FOLLOWER"]
    assert page["isPartial"] is False
