"""The workload of the Python client: its producer, and a group of each kind of its consumers.

Each acknowledged message is handled by a member of every group in the end. Members of the ordered group
handle no two messages of a queue at once, and none before all that lie below it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ledgermq.client import (
    Message,
    MessageQueue,
    MessagingError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SimpleConsumer,
    TopicNotFoundError,
    Where,
)
from ledgermq.client.session import Surroundings
from remoting.topic_names import RETRY_PREFIX
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options, draw_options
from tests.node_simulation.topic_client import NAME_SERVER
from tests.node_simulation.workload import Workload
from tests.simulation.invariants import InvariantError, require

TOPIC = "T0"
PUSH, ORDERED, POP, PULL = "push", "ordered", "pop", "pull"
SEND_TIMEOUT_S = 20.0
INVISIBLE_S = 3.0
POLL_S = 1.0
PAUSE_S = 0.3


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a seed draws. fail_probability: of a handler, until the faults are over."""

    producers: int = 2
    members: int = 2
    interval_ms: int = 100
    work_max_ms: int = 20
    fail_probability: float = 0.05


def draw_client_options(seed: int) -> ClientOptions:
    """Always the same for a seed."""
    rng = random.Random(f"client workload {seed}")
    return ClientOptions(
        producers=rng.choice((1, 2)),
        members=rng.choice((1, 2, 3)),
        interval_ms=rng.choice((50, 150, 400)),
        work_max_ms=rng.choice((0, 20, 200)),
        fail_probability=rng.choice((0.0, 0.05, 0.2)),
    )


@dataclass(slots=True)
class Order:
    """What the ordered group has done. `finished`: the offset behind the last finished message, by queue."""

    finished: dict[MessageQueue, int] = field(default_factory=dict)
    busy: dict[MessageQueue, str] = field(default_factory=dict)

    def begin(self, member: str, message: ReceivedMessage) -> None:
        queue, offset = message.queue, message.queue_offset
        require(queue not in self.busy, queue, "is handled by", member, "and", self.busy.get(queue))
        expected = self.finished.get(queue, 0)
        require(offset <= expected, queue, "offset", offset, "is handled before", expected)
        self.busy[queue] = member

    def end(self, message: ReceivedMessage, *, is_done: bool) -> None:
        del self.busy[message.queue]
        if is_done:
            known = self.finished.get(message.queue, 0)
            self.finished[message.queue] = max(known, message.queue_offset + 1)

    def crashed(self, member: str) -> None:
        self.busy = {queue: holder for queue, holder in self.busy.items() if holder != member}


class ClientWorkload:
    """See the module; the world's `Workload`."""

    def __init__(self, options: ClientOptions, seed: int, history: History) -> None:
        self.options = options
        self.history = history
        self.sent: set[str] = set()
        self.handled: dict[str, set[str]] = {group: set() for group in (PUSH, ORDERED, POP, PULL)}
        self.order = Order()
        self.failures = 0
        self.is_stopping = False
        self._rng = random.Random(f"client workload's choices {seed}")
        self._values = 0

    def programs(self) -> dict[str, Program]:
        programs: dict[str, Program] = {
            f"p{number}": partial(self._produce, f"p{number}") for number in range(self.options.producers)
        }
        for number in range(self.options.members):
            programs[f"m{number}"] = partial(self._push, f"m{number}")
            programs[f"o{number}"] = partial(self._push_ordered, f"o{number}")
        programs["s0"] = partial(self._pop, "s0")
        programs["r0"] = partial(self._pull, "r0")
        return programs

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_stopping and (self.history.has_lost or not any(map(self._missing, self.handled)))

    def _missing(self, group: str) -> set[str]:
        deleted = {value.decode(errors="replace") for value in self.history.retained.deleted}
        return self.sent - self.handled[group] - deleted

    def count_acknowledged(self) -> int:
        return len(self.sent)

    def describe(self) -> str:
        missing = {group: sorted(self._missing(group))[:3] for group in self.handled}
        return f"{len(self.sent)} sent, missing {missing}"

    def crashed(self, name: str) -> None:
        self.order.crashed(name)

    async def read_back(self, process: Process, address: str) -> int:
        return 0

    def _surroundings(self, process: Process) -> Surroundings:
        return Surroundings(process.environment.wall_clock_ms, process.environment.rng)

    # -- producers

    async def _produce(self, name: str, process: Process) -> int:
        rng = process.environment.rng
        async with Producer(
            NAME_SERVER,
            send_timeout_s=SEND_TIMEOUT_S,
            client_name=name,
            surroundings=self._surroundings(process),
        ) as producer:
            while True:
                await asyncio.sleep(rng.random() * 2 * self.options.interval_ms / 1_000)
                if self.is_stopping:
                    continue
                self._values += 1
                value = f"v{self._values}"
                try:
                    await producer.send(Message(TOPIC, body_of(value, 64)))
                except MessagingError:
                    continue
                self.sent.add(value)

    # -- consumers

    async def _push(self, name: str, process: Process) -> int:
        return await self._run_push(process, name, PUSH, self._handle)

    async def _push_ordered(self, name: str, process: Process) -> int:
        return await self._run_push(process, name, ORDERED, partial(self._handle_in_order, name))

    async def _run_push(
        self,
        process: Process,
        name: str,
        group: str,
        handler: Callable[[ReceivedMessage], Coroutine[Any, Any, None]],
    ) -> int:
        while True:
            consumer = PushConsumer(
                NAME_SERVER,
                handler,
                group=group,
                topics=TOPIC,
                ordered=group == ORDERED,
                consume_from=Where.BEGINNING,
                concurrency=4,
                suspend_s=0.1,
                client_name=name,
                surroundings=self._surroundings(process),
            )
            try:
                await consumer.start()
            except MessagingError:
                await asyncio.sleep(PAUSE_S)
                continue
            while not self._goes_away():
                await asyncio.sleep(POLL_S)
            await consumer.close()

    def _goes_away(self) -> bool:
        """Members leave in order now and then, and come back."""
        return not self.is_stopping and self._rng.random() < 0.02

    async def _handle(self, message: ReceivedMessage) -> None:
        await self._work()
        self.handled[PUSH].add(value_of(message.body))

    async def _handle_in_order(self, member: str, message: ReceivedMessage) -> None:
        if message.queue.topic.startswith(RETRY_PREFIX):
            self.handled[ORDERED].add(value_of(message.body))
            return
        try:
            self.order.begin(member, message)
        except InvariantError as error:  # the consumer takes it for a failure of its handler
            asyncio.get_running_loop().call_exception_handler({"message": "order", "exception": error})
            raise
        is_done = False
        try:
            await self._work()
            self.handled[ORDERED].add(value_of(message.body))
            is_done = True
        finally:
            self.order.end(message, is_done=is_done)

    async def _work(self) -> None:
        await asyncio.sleep(self._rng.random() * self.options.work_max_ms / 1_000)
        if not self.is_stopping and self._rng.random() < self.options.fail_probability:
            self.failures += 1
            raise RetryLater(delay_level=1)

    async def _pop(self, name: str, process: Process) -> int:
        while True:
            try:
                async with SimpleConsumer(
                    NAME_SERVER,
                    group=POP,
                    topics=TOPIC,
                    client_name=name,
                    surroundings=self._surroundings(process),
                ) as consumer:
                    while True:
                        await self._receive(consumer)
            except MessagingError:
                await asyncio.sleep(PAUSE_S)

    async def _receive(self, consumer: SimpleConsumer) -> None:
        for message in await consumer.receive(8, invisible_s=INVISIBLE_S, wait_s=POLL_S):
            if not self.is_stopping and self._rng.random() < self.options.fail_probability:
                continue
            await consumer.ack(message)
            self.handled[POP].add(value_of(message.body))

    async def _pull(self, name: str, process: Process) -> int:
        while True:
            try:
                async with PullConsumer(
                    NAME_SERVER, group=PULL, client_name=name, surroundings=self._surroundings(process)
                ) as consumer:
                    await consumer.assign(await consumer.queues(TOPIC))
                    while True:
                        for message in await consumer.poll(timeout_s=POLL_S):
                            self.handled[PULL].add(value_of(message.body))
                        await consumer.commit()
            except (MessagingError, TopicNotFoundError):
                await asyncio.sleep(PAUSE_S)


def client_options(seed: int) -> Options:
    """A seed's options."""
    return draw_options(seed)


def client_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=client_workload)`."""
    return ClientWorkload(draw_client_options(options.seed), options.seed, history)
