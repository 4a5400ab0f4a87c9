"""Clients of several groups: producers that choose queues as the stock client does, consumers of all."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from commitlog.record import format_properties
from ledgermq.messaging import Consumer, Delivery
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import Queue as RoutedQueue
from remoting.client.routes import publish_queues
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.headers.consume import ConsumerSendMsgBackRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.histories.operations import Crash, Outcome, Poll, Queue, Send
from tests.node_simulation.clients import History, RecordingClient, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options
from tests.node_simulation.topic_client import read_queues_back
from tests.node_simulation.workloads_sending import send_once

TOPIC = "T0"
TRIES_MAX = 3
SEND_TIMEOUT_S = 3.0
"""Of a send with all its tries, as the stock client's."""
PAUSE_S = 0.5
DELAY_LEVELS = ("1", "2", "3")
"""One second, five, and ten."""


@dataclass(slots=True)
class StockProducer:
    """Queues in turn over all groups; after a failed try one of another group. Routes are asked for now and
    then, and before a send only where there is none: a group is chosen for a while after it has left them.
    """

    client: RemotingClient
    routes: RouteTable
    history: History
    rng: random.Random
    route_ms: int
    queues: list[RoutedQueue] = field(default_factory=list)
    _turn: int = 0

    async def follow_routes(self) -> None:
        while True:
            await self._ask_for_route()
            await asyncio.sleep(self.route_ms / 1_000)

    async def _ask_for_route(self) -> None:
        with contextlib.suppress(ClientError):
            route = await self.routes.request(TOPIC)
            if route is not None:
                self.queues = publish_queues(route)

    def _choose(self, avoided: str | None) -> RoutedQueue | None:
        for _ in self.queues:
            self._turn += 1
            queue = self.queues[self._turn % len(self.queues)]
            if queue.broker_name != avoided:
                return queue
        return self.queues[self._turn % len(self.queues)] if self.queues else None

    async def send(self, body: bytes, properties: dict[str, str]) -> "Sent":
        sent, avoided = Sent(), None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + SEND_TIMEOUT_S
        if not self.queues:
            await self._ask_for_route()
        while sent.tries < TRIES_MAX and loop.time() < end_s:
            queue = self._choose(avoided)
            if queue is None:
                return sent
            sent.tries += 1
            header = self._header(queue, properties)
            outcome, answer = await send_once(
                self.client, queue.address, header, body, max(0.01, end_s - loop.time())
            )
            if outcome is Outcome.OK and answer is not None:
                ext = answer.ext_fields
                sent.outcome, sent.group = outcome, queue.broker_name
                sent.queue = self.history.queue(queue.address, TOPIC, int(ext["queueId"]))
                sent.offset = int(ext["queueOffset"])
                return sent
            if outcome is Outcome.INFO:
                sent.outcome = outcome
            avoided = queue.broker_name
        return sent

    def _header(self, queue: RoutedQueue, properties: dict[str, str]) -> SendMessageRequestHeader:
        return SendMessageRequestHeader(
            producer_group="producers",
            topic=TOPIC,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp_ms=self.history.now // 1_000,
            properties=format_properties(properties).decode(),
        )


@dataclass(slots=True)
class Sent:
    """How a send ended. `group`: the broker name of who acknowledged it."""

    outcome: Outcome = Outcome.FAIL
    tries: int = 0
    group: str = ""
    queue: Queue | None = None
    offset: int = 0


class GroupsWorkload:
    """The world's `Workload`. Every second producer sends seldom; each consumer is a group of its own."""

    def __init__(self, options: Options, history: History, name_servers: Sequence[str]) -> None:
        assert options.groups is not None
        self.options = options.workload
        self.history = history
        self.acknowledged: dict[str, set[str]] = {}
        """By broker name."""
        self.taken: dict[str, set[str]] = {f"c{number}": set() for number in range(self.options.consumers)}
        self.is_stopping = False
        self._groups = options.groups
        self._name_servers = name_servers
        self._in_flight = 0
        self._values = count()

    def programs(self) -> dict[str, Program]:
        programs: dict[str, Program] = {name: partial(self._consume, name) for name in self.taken}
        for number in range(max(2, self.options.producers)):
            programs[f"p{number}"] = partial(self._produce, number)
        return programs

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_stopping and self._in_flight == 0 and not any(map(self.unread_of, self.acknowledged))

    def unread_of(self, group: str) -> set[str]:
        """What the group's brokers have acknowledged and some consumer has not got."""
        stored = self.acknowledged.get(group, set())
        return set().union(*(stored - taken for taken in self.taken.values()))

    def count_acknowledged(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def describe(self) -> str:
        unread = {group: sorted(self.unread_of(group))[:3] for group in self.acknowledged}
        return f"{self.count_acknowledged()} acknowledged, {self._in_flight} in flight, unread {unread}"

    def crashed(self, name: str) -> None:
        processes = {each.process for each in self.history.operations if isinstance(each, Poll)}
        for process in sorted(each for each in processes if each.startswith(f"{name}/")):
            self.history.add(Crash(process, self.history.now))

    def _namesrv(self, number: int) -> str:
        """Clients begin with different name servers."""
        at = number % len(self._name_servers)
        return ";".join([*self._name_servers[at:], *self._name_servers[:at]])

    # -- producers

    async def _produce(self, number: int, process: Process) -> int:
        name, rng = f"p{number}", process.environment.rng
        client = RemotingClient()
        producer = StockProducer(
            client, RouteTable(client, self._namesrv(number)), self.history, rng, self._groups.route_ms
        )
        routes = asyncio.create_task(producer.follow_routes())
        interval_ms = self._groups.slow_interval_ms if number % 2 else self.options.interval_ms
        while not routes.done():
            await asyncio.sleep(rng.random() * 2 * interval_ms / 1_000)
            if producer.queues and not self.is_stopping:
                await self._send(producer, name, rng)
        await routes
        return 0

    async def _send(self, producer: StockProducer, name: str, rng: random.Random) -> None:
        """The history has it in every case."""
        value, invoked = f"v{next(self._values)}", self.history.now
        body = body_of(value, rng.randint(0, self.options.body_bytes_max))
        is_delayed = rng.random() < self._groups.delay_probability
        properties = {"DELAY": rng.choice(DELAY_LEVELS)} if is_delayed else {}
        sent, completed = Sent(Outcome.INFO), None
        self._in_flight += 1
        try:
            sent = await producer.send(body, properties)
            completed = self.history.now
        finally:
            self._in_flight -= 1
            tries = None if completed is None or is_delayed else sent.tries
            is_placed = sent.queue is not None and not is_delayed
            self.history.add(
                Send(
                    name, invoked, completed, sent.outcome, (value,), sent.queue if is_placed else None,
                    (sent.offset,) if is_placed else (), tries,
                )
            )  # fmt: skip
        if sent.outcome is Outcome.OK:
            self.acknowledged.setdefault(sent.group, set()).add(value)

    # -- consumers

    async def _consume(self, name: str, process: Process) -> int:
        """The topic, and what the group sends back: that comes again from its own topic, and only the topic's
        own queues are in the history.
        """
        rng = process.environment.rng
        await asyncio.gather(
            self._read(RecordingClient(self.history, name), name, TOPIC, rng),
            self._read(RemotingClient(), name, f"%RETRY%group-{name}", rng),
        )
        return 0

    async def _read(self, client: RemotingClient, name: str, topic: str, rng: random.Random) -> None:
        while True:
            with contextlib.suppress(ClientError):
                async with Consumer(client, self._namesrv(int(name[1:])), topic, f"group-{name}") as consumer:
                    async for delivery in consumer.messages():
                        is_refused = topic == TOPIC and rng.random() < self._groups.retry_probability
                        if not (is_refused and await self._send_back(consumer, delivery, name)):
                            self.taken[name].add(value_of(delivery.record.body))
                        consumer.consume(delivery)
            if topic == TOPIC:
                self.crashed(name)
            await asyncio.sleep(PAUSE_S)

    async def _send_back(self, consumer: Consumer, delivery: Delivery, name: str) -> bool:
        """Whether the message will come again, a second later; else the client has to take it now."""
        position = delivery.record.physical_offset
        header = ConsumerSendMsgBackRequestHeader(position, f"group-{name}", 1, origin_topic=TOPIC)
        request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=header.ext_fields())
        try:
            answer = await consumer._client.invoke(consumer._queues[delivery.queue].address, request)
        except RemotingError:
            return False
        return answer.code == ResponseCode.SUCCESS

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        queues = [Queue(TOPIC, number) for number in range(self.options.queues)]
        await read_queues_back(self.history, process.machine.name, address, queues)
        return 0
