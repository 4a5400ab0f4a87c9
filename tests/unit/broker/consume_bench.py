"""A broker's consume side over a log in memory, asked through its router."""

import asyncio
from dataclasses import replace
from pathlib import Path

from broker.consume.feature import client_feature, lock_feature, offset_feature, pull_feature
from broker.consume.held_pulls import PullWaits
from broker.feature import Feature
from broker.leadership import Readiness
from broker.send.feature import make_send_back
from broker.state.changes import PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import STATE_TOPIC, TopicConfig
from broker.store.queries import query_feature
from commitlog.log import PutStatus
from commitlog.record import Message, Record, decode_record, format_properties
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.polling import until

SUSPEND, COMMIT, SUBSCRIPTION = 2, 1, 4


def ignore(status: PutStatus) -> None:
    """For puts whose end is of no interest."""


class ConsumeBench:
    """All processors of the consume side, with the topic `t` of 4 queues and the group `g`."""

    def __init__(self, parts: BrokerParts, log: FakeLog, engine: FakeEngine) -> None:
        self.parts = parts
        self.log = log
        self.engine = engine
        self.now_ms = NOW_MS
        self.wall_step_ms = 0
        """How far the wall clock was set ahead, or back."""
        parts.clock = lambda: self.now_ms + self.wall_step_ms
        core, consumers = parts.core, parts.consumers
        parts.add(
            offset_feature(core, consumers),
            pull_feature(core, consumers),
            Feature(handlers={RequestCode.CONSUMER_SEND_MSG_BACK: make_send_back(core).handle}),
            query_feature(core),
        )
        now_ms = lambda: self.now_ms  # noqa: E731
        stepped = replace(
            core,
            environment=replace(core.environment, monotonic_ms=now_ms),
            readiness=Readiness(log, engine, core.config.dledger_self_id, now_ms),
        )
        parts.add(client_feature(stepped, consumers), lock_feature(stepped))
        log.set_writable(log.is_writable())
        self.connection = FakeConnection()

    def start(self, request: RemotingCommand, connection: FakeConnection | None = None) -> None:
        """Hand the request in; its answer is among the connection's when it comes."""
        target = (connection or self.connection).as_connection
        self.parts.router.dispatch([(target, [request], request.code)])

    async def ask(
        self, request: RemotingCommand, connection: FakeConnection | None = None
    ) -> RemotingCommand:
        """The one answer to the request, which must come within the next turns. Notices are dropped."""
        asked = connection or self.connection
        self.start(request, asked)
        await self.settle()
        (answer,) = [each for each in asked.take_answers() if each.is_response]
        return answer

    async def settle(self) -> None:
        for _ in range(24):
            await asyncio.sleep(0)

    async def put(self, *bodies: bytes, topic: str = "t", queue_id: int = 0, tag: str = "") -> list[int]:
        """Store messages; answers their positions."""
        messages = [message(body, topic, queue_id, tag) for body in bodies]
        result = self.log.put(messages, ignore)
        await self.settle()
        return result.positions

    async def replicate(self, *bodies: bytes) -> None:
        """Messages of another leader, applied by this follower."""
        self.log.auto_commit, self.log._is_writable = False, True
        await self.put(*bodies)
        self.log._is_writable = False
        self.log.commit()
        self.log.auto_commit = True

    @property
    def stored(self) -> list[Message]:
        """All messages but the state's."""
        return [each for each in self.log.messages if each.topic != STATE_TOPIC]

    @property
    def state_puts(self) -> int:
        return sum(each.topic == STATE_TOPIC for each in self.log.messages)

    def follow(self, leader_id: str | None = "n1") -> None:
        """Make the node a follower of `leader_id`."""
        self.engine.leader_id = leader_id
        self.log.set_writable(False)

    def lead(self) -> None:
        self.engine.leader_id = "n0"
        self.log.set_writable(True)


def message(body: bytes, topic: str = "t", queue_id: int = 0, tag: str = "") -> Message:
    return Message(topic, queue_id, body, format_properties({"TAGS": tag, "UNIQ_KEY": "K1"}))


async def make_bench(tmp_path: Path, **values: object) -> ConsumeBench:
    log, engine = FakeLog(), FakeEngine()
    parts = make_parts(tmp_path, log, engine, **values)
    await parts.state.propose(PutTopic(TopicConfig("t", 4, 4)), PutGroup(SubscriptionGroupConfig("g")))
    return ConsumeBench(parts, log, engine)


def pull_request(
    offset: int = 0,
    *,
    topic: str = "t",
    queue_id: int = 0,
    group: str = "g",
    flags: int = SUSPEND | SUBSCRIPTION,
    opaque: int = 1,
    **fields: str,
) -> RemotingCommand:
    """A pull as the C++ client makes it; `fields` are ext fields by their wire names."""
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(flags),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "1700000000000",
        **fields,
    }
    return RemotingCommand(RequestCode.PULL_MESSAGE, opaque, ext_fields=ext, language="CPP", version=333)


def request(code: int, body: bytes = b"", language: str = "JAVA", /, **ext: str) -> RemotingCommand:
    return RemotingCommand(code, 7, ext_fields=ext, body=body, language=language)


def records(body: bytes) -> list[Record]:
    """The records of a pull answer."""
    found, start = [], 0
    while start < len(body):
        found.append(decode_record(body, start))
        start += found[-1].size
    return found


def header_offsets(answer: RemotingCommand) -> tuple[int, int, int]:
    """nextBeginOffset, minOffset, maxOffset."""
    ext = answer.ext_fields
    assert ext["suggestWhichBrokerId"] == "0"
    return int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])


def waits_of(bench: ConsumeBench) -> "PullWaits[object]":
    (waits,) = [each for each in bench.parts.features.services if isinstance(each, PullWaits)]
    return waits


def expire_all(bench: ConsumeBench) -> None:
    """As if every deadline had passed."""
    waits = waits_of(bench)
    waits._now_ms = lambda: 10**15
    waits.expire()


async def answer_after_doubt(bench: ConsumeBench, offset: int) -> RemotingCommand:
    """To a pull beyond the end, which is answered when a round of the group has confirmed this leader."""
    bench.engine.are_reads_held = True
    bench.start(pull_request(offset, flags=SUBSCRIPTION))
    await bench.settle()
    assert bench.connection.answers == []
    bench.engine.end_reads()
    bench.engine.are_reads_held = False
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    return answer


async def eventually_answered(bench: ConsumeBench) -> RemotingCommand:
    """The one answer, which may come after a poll of the node."""
    await until(lambda: bool(bench.connection.answers))
    (answer,) = bench.connection.take_answers()
    return answer
