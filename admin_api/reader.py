"""Asks the name server and every node for the picture of the cluster."""

import time
from collections.abc import Callable, Iterable

from admin_api.assemble import Answer, assemble
from admin_api.gateway import AskError, Gateway
from admin_api.memory import Memory
from admin_api.schemas.cluster import ClusterView, NamesrvView, NodeState
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
        """One look at everything. Never raises for what a broker or the name server does or fails to do."""
        now_ms = self._now_ms()
        namesrv = await self._read_namesrv()
        answers: dict[str, Answer] = {}
        await self._ask_all({entry.address for entry in self._listed} | self._memory.addresses(), answers)
        statuses = [answer.status for answer in answers.values() if answer.status is not None]
        await self._ask_all(peer_addresses(statuses), answers)
        for answer in answers.values():
            if answer.status is not None:
                self._memory.remember(answer.status, now_ms)
        return assemble(namesrv, self._listed, answers, self._memory, now_ms)

    async def _read_namesrv(self) -> NamesrvView:
        """Refreshes the list of brokers; without an answer the one known before stays in use."""
        address = self._settings.namesrv
        try:
            self._listed = await read_listed(self._gateway, self._settings)
        except AskError as error:
            return NamesrvView(address=address, state=NodeState.DOWN, problem=str(error))
        return NamesrvView(address=address, state=NodeState.UP)

    async def _ask_all(self, addresses: Iterable[str], answers: dict[str, Answer]) -> None:
        new = sorted(set(addresses) - answers.keys())[: self._settings.nodes_max]
        for answer in (await self._gateway.ask_each(new, self._ask_node)).answers.values():
            answers[answer.address] = answer

    async def _ask_node(self, address: str) -> Answer:
        try:
            return Answer(address, await read_node_status(self._gateway, address))
        except AskError as error:
            return Answer(address, None, str(error), is_stock=error.code is not None)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
