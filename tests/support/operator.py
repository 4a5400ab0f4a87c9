"""A broker with its admin processors, and a connection to ask over as an operator's tool does."""

import asyncio
from pathlib import Path
from typing import Any

import orjson

from broker.admin import config as admin_config
from broker.admin import consumers as admin_consumers
from broker.admin import group_progress as admin_progress
from broker.admin import groups as admin_groups
from broker.admin import lists as admin_lists
from broker.admin import node as admin_broker
from broker.admin import offsets as admin_offsets
from broker.admin import queues as admin_queues
from broker.admin import replication as admin_replication
from broker.admin import stats as admin_stats
from broker.admin import topics as admin_topics
from broker.consume.clients import Client
from broker.consume.heartbeats import parse_heartbeat
from broker.context import BrokerContext
from commitlog.record import Message
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.fastjson import loads
from tests.support.broker_context import NOW_MS, FakeEngine, make_context
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

PEERS = "n0-127.0.0.1:10914;n1-127.0.0.1:10924"
ADMIN_MODULES = (
    admin_topics,
    admin_groups,
    admin_broker,
    admin_config,
    admin_consumers,
    admin_lists,
    admin_offsets,
    admin_progress,
    admin_queues,
    admin_replication,
    admin_stats,
)
TURNS_MAX = 200


class Operator:
    """Asks; every answer is there within a few turns of the loop."""

    def __init__(self, tmp_path: Path, engine: FakeEngine | None, log: FakeLog | None = None) -> None:
        self.log = log or FakeLog()
        self.engine = engine
        self.context: BrokerContext = make_context(tmp_path, self.log, engine, dLegerPeers=PEERS)
        for module in ADMIN_MODULES:
            module.register(self.context)
        self.connection = FakeConnection()

    async def ask(self, code: RequestCode, body: bytes = b"", /, **ext: str) -> RemotingCommand:
        request = RemotingCommand(code, opaque=5, ext_fields=ext, body=body)
        self.context.router.dispatch([(self.connection.as_connection, [request], request.code)])
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
        for service in self.context.services:
            if isinstance(service, admin_stats.StatsAdmin):
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
    operator.context.clients.beat(client, parse_heartbeat(orjson.dumps(heartbeat)), NOW_MS)
    return connection
