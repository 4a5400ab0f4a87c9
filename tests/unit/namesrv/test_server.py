"""The name server as brokers, clients and administrators meet it: every code over a real connection."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from namesrv.config import KvConfig, KvConfigError, NameServerConfig, NameServerSwitches
from namesrv.registration import BrokerProcessor
from namesrv.route_info import RouteInfoManager
from namesrv.server import NameServer
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode
from remoting.command import BINARY_HEADER, RemotingCommand
from remoting.quotas import Quota, QuotaRules
from remoting.route import QueueData, TopicRoute, format_topic_route, parse_cluster_info, parse_topic_route
from remoting.slices import finish
from tests.support.fake_connection import FakeConnection
from tests.support.polling import until
from tests.unit.namesrv.registrations import MASTER, SLAVE, compressed_body, queue_data, register_request

PATIENCE_S = 60.0
"""For a registration that others may pass by, on a machine with other work."""


class Clock:
    """Time that stands until the test moves it."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class Caller:
    """A client of one name server."""

    def __init__(self, server: NameServer, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self.client = RemotingClient()
        self.address = f"127.0.0.1:{server.port}"

    async def send(self, request: RemotingCommand) -> RemotingCommand:
        return await self.client.invoke(self.address, request)

    async def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self.send(RemotingCommand(code, ext_fields=dict(ext or {}), body=body))

    async def route(self, topic: str = "T") -> TopicRoute | None:
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return parse_topic_route(answer.body) if answer.code == 0 else None

    async def json(self, code: int, ext: Mapping[str, str] | None = None) -> object:
        answer = await self.ask(code, ext)
        assert answer.code == 0, answer
        return orjson.loads(answer.body)


@asynccontextmanager
async def _calling(config: NameServerConfig | None = None) -> AsyncIterator[Caller]:
    clock = Clock()
    server = NameServer(config or NameServerConfig(port=0), clock)
    await server.start()
    caller = Caller(server, clock)
    try:
        yield caller
    finally:
        await caller.client.close()
        await server.stop()


async def test_route_of_an_unknown_topic_is_answered_17() -> None:
    async with _calling() as caller:
        answer = await caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert (answer.code, answer.body) == (17, b"")
        assert answer.remark == "No topic route info in name server for the topic: T"


async def test_registered_broker_is_in_the_route() -> None:
    async with _calling() as caller:
        answer = await caller.send(register_request())
        assert (answer.code, answer.ext_fields, orjson.loads(answer.body)) == (0, {}, {"table": {}})
        slave = await caller.send(register_request(SLAVE, 1))
        assert slave.ext_fields == {"masterAddr": MASTER, "haServerAddr": MASTER + "0"}
        route = await caller.route()
        assert route is not None
        assert route.queue_datas == (queue_data(),)
        assert route.broker_datas[0].broker_addrs == {0: MASTER, 1: SLAVE}


async def test_binary_header_is_answered_in_kind() -> None:
    async with _calling() as caller:
        request = register_request()
        request.serialize_type = BINARY_HEADER
        assert (await caller.send(request)).serialize_type == BINARY_HEADER
        assert await caller.route() is not None


async def test_compressed_registration_is_taken() -> None:
    async with _calling() as caller:
        payload = compressed_body(["T 4 4 6 SINGLE_TAG"])
        assert (await caller.send(register_request(payload=payload, extra={"compressed": "true"}))).code == 0
        assert await caller.route() is not None


@pytest.mark.parametrize(
    ("extra", "payload", "remark"),
    [
        ({"bodyCrc32": "1"}, None, "crc32 not match"),
        ({}, b"{", "not JSON"),
        ({"compressed": "true"}, b"{}", "compressed body"),
        ({"brokerId": "x"}, None, "<brokerId>"),
    ],
)
async def test_bad_registration_is_answered_1_and_changes_nothing(
    extra: dict[str, str], payload: bytes | None, remark: str
) -> None:
    async with _calling() as caller:
        answer = await caller.send(register_request(extra=extra, payload=payload))
        assert answer.code == 1
        assert remark in str(answer.remark)
        assert await caller.route() is None


async def test_registration_without_its_crc_is_not_checked() -> None:
    async with _calling() as caller:
        assert (await caller.send(register_request(extra={"bodyCrc32": "0"}))).code == 0


async def test_registration_beyond_the_bound_is_answered_1() -> None:
    async with _calling(NameServerConfig(port=0, topics_max=1)) as caller:
        answer = await caller.send(register_request(topics=("T", "U")))
        assert (answer.code, answer.remark) == (1, "2 topics would be known, the bound is 1")


async def test_deposed_leader_is_told_the_new_one(caplog: pytest.LogCaptureFixture) -> None:
    async with _calling() as caller:
        await caller.send(register_request(MASTER, term=3))
        with caplog.at_level(logging.WARNING):
            answer = await caller.send(register_request(SLAVE, term=2))
        assert answer.ext_fields["masterAddr"] == MASTER
        assert "earlier term" in caplog.text
        route = await caller.route()
        assert route is not None
        assert route.broker_datas[0].master_addr == MASTER


async def test_broker_goes_at_once_with_its_connection() -> None:
    async with _calling() as caller:
        broker = RemotingClient()
        await broker.invoke(caller.address, register_request())
        assert await caller.route() is not None
        await broker.close()
        tables = caller.server._tables
        await until(lambda: tables.members("broker-a") is None)
        assert await caller.route() is None


async def test_silent_broker_goes_after_its_time() -> None:
    async with _calling() as caller:
        await caller.send(register_request())
        await caller.send(register_request(SLAVE, 1, extra={"heartbeatTimeoutMillis": "1000"}))
        caller.clock.now_ms = 1001
        caller.server.expire()
        route = await caller.route()
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: MASTER}
        heartbeat = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerAddr": MASTER}
        assert (await caller.ask(RequestCode.BROKER_HEARTBEAT, heartbeat)).code == 0
        caller.clock.now_ms = 121_001
        caller.server.expire()
        assert await caller.route() is not None
        caller.clock.now_ms = 121_002
        caller.server.expire()
        assert await caller.route() is None


async def test_timer_drops_silent_brokers() -> None:
    async with _calling(NameServerConfig(port=0, expiry_check_interval_ms=5)) as caller:
        await caller.send(register_request())
        caller.clock.now_ms = 120_001
        tables = caller.server._tables
        await until(lambda: tables.members("broker-a") is None)


async def test_unregistered_broker_is_gone() -> None:
    async with _calling() as caller:
        await caller.send(register_request())
        ext = {
            "brokerName": "broker-a",
            "brokerAddr": MASTER,
            "clusterName": "DefaultCluster",
            "brokerId": "0",
        }
        assert (await caller.ask(RequestCode.UNREGISTER_BROKER, ext)).code == 0
        assert await caller.route() is None


async def test_data_version_tells_whether_to_register_and_keeps_alive() -> None:
    async with _calling() as caller:
        ext = {
            "brokerName": "broker-a",
            "brokerAddr": MASTER,
            "clusterName": "DefaultCluster",
            "brokerId": "0",
        }
        same = b'{"counter":1,"stateVersion":1,"timestamp":1700000000000}'
        unknown = await caller.ask(RequestCode.QUERY_DATA_VERSION, ext, same)
        assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, b"")
        await caller.send(register_request(topics=("T", "U")))
        caller.clock.now_ms = 100_000
        known = await caller.ask(RequestCode.QUERY_DATA_VERSION, ext, same)
        assert (known.ext_fields, known.body) == ({"changed": "false"}, same)
        other = await caller.ask(RequestCode.QUERY_DATA_VERSION, ext, same.replace(b":1,", b":2,"))
        assert (other.ext_fields, other.body) == ({"changed": "true"}, same)
        assert (await caller.ask(RequestCode.QUERY_DATA_VERSION, ext, b"[")).code == 1
        caller.clock.now_ms = 200_000
        caller.server.expire()
        assert await caller.route() is not None


async def test_cluster_info_lists_brokers_and_clusters() -> None:
    async with _calling() as caller:
        await caller.send(register_request())
        answer = await caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = parse_cluster_info(answer.body)
        assert info.clusters == {"DefaultCluster": ("broker-a",)}
        assert info.brokers["broker-a"].broker_addrs == {0: MASTER}


async def test_member_group_lists_one_broker() -> None:
    async with _calling() as caller:
        await caller.send(register_request())
        ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
        group = {"brokerAddrs": {"0": MASTER}, "brokerName": "broker-a", "cluster": "DefaultCluster"}
        assert await caller.json(RequestCode.GET_BROKER_MEMBER_GROUP, ext) == {"brokerMemberGroup": group}
        ext["brokerName"] = "x"
        group = {"brokerAddrs": {}, "brokerName": "x", "cluster": "DefaultCluster"}
        assert await caller.json(RequestCode.GET_BROKER_MEMBER_GROUP, ext) == {"brokerMemberGroup": group}


async def test_write_permission_is_taken_and_given_back() -> None:
    async with _calling() as caller:
        await caller.send(register_request(topics=("T", "U")))
        ext = {"brokerName": "broker-a"}
        wiped = await caller.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, ext)
        assert wiped.ext_fields == {"wipeTopicCount": "2"}
        route = await caller.route()
        assert route is not None
        assert route.queue_datas[0].perm == 4
        added = await caller.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, ext)
        assert added.ext_fields == {"addTopicCount": "2"}


async def test_topics_are_listed_added_and_deleted() -> None:
    async with _calling() as caller:
        await caller.send(register_request())
        body = format_topic_route(TopicRoute((QueueData("broker-a", 2, 2, 6, 3),), ()))
        assert (await caller.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "U"}, body)).code == 0
        assert (await caller.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "V"}, b"x")).code == 1
        all_topics = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        assert await caller.json(all_topics) == {"topicList": ["T", "U"]}
        cluster = {"cluster": "DefaultCluster"}
        assert await caller.json(RequestCode.GET_TOPICS_BY_CLUSTER, cluster) == {"topicList": ["T", "U"]}
        assert await caller.json(RequestCode.GET_UNIT_TOPIC_LIST) == {"topicList": ["U"]}
        assert await caller.json(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"topicList": ["U"]}
        assert await caller.json(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"topicList": []}
        assert (await caller.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U"})).code == 0
        assert await caller.json(all_topics) == {"topicList": ["T"]}


async def test_system_topics_are_clusters_brokers_and_where_to_ask_on() -> None:
    async with _calling() as caller:
        assert await caller.json(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {"topicList": []}
        await caller.send(register_request())
        assert await caller.json(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
            "topicList": ["DefaultCluster", "broker-a"],
            "brokerAddr": MASTER,
        }


async def test_kv_items_are_kept_over_a_restart(tmp_path: Path) -> None:
    config = NameServerConfig(port=0, kv_config=tmp_path / "kvConfig.json")
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    async with _calling(config) as caller:
        missing = await caller.ask(RequestCode.GET_KV_CONFIG, item)
        assert missing.code == 22
        assert missing.remark == "No config item, Namespace: ORDER_TOPIC_CONFIG Key: T"
        assert (await caller.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, item)).code == 22
        assert (await caller.ask(RequestCode.PUT_KV_CONFIG, {**item, "value": "broker-a:4"})).code == 0
    async with _calling(config) as caller:
        assert (await caller.ask(RequestCode.GET_KV_CONFIG, item)).ext_fields == {"value": "broker-a:4"}
        assert await caller.json(RequestCode.GET_KVLIST_BY_NAMESPACE, item) == {"table": {"T": "broker-a:4"}}
        registered = await caller.send(register_request())
        assert orjson.loads(registered.body) == {"table": {"T": "broker-a:4"}}
        assert (await caller.ask(RequestCode.DELETE_KV_CONFIG, item)).code == 0
        assert (await caller.ask(RequestCode.GET_KV_CONFIG, item)).code == 22


async def test_kv_item_that_cannot_be_kept_is_answered_1(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    async with _calling(NameServerConfig(port=0, kv_config=path, kv_items_max=1)) as caller:
        item = {"namespace": "N", "key": "a", "value": "1"}
        assert (await caller.ask(RequestCode.PUT_KV_CONFIG, item)).code == 0
        assert (await caller.ask(RequestCode.PUT_KV_CONFIG, {**item, "key": "b"})).code == 1
        path.with_name("kvConfig.json.tmp").mkdir()
        assert (await caller.ask(RequestCode.PUT_KV_CONFIG, {**item, "value": "2"})).code == 1
        assert (await caller.ask(RequestCode.DELETE_KV_CONFIG, item)).code == 1
        assert (await caller.ask(RequestCode.GET_KV_CONFIG, item)).ext_fields == {"value": "1"}


async def test_order_configuration_is_in_the_route_once_switched_on() -> None:
    async with _calling() as caller:
        await caller.send(register_request())
        item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        await caller.ask(RequestCode.PUT_KV_CONFIG, item)
        route = await caller.route()
        assert route is not None
        assert route.order_topic_conf is None
        switches = b"# switched\norderMessageEnable=true\nreturnOrderTopicConfigToBroker = false\n"
        assert (await caller.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=switches)).code == 0
        route = await caller.route()
        assert route is not None
        assert route.order_topic_conf == "broker-a:4"
        assert (await caller.send(register_request())).body == b""
        shown = (await caller.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines()
        assert {"bindAddress=127.0.0.1", "tlsMode=disabled", "orderMessageEnable=true"} <= set(shown)


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"orderMessageEnable=true\nlistenPort=1", 16), (b"orderMessageEnable=maybe", 1), (b"\xff", 1)],
)
async def test_configuration_that_cannot_change_is_refused_whole(body: bytes, code: int) -> None:
    async with _calling() as caller:
        assert (await caller.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)).code == code
        shown = (await caller.ask(RequestCode.GET_NAMESRV_CONFIG)).body
        assert b"orderMessageEnable=false\n" in shown


async def test_unknown_code_is_answered_3() -> None:
    async with _calling() as caller:
        assert (await caller.ask(310)).code == 3


def test_damaged_kv_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    with pytest.raises(KvConfigError):
        NameServer(NameServerConfig(kv_config=path))


async def test_name_of_a_list_is_registered_and_removed_by_its_hosts_only() -> None:
    allowed = {"broker-a": frozenset({"host:10.0.0.1"}), "broker-b": frozenset({"host:127.0.0.1"})}
    async with _calling(NameServerConfig(port=0, broker_identities=allowed)) as caller:
        for code in (
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.BROKER_HEARTBEAT,
        ):
            request = register_request()
            answer = await caller.ask(code, request.ext_fields, request.body)
            assert answer.code == 16, code
            assert answer.remark == "broker name broker-a may not be registered from 127.0.0.1"
        assert await caller.route() is None
        assert (await caller.send(register_request(extra={"brokerName": "broker-b"}))).code == 0
        assert await caller.route() is not None


async def test_registration_that_inflates_without_end_leaves_the_loop_free() -> None:
    """59 KB of zlib that grow to 64 MiB held the loop for 2 s."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    async with _calling() as caller:
        answer = await caller.send(register_request(payload=bomb, extra={"compressed": "true"}))
        assert (answer.code, "holds more than 16777216 bytes" in str(answer.remark)) == (1, True)


async def test_registration_of_many_topics_is_taken_while_others_are_answered() -> None:
    topics = tuple(f"T{number}" for number in range(20_000))
    async with _calling() as caller:
        sent = caller.client.invoke(caller.address, register_request(topics=topics), PATIENCE_S)
        large = asyncio.ensure_future(sent)
        other = RemotingClient()
        asked = 0
        while not large.done():
            request = RemotingCommand(105, ext_fields={"topic": "none"})
            answer = await other.invoke(caller.address, request, PATIENCE_S)
            assert answer.code == 17
            asked += 1
        await other.close()
        assert (await large).code == 0
        assert asked > 3, "no turn of the loop was left to others"
        topic_list = await caller.json(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert isinstance(topic_list, dict)
        assert len(topic_list["topicList"]) == 20_000


async def test_registration_whose_connection_closed_meanwhile_is_not_entered() -> None:
    tables, connection = RouteInfoManager(), FakeConnection()
    processor = BrokerProcessor(
        tables, KvConfig(None), NameServerConfig(), NameServerSwitches(), None, lambda: 0
    )
    topics = tuple(f"T{number}" for number in range(2_000))
    steps = processor.register_broker(register_request(topics=topics), connection.as_connection)
    next(steps)
    connection.close()
    assert finish(steps) is None
    assert tables.route("T1") is None


async def test_an_address_over_its_quota_is_refused_routes_but_not_registrations() -> None:
    rules = QuotaRules(Quota(in_flight_max=1, requests_per_s=1), on_loopback=True)
    async with _calling(NameServerConfig(port=0, quotas=rules)) as caller:
        connection = FakeConnection()
        shares = caller.server._server._shares
        assert shares.opened(connection.as_connection)
        assert connection.usage is not None
        connection.unanswered = 3
        registration = register_request()
        asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "T"})
        passed = shares.admit(connection.as_connection, connection.usage, [asked, registration])
        assert passed == [registration]
        assert [answer.code for answer in connection.take_answers()] == [2]
