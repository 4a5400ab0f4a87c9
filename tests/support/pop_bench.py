"""The POP parts of a broker over a log in memory, asked through its router, with both clocks in the test's
hand.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from broker.consume.feature import offset_feature
from broker.feature import Feature
from broker.pop.feature import make_pop
from broker.pop.ops import POP_TOPIC
from broker.state.changes import PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from commitlog.record import Message, Record, decode_record, format_properties
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.pop_receipts import mark_of
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

SECOND = 1_000
INVISIBLE_MS = 30 * SECOND


def _ignore(status: PutStatus) -> None:
    """How a put ends is of no interest."""


@dataclass(frozen=True, slots=True)
class PoppedMessage:
    """A message as the client keeps it: with the handle that it makes of the answer (MQClientAPIImpl)."""

    record: Record
    handle: str
    count: int

    @property
    def body(self) -> bytes:
        return bytes(self.record.body)


class PopBench:
    """A node with the topic `t` of 2 queues and the group `g`. `at` moves its clocks."""

    def __init__(self, tmp_path: Path, log: FakeLog, parts: BrokerParts, now_ms: int = NOW_MS) -> None:
        self.tmp_path = tmp_path
        self.log = log
        self.parts = parts
        self.now_ms = now_ms
        self.wall_step_ms = 0
        """How far the wall clock was set ahead, or back."""
        parts.clock = lambda: self.now_ms + self.wall_step_ms
        parts.monotonic_ms = lambda: self.now_ms
        self.commits = parts.consumers.commits
        pop = make_pop(parts.core, parts.consumers)
        self.ledger, self.revival, self.service, self.peeks = pop.ledger, pop.revival, pop.service, pop.peeks
        parts.add(
            offset_feature(parts.core, parts.consumers),
            Feature(handlers=self.peeks.handlers(), batch_handlers=self.service.batch_handlers()),
        )
        self.connection = FakeConnection()
        self._opaque = 0

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    def at(self, offset_ms: int) -> None:
        """It is so long after the start."""
        self.now_ms = self.log.now_ms = NOW_MS + offset_ms

    async def revive(self) -> None:
        """Bring back what is due, as the timer would."""
        await self.revival.revive_due()
        await self.settle()

    async def put(
        self, *bodies: bytes, topic: str = "t", queue_id: int = 0, tag: str = "", **properties: str
    ) -> None:
        rows = format_properties({"UNIQ_KEY": "K1", **({"TAGS": tag} if tag else {}), **properties})
        self.log.put([Message(topic, queue_id, body, rows) for body in bodies], _ignore)
        await self.settle()

    def request(self, code: RequestCode, body: bytes = b"", **fields: object) -> RemotingCommand:
        self._opaque += 1
        ext = {name: str(value) for name, value in fields.items() if value is not None}
        return RemotingCommand(code, self._opaque, ext_fields=ext, body=body)

    def pop_request(self, **fields: object) -> RemotingCommand:
        values: dict[str, object] = {
            "consumerGroup": "g",
            "topic": "t",
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": INVISIBLE_MS,
            "pollTime": 0,
            "bornTime": self.now_ms,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        return self.request(RequestCode.POP_MESSAGE, b"", **(values | fields))

    def start(self, *requests: RemotingCommand, connection: FakeConnection | None = None) -> None:
        """All in one turn of the loop."""
        target = (connection or self.connection).as_connection
        self.parts.router.dispatch([(target, list(requests), -1)])

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        self.start(request)
        await self.settle()
        (answer,) = self.connection.take_answers()
        assert answer.opaque == request.opaque, (answer, request)
        return answer

    async def pop(self, **fields: object) -> list[PoppedMessage]:
        return messages_of(await self.ask(self.pop_request(**fields)))

    def ack_request(self, message: PoppedMessage, **fields: object) -> RemotingCommand:
        return self.request(RequestCode.ACK_MESSAGE, b"", **(_place(message) | fields))

    async def ack(self, message: PoppedMessage, **fields: object) -> int:
        return (await self.ask(self.ack_request(message, **fields))).code

    def change_request(self, message: PoppedMessage, invisible_ms: int, **fields: object) -> RemotingCommand:
        values = _place(message) | {"invisibleTime": invisible_ms} | fields
        return self.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, b"", **values)

    async def change(self, message: PoppedMessage, invisible_ms: int, **fields: object) -> RemotingCommand:
        return await self.ask(self.change_request(message, invisible_ms, **fields))

    def stored(self, topic: str) -> list[Message]:
        return [message for message in self.log.messages if message.topic == topic]

    @property
    def records(self) -> list[Message]:
        return self.stored(POP_TOPIC)

    def floor(self, topic: str = "t", queue_id: int = 0) -> int | None:
        """The group's offset as tools see it, once everything noted is flushed."""
        self.ledger._note_floors()
        return self.commits.current("g", topic, queue_id)

    async def next_leader(self, log: FakeLog | None = None, **values: object) -> "PopBench":
        """The node that takes over with what is committed."""
        self.log.set_writable(False)
        await self.settle()
        if log is None:
            log = self.log.reopened()
            log.put_calls = list(self.log.put_calls)
        parts = make_parts(self.tmp_path, log, FakeEngine(), **values)
        await log.start()
        bench = PopBench(self.tmp_path, log, parts, self.now_ms)
        log.now_ms = self.now_ms
        log.set_writable(True)
        await bench.settle()
        return bench

    async def stop(self) -> None:
        for service in (self.revival, self.peeks, self.service, self.ledger):
            await service.stop()


def _place(message: PoppedMessage) -> dict[str, object]:
    return {
        "consumerGroup": "g",
        "topic": message.record.topic,
        "queueId": message.record.queue_id,
        "offset": message.record.queue_offset,
        "extraInfo": message.handle,
    }


def messages_of(answer: RemotingCommand) -> list[PoppedMessage]:
    """The messages of an answer to a pop, with the handles that Java's client makes."""
    if answer.code != 0:
        return []
    ext = answer.ext_fields
    starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in ext["startOffsetInfo"].split(";")}
    offsets = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in ext["msgOffsetInfo"].split(";")}
    counts = dict(part.rsplit(" ", 1) for part in ext.get("orderCountInfo", "").split(";") if part)
    found = []
    at = 0
    while at < len(answer.body):
        record = decode_record(answer.body, at, check_crc=True)
        at += record.size
        mark, queue_id = mark_of(record.topic), str(record.queue_id)
        assert str(record.queue_offset) in offsets[mark, queue_id].split(","), offsets
        times = f"{ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']}"
        handle = f"{starts[mark, queue_id]} {times} {mark} broker-a {queue_id} {record.queue_offset}"
        key = f"{mark} qo{queue_id}%{record.queue_offset}"
        count = int(counts.get(key, counts.get(f"{mark} {queue_id}", "0")))
        found.append(PoppedMessage(record, handle, count))
    return found


async def make_pop_bench(tmp_path: Path, **values: object) -> PopBench:
    """The writable leader of a group."""
    log = FakeLog()
    parts = make_parts(tmp_path, log, FakeEngine(), **values)
    await parts.state.propose(
        PutTopic(TopicConfig("t", 2, 2)), PutGroup(SubscriptionGroupConfig("g", retry_max_times=3))
    )
    bench = PopBench(tmp_path, log, parts)
    await bench.ledger.start()
    await bench.settle()
    return bench
