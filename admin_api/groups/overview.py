"""All consumer groups of the cluster, with two requests to each broker however many groups there are.

LedgerMQ returns lag and members of all groups in one answer (65005). A stock broker returns all settings
(201) and, on demand, all lags (317); connected clients it returns only per group (203), so they are read for
one page.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from pydantic import Field

from admin_api.cached import Cached
from admin_api.errors import UnavailableError
from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.schema import Schema
from admin_api.sources.brokers import BrokerDirectory, BrokerSet
from admin_api.sources.groups import Connections, GroupConfig, GroupSource
from admin_api.sources.offsets import OffsetSource
from broker.admin.types import GroupProgress, ProgressMessage


class GroupPresence(StrEnum):
    """ONLINE: a consumer is connected. OFFLINE: every broker says that none is. UNKNOWN: not known."""

    ONLINE = "online"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class GroupSort(StrEnum):
    """What the list is ordered by."""

    NAME = "name"
    LAG = "lag"
    MEMBERS = "members"
    RATE = "rate"


class ConsumerGroupItem(Schema):
    """One group in the list."""

    group: str
    brokers: list[str] = Field(description="names of the brokers that have its settings")
    is_system: bool = Field(description="one of RocketMQ's own")
    presence: GroupPresence
    members: int | None = Field(
        description="connected consumers; each counts once, however many brokers know it"
    )
    message_model: str | None = Field(description="CLUSTERING or BROADCASTING, as its consumers say")
    consume_type: str | None = Field(
        description="CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull), CONSUME_POP"
    )
    consume_enabled: bool | None = Field(description="null where brokers differ")
    lag: int | None = Field(
        description="messages not consumed yet in all topics, retries included; null for a group that has no "
        "offset, for one that broadcasts (its consumers keep their offsets), and where it was not asked for"
    )
    is_lag_partial: bool = Field(description="a broker that may have more of it did not answer")
    unknown_queues: int | None = Field(description="queues with messages that it has no offset for")
    lag_by_topic: dict[str, int | None] = Field(default={}, description="the same by topic")
    consume_tps: float | None = Field(description="messages a second over the last minute")
    pop_in_flight: int | None = Field(description="popped, and neither acknowledged nor given up")


REFRESH_S: Final = 10.0
"""How old settings and lag may be. Of 5,000 groups they cost a broker some 0.15 s: 2 % of a core."""
STOCK_LAGS_S: Final = 15.0
"""The same for the lag on stock brokers, which read a record for each queue."""
BROADCASTING: Final = "BROADCASTING"
_SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "__MONITOR_CONSUMER",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_SYS_RMQ_TRANS",
        "CID_DefaultHeartBeatSyncerTopic",
    }
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Overview:
    """What the brokers that answered report, by broker name, then by group; `troubles` are the others."""

    brokers: BrokerSet
    configs: Mapping[str, Mapping[str, GroupConfig]]
    progress: Mapping[str, ProgressMessage | None]
    """None: a stock broker, which has no such answer."""
    stock_lags: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """By broker name, group and topic."""
    troubles: tuple[Trouble, ...] = ()

    def names(self) -> set[str]:
        """Groups that exist somewhere: they have settings, or a member."""
        names = {name for configs in self.configs.values() for name in configs}
        for message in self.progress.values():
            if message is not None:
                names.update(name for name, group in message.groups.items() if group.members)
        return names

    def of_group(self, name: str) -> dict[str, GroupProgress]:
        """Broker name -> the group's progress, of LedgerMQ brokers that know it."""
        found = (
            (at, message.groups.get(name)) for at, message in self.progress.items() if message is not None
        )
        return {at: group for at, group in found if group is not None}

    @property
    def stock_brokers(self) -> list[str]:
        return [name for name, message in self.progress.items() if message is None]


class GroupOverview:
    """Reads on demand; concurrent callers share one read."""

    def __init__(
        self, gateway: Gateway, directory: BrokerDirectory, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._gateway = gateway
        self._directory = directory
        self._groups = GroupSource(gateway)
        self._offsets = OffsetSource(gateway)
        self._cached = Cached(self._read, REFRESH_S, now_s)
        self._stock_lags = Cached(self._read_stock_lags, STOCK_LAGS_S, now_s)

    async def current(self, *, with_stock_lags: bool = False) -> Overview:
        """A recent one, of the brokers that lead now. Raises: UnavailableError when none answers."""
        overview = await self._cached.get()
        if overview.brokers.masters != (await self.brokers()).masters:
            self.invalidate()
            overview = await self._cached.get()
        if not with_stock_lags or not overview.stock_brokers:
            return overview
        lags, troubles = await self._stock_lags.get()
        return Overview(
            overview.brokers, overview.configs, overview.progress, lags, (*overview.troubles, *troubles)
        )

    def invalidate(self) -> None:
        """Something was changed: the next caller reads again."""
        self._cached.invalidate()
        self._stock_lags.invalidate()

    async def brokers(self) -> BrokerSet:
        """Raises: UnavailableError when there is no broker to ask."""
        return await known_brokers(self._directory)

    async def _read(self) -> Overview:
        brokers = await self.brokers()
        read_configs = on_masters(brokers, self._groups.configs)
        read_progress = on_masters(brokers, self._groups.progress)
        configs, progress = await asyncio.gather(
            self._gateway.ask_each(brokers.masters, read_configs),
            self._gateway.ask_each(brokers.masters, read_progress),
        )
        troubles = joined(brokers.troubles, configs.troubles, progress.troubles)
        if not configs.answers:
            raise UnavailableError(sentence(troubles))
        return Overview(brokers, configs.answers, progress.answers, troubles=troubles)

    async def _read_stock_lags(
        self,
    ) -> tuple[Mapping[str, Mapping[str, Mapping[str, int]]], tuple[Trouble, ...]]:
        overview = await self._cached.get()
        read = on_masters(overview.brokers, self._offsets.lags)
        gathered = await self._gateway.ask_each(overview.stock_brokers, read)
        return gathered.answers, gathered.troubles


async def known_brokers(directory: BrokerDirectory) -> BrokerSet:
    """Raises: UnavailableError when there is no broker to ask."""
    try:
        brokers = await directory.current()
    except AskError as error:
        raise UnavailableError(f"The name server does not answer: {error}.") from error
    if not brokers.masters:
        raise UnavailableError(sentence(brokers.troubles))
    return brokers


def on_masters(brokers: BrokerSet, ask: Callable[[str], T]) -> Callable[[str], T]:
    """`ask` by broker name in place of address."""
    return lambda name: ask(brokers.masters[name])


def joined(*troubles: Iterable[Trouble]) -> tuple[Trouble, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(trouble for part in troubles for trouble in part))


def sentence(troubles: Iterable[Trouble]) -> str:
    """Why there is no answer."""
    reasons = "; ".join(trouble.problem for trouble in troubles)
    return f"No broker gives an answer: {reasons}." if reasons else "The name server lists no broker."


def is_system_group(name: str) -> bool:
    return name in _SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")


Clients = Mapping[str, Connections | None]
"""Broker name -> which clients of a group are connected there, of the brokers that reported it."""
_Known = Mapping[str, GroupProgress]


def make_item(overview: Overview, name: str, clients: Clients | None = None) -> ConsumerGroupItem:
    """`clients` are those of stock brokers, where they were asked."""
    known = overview.of_group(name)
    configs = [(at, table[name]) for at, table in overview.configs.items() if name in table]
    enabled = {config.consume_enable for _, config in configs}
    online = next((group for group in known.values() if group.members), None)
    stock = next((each for each in (clients or {}).values() if each is not None), None)
    model = online.message_model if online else stock.message_model if stock else None
    lags = {} if model == BROADCASTING else _lag_by_topic(overview, name, known)
    tps = [group.consume_tps for group in known.values()]
    have_all_told = _have_all_told(overview, clients)
    members = _members(overview, known, clients, have_all_told=have_all_told)
    return ConsumerGroupItem(
        group=name,
        brokers=sorted(at for at, _ in configs),
        is_system=is_system_group(name),
        presence=_presence(members, have_all_told=have_all_told),
        members=members,
        message_model=model,
        consume_type=online.consume_type if online else stock.consume_type if stock else None,
        consume_enabled=enabled.pop() if len(enabled) == 1 else None,
        lag=total(lags.values()),
        is_lag_partial=bool(overview.troubles),
        unknown_queues=_unknown_queues(known) if known and model != BROADCASTING else None,
        lag_by_topic=lags,
        consume_tps=sum(tps) if tps else None,
        pop_in_flight=total(group.pop_in_flight for group in known.values()),
    )


def total(numbers: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _lag_by_topic(overview: Overview, name: str, known: _Known) -> dict[str, int | None]:
    lags: dict[str, list[int | None]] = {}
    for group in known.values():
        for topic, progress in group.topics.items():
            lags.setdefault(topic, []).append(progress.lag)
    for groups in overview.stock_lags.values():
        for topic, lag in groups.get(name, {}).items():
            lags.setdefault(topic, []).append(lag)
    return {topic: total(lags[topic]) for topic in sorted(lags)}


def _unknown_queues(known: _Known) -> int:
    return sum(topic.unknown_queues for group in known.values() for topic in group.topics.values())


def _members(
    overview: Overview, known: _Known, clients: Clients | None, *, have_all_told: bool
) -> int | None:
    """A consumer connects to every broker, so the largest count is nearest to the number of consumers."""
    counts = [group.members for group in known.values()]
    counts += [0 if each is None else len(each.connection_set) for each in (clients or {}).values()]
    if not counts and any(message is not None for message in overview.progress.values()):
        counts.append(0)
    highest = max(counts, default=None)
    return highest if highest or have_all_told else None


def _presence(members: int | None, *, have_all_told: bool) -> GroupPresence:
    if members:
        return GroupPresence.ONLINE
    return GroupPresence.OFFLINE if have_all_told else GroupPresence.UNKNOWN


def _have_all_told(overview: Overview, clients: Clients | None) -> bool:
    """Whether every broker reported which clients are connected."""
    silent = overview.brokers.masters.keys() - overview.progress.keys()
    if silent or overview.brokers.troubles:
        return False
    return all(name in (clients or {}) for name in overview.stock_brokers)


def ordered(
    items: Iterable[ConsumerGroupItem], sort: GroupSort, *, is_descending: bool
) -> list[ConsumerGroupItem]:
    """By name within the same; what is unknown comes last either way."""
    by_name = sorted(items, key=lambda item: item.group)
    if sort is GroupSort.NAME:
        return by_name[::-1] if is_descending else by_name
    known = [item for item in by_name if _figure(item, sort) is not None]
    unknown = [item for item in by_name if _figure(item, sort) is None]
    sign = -1 if is_descending else 1
    return sorted(known, key=lambda item: sign * (_figure(item, sort) or 0)) + unknown


def _figure(item: ConsumerGroupItem, sort: GroupSort) -> float | None:
    match sort:
        case GroupSort.LAG:
            return item.lag
        case GroupSort.MEMBERS:
            return item.members
        case _:
            return item.consume_tps
