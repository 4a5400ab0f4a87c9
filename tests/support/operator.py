"""A broker with its admin processors, and a connection to ask over as an operator's tool does."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from broker.admin.feature import admin_feature
from broker.admin.node import StatsAdmin
from broker.consume.clients import Client
from broker.consume.feature import offset_feature, pull_feature
from broker.consume.heartbeats import parse_heartbeat
from broker.pop.table import GroupQueue
from commitlog.record import Message
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.fastjson import loads
from remoting.slices import finish
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

PEERS = "n0-127.0.0.1:10914;n1-127.0.0.1:10924"
TURNS_MAX = 200


class Operator:
    """Asks; every answer is there within a few turns of the loop."""

    def __init__(
        self, tmp_path: Path, engine: FakeEngine | None, log: FakeLog | None = None, **values: object
    ) -> None:
        self.log = log or FakeLog()
        self.engine = engine
        self.parts: BrokerParts = make_parts(tmp_path, self.log, engine, **{"dLegerPeers": PEERS, **values})
        self.popped_queues: Callable[[], Iterable[GroupQueue] | None] = lambda: None
        self.runtime_figures: list[Callable[[], dict[str, str]]] = []
        self.parts.add(admin_feature(self.parts.core, self.parts.consumers, [self._figures], self._pop_lanes))
        self.connection = FakeConnection()

    def _figures(self) -> dict[str, str]:
        return {key: value for read in self.runtime_figures for key, value in read().items()}

    def _pop_lanes(self) -> Iterable[GroupQueue] | None:
        return self.popped_queues()

    def add_pulls(self) -> None:
        self.parts.add(pull_feature(self.parts.core, self.parts.consumers))

    def add_offsets(self) -> None:
        self.parts.add(offset_feature(self.parts.core, self.parts.consumers))

    async def ask(self, code: RequestCode, body: bytes = b"", /, **ext: str) -> RemotingCommand:
        request = RemotingCommand(code, opaque=5, ext_fields=ext, body=body)
        self.parts.router.dispatch([(self.connection.as_connection, [request], request.code)])
        (answer,) = await self.answers(1)
        return answer

    async def answers(self, count: int) -> list[RemotingCommand]:
        """The next answers."""
        for _ in range(TURNS_MAX):
            if len(self.connection.answers) >= count:
                break
            await asyncio.sleep(0)
        answers = self.connection.take_answers()
        assert len(answers) == count, answers
        return answers

    async def read(self, code: RequestCode, body: bytes = b"", /, **ext: str) -> Any:
        answer = await self.ask(code, body, **ext)
        assert answer.code == 0, answer
        return loads(answer.body)

    async def start_counting(self) -> None:
        """As the broker does when its log is there."""
        for service in self.parts.features.services:
            if isinstance(service, StatsAdmin):
                await service.start()

    async def store(self, topic: str, queue_id: int, count: int) -> None:
        self.log.put([Message(topic, queue_id, b"x")] * count, lambda status: None)
        await asyncio.sleep(0)


def connect_client(operator: Operator, client_id: str = "c1") -> FakeConnection:
    """A client that produces as group p and consumes topic t as group g; its connection."""
    heartbeat = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": "t", "subString": "*", "subVersion": 1}],
            }
        ],
    }
    connection = FakeConnection(7, "10.0.0.9", 1234)
    client = Client(client_id, connection.as_connection, "JAVA", 409)
    finish(operator.parts.clients.beat(client, parse_heartbeat(orjson.dumps(heartbeat)), NOW_MS))
    return connection
