"""Asks the name server and every node for the view of the cluster."""

import asyncio
import time
from collections.abc import Callable, Iterable

from admin_api.cluster.assemble import Answer, Memory, assemble
from admin_api.cluster.schemas import ClusterView, NamesrvView, NodeState
from admin_api.gateway import AskError, Gateway
from admin_api.settings import Settings
from admin_api.sources.brokers import Listed, peer_addresses, read_listed, read_node_status


class ClusterReader:
    """Reads the cluster on demand and remembers what it saw; it runs nothing of its own."""

    def __init__(self, gateway: Gateway, settings: Settings, now_ms: Callable[[], int] | None = None) -> None:
        self._gateway = gateway
        self._settings = settings
        self._now_ms = now_ms or _unix_ms
        self._memory = Memory(settings.nodes_max)
        self._listed: tuple[Listed, ...] = ()

    async def read(self) -> ClusterView:
        """One read of everything. Never raises for what a broker or the name server does or fails to do."""
        now_ms = self._now_ms()
        round_ = _Round(self._gateway, self._settings.nodes_max)
        namesrv, _ = await asyncio.gather(self._ask_listed(round_), round_.ask(self._memory.addresses()))
        answers = dict(sorted(round_.answers.items()))
        for answer in answers.values():
            if answer.status is not None:
                self._memory.remember(answer.status, now_ms)
        return assemble(namesrv, self._listed, answers, self._memory, now_ms)

    async def _ask_listed(self, round_: "_Round") -> NamesrvView:
        namesrv = await self._read_namesrv()
        await round_.ask(entry.address for entry in self._listed)
        return namesrv

    async def _read_namesrv(self) -> NamesrvView:
        """Refreshes the list of brokers; without an answer the one known before stays in use."""
        address = self._settings.namesrv
        try:
            self._listed = await read_listed(self._gateway, self._settings)
        except AskError as error:
            return NamesrvView(address=address, state=NodeState.DOWN, problem=str(error))
        return NamesrvView(address=address, state=NodeState.UP)


class _Round:
    """One read of all nodes: each is asked once, as soon as its address is known. All time-outs
    run concurrently.
    """

    def __init__(self, gateway: Gateway, nodes_max: int) -> None:
        self.answers: dict[str, Answer] = {}
        self._gateway = gateway
        self._nodes_max = nodes_max
        self._asked: set[str] = set()

    async def ask(self, addresses: Iterable[str]) -> None:
        """These, and those that they name for their peers."""
        room = self._nodes_max - len(self._asked)
        new = sorted(set(addresses) - self._asked)[:room]
        self._asked.update(new)
        await asyncio.gather(*map(self._ask_node, new))

    async def _ask_node(self, address: str) -> None:
        try:
            status = await read_node_status(self._gateway, address)
        except AskError as error:
            self.answers[address] = Answer(address, None, str(error), is_stock=error.code is not None)
        else:
            self.answers[address] = Answer(address, status)
            await self.ask(peer_addresses([status]))


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
