"""What the admin service says of RocketMQ's own brokers, which say yes to what they do not do."""

from __future__ import annotations

from admin_api.changes import settings_outcomes
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import answered, asking

ADDRESS = "127.0.0.1:10911"


class FakeStock(FakeBrokers):
    """One, which passes over values that are no numbers, and a name server as careless."""

    def __init__(self) -> None:
        broker = FakeBroker("broker-a", ADDRESS, is_stock=True)
        broker.add_topic("TBW102")
        broker.add_topic("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")
        super().__init__(broker)
        self.namesrv_settings = "listenPort=9876\nserverWorkerThreads=8\n"
        self.falls_silent = False
        """Once it has accepted settings."""
        self._is_silent = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if self._is_silent:
            raise ConnectFailedError(f"{address}: refused")
        match command.code:
            case RequestCode.UPDATE_BROKER_CONFIG | RequestCode.UPDATE_NAMESRV_CONFIG:
                self._is_silent = self.falls_silent
                return RemotingCommand(code=0)
            case RequestCode.GET_NAMESRV_CONFIG:
                return RemotingCommand(code=0, body=self.namesrv_settings.encode())
        return await super().invoke(address, command, timeout_s)


async def test_there_is_no_replication_to_look_at_or_to_change() -> None:
    async with asking(FakeStock()) as client:
        (group,) = answered(await client.get("/cluster"))["groups"]
        assert [(node["role"], node["isLedgermq"]) for node in group["nodes"]] == [(None, False)]
        path = "/replication/broker-a"
        for answer in (
            await client.get(path),
            await client.post(f"{path}/transfer", json={"nodeId": None}),
            await client.put(f"{path}/preferred-leader", json={"nodeId": "n1"}),
        ):
            assert "has no DLedger group view" in answered(answer, 404)["detail"]


async def test_attributes_that_a_broker_would_forget_are_refused() -> None:
    brokers = FakeStock()
    async with asking(brokers) as client:
        attributes = {"attributes": {"message.type": "FIFO"}}
        problem = answered(await client.post("/topics", json={"name": "new", **attributes}), 409)
        assert problem["detail"] == "broker-a does not store topic attributes: RocketMQ does from 5.0 on."
        answered(await client.post("/topics", json={"name": "new"}))
        answered(await client.patch("/topics/new", json=attributes), 409)
        brokers.brokers[ADDRESS].topics["TBW102"]["attributes"] = {}
        answered(await client.patch("/topics/new", json=attributes))


async def test_a_topic_of_its_own_is_the_systems() -> None:
    async with asking(FakeStock()) as client:
        kinds = {row["name"]: row["kind"] for row in answered(await client.get("/topics"))["items"]}
    assert kinds["RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"] == "system"


async def test_a_value_that_a_broker_passes_over_is_not_done() -> None:
    async with asking(FakeStock()) as client:
        path, body = f"/brokers/{ADDRESS}/config", {"settings": {"fileReservedTime": "long"}}
        preview = answered(await client.patch(path, json=body))
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        result = answered(await client.patch(path, json=body, params=query), 502)["result"]
    assert [outcome["ok"] for outcome in result["outcomes"]] == [False]
    assert "kept the old value" in result["outcomes"][0]["problem"]


async def test_keys_and_values_that_a_name_server_passes_over_are_not_done() -> None:
    async with asking(FakeStock()) as client:
        body = {"values": {"scanNotActiveBrokerInterval": "6000"}}
        problem = answered(await client.patch("/name-server", json=body), 400)
        assert problem["detail"] == "The name server has no key scanNotActiveBrokerInterval."
        body = {"values": {"serverWorkerThreads": "many"}}
        result = answered(await client.patch("/name-server", json=body, params={"dryRun": "false"}), 502)
    assert [outcome["ok"] for outcome in result["result"]["outcomes"]] == [False]


async def test_a_value_that_cannot_be_read_back_is_not_said_to_have_failed() -> None:
    brokers = FakeStock()
    async with asking(brokers) as client:
        path, body = f"/brokers/{ADDRESS}/config", {"settings": {"fileReservedTime": "48"}}
        preview = answered(await client.patch(path, json=body))
        brokers.falls_silent = True
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        (outcome,) = answered(await client.patch(path, json=body, params=query), 502)["result"]["outcomes"]
    assert outcome["problem"].startswith(
        "the broker accepted the request; whether the value changed is unknown: "
    )
    brokers = FakeStock()
    brokers.falls_silent = True
    async with asking(brokers) as client:
        body = {"values": {"serverWorkerThreads": "9"}}
        result = answered(await client.patch("/name-server", json=body, params={"dryRun": "false"}), 502)
    (outcome,) = result["result"]["outcomes"]
    assert outcome["problem"].startswith(
        "the broker accepted the request; whether the value changed is unknown: "
    )


def test_a_value_may_be_written_in_another_way() -> None:
    outcomes = settings_outcomes(
        {"a": "010", "b": "x", "c": "1"}, {"a": "9", "b": "2"}, {"a": "10", "b": "2"}
    )
    assert [(each.subject, each.ok) for each in outcomes] == [("a", True), ("b", False), ("c", False)]
    assert settings_outcomes({"a": "1"}, {"a": "1"}, {"a": "1"})[0].ok


async def test_addresses_of_producers_are_addresses() -> None:
    brokers = FakeStock()
    row = {"clientId": "one", "remoteIP": "/10.0.0.9:5000", "language": "JAVA", "version": 409}
    brokers.brokers[ADDRESS].producers = {"shop": [row]}
    async with asking(brokers) as client:
        (group,) = answered(await client.get("/producer-groups", params={"group": "shop"}))["items"]
    assert [each["address"] for each in group["clients"]] == ["10.0.0.9:5000"]
