"""Who is asked, how often, and what an unusable answer becomes."""

import socket
from typing import Any

import pytest

from admin_api.cluster.reader import ClusterReader
from admin_api.cluster.schemas import NodeState
from admin_api.gateway import AskError, Gateway
from admin_api.settings import Settings
from admin_api.sources.brokers import Listed, listed_of, parse_node_status
from admin_api.sources.name_server import NameServerSource
from broker.admin.types import NodeRole, OlderNodeView
from remoting.client.aio import RemotingClient
from remoting.command import RemotingCommand
from remoting.route import parse_cluster_info
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.node_samples import ADDRESSES, REPLICATION, node_status, peer


def three_nodes() -> FakeCluster:
    leader = node_status("n0", NodeRole.LEADER, peers=(peer("n1"), peer("n2")))
    cluster = FakeCluster(
        [leader, node_status("n1", NodeRole.FOLLOWER), node_status("n2", NodeRole.FOLLOWER)]
    )
    cluster.list_all(leader="n0")
    return cluster


def reader_of(cluster: FakeCluster, **limits: Any) -> ClusterReader:
    settings = Settings(namesrv=NAMESRV_ADDRESS, **limits)
    return ClusterReader(Gateway(cluster, settings), settings, lambda: 1000)


async def test_read_asks_every_listed_address_once() -> None:
    cluster = three_nodes()
    view = await reader_of(cluster).read()
    lists = [NAMESRV_ADDRESS] * 2  # of brokers, and of endpoints for gRPC clients
    assert sorted(cluster.asked) == sorted([*lists, *ADDRESSES.values()])
    assert [node.id for node in view.groups[0].nodes] == ["n0", "n1", "n2"]
    assert view.as_of_ms == 1000


async def test_read_tells_endpoints_that_are_there_from_those_that_are_not() -> None:
    cluster = three_nodes()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        up, down = (f"127.0.0.1:{each.getsockname()[1]}" for each in (listening, closed))
        cluster.endpoints = {up: "1000", down: "900", "nowhere": "1000", "127.0.0.1:1": "soon"}
        reader = reader_of(cluster)
        found = {each.address: each for each in (await reader.read()).grpc_endpoints}
    assert {address: each.state for address, each in found.items()} == {
        up: NodeState.UP,
        down: NodeState.DOWN,
        "nowhere": NodeState.DOWN,
    }
    assert all((each.problem is None) == (each.state is NodeState.UP) for each in found.values())
    cluster.namesrv_is_up = False
    assert len((await reader.read()).grpc_endpoints) == 3, "known from before"


async def test_read_forgets_endpoints_that_have_been_gone_for_a_day() -> None:
    cluster = three_nodes()
    cluster.endpoints = {"127.0.0.1:1": "1000"}
    settings = Settings(namesrv=NAMESRV_ADDRESS)
    reader = ClusterReader(Gateway(cluster, settings), settings, lambda: 1000 + 86_400_000)
    assert (await reader.read()).grpc_endpoints == []


async def test_read_asks_peers_that_the_name_server_does_not_list() -> None:
    cluster = three_nodes()
    cluster.listed = {"0": ADDRESSES["n0"]}
    view = await reader_of(cluster).read()
    assert {node.id: node.state for node in view.groups[0].nodes} == dict.fromkeys(ADDRESSES, NodeState.UP)


async def test_read_asks_nodes_of_an_earlier_generation() -> None:
    cluster = three_nodes()
    older = OlderNodeView(
        id="n2",
        replication_address=REPLICATION["n2"],
        remoting_address=ADDRESSES["n2"],
        generation=0,
    )
    cluster.statuses[ADDRESSES["n0"]] = node_status(
        "n0", NodeRole.LEADER, peers=(peer("n1"),), generation=1, older_nodes=(older,)
    )
    cluster.listed = {"0": ADDRESSES["n0"]}
    view = await reader_of(cluster).read()
    found = {node.id: (node.state, node.newer_generation) for node in view.groups[0].nodes}
    assert found == {"n0": (NodeState.UP, None), "n1": (NodeState.UP, None), "n2": (NodeState.UP, 1)}


async def test_read_node_died_and_left_the_name_server_stays_as_down() -> None:
    cluster = three_nodes()
    reader = reader_of(cluster)
    await reader.read()
    del cluster.statuses[ADDRESSES["n2"]]
    cluster.listed = {"0": ADDRESSES["n0"], "2": ADDRESSES["n1"]}
    (group,) = (await reader.read()).groups
    assert [(node.id, node.state) for node in group.nodes][2] == ("n2", NodeState.DOWN)
    assert group.nodes[2].last_known is not None


async def test_read_name_server_gone_asks_the_nodes_known_before() -> None:
    cluster = three_nodes()
    reader = reader_of(cluster)
    await reader.read()
    cluster.namesrv_is_up = False
    view = await reader.read()
    assert view.namesrv.state is NodeState.DOWN
    assert view.namesrv.problem == f"{NAMESRV_ADDRESS} cannot be reached"
    assert view.groups[0].leader_id == "n0"


async def test_read_hanging_broker_does_not_hide_the_others() -> None:
    cluster = three_nodes()
    cluster.hanging = {ADDRESSES["n1"]}
    (group,) = (await reader_of(cluster).read()).groups
    assert {node.id: node.state for node in group.nodes} == {
        "n0": NodeState.UP,
        "n1": NodeState.DOWN,
        "n2": NodeState.UP,
    }


async def test_read_keeps_its_bound_on_requests_in_flight() -> None:
    cluster = three_nodes()
    await reader_of(cluster, asks_in_flight_max=2).read()
    assert cluster.in_flight_max == 2


async def test_read_garbage_for_a_status_is_a_node_without_answer() -> None:
    cluster = three_nodes()
    cluster.bodies[ADDRESSES["n1"]] = b'{"version": "x"}'
    (group,) = (await reader_of(cluster).read()).groups
    (node,) = [node for node in group.nodes if node.id == "n1"]
    assert node.state is NodeState.DOWN
    assert node.problem is not None
    assert "cannot be read" in node.problem


async def test_read_refused_connection_is_told_in_the_systems_words() -> None:
    client = RemotingClient()
    try:
        settings = Settings(namesrv="127.0.0.1:1")
        view = await ClusterReader(Gateway(client, settings), settings).read()
    finally:
        await client.close()
    assert view.namesrv.problem == "127.0.0.1:1 cannot be reached: Connection refused"


async def test_read_error_code_is_told_with_its_remark() -> None:
    class Refusing(FakeCluster):
        async def invoke(
            self, address: str, command: RemotingCommand, timeout_s: float = 3.0
        ) -> RemotingCommand:
            return RemotingCommand(code=3, remark="request type not supported")

    view = await reader_of(Refusing()).read()
    assert view.namesrv.problem == f"{NAMESRV_ADDRESS} answered code 3: request type not supported"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"brokerAddrTable": 3}', b'{"brokerAddrTable": {"a": {}}}']
)
async def test_brokers_malformed_are_refused(body: bytes) -> None:
    cluster = three_nodes()
    cluster.brokers_body = body
    with pytest.raises(AskError, match="cannot be read"):
        await NameServerSource(Gateway(cluster, Settings(NAMESRV_ADDRESS)), NAMESRV_ADDRESS).brokers()


def test_listed_takes_unquoted_ids_and_keeps_its_bound() -> None:
    body = (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",1:"h:2",2:"h:3"},"brokerName":"b","cluster":"c"}}}'
    )
    assert listed_of([parse_cluster_info(body)], 2) == (
        Listed("c", "b", 0, "h:1"),
        Listed("c", "b", 1, "h:2"),
    )


def test_parse_node_status_too_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(AskError, match="1048577 bytes"):
        parse_node_status("h:1", b" " * (1024 * 1024 + 1))
