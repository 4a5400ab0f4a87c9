"""The operator of several groups: he makes topics, adds a group, drains one and removes it, with what the
admin service has for that. His machine may be killed: he goes on where he was.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from admin_api.changes import ChangeRefusedError, FunctionChange
from admin_api.cluster.draining import AcceptedMessages, Draining, address_of_leader
from admin_api.cluster.reader import ClusterReader
from admin_api.cluster.replication import Replication
from admin_api.errors import ServiceError
from admin_api.gateway import AskError, Gateway
from admin_api.settings import Settings
from admin_api.sources.brokers import BrokerDirectory
from admin_api.sources.topics import TopicConfig, TopicSource
from remoting.client.aio import RemotingClient, RouteTable
from remoting.errors import ClientError
from remoting.route import TopicRoute
from tests.node_simulation.machine import Process
from tests.node_simulation.options import GroupsOptions
from tests.node_simulation.workloads_groups import TOPIC

PAUSE_S = 0.5
REMOVE_MAX_S = 1.0
"""Between his look and the end of the nodes."""
REFUSED = (ServiceError, AskError, ChangeRefusedError)


@dataclass(slots=True)
class Sites:
    """What a world offers. `names`: the groups that are there; `add`: starts one and returns its name;
    `remove`: its nodes are stopped and never started again.
    """

    names: Callable[[], Sequence[str]]
    add: Callable[[], str]
    remove: Callable[[str], None]
    count: Callable[[str], None]
    trace: Callable[[str, str], None]


@dataclass(slots=True)
class GroupsOperator:
    """`routes`: what each name server last said of the topic."""

    options: GroupsOptions
    rng: random.Random
    sites: Sites
    name_servers: Sequence[str]
    queues: int
    began_ms: int | None = None
    """When the faults began, by the world's clock."""
    routes: dict[str, TopicRoute | None] = field(default_factory=dict)
    is_over: bool = False
    _made: set[str] = field(default_factory=set)
    """Groups that have their topics."""
    _added: str | None = None
    _draining: str | None = None
    _is_drained: bool = False

    async def __call__(self, process: Process) -> int:
        client = RemotingClient()
        watching = [asyncio.create_task(self._watch(client, each)) for each in self.name_servers]
        await self._work(_Tools(client, process, ";".join(self.name_servers), self.options.quiet_ms), process)
        self.is_over = True
        await asyncio.gather(*watching)
        return 0

    async def _work(self, tools: "_Tools", process: Process) -> None:
        for name in self.sites.names():
            if name not in self._made:
                await self._until_done(partial(self._make_topic, tools, name))
                self._made.add(name)
        while self.began_ms is None:
            await asyncio.sleep(PAUSE_S)
        works = [(self.options.add_ms, self._add), (self.options.drain_ms, self._drain)]
        for at_ms, work in sorted(((at, work) for at, work in works if at), key=lambda each: each[0]):
            now_ms = process.machine.surroundings.clock.now_us // 1_000
            await asyncio.sleep(max(0, self.began_ms + at_ms - now_ms) / 1_000)
            await work(tools)

    async def _until_done(self, step: Callable[[], Awaitable[bool]]) -> None:
        while True:
            try:
                if await step():
                    return
            except REFUSED as error:
                self.sites.trace("operator", f"{error}")
            await asyncio.sleep(PAUSE_S)

    async def _make_topic(self, tools: "_Tools", name: str) -> bool:
        config = TopicConfig(
            topic_name=TOPIC, read_queue_nums=self.queues, write_queue_nums=self.queues, perm=6
        )
        await tools.topics.put(await tools.leader(name), config, "")
        return True

    # -- a new group

    async def _add(self, tools: "_Tools") -> None:
        if self._added is None:
            self._added = self.sites.add()
        await self._until_done(partial(self._copy_settings, tools, self._added))
        if self._added not in self._made:
            self.sites.count("group added")
            self._made.add(self._added)

    async def _copy_settings(self, tools: "_Tools", name: str) -> bool:
        source = next(each for each in self.sites.names() if each in self._made)
        return await _carry_out(tools.draining.copy_settings(source, name))

    # -- one that leaves

    async def _drain(self, tools: "_Tools") -> None:
        if self._is_drained:
            return
        if self._draining is None:
            self._draining = self.rng.choice([each for each in self.sites.names() if each in self._made])
        name = self._draining
        await self._until_done(
            lambda: _carry_out(tools.draining.accept(name, AcceptedMessages(accepted=False)))
        )
        self.sites.trace("operator", f"drains {name}")
        await self._until_done(partial(self._is_left, tools, name))
        refused = AcceptedMessages(accepted=False, refused=True)
        await self._until_done(lambda: _carry_out(tools.draining.accept(name, refused)))
        await self._until_done(partial(self._is_left, tools, name))
        await asyncio.sleep(self.rng.random() * REMOVE_MAX_S)
        self._is_drained = True
        self.sites.remove(name)

    async def _is_left(self, tools: "_Tools", name: str) -> bool:
        view = await tools.draining.view(name)
        self.sites.trace("operator", f"{name}: {view.reasons or 'nothing is left'}")
        return view.is_drained

    # -- routes

    async def _watch(self, client: RemotingClient, name_server: str) -> None:
        routes = RouteTable(client, name_server)
        while True:
            try:
                self.routes[name_server] = await routes.request(TOPIC)
            except ClientError:
                self.routes.pop(name_server, None)
            await asyncio.sleep(PAUSE_S)


async def _carry_out(change: FunctionChange) -> bool:
    """Whether there is nothing left to change: looked at again after each try."""
    preview = await change.preview()
    if preview.effects:
        await change.carry_out(preview)
    return not preview.effects


class _Tools:
    """The parts of the admin service, on the simulated clock."""

    def __init__(self, client: RemotingClient, process: Process, namesrv: str, quiet_ms: int) -> None:
        now_s = asyncio.get_running_loop().time
        settings = Settings(namesrv=namesrv)
        gateway = Gateway(client, settings, now_s)
        directory = BrokerDirectory(gateway, settings, now_s)
        reader = ClusterReader(gateway, settings, process.environment.wall_clock_ms)
        self._replication = Replication(gateway, directory, reader)
        self.draining = Draining(gateway, self._replication, quiet_ms)
        self.topics = TopicSource(gateway)

    async def leader(self, name: str) -> str:
        """Raises: ServiceError."""
        return address_of_leader(await self._replication.find(name))
