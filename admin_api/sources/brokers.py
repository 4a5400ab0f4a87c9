"""Which brokers exist, and which of them accept writes (requests 106 and 65001)."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pydantic import ValidationError

from admin_api.cached import Cached
from admin_api.gateway import AskError, Gateway, Trouble, outcome
from admin_api.settings import Settings
from admin_api.sources.name_server import NameServersSource
from broker.admin.types import NodeRole, NodeStatusMessage
from remoting.client.routes import merged_cluster_infos
from remoting.codes import RequestCode, ResponseCode
from remoting.route import MASTER_ID, ClusterInfo

STATUS_BYTES_MAX = 1024 * 1024
STOCK_REMEMBERED_S = 60.0
"""How long a broker that does not know LEDGERMQ_NODE_STATUS is not asked for it again."""
OTHERS_AFTER_S: Final = 0.2
"""A listed master that does not answer for so long may hang: the others are asked before that is known."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One address that name servers list."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """The brokers at one time.

    `masters`: broker name -> the address that takes its writes; a name without one is in `troubles`.
    `statuses`: the answers of LedgerMQ nodes that had to be asked to know this.
    """

    listed: tuple[Listed, ...]
    masters: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[str, NodeStatusMessage] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every listed address, and those that nodes name for their peers."""
        peers = (peer.remoting_address for status in self.statuses.values() for peer in status.peers)
        return tuple(dict.fromkeys([*(entry.address for entry in self.listed), *filter(None, peers)]))

    @property
    def readers(self) -> dict[str, str]:
        """Broker name -> whom to ask what it has: its master, or a node that answers while there is none."""
        nodes: dict[str, NodeStatusMessage] = {}
        for status in self.statuses.values():
            known = nodes.get(status.broker_name)
            if known is None or status.applied_index > known.applied_index:
                nodes[status.broker_name] = status
        return {**{name: status.remoting_address for name, status in nodes.items()}, **self.masters}


class BrokerDirectory:
    """Reads `BrokerSet`s on demand; one younger than `brokers_cache_ms` is given again."""

    def __init__(
        self, gateway: Gateway, settings: Settings, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._now_s = now_s
        self.name_servers = NameServersSource(gateway, settings)
        self._listed: tuple[Listed, ...] = ()
        self._stock_until_s: dict[str, float] = {}
        self._list = Cached(self._read_list, 0.0, now_s)
        self._set = Cached(self._read, settings.brokers_cache_ms / 1000, now_s)

    async def listed(self) -> tuple[Listed, ...]:
        """What the name servers list now: one read is shared by all concurrent callers.

        Raises: AskError.
        """
        return await self._list.get()

    async def current(self) -> BrokerSet:
        """Raises: AskError when no name server answers and no list is known from before."""
        return await self._set.get()

    async def masters(self) -> Mapping[str, str]:
        """Broker name -> the address that takes its writes. Raises: AskError as `current`."""
        return (await self.current()).masters

    async def is_ledgermq(self, address: str) -> bool:
        """Raises: AskError when it does not answer."""
        return await self.status_of(address) is not None

    async def status_of(self, address: str) -> NodeStatusMessage | None:
        """What a LedgerMQ node reports about itself; None for a stock broker.

        Raises: AskError, also when a broker refuses: a node may be busy, or not let this service ask.
        """
        if self._stock_until_s.get(address, 0.0) > self._now_s():
            return None
        try:
            return await read_node_status(self._gateway, address)
        except AskError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        if len(self._stock_until_s) >= self._settings.nodes_max:
            self._stock_until_s.clear()
        self._stock_until_s[address] = self._now_s() + STOCK_REMEMBERED_S
        return None

    def invalidate(self) -> None:
        """The next caller reads it again."""
        self._set.invalidate()

    async def _read_list(self) -> tuple[Listed, ...]:
        return listed_of(await self.name_servers.brokers(), self._settings.nodes_max)

    async def _read(self) -> BrokerSet:
        troubles: list[Trouble] = []
        try:
            self._listed = await self.listed()
        except AskError as error:
            if not self._listed:
                raise
            troubles.append(Trouble(error.address, str(error)))
        by_name: dict[str, list[Listed]] = {}
        for entry in self._listed:
            by_name.setdefault(entry.broker_name, []).append(entry)
        statuses: dict[str, NodeStatusMessage] = {}
        found = await asyncio.gather(*(self._find_master(entries, statuses) for entries in by_name.values()))
        masters: dict[str, str] = {}
        for name, master in zip(by_name, found, strict=True):
            if isinstance(master, Trouble):
                troubles.append(master)
            else:
                masters[name] = master
        return BrokerSet(self._listed, masters, statuses, tuple(troubles))

    async def _find_master(
        self, entries: Sequence[Listed], statuses: dict[str, NodeStatusMessage]
    ) -> str | Trouble:
        """The name server's word where the broker bears it out; where not, the other nodes are asked.

        A broker that keeps no group has only the name server's word: it is the master even when silent.
        """
        first = next((entry.address for entry in entries if entry.broker_id == MASTER_ID), None)
        problem = "the name server lists no master"
        if first is not None:
            status, error = await self._ask_first(first, entries, statuses)
            if status is not None:
                statuses[first] = status
                problem = f"{first} is {status.role} and accepts no writes"
            if error is not None:
                problem = str(error)
            elif status is None or leads(status):
                return first
        await self._ask_others(entries, first, statuses)
        own = [status for status in statuses.values() if status.broker_name == entries[0].broker_name]
        leader = max(filter(leads, own), key=_term, default=None)
        if leader is not None:
            return leader.remoting_address
        if first is not None and not own:
            return first
        return Trouble(first or entries[0].address, f"{entries[0].broker_name} accepts no writes: {problem}")

    async def _ask_first(
        self, first: str, entries: Sequence[Listed], statuses: dict[str, NodeStatusMessage]
    ) -> tuple[NodeStatusMessage | None, AskError | None]:
        """Its answer, or why there is none. Where that takes a while, the others are asked meanwhile."""
        asking = asyncio.ensure_future(outcome(self.status_of(first)))
        try:
            answered, _ = await asyncio.wait([asking], timeout=OTHERS_AFTER_S)
            if not answered:
                await self._ask_others(entries, first, statuses)
            return await asking
        finally:
            asking.cancel()

    async def _ask_others(
        self, entries: Sequence[Listed], first: str | None, statuses: dict[str, NodeStatusMessage]
    ) -> None:
        others = {entry.address for entry in entries} - {first}
        others |= _peer_addresses(statuses[first]) if first in statuses else set()
        gathered = await self._gateway.ask_each(sorted(others - statuses.keys()), self.status_of)
        statuses.update({at: status for at, status in gathered.answers.items() if status is not None})


def leads(status: NodeStatusMessage) -> bool:
    """Whether it takes writes."""
    return status.role is NodeRole.LEADER and status.is_writable and status.newer_generation is None


def _term(status: NodeStatusMessage) -> int:
    return -1 if status.term is None else status.term


def _peer_addresses(status: NodeStatusMessage) -> set[str]:
    return {peer.remoting_address for peer in status.peers if peer.remoting_address}


def peer_addresses(statuses: Iterable[NodeStatusMessage]) -> set[str]:
    """The addresses at which nodes report that their peers can be asked, and nodes of earlier generations."""
    found: set[str] = set()
    for status in statuses:
        found |= _peer_addresses(status)
        found |= {node.remoting_address for node in status.older_nodes if node.remoting_address}
    return found


async def read_node_status(gateway: Gateway, address: str) -> NodeStatusMessage:
    """Raises: AskError; its `code` is set where a broker does not know the request."""
    answer = await gateway.ask(address, RequestCode.LEDGERMQ_NODE_STATUS)
    return parse_node_status(address, answer.body)


def parse_node_status(address: str, body: bytes) -> NodeStatusMessage:
    """Raises: AskError when the body is too long or is no node status."""
    if len(body) > STATUS_BYTES_MAX:
        raise AskError(address, f"its status has {len(body)} bytes, {STATUS_BYTES_MAX} are allowed")
    try:
        return NodeStatusMessage.from_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise AskError(address, f"its status cannot be read: {where}: {first['msg']}") from error


def listed_of(infos: Iterable[ClusterInfo], brokers_max: int) -> tuple[Listed, ...]:
    """The first `brokers_max` addresses in the lists of the name servers. The longest list comes first: one
    that has just started knows some nodes of a broker, and hides no others.
    """
    merged = merged_cluster_infos(sorted(infos, key=lambda info: len(addresses_in(info)), reverse=True))
    listed = (
        Listed(broker.cluster, broker.broker_name, broker_id, address)
        for broker in merged.brokers.values()
        for broker_id, address in broker.broker_addrs.items()
    )
    return tuple(islice(listed, brokers_max))


def addresses_in(info: ClusterInfo) -> set[str]:
    """Of all nodes in a name server's list."""
    return {address for broker in info.brokers.values() for address in broker.broker_addrs.values()}
