"""Queues that the broker assigns, and the mode in which groups ask for messages."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.consume.assignment import MessageQueue, UnknownStrategyError, allocate, allocate_for_pop
from broker.consume.clients import Client
from broker.consume.feature import assignment_feature
from broker.consume.heartbeats import parse_heartbeat
from broker.state.changes import DeleteGroup, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.tables import StateTables
from broker.state.topics import TopicConfig
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import ConnectFailedError
from remoting.route import BrokerData, QueueData, TopicRoute, format_topic_route
from remoting.slices import finish
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.unit.broker.consume_bench import ConsumeBench


class NameServer(RemotingClient):
    """Answers for the name server, with `route`; None: nobody is there."""

    def __init__(self) -> None:
        super().__init__()
        self.route: TopicRoute | None = None
        self.asked = 0

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.asked += 1
        if self.route is None:
            raise ConnectFailedError(address)
        return success_response(command, body=format_topic_route(self.route))


class Bench(ConsumeBench):
    def __init__(self, parts: BrokerParts, log: FakeLog) -> None:
        super().__init__(parts, log, FakeEngine())
        self.name_server = NameServer()
        parts.add(assignment_feature(replace(parts.core, namesrv_client=self.name_server)))

    def join(self, *client_ids: str) -> None:
        for number, client_id in enumerate(client_ids):
            consumer = {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [],
            }
            beat = parse_heartbeat(orjson.dumps({"clientID": client_id, "consumerDataSet": [consumer]}))
            finish(
                self.parts.clients.beat(Client(client_id, FakeConnection(number), "JAVA", 500), beat, NOW_MS)
            )

    async def post(self, code: RequestCode, **body: object) -> RemotingCommand:
        return await self.ask(RemotingCommand(code, 1, body=orjson.dumps(body)))

    async def assigned(self, client_id: str, topic: str = "t", **fields: object) -> Any:
        """(broker, queue id, mode) of each queue."""
        body: dict[str, object] = {
            "topic": topic,
            "consumerGroup": "g",
            "clientId": client_id,
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }
        answer = await self.post(RequestCode.QUERY_ASSIGNMENT, **(body | fields))
        assert answer.code == 0, answer.remark
        rows = orjson.loads(answer.body)["messageQueueAssignments"]
        if rows is None:
            return None
        assert all(row["messageQueue"]["topic"] == topic for row in rows)
        places = [(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"]) for row in rows]
        return [(*place, row["mode"]) for place, row in zip(places, rows, strict=True)]

    async def set_mode(self, mode: str, share: int = 0, **fields: object) -> int:
        body = {"topic": "t", "consumerGroup": "g", "mode": mode, "popShareQueueNum": share} | fields
        return (await self.post(RequestCode.SET_MESSAGE_REQUEST_MODE, **body)).code


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    log = FakeLog()
    parts = make_parts(tmp_path, log, FakeEngine())
    await parts.state.propose(PutTopic(TopicConfig("t", 4, 4)), PutGroup(SubscriptionGroupConfig("g")))
    return Bench(parts, log)


async def test_pullers_share_the_queues_and_poppers_have_them_all(bench: Bench) -> None:
    bench.join("c1", "c2")
    assert await bench.assigned("c1") == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]
    assert await bench.assigned("c2") == [("broker-a", 2, "PULL"), ("broker-a", 3, "PULL")]
    assert await bench.set_mode("POP") == 0
    assert await bench.assigned("c1") == await bench.assigned("c2") == [("broker-a", -1, "POP")]
    assert await bench.assigned("c1", topic="%RETRY%g_t") is None


async def test_queues_of_all_brokers_are_assigned(bench: Bench) -> None:
    bench.join("c1")
    queues = (QueueData("broker-a", 1, 1, 6), QueueData("broker-b", 2, 2, 6), QueueData("broker-c", 1, 1, 2))
    bench.name_server.route = TopicRoute(queues, (BrokerData("c", "broker-a", {0: "127.0.0.1:1"}),))
    pulled = [("broker-a", 0, "PULL"), ("broker-b", 0, "PULL"), ("broker-b", 1, "PULL")]
    assert await bench.assigned("c1") == pulled
    assert await bench.assigned("nobody", messageModel="BROADCASTING") == pulled
    assert bench.name_server.asked == 1
    await bench.set_mode("POP")
    assert await bench.assigned("c1") == [("broker-a", -1, "POP"), ("broker-b", -1, "POP")]


async def test_the_mode_is_in_the_log_and_goes_with_its_group(bench: Bench, tmp_path: Path) -> None:
    assert await bench.set_mode("POP", 2) == 0
    log = bench.log.reopened()
    other = make_parts(tmp_path / "other", log)
    await log.start()
    mode = other.state.request_modes.get("t", "g")
    assert mode is not None
    assert (mode.mode, mode.share_queue_num) == ("POP", 2)
    answer = await bench.ask(RemotingCommand(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, 1))
    assert orjson.loads(answer.body)["messageRequestModeMap"]["t"]["g"]["mode"] == "POP"
    tables = StateTables({}, {})
    tables.load_json(bench.parts.state._tables.to_json())
    assert tables.request_modes.get("t", "g") == mode
    await bench.parts.state.propose(DeleteGroup("g"))
    assert bench.parts.state.request_modes.get("t", "g") is None


async def test_bad_requests_are_refused(bench: Bench) -> None:
    assert await bench.set_mode("PUSH") == ResponseCode.INVALID_PARAMETER
    assert await bench.set_mode("POP", topic="none") == ResponseCode.TOPIC_NOT_EXIST
    assert await bench.set_mode("POP", topic="%RETRY%g") == ResponseCode.NO_PERMISSION
    assert await bench.set_mode("POP", consumerGroup="none") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert await bench.set_mode("POP", popShareQueueNum="x") == ResponseCode.INVALID_PARAMETER
    code = RequestCode.QUERY_ASSIGNMENT
    assert (await bench.post(code)).code == ResponseCode.INVALID_PARAMETER
    assert (await bench.ask(RemotingCommand(code, 1, body=b"\xff"))).code == ResponseCode.SYSTEM_ERROR
    bench.join("c1")
    body = {"topic": "t", "consumerGroup": "g", "clientId": "c1", "strategyName": "MAGIC"}
    assert (await bench.post(code, **body)).code == ResponseCode.INVALID_PARAMETER
    bench.follow()
    assert await bench.set_mode("POP") == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_without_consumers_nothing_is_said(bench: Bench) -> None:
    assert await bench.assigned("c1") is None


QUEUES = [MessageQueue("t", "a", number) for number in range(7)]


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
@pytest.mark.parametrize("clients", [1, 2, 3, 7, 9])
def test_every_queue_goes_to_one_client(strategy: str, clients: int) -> None:
    names = [f"c{number}" for number in range(clients)]
    parts = [allocate(strategy, name, QUEUES, names) for name in names]
    assert sorted(queue for part in parts for queue in part) == QUEUES
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert allocate(strategy, "stranger", QUEUES, names) == []


def test_poppers_share_with_their_neighbours() -> None:
    names = [f"c{number}" for number in range(4)]
    parts = [allocate_for_pop("AVG", name, QUEUES, names, 1) for name in names]
    assert parts[0] == QUEUES[:4]
    assert parts[3] == [QUEUES[6], *QUEUES[:2]]
    assert set(Counter(queue for part in parts for queue in part).values()) == {2}
    many = [f"c{number}" for number in range(9)]
    assert allocate_for_pop("AVG", "c8", QUEUES, many, 1) == [QUEUES[1]]
    assert allocate_for_pop("AVG", "c8", QUEUES, many, 8) == [MessageQueue("t", "a", -1)]
    with pytest.raises(UnknownStrategyError):
        allocate_for_pop("MAGIC", "c0", QUEUES, names, 1)
