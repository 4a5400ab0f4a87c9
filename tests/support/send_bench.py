"""A send processor over a log in memory, and sends as clients make them."""

import asyncio
from pathlib import Path

from broker.send.feature import make_send_processor
from broker.state.changes import PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import STATE_TOPIC, TopicConfig
from commitlog.record import Message
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.command_reader import CommandReader
from remoting.headers.send import SendMessageRequestHeader
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

KEY = "7F00000100002A9F0000000000000001"
STAMP = b"CLUSTER\x01DefaultCluster\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
"""What the broker adds to the properties of every message."""


def send_request(
    topic: str = "t", body: bytes = b"hello", opaque: int = 1, **changes: object
) -> RemotingCommand:
    """A send as Java makes it; `changes` are header fields by their Python names."""
    fields: dict[str, object] = {
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp_ms": NOW_MS,
        "properties": f"UNIQ_KEY\x01{KEY}\x02TAGS\x01a\x02",
        **changes,
    }
    header = SendMessageRequestHeader(producer_group="p", topic=topic, **fields)  # type: ignore[arg-type]
    return RemotingCommand(RequestCode.SEND_MESSAGE, opaque, ext_fields=header.ext_fields(), body=body)


class Bench:
    """A send processor over a fake log, with the topic `t` of 4 queues and the group `g`."""

    def __init__(self, parts: BrokerParts, log: FakeLog) -> None:
        self.parts = parts
        self.log = log
        self.processor = make_send_processor(parts.core)
        self.connection = FakeConnection()

    def handle(self, *requests: RemotingCommand, connection: FakeConnection | None = None) -> None:
        """Requests as a connection brings them that has read their frames."""
        target = (connection or self.connection).as_connection
        received = CommandReader().feed(b"".join(map(encode_command, requests)))
        self.processor.handle([(target, received.commands)])

    async def answer(self, request: RemotingCommand) -> RemotingCommand:
        """The one answer to a send, once it is there."""
        self.handle(request)
        await self.settle()
        (answer,) = self.connection.take_answers()
        assert answer.opaque == request.opaque
        return answer

    async def settle(self) -> None:
        for _ in range(24):
            await asyncio.sleep(0)

    @property
    def stored(self) -> list[Message]:
        return [message for message in self.log.messages if message.topic != STATE_TOPIC]


async def make_bench(tmp_path: Path, **values: object) -> Bench:
    log = FakeLog()
    parts = make_parts(tmp_path, log, FakeEngine(), **values)
    await parts.state.propose(
        PutTopic(TopicConfig("t", 4, 4)), PutGroup(SubscriptionGroupConfig("g", retry_max_times=3))
    )
    return Bench(parts, log)
