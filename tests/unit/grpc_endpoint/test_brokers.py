"""Requests follow the leader, and end as their answers say."""

import asyncio

import pytest

from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError
from tests.unit.grpc_endpoint.cluster import BROKER, NEW, FakeCluster, answer

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
