"""Whole nodes without random faults, for scenarios that are scripted step by step.

    with Script() as script:
        sender = script.client("a", program)
        script.kill(script.leader().name)
        ...
        report = script.finish()

A client's program is a coroutine that gets a `Client`; what it returns is in `Client.result`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from remoting.client.aio import RouteTable
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.fields import RequestHeader
from remoting.route import DEFAULT_TOPIC, TopicRoute
from tests.histories.checker import check
from tests.histories.operations import Queue
from tests.histories.words import Report
from tests.node_simulation.clients import History, RecordingClient
from tests.node_simulation.machine import Machine, Process, Program
from tests.node_simulation.options import FaultOptions, Options
from tests.node_simulation.programs import LISTEN_PORT
from tests.node_simulation.topic_client import NAME_SERVER, leader_of_all, read_queues_back
from tests.node_simulation.workloads_sending import Producer, ProducerOptions
from tests.node_simulation.world import World
from tests.simulation.invariants import require

FILES = {"data_file_bytes": 64 << 10, "index_file_bytes": 16 << 10, "queue_file_bytes": 2_000}
TOPIC = "T"
QUEUES = 2
TIMEOUT_S = 1.0
PAUSE_S = 0.02
ClientProgram = Callable[["Client"], Awaitable[object]]


class NoWorkload:
    """The world's `Workload` for clients that a script starts itself."""

    def __init__(self, history: History) -> None:
        self.history = history

    def programs(self) -> dict[str, Program]:
        return {}

    def stop(self) -> None: ...

    def is_done(self) -> bool:
        return True

    def count_acknowledged(self) -> int:
        return 0

    def describe(self) -> str:
        return "scripted clients"

    def crashed(self, name: str) -> None: ...

    async def read_back(self, process: Process, address: str) -> int:
        queues = [Queue(TOPIC, number) for number in range(QUEUES)]
        await read_queues_back(self.history, process.machine.name, address, queues)
        return 0


class Client:
    """What a script's client can do. Answers are None while no node answers."""

    def __init__(self, name: str, process: Process, history: History) -> None:
        self.name = name
        self.history = history
        self.remoting = RecordingClient(history, name)
        self._routes = RouteTable(self.remoting, NAME_SERVER)
        self._values = 0
        self.acknowledged: list[str] = []
        self.result: object = None
        self.is_done = False
        self._rng = process.environment.rng

    async def route(self) -> TopicRoute | None:
        """What the name server says now."""
        try:
            return await self._routes.request(DEFAULT_TOPIC)
        except ClientError:
            return None

    async def leader(self) -> str | None:
        """The address that takes messages, as the name server has it."""
        try:
            return await leader_of_all(self._routes)
        except ClientError:
            return None

    async def ask(
        self, code: RequestCode, header: RequestHeader, address: str | None = None
    ) -> RemotingCommand | None:
        """One request, to the current leader unless an address is given."""
        return await self._ask(RemotingCommand(code, ext_fields=header.ext_fields()), address)

    async def _ask(self, request: RemotingCommand, address: str | None = None) -> RemotingCommand | None:
        target = address or await self.leader()
        if target is None:
            return None
        try:
            return await self.remoting.invoke(target, request, TIMEOUT_S)
        except RemotingError:
            return None

    async def ask_until_done(self, code: RequestCode, header: RequestHeader) -> RemotingCommand:
        while True:
            answer = await self.ask(code, header)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return answer
            await asyncio.sleep(PAUSE_S)

    async def make_group(self, name: str) -> None:
        """As an operator: offsets are stored for groups that are there."""
        code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"%b"}' % name.encode()
        while True:
            answer = await self._ask(RemotingCommand(code, body=body))
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return
            await asyncio.sleep(PAUSE_S)

    async def make_topic(self) -> None:
        header = CreateTopicRequestHeader(TOPIC, DEFAULT_TOPIC, QUEUES, QUEUES)
        await self.ask_until_done(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def send(self, tries_max: int = 1) -> bool:
        """One message of its own; whether it was acknowledged."""
        options = ProducerOptions(tries_max=tries_max, ordered_probability=0.0, queues=QUEUES)
        stored: list[str] = []
        producer = Producer(
            self.name, self.remoting, NAME_SERVER, self._rng, self.history, options,
            lambda _, values: stored.extend(values),
        )  # fmt: skip
        self._values += 1
        await producer.send(0, TOPIC, [f"{self.name}-{self._values}"])
        self.acknowledged += stored
        return bool(stored)


class Script:
    """Used with `with`: every process ends with it."""

    def __init__(
        self,
        nodes: int = 3,
        seed: int = 1,
        config: dict[str, Any] = FILES,
        faults: FaultOptions | None = None,
    ) -> None:
        """`faults` come between `world.faults.start()` and `stop()`."""
        self.world = World(
            Options(seed=seed, nodes=nodes, config=config, faults=faults or FaultOptions()),
            workload=lambda _, history: NoWorkload(history),
        )
        self.clients: list[Machine] = []

    def __enter__(self) -> Self:
        gc.disable()
        for machine in [self.world.name_server, *self.world.nodes.values()]:
            machine.start()
        self.world.run_until(self.world.is_writable, "a writable leader")
        self.client("first", Client.make_topic)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self.clients:
            if machine.process is not None:
                machine.process.loop.kill()
                machine.process.loop.bury()
        self.world._bury()
        gc.enable()
        gc.collect()

    # -- clients

    def start_client(self, name: str, work: ClientProgram) -> Client:
        """A client on a machine of its own begins; `Client.is_done` says when its program is over."""
        clients: list[Client] = []

        async def program(process: Process) -> int:
            client = Client(name, process, self.world.history)
            clients.append(client)
            client.result = await work(client)
            client.is_done = True
            await asyncio.get_running_loop().create_future()
            return 0

        machine = self.world._machine(name, f"10.0.4.{len(self.clients) + 1}", program)
        self.clients.append(machine)
        machine.start()
        self.world.run_until(lambda: bool(clients), f"{name} runs")
        return clients[0]

    def client(self, name: str, work: ClientProgram) -> Any:
        """A client's program from begin to end; what it returned."""
        client = self.start_client(name, work)
        self.until(lambda: client.is_done, f"{name} is done")
        return client.result

    # -- nodes

    def leader(self) -> Machine:
        """The running leader of the highest term."""
        leader = self.world.leader()
        assert leader is not None, self.world.describe()
        return leader

    def followers(self) -> list[Machine]:
        leader = self.leader()
        return [machine for machine in self.world.nodes.values() if machine is not leader]

    def address(self, machine: Machine) -> str:
        return f"{machine.ip}:{LISTEN_PORT}"

    def kill(self, *machines: Machine, is_power_lost: bool = False) -> None:
        for machine in machines:
            machine.stop_by_force(is_power_lost=is_power_lost)

    def ip_of(self, name: str) -> str:
        return next(machine.ip for machine in self.clients if machine.name == name)

    # -- time

    def run(self, duration_ms: int) -> None:
        self.world.run_for(duration_ms)

    def until(self, condition: Callable[[], bool], what: str, limit_ms: int = 30_000) -> None:
        self.world.run_until(condition, what, limit_ms)

    def until_writable(self) -> None:
        self.world.run_until(self.world.is_writable, "a writable leader", 30_000)

    def finish(self) -> Report:
        """The clients die, faults end, the nodes agree, everything is read: the clean history's report."""
        for machine in self.clients:
            if machine.is_up:
                machine.stop_by_force(is_power_lost=False)
        self.world.faults.stop()
        self.until_writable()
        self.until(self.world.is_converged, "all nodes at one end")
        self.world._read_back()
        self.until(self.world.is_converged, "all nodes at one end")
        self.world.checker.check_logs()
        report = check(self.world.history.operations)
        require(report.is_clean, report)
        return report
