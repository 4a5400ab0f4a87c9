"""Several name servers: what is read while one is silent, and what changes at each."""

from collections.abc import Callable
from typing import Any

import pytest
from httpx import AsyncClient

from admin_api.app import create_app
from admin_api.settings import Settings, SettingsError
from broker.admin.types import NodeRole, NodeStatusMessage
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.properties_text import format_properties_text, parse_properties_text
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.admin_api.node_samples import node_status, peer
from tests.unit.admin_api.serving import answered, asking_app

OTHER = "127.0.0.1:9877"
BOTH = f"{NAMESRV};{OTHER}"
ITEM = "/name-server/items/ORDER_TOPIC_CONFIG/orders"
NOW = {"dryRun": "false"}


class _Follower(FakeBroker):
    def status(self) -> NodeStatusMessage:
        place = {"group": self.name, "remoting_address": self.address}
        return node_status("n1", NodeRole.FOLLOWER, **place)


class FakeNameServers(FakeBrokers):
    """Two, each with tables of its own, over one group of two nodes and a stock broker."""

    def __init__(self) -> None:
        leader = FakeBroker("broker-a", "127.0.0.1:10911")
        follower = _Follower("broker-a", "127.0.0.1:10921", broker_id=1)
        stock = FakeBroker("broker-s", "127.0.0.1:10931", is_stock=True)
        leader.add_topic("orders")
        super().__init__(leader, follower, stock)
        self.unlisted: dict[str, set[str]] = {NAMESRV: set(), OTHER: set()}
        """By name server: the brokers that it does not list."""
        self.items: dict[str, dict[str, str]] = {NAMESRV: {}, OTHER: {}}
        self.configs = {address: {"listenPort": address[-4:], "threads": "8"} for address in self.items}
        self.changed: list[tuple[str, RequestCode]] = []

    def _answer(
        self, address: str, code: RequestCode, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if address not in self.items or address in self.dead | self.hanging:
            return super()._answer(address, code, command, timeout_s)
        every = self.listed
        self.listed = {at: each for at, each in every.items() if at not in self.unlisted[address]}
        try:
            return self._of_one(address, code, command)
        finally:
            self.listed = every

    def _of_one(self, address: str, code: RequestCode, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        match code:
            case RequestCode.GET_NAMESRV_CONFIG:
                return RemotingCommand(0, body=format_properties_text(self.configs[address]))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return RemotingCommand(0, body=b'{"topicList":["orders"]}')
            case RequestCode.UPDATE_NAMESRV_CONFIG:
                self.configs[address] |= parse_properties_text(command.body)
            case RequestCode.GET_KVLIST_BY_NAMESPACE:
                return self._items_of(address, ext["namespace"])
            case RequestCode.PUT_KV_CONFIG:
                self.items[address][ext["key"]] = ext["value"]
            case RequestCode.DELETE_KV_CONFIG:
                self.items[address].pop(ext["key"], None)
            case RequestCode.WIPE_WRITE_PERM_OF_BROKER:
                self.changed.append((address, code))
                return RemotingCommand(0, ext_fields={"wipeTopicCount": "3"})
            case RequestCode.DELETE_TOPIC_IN_NAMESRV:
                self.changed.append((address, code))
            case _:
                return self._of_namesrv(code, ext)
        return RemotingCommand(0)

    def _items_of(self, address: str, namespace: str) -> RemotingCommand:
        if namespace != "ORDER_TOPIC_CONFIG" or not self.items[address]:
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND)
        rows = ",".join(f'"{key}":"{value}"' for key, value in self.items[address].items())
        return RemotingCommand(0, body=f'{{"table":{{{rows}}}}}'.encode())


def app_of(servers: FakeBrokers) -> Any:
    return asking_app(create_app(Settings(namesrv=BOTH, cache_ms=0, brokers_cache_ms=0), servers))


async def confirmed(send: Callable[..., Any], path: str, **body: Any) -> tuple[Any, Any]:
    """The preview of a destructive change, and its result."""
    preview = answered(await send(path, **body))
    query = {**NOW, "confirmation": preview["confirmation"]}
    return preview, answered(await send(path, params=query, **body))


def problems_by_subject(result: Any) -> dict[str, str | None]:
    return {each["subject"]: each["problem"] for each in result["outcomes"]}


@pytest.mark.parametrize("text", ["", " ; ", "h", "h:1;x", "h:0", "h:65536", ":9876"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"host:port"):
        Settings(namesrv=text)


def test_addresses_are_those_between_semicolons_each_once() -> None:
    assert Settings(namesrv=" h:1; [::1]:2;h:1").name_servers == ("h:1", "[::1]:2")


async def test_reading_goes_on_while_one_is_silent() -> None:
    for silent, up in ((NAMESRV, OTHER), (OTHER, NAMESRV)):
        servers = FakeNameServers()
        servers.items[up]["orders"] = "broker-a:4"
        servers.dead.add(silent)
        async with app_of(servers) as client:
            view = answered(await client.get("/cluster"))
            assert (view["namesrv"]["address"], view["namesrv"]["state"]) == (up, "up")
            assert {each["address"]: each["state"] for each in view["namesrvs"]} == {up: "up", silent: "down"}
            assert [group["state"] for group in view["groups"]] == ["writable", "writable"]
            topics = answered(await client.get("/topics"))
            assert ([row["name"] for row in topics["items"]], topics["isPartial"]) == (["orders"], False)
            assert answered(await client.get("/topics/orders/route"))["brokers"]
            config = answered(await client.get("/name-server"))
            assert (config["address"], config["config"]["listenPort"]) == (up, up[-4:])
            servers = config["nameServers"]
            found = {each["address"]: (each["config"] is None, each["problem"]) for each in servers}
            assert found[up] == (False, None)
            assert found[silent] == (True, f"{silent} cannot be reached")
            items = answered(await client.get("/name-server/items/ORDER_TOPIC_CONFIG"))["items"]
            assert items == {"orders": "broker-a:4"}


async def test_none_answers_is_a_problem_that_names_both() -> None:
    servers = FakeNameServers()
    servers.dead = {NAMESRV, OTHER}
    async with app_of(servers) as client:
        detail = answered(await client.get("/cluster"), 503)["detail"]
        assert f"{NAMESRV} cannot be reached; {OTHER} cannot be reached" in detail
        assert OTHER in answered(await client.get("/topics/orders/route"), 503)["detail"]


async def test_one_that_hangs_is_asked_once_and_then_left_alone() -> None:
    servers = FakeNameServers()
    servers.hanging.add(NAMESRV)
    async with app_of(servers) as client:
        for _ in range(5):
            answered(await client.get("/cluster"))
            answered(await client.get("/topics/orders/route"))
    lists = servers.asked[NAMESRV, RequestCode.GET_BROKER_CLUSTER_INFO]
    assert (lists, servers.asked[NAMESRV, RequestCode.GET_ROUTEINFO_BY_TOPIC]) == (1, 0)


async def test_lists_are_merged_and_each_says_what_it_lacks() -> None:
    servers = FakeNameServers()
    servers.unlisted[NAMESRV] = {"127.0.0.1:10921", "127.0.0.1:10931"}  # it has just started
    async with app_of(servers) as client:
        view = answered(await client.get("/cluster"))
        route = answered(await client.get("/topics/orders/route"))
    assert [group["brokerName"] for group in view["groups"]] == ["broker-a", "broker-s"]
    nodes = view["groups"][0]["nodes"]
    assert {node["remotingAddress"]: node["brokerId"] for node in nodes} == {
        "127.0.0.1:10911": 0,
        "127.0.0.1:10921": 1,
    }
    assert {each["address"]: each["unlisted"] for each in view["namesrvs"]} == {
        NAMESRV: ["127.0.0.1:10921", "127.0.0.1:10931"],
        OTHER: [],
    }
    assert route["namesrv"] == BOTH


async def test_a_list_that_lacks_the_leader_takes_it_from_the_other() -> None:
    servers = FakeNameServers()
    servers.unlisted[NAMESRV] = {"127.0.0.1:10911"}
    async with app_of(servers) as client:
        rows = answered(await client.get("/brokers"))["items"]
    assert [row["address"] for row in rows if row["brokerId"] == 0] == ["127.0.0.1:10911", "127.0.0.1:10931"]


async def test_an_item_is_set_and_deleted_at_both() -> None:
    servers = FakeNameServers()
    servers.items[OTHER]["orders"] = "old"
    async with app_of(servers) as client:
        result = answered(await client.put(ITEM, json={"value": "broker-a:4"}, params=NOW))
        assert {each["subject"]: each["before"] for each in result["effects"]} == {
            f"orders at {NAMESRV}": None,
            f"orders at {OTHER}": "old",
        }
        assert (servers.items[NAMESRV], result["isPartial"]) == ({"orders": "broker-a:4"}, False)
        assert servers.items[NAMESRV] == servers.items[OTHER]
        await confirmed(client.delete, ITEM)
    assert servers.items == {NAMESRV: {}, OTHER: {}}


async def test_changes_go_to_who_answers_and_name_who_does_not() -> None:
    servers = FakeNameServers()
    servers.dead.add(NAMESRV)
    left_out = f"left out: {NAMESRV} cannot be reached"
    async with app_of(servers) as client:
        result = answered(await client.put(ITEM, json={"value": "1"}, params=NOW))
        assert problems_by_subject(result) == {f"orders at {OTHER}": None, NAMESRV: left_out}
        assert (result["isPartial"], result["warnings"]) == (True, [left_out])
        _, result = await confirmed(client.delete, ITEM)
        assert problems_by_subject(result) == {f"orders at {OTHER}": None, NAMESRV: left_out}
        change = {"values": {"threads": "9"}}
        result = answered(await client.patch("/name-server", json=change, params=NOW))
        assert problems_by_subject(result) == {f"threads at {OTHER}": None, NAMESRV: left_out}
        path = "/name-server/brokers/broker-a/write-permission"
        preview, result = await confirmed(client.put, path, json={"isWritable": False})
        assert [each["subject"] for each in preview["effects"]] == [f"routes to broker-a at {OTHER}"]
        assert problems_by_subject(result) == {f"3 topics of broker-a at {OTHER}": None, NAMESRV: left_out}
    assert servers.configs[OTHER]["threads"] == "9"
    assert servers.configs[NAMESRV]["threads"] == "8"
    assert servers.changed == [(OTHER, RequestCode.WIPE_WRITE_PERM_OF_BROKER)]


async def test_one_that_falls_silent_after_the_preview_fails_by_itself() -> None:
    servers = FakeNameServers()
    servers.refusing[OTHER, RequestCode.PUT_KV_CONFIG] = (ResponseCode.NO_PERMISSION, "no account")

    def refuse(address: str, code: RequestCode, command: RemotingCommand) -> RemotingCommand:
        refusal = servers.refusing.get((address, code))
        if refusal is not None:
            return RemotingCommand(refusal[0], remark=refusal[1])
        return FakeNameServers._of_one(servers, address, code, command)

    servers._of_one = refuse  # type: ignore[method-assign]
    async with app_of(servers) as client:
        result = answered(await client.put(ITEM, json={"value": "1"}, params=NOW))
    problems = problems_by_subject(result)
    assert problems.pop(f"orders at {NAMESRV}") is None
    assert problems == {f"name server {OTHER}": f"{OTHER} answered code 16: no account"}


async def test_a_topic_goes_from_both_routes() -> None:
    servers = FakeNameServers()
    async with app_of(servers) as client:
        preview, result = await confirmed(client.delete, "/topics/orders")
    routes = [f"name server {NAMESRV}", f"name server {OTHER}"]
    assert [each["subject"] for each in preview["effects"]][-2:] == routes
    assert [each["subject"] for each in result["outcomes"]][-2:] == routes
    deleted = RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert sorted(servers.changed) == [(NAMESRV, deleted), (OTHER, deleted)]


async def test_a_route_that_stays_at_a_silent_one_is_named() -> None:
    servers = FakeNameServers()
    servers.dead.add(NAMESRV)
    async with app_of(servers) as client:
        _, result = await confirmed(client.delete, "/topics/orders")
    assert result["isPartial"]
    problems = problems_by_subject(result)
    assert problems[f"name server {NAMESRV}"] == f"{NAMESRV} cannot be reached"
    assert problems[f"name server {OTHER}"] is None
    assert servers.changed == [(OTHER, RequestCode.DELETE_TOPIC_IN_NAMESRV)]


async def test_doctor_and_upgrade_check_warn_of_one_that_is_silent() -> None:
    servers = FakeNameServers()
    servers.dead.add(OTHER)
    async with app_of(servers) as client:
        report = answered(await client.get("/doctor"))
        found = [each for each in report["findings"] if each["code"] == "namesrv-silent"]
        assert [(each["subject"], each["severity"]) for each in found] == [(OTHER, "warning")]
        assert "given only this one" in found[0]["remedy"]
        assert OTHER not in {each["address"] for each in report["problems"]}, "the finding reports it"
        findings = answered(await client.get("/upgrade"))["findings"]
        down = [each for each in findings if each["code"] == "name-server-down"]
        assert [(each["subject"], each["severity"]) for each in down] == [(OTHER, "warning")]


async def test_doctor_names_who_lists_less_and_not_the_nodes() -> None:
    servers = FakeNameServers()
    servers.brokers["127.0.0.1:10911"].facts["peers"] = (peer("n1"),)
    servers.unlisted = {NAMESRV: {"127.0.0.1:10921"}, OTHER: {"127.0.0.1:10931"}}
    async with app_of(servers) as client:
        findings = answered(await client.get("/doctor"))["findings"]
    found = [each for each in findings if each["code"] == "namesrv-incomplete"]
    incomplete = {each["subject"]: each["sentence"] for each in found}
    assert incomplete.keys() == {NAMESRV, OTHER}
    assert "127.0.0.1:10921" in incomplete[NAMESRV]
    assert "not-in-route" not in {each["code"] for each in findings}


async def test_metrics_have_one_sample_for_each() -> None:
    servers = FakeNameServers()
    servers.dead.add(OTHER)
    app = create_app(Settings(namesrv=BOTH, cache_ms=0, brokers_cache_ms=0), servers)
    async with asking_app(app) as client:
        text = (await _scraped(client)).splitlines()
    assert f'ledgermq_cluster_namesrv_up{{address="{NAMESRV}"}} 1.0' in text
    assert f'ledgermq_cluster_namesrv_up{{address="{OTHER}"}} 0.0' in text


async def _scraped(client: AsyncClient) -> str:
    return (await client.get("http://127.0.0.1:8080/metrics")).text
