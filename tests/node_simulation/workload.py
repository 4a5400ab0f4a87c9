"""The plain workload: producers that send numbered messages, consumers that read them, a reader at the end.

A workload brings programs for client machines. Another one is another class with the same methods.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ledgermq.client import Message, Producer
from ledgermq.client.session import Surroundings
from ledgermq.messaging import Consumer
from remoting.errors import ClientError
from tests.histories.operations import Crash, Outcome, Queue, Send
from tests.node_simulation.clients import History, RecordingClient, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import WorkloadOptions
from tests.node_simulation.topic_client import NAME_SERVER, read_queues_back


class Workload(Protocol):
    """What the world asks of a workload. Programs run until they are killed, or end with 0."""

    def programs(self) -> dict[str, Program]:
        """The clients, by the names of their machines."""

    def stop(self) -> None:
        """The faults are over: send nothing new."""

    def is_done(self) -> bool:
        """Whether everything acknowledged has reached whom it was meant for."""

    def count_acknowledged(self) -> int:
        """How many messages were acknowledged so far."""

    def describe(self) -> str: ...

    async def read_back(self, process: Process, address: str) -> int:
        """A last program, run when all is quiet: reads what is there, for the history."""

    def crashed(self, name: str) -> None:
        """The client was killed."""


@dataclass(slots=True)
class PlainWorkload:
    """Producers retry until acknowledged, every other one with numbers: none of its messages may be there
    twice. Each consumer is a group of its own.
    """

    options: WorkloadOptions
    history: History
    is_stopping: bool = False
    acknowledged: dict[str, set[str]] = field(default_factory=dict)
    taken: dict[str, set[str]] = field(default_factory=dict)
    _sent: int = 0
    _open: dict[str, Send] = field(default_factory=dict)

    def programs(self) -> dict[str, Program]:
        programs: dict[str, Program] = {}
        for number in range(self.options.producers):
            topic = f"T{number % self.options.topics}"
            self.acknowledged.setdefault(topic, set())
            programs[f"p{number}"] = partial(self._produce, f"p{number}", topic)
        for number in range(self.options.consumers):
            topic = list(self.acknowledged)[number % len(self.acknowledged)]
            self.taken[f"c{number}"] = set()
            programs[f"c{number}"] = partial(self._consume, f"c{number}", topic)
        return programs

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return not self._open and (self.history.has_lost or not any(self._missing().values()))

    def _missing(self) -> dict[str, set[str]]:
        topics = list(self.acknowledged)
        deleted = {value.decode(errors="replace") for value in self.history.retained.deleted}
        return {
            name: self.acknowledged[topics[int(name[1:]) % len(topics)]] - taken - deleted
            for name, taken in self.taken.items()
        }

    def count_acknowledged(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def describe(self) -> str:
        missing = {name: sorted(values)[:3] for name, values in self._missing().items() if values}
        return f"{sum(map(len, self.acknowledged.values()))} acknowledged, missing {missing}"

    def crashed(self, name: str) -> None:
        unanswered = self._open.pop(name, None)
        if unanswered is not None:
            self.history.add(unanswered)
        processes = {name} | {f"{name}/{Queue(topic, q)}" for topic in self.acknowledged for q in range(8)}
        for process in sorted(processes):
            self.history.add(Crash(process, self.history.now))

    # -- producers

    async def _produce(self, name: str, topic: str, process: Process) -> int:
        client = RecordingClient(self.history, name)
        rng = process.environment.rng
        surroundings = Surroundings(process.environment.wall_clock_ms, rng, lambda *_: client)
        producer = Producer(
            NAME_SERVER, send_timeout_s=20.0, idempotent=is_numbered(name), surroundings=surroundings
        )
        await producer.start()
        while True:
            await asyncio.sleep(rng.random() * 2 * self.options.interval_ms / 1_000)
            if self.is_stopping:
                await asyncio.sleep(3_600)
                continue
            self._sent += 1
            value = f"{name}-{self._sent}"
            await self._send(producer, name, topic, value, rng.randint(0, self.options.body_bytes_max))

    async def _send(self, producer: Producer, name: str, topic: str, value: str, size_bytes: int) -> None:
        invoked = self.history.now
        history = self.history
        copies = 1 if is_numbered(name) else None
        self._open[name] = Send(name, invoked, None, Outcome.INFO, (value,), tries=copies)
        try:
            result = await producer.send(Message(topic, body_of(value, size_bytes)))
        except ClientError:
            history.add(self._open.pop(name))
        else:
            del self._open[name]
            queue = Queue(topic, result.queue.queue_id)
            offsets = () if result.queue_offset is None else (result.queue_offset,)
            copies = copies or result.tries
            self.acknowledged[topic].add(value)
            history.add(Send(name, invoked, history.now, Outcome.OK, (value,), queue, offsets, copies))

    # -- consumers

    async def _consume(self, name: str, topic: str, process: Process) -> int:
        client = RecordingClient(self.history, name)
        while True:
            with contextlib.suppress(ClientError):
                async with Consumer(client, NAME_SERVER, topic, f"group-{name}") as consumer:
                    async for delivery in consumer.messages():
                        self.taken[name].add(value_of(delivery.record.body))
                        consumer.consume(delivery)
            self.crashed(name)
            await asyncio.sleep(0.5)

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        for unanswered in self._open.values():
            self.history.add(unanswered)
        self._open.clear()
        queues = [
            Queue(topic, number) for topic in self.acknowledged for number in range(self.options.queues)
        ]
        await read_queues_back(self.history, process.machine.name, address, queues)
        return 0


def is_numbered(name: str) -> bool:
    """Whether this producer numbers its messages."""
    return int(name[1:]) % 2 == 1
