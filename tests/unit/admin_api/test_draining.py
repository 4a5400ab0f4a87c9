"""Groups that take no more messages and are left, and settings that a new group gets."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from broker.admin.types import GroupProgress, NodeRole, ProgressMessage, TopicProgress
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import answered, asking

A, B = "127.0.0.1:10911", "127.0.0.1:11011"
DRAINING = "/replication/broker-b/draining"
ACCEPTS = "/replication/broker-b/accepts-messages"
COPIED = "/replication/broker-b/copied-settings"
DONE: dict[str, Any] = {
    "quiet_ms": 60_000,
    "waiting": {"delay": 0, "timer": 0, "transaction": 0},
    "unread": {},
    "unread_topics": 0,
}


class FakeGroups(FakeBrokers):
    """Two groups of one node each. `left` is what broker-b says of itself."""

    def __init__(self) -> None:
        super().__init__(FakeBroker("broker-a", A), FakeBroker("broker-b", B))
        for broker in self.brokers.values():
            broker.settings["brokerPermission"] = "6"
            broker.settings["refuseMessages"] = "false"
            broker.runtime_keys = "brokerPermission,refuseMessages"
            broker.facts = {
                "role": NodeRole.LEADER,
                "leader_id": "n0",
                "is_writable": True,
                "group": broker.name,
                "remoting_address": broker.address,
            }
        self.left: dict[str, Any] = dict(DONE)
        self.consumers: dict[str, GroupProgress] = {}
        self.offsets: dict[str, list[tuple[str, str]]] = {A: [], B: []}
        self.made: list[tuple[str, RemotingCommand]] = []
        self.on_progress: Callable[[int], None] = lambda code: None
        self.consumer_configs: dict[str, dict[str, Any]] = {A: {}, B: {}}

    def takes_part(self, address: str) -> bool:
        return self.brokers[address].settings.get("brokerPermission") != "4"

    def _answer(
        self, address: str, code: RequestCode, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if code is RequestCode.LEDGERMQ_NODE_STATUS:
            self.brokers[address].facts["accepts_messages"] = self.takes_part(address)
        if code is RequestCode.LEDGERMQ_GROUP_PROGRESS:
            self.on_progress(code)
            refuses = self.brokers[address].settings["refuseMessages"] == "true"
            progress = ProgressMessage(
                broker_name="broker-b", at_ms=1, groups=self.consumers, refuses_messages=refuses, **self.left
            )
            return RemotingCommand(code=0, body=progress.to_json())
        if code is RequestCode.GET_ALL_CONSUMER_OFFSET:
            rows = {f"{topic}@{group}": {"0": 3} for topic, group in self.offsets[address]}
            return RemotingCommand(code=0, body=orjson.dumps({"offsetTable": rows}))
        if code is RequestCode.GET_TOPIC_STATS_INFO and address == B:
            row = {"minOffset": 0, "maxOffset": 4 * (command.ext_fields["topic"] != "empty")}
            key = f'{{"brokerName":"broker-b","queueId":0,"topic":"{command.ext_fields["topic"]}"}}'
            return RemotingCommand(
                code=0, body=b'{"offsetTable":{%b:%b}}' % (key.encode(), orjson.dumps(row))
            )
        if code is RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            return RemotingCommand(code=0, body=configs_json(self.consumer_configs[address]))
        if code in (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_TOPIC):
            self.made.append((address, command))
            return RemotingCommand(code=0)
        return super()._answer(address, code, command, timeout_s)


def configs_json(configs: dict[str, dict[str, Any]]) -> bytes:
    rows = {name: {"groupName": name, **row} for name, row in configs.items()}
    return orjson.dumps({"subscriptionGroupTable": rows, "dataVersion": {}})


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


async def view_of(groups: FakeGroups) -> Any:
    async with asking(groups) as client:
        return answered(await client.get(DRAINING))


async def test_a_group_with_nothing_left_is_drained(groups: FakeGroups) -> None:
    groups.brokers[B].settings["brokerPermission"] = "4"
    view = await view_of(groups)
    assert (view["isDrained"], view["reasons"], view["acceptsMessages"]) == (True, [], False)


async def test_a_group_that_accepts_messages_is_not_drained(groups: FakeGroups) -> None:
    view = await view_of(groups)
    assert (view["isDrained"], view["reasons"]) == (False, ["It accepts messages."])


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ({"quiet_ms": 59_999}, "59 s ago a message was stored"),
        ({"waiting": {"timer": 2}}, "timer, 2"),
        ({"waiting": {"transaction": None}}, "transaction, unknown"),
        ({"unread": {"orders": 5}, "unread_topics": 1}, "no consumer group reads: orders"),
    ],
)
async def test_what_would_be_lost_is_named(groups: FakeGroups, left: dict[str, Any], reason: str) -> None:
    groups.brokers[B].settings["brokerPermission"] = "4"
    groups.left |= left
    view = await view_of(groups)
    assert not view["isDrained"]
    (said,) = view["reasons"]
    assert reason in said


async def test_lag_and_pops_of_consumers_are_named_but_not_of_those_that_broadcast(
    groups: FakeGroups,
) -> None:
    groups.brokers[B].settings["brokerPermission"] = "4"
    groups.consumers = {
        "billing": GroupProgress(topics={"orders": TopicProgress(lag=3), "done": TopicProgress(lag=0)}),
        "late": GroupProgress(topics={"orders": TopicProgress(lag=None, unknown_queues=1)}),
        "screens": GroupProgress(topics={"orders": TopicProgress(lag=9)}, message_model="BROADCASTING"),
        "poppers": GroupProgress(topics={"orders": TopicProgress(lag=0)}, pop_in_flight=4),
    }
    view = await view_of(groups)
    assert [(row["consumerGroup"], row["lag"]) for row in view["lags"]] == [("billing", 3), ("late", None)]
    assert view["reasons"] == [
        "Consumer groups have not consumed everything: billing, late.",
        "Popped messages are not acknowledged: poppers.",
    ]


async def test_who_consumes_elsewhere_and_was_never_here_has_not_consumed_what_is_here(
    groups: FakeGroups,
) -> None:
    groups.brokers[B].settings["brokerPermission"] = "4"
    here = [("orders", "billing"), ("orders", "late"), ("empty", "late"), ("orders", "TOOLS_CONSUMER")]
    groups.offsets = {A: here, B: [("orders", "billing")]}
    view = await view_of(groups)
    assert view["lags"] == [{"consumerGroup": "late", "topic": "orders", "lag": None}]
    assert view["reasons"] == ["Consumer groups have not consumed everything: late."]


async def test_brokers_of_rocketmq_beside_are_not_asked(groups: FakeGroups) -> None:
    groups.brokers[B].settings["brokerPermission"] = "4"
    stock = FakeBroker("stock", "127.0.0.1:10921", is_stock=True)
    groups.brokers[stock.address] = groups.listed[stock.address] = stock
    assert (await view_of(groups))["isDrained"]


async def test_a_release_that_does_not_say_what_is_left_is_not_taken_as_drained(groups: FakeGroups) -> None:
    groups.left = {}
    async with asking(groups) as client:
        problem = answered(await client.get(DRAINING), 503)
    assert "does not say what is left" in problem["detail"]


async def test_a_group_stops_taking_messages_once_confirmed(groups: FakeGroups) -> None:
    async with asking(groups) as client:
        preview = answered(await client.put(ACCEPTS, json={"accepted": False}))
        assert (preview["isDryRun"], len(preview["warnings"])) == (True, 1)
        assert "order across the change" in preview["warnings"][0]
        assert groups.brokers[B].settings["brokerPermission"] == "6"
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        answered(await client.put(ACCEPTS, json={"accepted": False}, params=query))
        assert groups.brokers[B].settings["brokerPermission"] == "4"
        groups_shown = answered(await client.get("/cluster"))["groups"]
        again = answered(await client.put(ACCEPTS, json={"accepted": False}))
        assert again["warnings"] == ["Nothing would change."]
        assert {each["group"]: each["acceptsMessages"] for each in groups_shown} == {
            "broker-a": True,
            "broker-b": False,
        }
        answered(await client.put(ACCEPTS, json={"accepted": True}))
    assert groups.brokers[B].settings["brokerPermission"] == "6"


async def test_a_group_that_is_left_refuses_messages_and_is_looked_at_again(groups: FakeGroups) -> None:
    groups.brokers[B].settings["brokerPermission"] = "4"
    async with asking(groups) as client:
        body = {"accepted": False, "refused": True}
        preview = answered(await client.put(ACCEPTS, json=body))
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        answered(await client.put(ACCEPTS, json=body, params=query))
        assert [effect["subject"] for effect in preview["effects"]] == ["refuses messages by older routes"]
        assert preview["warnings"] == [], "it left the routes before"
        groups.left["quiet_ms"] = 9_999
        view = answered(await client.get(DRAINING))
        assert (view["refusesMessages"], view["isDrained"]) == (True, False)
        assert "wait for 10 s" in view["reasons"][0]
        groups.left["quiet_ms"] = 10_000
        assert answered(await client.get(DRAINING))["isDrained"]
        again = answered(await client.put(ACCEPTS, json={"accepted": False}))
        assert again["warnings"] == ["Nothing would change."]
        answered(await client.put(ACCEPTS, json={"accepted": True}))
        answered(await client.put(ACCEPTS, json={"accepted": True, "refused": True}), 422)
    settings = groups.brokers[B].settings
    assert (settings["brokerPermission"], settings["refuseMessages"]) == ("6", "false")


async def test_the_last_group_that_takes_messages_is_named(groups: FakeGroups) -> None:
    groups.brokers[A].settings["brokerPermission"] = "4"
    async with asking(groups) as client:
        preview = answered(await client.put(ACCEPTS, json={"accepted": False}))
    assert preview["warnings"] == [
        "No other group takes messages: sends fail as soon as producers ask for routes again."
    ]


async def test_a_new_group_gets_what_it_lacks_and_nothing_of_the_brokers_own(groups: FakeGroups) -> None:
    a, b = groups.brokers[A], groups.brokers[B]
    for name in ("both", "orders", "%RETRY%billing", "TBW102", "broker-a"):
        a.add_topic(name)
    a.add_topic("fifo", 2, attributes={"message.type": "FIFO"})
    b.add_topic("both")
    groups.consumer_configs[A] = {"billing": {"retryMaxTimes": 3}, "TOOLS_CONSUMER": {}}
    async with asking(groups) as client:
        result = answered(await client.post(COPIED, json={"source": "broker-a"}))
    assert [effect["subject"] for effect in result["effects"]] == [
        "consumer group billing",
        "topic fifo",
        "topic orders",
    ]
    assert {address for address, _ in groups.made} == {B}
    consumers, fifo, orders = (command for _, command in groups.made)
    assert b'"retryMaxTimes":3' in consumers.body
    assert fifo.ext_fields["attributes"] == "+message.type=FIFO"
    assert (orders.ext_fields["topic"], orders.ext_fields["writeQueueNums"]) == ("orders", "4")


async def test_a_group_is_not_copied_to_itself(groups: FakeGroups) -> None:
    async with asking(groups) as client:
        answered(await client.post(COPIED, json={"source": "broker-b"}), 409)
        answered(await client.post(COPIED, json={"source": "broker-x"}), 404)
