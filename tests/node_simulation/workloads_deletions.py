"""The deletion workload: senders, and an operator who deletes topics and makes them again under load.

What the queues of a topic must show follows from the committed log alone: the messages behind the last record
that deletes the topic, from offset 0 on. The checker holds the offsets in the log against that, this workload
what is read of the leader and what each node's queues lead to. At the end every topic is deleted and made a
last time: what was acknowledged before is gone, what is acknowledged after that is there.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from commitlog.consume_queues import NOT_QUEUED
from commitlog.entry import HEADER_BYTES
from commitlog.record import decode_record
from ledgermq.messaging import decode_records
from remoting.client.aio import RouteTable
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from remoting.headers.topics import TopicRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.options import Options
from tests.node_simulation.topic_client import NAME_SERVER, TopicClient, leader_of_all
from tests.simulation.invariants import require

if TYPE_CHECKING:
    from broker.app import Broker
    from tests.node_simulation.machine import Process, Program
    from tests.node_simulation.workload import Workload

QUEUES = 2
TIMEOUT_S = 1.0
SETTLED_S = 5.0
"""After the faults so long, no request of before is on its way to a node any more."""
GROUP = "readers"
LAST_VALUES = 5
Shown = dict[tuple[str, int], list[str]]
"""By topic and queue id, the values from offset 0 on."""


@dataclass(frozen=True, slots=True)
class DeletionOptions:
    """What a seed draws. `operation_ms`: the operator's mean pause."""

    senders: int = 3
    topics: int = 2
    interval_ms: int = 60
    operation_ms: int = 500
    make_probability: float = 0.5
    """How often a topic is made again by the operator at once, and not by the next message."""
    commit_probability: float = 0.2
    """How often a sender stores the offset it got as a group's offset: late consumers do so."""
    body_bytes_max: int = 200


def draw_deletion_options(seed: int) -> DeletionOptions:
    """Always the same for a seed."""
    rng = random.Random(f"deletion workload {seed}")
    return DeletionOptions(
        senders=rng.choice((1, 3, 8)),
        topics=rng.choice((1, 2, 5)),
        interval_ms=rng.choice((20, 60, 200)),
        operation_ms=rng.choice((50, 300, 1_500)),
        make_probability=rng.choice((0.0, 0.5, 1.0)),
        commit_probability=rng.choice((0.0, 0.2)),
        body_bytes_max=rng.choice((16, 200, 2_000)),
    )


class DeletionWorkload:
    """See the module; the world's `Workload`. `acknowledged`: what was stored before the last deletions."""

    def __init__(self, options: DeletionOptions, history: History) -> None:
        self.options = options
        self.history = history
        self.topics = [f"D{number}" for number in range(options.topics)]
        self.acknowledged: set[str] = set()
        self.last: set[str] = set()
        self.deleted = 0
        """Deletions that were acknowledged."""
        self.is_stopping = False
        self.is_over = False
        self._values = 0
        self._in_flight = 0

    def programs(self) -> dict[str, Program]:
        return {"operator": self._operate, "p0": self._produce}

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_over

    def count_acknowledged(self) -> int:
        """Those that were deleted later, too."""
        return len(self.acknowledged) + len(self.last)

    def describe(self) -> str:
        return f"{len(self.acknowledged)} stored, {self.deleted} deletions, {self._in_flight} in flight"

    def crashed(self, name: str) -> None:
        """What it had asked for may happen, or not."""

    # -- senders

    async def _produce(self, process: Process) -> int:
        client = _Client()
        rng = process.environment.rng
        self._in_flight = 0
        await asyncio.gather(*(self._send_on(client, rng) for _ in range(self.options.senders)))
        return 0

    async def _send_on(self, client: _Client, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.random() * 2 * self.options.interval_ms / 1_000)
            if self.is_stopping:
                continue
            self._in_flight += 1
            topic, queue_id = rng.choice(self.topics), rng.randrange(QUEUES)
            value = self._value()
            offset = await client.send(topic, queue_id, body_of(value, rng.randint(0, 200)))
            if offset is not None:
                self.acknowledged.add(value)
                if rng.random() < self.options.commit_probability:
                    await client.commit(topic, queue_id, offset + 1)
            self._in_flight -= 1

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    # -- the operator

    async def _operate(self, process: Process) -> int:
        client = _Client()
        rng = process.environment.rng
        while not self.is_stopping:
            await asyncio.sleep(rng.random() * 2 * self.options.operation_ms / 1_000)
            topic = rng.choice(self.topics)
            self.deleted += await client.delete(topic)
            if rng.random() < self.options.make_probability:
                await client.make(topic)
        await asyncio.sleep(SETTLED_S)
        while self._in_flight:
            await asyncio.sleep(0.1)
        for topic in self.topics:
            while not await self._empty(client, topic):
                await asyncio.sleep(SETTLED_S)
        self.is_over = True
        await asyncio.get_running_loop().create_future()
        return 0

    async def _empty(self, client: _Client, topic: str) -> bool:
        """Delete the topic, make it again, and send what must be there at the end: all to one queue."""
        if not (await client.delete(topic) and await client.make(topic)):
            return False
        for _ in range(LAST_VALUES):
            value = self._value()
            if await client.send(topic, 0, body_of(value, 0)) is None:
                return False
            self.last.add(value)
        return True

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        shown: Shown = defaultdict(list)
        for topic in self.topics:
            await TopicClient(topic, QUEUES, TIMEOUT_S).read_all(address, partial(_take, shown))
        require(shown == self.expected(), "the queues show", shown, "and not", self.expected())
        values = {value for row in shown.values() for value in row}
        require(not self.acknowledged & values, "deleted and read:", self.acknowledged & values)
        require(self.last <= values, "acknowledged behind the deletion, and lost:", self.last - values)
        for machine in self.history.checker.machines.values():
            if machine.process is not None and machine.process.broker is not None:
                self._check_node(machine.name, machine.process.broker)
        return 0

    def expected(self) -> Shown:
        """What the committed log has behind the last record that deletes each topic."""
        checker = self.history.checker
        shown: Shown = defaultdict(list)
        for index, entry in enumerate(checker.committed):
            record = decode_record(entry.data, HEADER_BYTES)
            is_queued = record.topic in self.topics and record.sys_flag & NOT_QUEUED != NOT_QUEUED
            if is_queued and index > max(checker.deletions.get(record.topic, [-1])):
                shown[record.topic, record.queue_id].append(value_of(record.body))
        return shown

    def _check_node(self, name: str, broker: Broker) -> None:
        log = broker.core.log
        if log.applied_index < self.history.checker.commit_index:
            return
        expected = self.expected()
        for topic in self.topics:
            numbers = log.queues.queue_ids(topic)
            ends = {number: log.queues.next_offset(topic, number) for number in numbers}
            known = {queue_id: len(row) for (of, queue_id), row in expected.items() if of == topic}
            require(ends == known, name, "has the queues", topic, ends, "and not", known)


class _Client:
    """Asks the node that takes messages."""

    def __init__(self) -> None:
        self._topics = TopicClient(DEFAULT_TOPIC, QUEUES, TIMEOUT_S)
        self._routes = RouteTable(self._topics.remoting, NAME_SERVER)

    async def send(self, topic: str, queue_id: int, body: bytes) -> int | None:
        """The message's offset; None when it is not known to be stored."""
        message = TopicClient(topic, QUEUES, TIMEOUT_S).message(queue_id, body, {}, 0)
        answer = await self._ask(message)
        return None if answer is None else int(answer.ext_fields["queueOffset"])

    async def commit(self, topic: str, queue_id: int, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(GROUP, topic, queue_id, offset)
        await self._ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=header.ext_fields()))

    async def delete(self, topic: str) -> bool:
        header = TopicRequestHeader(topic)
        command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields=header.ext_fields())
        return await self._ask(command) is not None

    async def make(self, topic: str) -> bool:
        header = CreateTopicRequestHeader(topic, DEFAULT_TOPIC, QUEUES, QUEUES)
        command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.ext_fields())
        return await self._ask(command) is not None

    async def _ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """The answer, if it is one of success."""
        try:
            address = await leader_of_all(self._routes)
        except ClientError:
            return None
        answer = None if address is None else await self._topics.invoke(address, command)
        return answer if answer is not None and answer.code == ResponseCode.SUCCESS else None


def _take(shown: Shown, data: bytes) -> None:
    for record in decode_records(data):
        row = shown[record.topic, record.queue_id]
        require(record.queue_offset == len(row), record.topic, "shows offset", record.queue_offset)
        row.append(value_of(record.body))


def deletion_options(options: Options) -> Options:
    """With queues that are flushed, and what is left of topics looked for, within a run."""
    return replace(options, config={**options.config, "clean_interval_ms": 400})


def deletion_workload(options: Options, history: History) -> Workload:
    """For `World(deletion_options(options), workload=deletion_workload)`."""
    return DeletionWorkload(draw_deletion_options(options.seed), history)
