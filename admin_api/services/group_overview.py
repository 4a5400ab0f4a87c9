"""All consumer groups of the cluster at once: two requests to each broker, however many groups there are.

LedgerMQ tells lag and members of all groups in one answer (65005). A stock broker tells all settings (201)
and, when it is asked for, all lag (317); who is connected it tells one group at a time (203), so that is
asked for one page.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from admin_api.cached import Cached
from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.services.errors import UnavailableError
from admin_api.sources.brokers import Brokers, BrokerSet
from admin_api.sources.consumer_groups import GroupConfig, GroupSource
from admin_api.sources.offsets import OffsetSource
from broker.admin.types import GroupProgress, ProgressMessage

LOOK_S: Final = 10.0
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
    """What the brokers that answered say, by broker name, then by group; `troubles` are the others."""

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
    """Looks on demand; any number of askers share one look."""

    def __init__(
        self, gateway: Gateway, directory: Brokers, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._gateway = gateway
        self._directory = directory
        self._groups = GroupSource(gateway)
        self._offsets = OffsetSource(gateway)
        self._look = Cached(self._read, LOOK_S, now_s)
        self._stock_lags = Cached(self._read_stock_lags, STOCK_LAGS_S, now_s)

    async def look(self, *, with_stock_lags: bool = False) -> Overview:
        """One that is young, of the brokers that lead now. Raises: UnavailableError when none answers."""
        overview = await self._look.get()
        if overview.brokers.masters != (await self.brokers()).masters:
            self.forget()
            overview = await self._look.get()
        if not with_stock_lags or not overview.stock_brokers:
            return overview
        lags, troubles = await self._stock_lags.get()
        return Overview(
            overview.brokers, overview.configs, overview.progress, lags, (*overview.troubles, *troubles)
        )

    def forget(self) -> None:
        """Something was changed: the next look is a new one."""
        self._look.forget()
        self._stock_lags.forget()

    async def brokers(self) -> BrokerSet:
        """Raises: UnavailableError when there is nobody to ask."""
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
        overview = await self._look.get()
        read = on_masters(overview.brokers, self._offsets.lags)
        gathered = await self._gateway.ask_each(overview.stock_brokers, read)
        return gathered.answers, gathered.troubles


async def known_brokers(directory: Brokers) -> BrokerSet:
    """Raises: UnavailableError when there is nobody to ask."""
    try:
        brokers = await directory.look()
    except AskError as error:
        raise UnavailableError(f"The name server gives no answer: {error}.") from error
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
    """Why nobody could say."""
    said = "; ".join(trouble.problem for trouble in troubles)
    return f"No broker gives an answer: {said}." if said else "The name server lists no broker."


def is_system_group(name: str) -> bool:
    return name in _SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")
