"""Requests follow the leader, and end as their answers say."""

import asyncio

import pytest

from grpc_endpoint import brokers as brokers_module
from grpc_endpoint.__main__ import own_host
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError
from remoting.route import BrokerData, ClusterInfo, format_cluster_info
from tests.unit.grpc_endpoint.cluster import BROKER, NEW, OLD, FakeCluster, answer

SEND = RequestCode.SEND_MESSAGE


def end_s(limit_s: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + limit_s


async def test_a_request_goes_to_the_leader_once() -> None:
    cluster = FakeCluster()
    got = await cluster.brokers().ask(BROKER, RemotingCommand(SEND), end_s(), topic="orders")
    assert not got.is_repeated
    assert len(cluster.requests(SEND)) == 1


async def test_a_request_follows_a_new_leader() -> None:
    cluster = FakeCluster()
    brokers = cluster.brokers()
    await brokers.route("orders")
    cluster.leader = NEW
    got = await brokers.ask(BROKER, RemotingCommand(SEND), end_s(), topic="orders")
    assert not got.is_repeated, "the former leader has refused it"
    assert [address for address, command in cluster.asked if command.code == SEND][-1] == NEW


async def test_a_lost_answer_makes_a_repeated_request() -> None:
    cluster = FakeCluster()
    cluster.script(SEND, RemotingClosedError("the connection closed"))
    got = await cluster.brokers().ask(BROKER, RemotingCommand(SEND), end_s(), topic="orders")
    assert got.is_repeated
    assert len(cluster.requests(SEND)) == 2


async def test_a_final_refusal_is_not_tried_again() -> None:
    cluster = FakeCluster()
    cluster.script(SEND, answer(ResponseCode.NO_PERMISSION, "you may not"))
    with pytest.raises(StatusError, match="you may not") as refused:
        await cluster.brokers().ask(BROKER, RemotingCommand(SEND), end_s(), topic="orders")
    assert refused.value.code == Code.FORBIDDEN
    assert len(cluster.requests(SEND)) == 1


async def test_without_a_leader_the_request_ends_in_time() -> None:
    cluster = FakeCluster()
    cluster.script(SEND, *[answer(ResponseCode.SLAVE_NOT_AVAILABLE, "no leader")] * 100)
    with pytest.raises(StatusError) as refused:
        await cluster.brokers().ask(BROKER, RemotingCommand(SEND), end_s(0.1), topic="orders")
    assert refused.value.code == Code.HA_NOT_AVAILABLE


async def test_a_topic_that_does_not_exist_has_its_code() -> None:
    with pytest.raises(StatusError) as refused:
        await FakeCluster().brokers().route("unknown")
    assert refused.value.code == Code.TOPIC_NOT_FOUND


async def test_a_broker_that_does_not_exist_is_not_waited_for() -> None:
    with pytest.raises(StatusError) as refused:
        await FakeCluster().brokers().ask("broker-z", RemotingCommand(SEND), end_s())
    assert refused.value.code == Code.BAD_REQUEST


async def test_configurations_are_kept_for_a_while() -> None:
    cluster = FakeCluster()
    brokers = cluster.brokers()
    for _ in range(3):
        config = await brokers.topic_config("orders")
        assert config is not None
        assert config["attributes"] == {"message.type": "NORMAL"}
    assert len(cluster.requests(RequestCode.GET_TOPIC_CONFIG)) == 1
    cluster.group = None
    assert await brokers.group_config("billing") is None


async def test_callers_share_one_request_for_a_configuration() -> None:
    cluster = FakeCluster()
    brokers = cluster.brokers()
    await brokers.route("orders")
    leaving = asyncio.ensure_future(brokers.topic_config("orders"))
    await asyncio.sleep(0)
    wanted = [asyncio.ensure_future(brokers.topic_config("orders")) for _ in range(5)]
    leaving.cancel()
    found = await asyncio.gather(*wanted)
    assert all(each is not None for each in found), "who leaves takes it from no one"
    assert len(cluster.requests(RequestCode.GET_TOPIC_CONFIG)) == 1


async def test_an_endpoint_is_listed_until_it_stops_and_serves_where_it_may_not_be() -> None:
    cluster = FakeCluster()
    brokers = cluster.brokers()
    cluster.script(RequestCode.DELETE_KV_CONFIG, answer(ResponseCode.NO_PERMISSION, "not you"))
    await brokers.enter("10.0.0.5:8081")
    await brokers.leave("10.0.0.5:8081")
    (entered,) = cluster.requests(RequestCode.PUT_KV_CONFIG)
    assert entered.ext_fields["key"] == "10.0.0.5:8081"
    assert entered.ext_fields["value"].isdigit()
    (left,) = cluster.requests(RequestCode.DELETE_KV_CONFIG)
    assert left.ext_fields == {"namespace": entered.ext_fields["namespace"], "key": "10.0.0.5:8081"}


def test_an_endpoint_on_all_addresses_lists_the_one_that_the_name_server_sees() -> None:
    assert own_host("10.0.0.5", "127.0.0.1:9876") == "10.0.0.5"
    assert own_host("::1", "127.0.0.1:9876") == "[::1]"
    assert own_host("0.0.0.0", "127.0.0.1:9876") == "127.0.0.1"


@pytest.mark.parametrize("registered", [{}, {BROKER: BrokerData("DefaultCluster", BROKER, {1: NEW})}])
async def test_a_list_of_nodes_without_a_leader_is_read_again_soon(
    registered: dict[str, BrokerData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint asks as soon as it starts, perhaps before the node that is elected has registered."""
    monkeypatch.setattr(brokers_module, "PARTIAL_S", 0)
    cluster = FakeCluster()
    before = answer(body=format_cluster_info(ClusterInfo(registered)))
    cluster.script(RequestCode.GET_BROKER_CLUSTER_INFO, before)
    brokers = cluster.brokers()
    assert await brokers.nodes() == [NEW] * len(registered)
    assert await brokers.nodes() == [OLD]


@pytest.mark.parametrize("nodes", [{0: OLD, 1: NEW}, {1: OLD}])
async def test_the_endpoint_goes_on_until_every_node_knows_it(nodes: dict[int, str]) -> None:
    """Nodes that start together register one after the other; the leader may not be the first."""
    cluster = FakeCluster()
    info = ClusterInfo({BROKER: BrokerData("DefaultCluster", BROKER, nodes)})
    cluster.script(RequestCode.GET_BROKER_CLUSTER_INFO, answer(body=format_cluster_info(info)))
    announced = RequestCode.LEDGERMQ_GRPC_ENDPOINT
    cluster.script(announced, answer(), *[RemotingClosedError("gone")] * (len(nodes) - 1))
    brokers = cluster.brokers()
    assert not await brokers.announce("10.0.0.5:8081"), "one does not answer, or no leader is known"
    cluster.script(announced, *[answer()] * len(nodes))
    assert await brokers.announce("10.0.0.5:8081") == (0 in nodes)
