"""The group workload: producers that retry, groups that share queues, and an operator who changes topics.

It draws its own options from the run's seed. What the plain workload leaves out is here: batches, order by
key, several sends in flight, take-overs from stored offsets, topics that are made and changed under load, and
offsets that are set back.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from remoting.client.aio import RemotingClient, RouteTable
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, ConnectFailedError, RemotingError
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from remoting.headers.fields import RequestHeader
from remoting.headers.topics import TopicRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.histories.operations import Crash, Outcome, Queue
from tests.histories.recorder import NOT_DONE
from tests.node_simulation.clients import History, RecordingClient
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options
from tests.node_simulation.topic_client import NAME_SERVER, leader_of_all, read_queues_back
from tests.node_simulation.workload import Workload
from tests.node_simulation.workloads_consuming import ConsumerOptions, Group, Member
from tests.node_simulation.workloads_sending import Producer, ProducerOptions

QUEUES_MAX = 4
TIMEOUT_S = 3.0
OPERATOR = "operator"
OWN_TOPIC = "OPERATORS"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a seed draws for this workload. `operation_ms`: the operator's mean pause, 0 = there is none."""

    producers: int = 2
    groups: tuple[int, ...] = (2,)
    """The number of members of each group."""
    topics: int = 1
    operation_ms: int = 0
    producing: ProducerOptions = field(default_factory=ProducerOptions)
    consuming: ConsumerOptions = field(default_factory=ConsumerOptions)


def draw_group_options(seed: int) -> GroupOptions:
    """Always the same for a seed."""
    rng = random.Random(f"group workload {seed}")
    return GroupOptions(
        producers=rng.choice((1, 2, 3)),
        groups=rng.choice(((1,), (2,), (3,), (1, 2))),
        topics=rng.choice((1, 1, 2)),
        operation_ms=rng.choice((0, 500, 3_000)),
        producing=ProducerOptions(
            senders=rng.choice((1, 2, 3)),
            tries_max=rng.choice((1, 4, 12)),
            interval_ms=rng.choice((150, 400, 1_000)),
            batch_max=rng.choice((1, 3, 5)),
            body_bytes_max=rng.choice((16, 200, 2_000)),
            ordered_probability=rng.choice((0.0, 0.5, 1.0)),
            queues=rng.choice((1, 2, 4)),
        ),
        consuming=ConsumerOptions(
            commit_probability=rng.choice((0.1, 0.5, 1.0)),
            hand_over_probability=rng.choice((0.0, 0.02, 0.2)),
        ),
    )


class GroupWorkload:
    """See the module; the world's `Workload`."""

    def __init__(self, options: GroupOptions, seed: int, history: History) -> None:
        self.options = options
        self.history = history
        self.topics = [f"T{number}" for number in range(options.topics)]
        self.acknowledged: dict[str, set[str]] = {topic: set() for topic in self.topics}
        rng = random.Random(f"group workload's members {seed}")
        self.groups = [
            Group(f"G{number}", [f"c{number}-{member}" for member in range(members)], rng)
            for number, members in enumerate(options.groups)
        ]
        self.is_stopping = False
        self._in_flight = 0
        self._values = 0
        self._are_topics_there = False

    def programs(self) -> dict[str, Program]:
        programs: dict[str, Program] = {OPERATOR: self._operate}
        for number in range(self.options.producers):
            programs[f"p{number}"] = partial(self._produce, f"p{number}")
        for group in self.groups:
            for member in group.members:
                programs[member] = partial(self._consume, member, group)
        return programs

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        is_quiet = self.is_stopping and self._in_flight == 0 and self._are_topics_there
        return is_quiet and not any(self._missing().values())

    def _missing(self) -> dict[str, set[str]]:
        return {
            f"{group.name} {topic}": values - group.taken.get(topic, set())
            for group in self.groups
            for topic, values in self.acknowledged.items()
        }

    def count_acknowledged(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def describe(self) -> str:
        missing = {name: sorted(values)[:3] for name, values in self._missing().items() if values}
        count = sum(map(len, self.acknowledged.values()))
        return f"{count} acknowledged, {self._in_flight} in flight, missing {missing}"

    def crashed(self, name: str) -> None:
        """What it was sending ends in the history by itself, when its tasks are closed."""
        for group in self.groups:
            if name in group.members:
                for queue in self._queues():
                    self.history.add(Crash(f"{name}/{queue}", self.history.now))
                group.lost(name)

    def _queues(self) -> list[Queue]:
        return [Queue(topic, queue_id) for topic in self.topics for queue_id in range(QUEUES_MAX)]

    # -- producers

    async def _produce(self, name: str, process: Process) -> int:
        client = RecordingClient(self.history, name)
        rng = process.environment.rng
        producer = Producer(
            name, client, NAME_SERVER, rng, self.history, self.options.producing, self._stored
        )
        senders = (self._send_on(producer, sender, rng) for sender in range(self.options.producing.senders))
        await asyncio.gather(*senders)
        return 0

    async def _send_on(self, producer: Producer, sender: int, rng: random.Random) -> None:
        options = self.options.producing
        while True:
            await asyncio.sleep(rng.random() * 2 * options.interval_ms / 1_000)
            if self.is_stopping:
                continue
            topic = rng.choice(self.topics)
            values = [self._value() for _ in range(rng.randint(1, options.batch_max))]
            self._in_flight += 1
            try:
                await producer.send(sender, topic, values)
            finally:
                self._in_flight -= 1

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _stored(self, topic: str, values: Sequence[str]) -> None:
        self.acknowledged[topic].update(values)

    # -- consumers

    async def _consume(self, name: str, group: Group, process: Process) -> int:
        client = RecordingClient(self.history, name)
        rng = process.environment.rng
        member = Member(
            name, group, client, NAME_SERVER, rng, self.history, self.options.consuming,
            lambda: self.is_stopping,
        )  # fmt: skip
        await asyncio.gather(*(member.run(queue) for queue in self._queues()))
        return 0

    # -- the operator

    async def _operate(self, process: Process) -> int:
        """Till the end, and then sees to it that every topic can be read to its last queue."""
        client = RecordingClient(self.history, OPERATOR)
        operator = _Operator(client, self, process.environment.rng)
        while not self.is_stopping:
            if not self.options.operation_ms:
                await asyncio.sleep(1.0)
                continue
            await asyncio.sleep(process.environment.rng.random() * 2 * self.options.operation_ms / 1_000)
            await operator.do_something()
        self._are_topics_there = False
        for topic in self.topics:
            while not await operator.put_topic(topic, QUEUES_MAX):
                await asyncio.sleep(0.5)
        self._are_topics_there = True
        await asyncio.get_running_loop().create_future()
        return 0

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        await read_queues_back(self.history, process.machine.name, address, self._queues())
        return 0


class _Operator:
    """Does one thing after the other at the broker that takes messages."""

    def __init__(self, client: RemotingClient, workload: GroupWorkload, rng: random.Random) -> None:
        self._client = client
        self._routes = RouteTable(client, NAME_SERVER)
        self._workload = workload
        self._rng = rng

    async def do_something(self) -> None:
        topic = self._rng.choice(self._workload.topics)
        kind = self._rng.choice(("put", "put", "delete", "reset", "reset"))
        if kind == "put":
            await self.put_topic(topic, self._rng.randint(1, QUEUES_MAX))
        elif kind == "delete":
            await self._delete_own()
        else:
            await self._set_back(self._rng.choice(self._workload.groups), topic)

    async def put_topic(self, topic: str, queues: int) -> bool:
        """Make the topic or change how many queues it has; whether it is known to be done."""
        header = CreateTopicRequestHeader(topic, DEFAULT_TOPIC, queues, queues)
        return await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header) is Outcome.OK

    async def _delete_own(self) -> None:
        """A topic that no client here counts on: what a deletion does to messages and offsets is looked at in
        workloads_deletions.py.
        """
        await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(OWN_TOPIC))
        await self.put_topic(OWN_TOPIC, self._rng.randint(1, QUEUES_MAX))

    async def _set_back(self, group: Group, topic: str) -> None:
        """To an offset that the group has passed; the queue's consumer may overwrite it."""
        queue_id = self._rng.randrange(QUEUES_MAX)
        known = QueryConsumerOffsetRequestHeader(group.name, topic, queue_id, set_zero_if_not_found=False)
        answer, _ = await self._invoke(RequestCode.QUERY_CONSUMER_OFFSET, known)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        offset = self._rng.randint(0, int(answer.ext_fields["offset"]))
        header = UpdateConsumerOffsetRequestHeader(group.name, topic, queue_id, offset)
        await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _ask(self, code: RequestCode, header: RequestHeader) -> Outcome:
        return (await self._invoke(code, header))[1]

    async def _invoke(
        self, code: RequestCode, header: RequestHeader
    ) -> tuple[RemotingCommand | None, Outcome]:
        try:
            address = await leader_of_all(self._routes)
            if address is None:
                return None, Outcome.FAIL
            request = RemotingCommand(code, ext_fields=header.ext_fields())
            answer = await self._client.invoke(address, request, TIMEOUT_S)
        except (ClientError, ConnectFailedError):
            return None, Outcome.FAIL
        except RemotingError:
            return None, Outcome.INFO
        if answer.code == ResponseCode.SUCCESS:
            return answer, Outcome.OK
        return answer, Outcome.FAIL if answer.code in NOT_DONE else Outcome.INFO


def group_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=group_workload)`."""
    return GroupWorkload(draw_group_options(options.seed), options.seed, history)
