"""Reads consumer groups: the list, one group, its members, its progress."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from admin_api.errors import InvalidError, PageWanted, UnavailableError, missing, partial_fields
from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.groups.overview import (
    BROADCASTING,
    ConsumerGroupItem,
    GroupOverview,
    GroupPresence,
    GroupSort,
    Overview,
    is_system_group,
    joined,
    make_item,
    on_masters,
    ordered,
    total,
)
from admin_api.schema import Page
from admin_api.sources.bodies import QueueKey
from admin_api.sources.brokers import BrokerDirectory, BrokerSet
from admin_api.sources.groups import Connections, GroupSource, Running
from admin_api.sources.offsets import OffsetSource

if TYPE_CHECKING:
    # Imported by the methods that use it: the list, which `doctor` and `watch` take too, does without.
    from admin_api.groups.changes import (
        ConsumeModeChange,
        ConsumeModes,
        DeleteGroup,
        GroupSettingsChange,
        PutGroup,
        SetConsumeMode,
    )
    from admin_api.groups.details import ConsumerGroupView, MemberRunningView, MembersView
    from admin_api.groups.progress import GroupProgressReader, ProgressView, TopicRows

STOCK_PAGE_MAX: Final = 100
"""Of a longer page, stock brokers are not asked who is connected: that is one request a group."""
RUNNING_ASKED_MAX: Final = 32
"""Members that are asked which queues they have."""
RUNNING_AT_ONCE: Final = 2
"""Of these, at the same time: a consumer that hangs must not take the places of other asks."""
RUNNING_LIMIT_S: Final = 2.0
"""For all of them together; a client that has not answered by then has no known queues."""


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """Which groups, in which order. `contains` is a part of the name, case aside; `with_lag` asks stock
    brokers for all lag.
    """

    contains: str = ""
    sort: GroupSort = GroupSort.NAME
    is_descending: bool = False
    with_system: bool = False
    with_lag: bool = True


class ConsumerGroups:
    """One per process. Every method raises UnavailableError where no broker answers."""

    def __init__(
        self,
        gateway: Gateway,
        directory: BrokerDirectory,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._gateway = gateway
        self._now_ms = now_ms
        self.overview = GroupOverview(gateway, directory)
        self._source = GroupSource(gateway)
        self._items: tuple[Overview, list[ConsumerGroupItem]] | None = None

    @cached_property
    def _progress(self) -> "GroupProgressReader":
        from admin_api.groups.progress import GroupProgressReader

        return GroupProgressReader(self._gateway, OffsetSource(self._gateway))

    @cached_property
    def _modes(self) -> "ConsumeModes":
        from admin_api.groups.changes import ConsumeModes

        return ConsumeModes(self._gateway)

    async def find(self, query: GroupQuery, page: PageWanted) -> Page[ConsumerGroupItem]:
        """One page of the groups that are wanted.

        Costs two requests a broker, at most every 10 s; on stock brokers one more for the lag, and one for
        each group of a page of at most STOCK_PAGE_MAX.
        """
        with_lag = query.with_lag or query.sort is GroupSort.LAG
        overview = await self.overview.current(with_stock_lags=with_lag)
        contains = query.contains.casefold()
        names = {name for name in overview.names() if contains in name.casefold()}
        if not query.with_system:
            names = {name for name in names if not is_system_group(name)}
        shown = page.of(self._sorted(overview, names, query))
        shown, troubles = await self._with_stock_clients(overview, shown)
        return Page[ConsumerGroupItem](
            items=shown,
            page=page.number,
            page_size=page.size,
            total=len(names),
            **partial_fields(overview.troubles, troubles),
        )

    def _sorted(self, overview: Overview, names: set[str], query: GroupQuery) -> list[ConsumerGroupItem]:
        """All items are made once for a read of the brokers, not for every page."""
        if self._items is None or self._items[0] is not overview:
            self._items = overview, [make_item(overview, name) for name in overview.names()]
        items = [item for item in self._items[1] if item.group in names]
        return ordered(items, query.sort, is_descending=query.is_descending)

    async def _with_stock_clients(
        self, overview: Overview, items: Sequence[ConsumerGroupItem]
    ) -> tuple[list[ConsumerGroupItem], tuple[Trouble, ...]]:
        if not overview.stock_brokers or len(items) > STOCK_PAGE_MAX:
            return list(items), ()
        made: list[ConsumerGroupItem] = []
        troubles: list[Trouble] = []
        asked = [self._clients(overview.brokers, item.group, overview.stock_brokers) for item in items]
        for item, (clients, failed) in zip(items, await asyncio.gather(*asked), strict=True):
            made.append(make_item(overview, item.group, clients))
            troubles.extend(failed)
        return made, tuple(troubles)

    async def _clients(
        self, brokers: BrokerSet, group: str, names: Sequence[str] | None = None
    ) -> tuple[dict[str, Connections | None], tuple[Trouble, ...]]:
        ask = on_masters(brokers, lambda address: self._source.connections(address, group))
        gathered = await self._gateway.ask_each(brokers.masters if names is None else names, ask)
        return gathered.answers, gathered.troubles

    async def view(self, group: str) -> "ConsumerGroupView":
        """Raises: NotFoundError."""
        from admin_api.groups.details import (
            ConsumerGroupView,
            has_same,
            member_views,
            settings_rows,
            subscription_views,
        )

        overview = await self.overview.current()
        (clients, failed), progress, modes = await asyncio.gather(
            self._clients(overview.brokers, group),
            self._progress.lags(overview.brokers, group),
            self._modes.of_group(overview.brokers, group),
        )
        troubles = joined(overview.troubles, failed, progress.troubles)
        self._require(overview, group, clients, troubles)
        silent = bool(failed or overview.brokers.troubles)
        online = online_part(clients)
        is_broadcast = None if online is None else online.message_model == BROADCASTING
        item = make_item(overview, group)
        settings = settings_rows(overview, group)
        return ConsumerGroupView(
            group=group,
            is_system=is_system_group(group),
            presence=presence(clients, silent),
            is_broadcast=is_broadcast,
            message_model=None if online is None else online.message_model,
            consume_type=None if online is None else online.consume_type,
            consume_from_where=None if online is None else online.consume_from_where,
            member_count=None if silent and online is None else len(member_views(clients)),
            lag=None if is_broadcast else total(progress.answers.values()),
            unknown_queues=None if is_broadcast else item.unknown_queues,
            consume_tps=item.consume_tps,
            pop_in_flight=item.pop_in_flight,
            has_same_settings=has_same(settings, overview),
            brokers=settings,
            consume_modes=modes,
            members=member_views(clients) if clients else None,
            subscriptions=subscription_views(clients) if clients else None,
            **partial_fields(troubles),
        )

    async def members(self, group: str) -> "MembersView":
        """Raises: NotFoundError."""
        from admin_api.groups.details import MembersView, member_views, subscription_views

        overview = await self.overview.current()
        clients, failed = await self._clients(overview.brokers, group)
        troubles = joined(overview.brokers.troubles, failed)
        self._require(overview, group, clients, troubles)
        online = online_part(clients)
        return MembersView(
            group=group,
            presence=presence(clients, bool(troubles)),
            message_model=None if online is None else online.message_model,
            consume_type=None if online is None else online.consume_type,
            consume_from_where=None if online is None else online.consume_from_where,
            members=member_views(clients) if clients else None,
            subscriptions=subscription_views(clients) if clients else None,
            **partial_fields(troubles),
        )

    async def running(self, group: str, client_id: str, *, with_stack: bool = False) -> "MemberRunningView":
        """What one consumer reports about itself. Raises: NotFoundError when it is not connected."""
        from admin_api.groups.details import running_view

        brokers = await self.overview.brokers()
        clients, failed = await self._clients(brokers, group)
        troubles = joined(brokers.troubles, failed)
        holding = [at for at, each in clients.items() if each is not None and _has(each, client_id)]
        if not holding:
            raise missing(f"a connected consumer {client_id} of the group {group}", troubles)
        try:
            address = brokers.masters[holding[0]]
            running = await self._source.running(address, group, client_id, with_stack=with_stack)
        except AskError as error:
            raise UnavailableError(f"The consumer {client_id} does not answer: {error}.") from error
        return running_view(group, client_id, holding[0], running)

    async def progress(
        self, group: str, topic: str | None = None, *, with_clients: bool = True
    ) -> "ProgressView":
        """Raises: NotFoundError."""
        from admin_api.groups.progress import ProgressView, queue_clients, topic_views

        overview = await self.overview.current()
        (clients, failed), rows = await asyncio.gather(
            self._clients(overview.brokers, group), self._progress.rows(overview.brokers, group, topic)
        )
        troubles = joined(overview.brokers.troubles, failed, rows.troubles)
        self._require(overview, group, clients, troubles)
        online = online_part(clients)
        is_broadcast = None if online is None else online.message_model == BROADCASTING
        owners: dict[QueueKey, str] = {}
        if with_clients and online is not None and not is_broadcast:
            owners = queue_clients(await self._running_of(overview.brokers, group, clients))
        tables = rows.answers
        topics = topic_views(tables, owners, overview.brokers, group) if tables else None
        return ProgressView(
            group=group,
            presence=presence(clients, bool(failed or overview.brokers.troubles)),
            is_broadcast=is_broadcast,
            as_of_ms=self._now_ms(),
            lag=None if is_broadcast else total(view.lag for view in topics or ()),
            consume_tps=total_tps(tables),
            topics=topics,
            **partial_fields(troubles),
        )

    async def _running_of(
        self, brokers: BrokerSet, group: str, clients: Mapping[str, Connections | None]
    ) -> dict[str, Running]:
        """By client id, of those that answer in time."""
        asked: dict[str, str] = {}
        for at, each in clients.items():
            for row in () if each is None else each.connection_set:
                asked.setdefault(row.client_id, brokers.masters[at])
        places = asyncio.Semaphore(RUNNING_AT_ONCE)
        found: dict[str, Running] = {}

        async def ask(client_id: str, address: str) -> None:
            async with places:
                try:
                    found[client_id] = await self._source.running(address, group, client_id, with_stack=False)
                except AskError:
                    return  # its queues stay unknown

        tasks = [asyncio.create_task(ask(*one)) for one in list(asked.items())[:RUNNING_ASKED_MAX]]
        _, late = await asyncio.wait(tasks, timeout=RUNNING_LIMIT_S) if tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return found

    def put(self, group: str, settings: "GroupSettingsChange") -> "PutGroup":
        """Creates the group, or changes the settings that are named. Raises: InvalidError."""
        if is_system_group(group):
            raise InvalidError(f"{group} is one of RocketMQ's own groups.")
        from admin_api.groups.changes import PutGroup

        return PutGroup(self._gateway, self.overview, group, settings)

    def set_mode(self, group: str, wanted: "ConsumeModeChange") -> "SetConsumeMode":
        """Whether its consumers pull or pop a topic."""
        from admin_api.groups.changes import SetConsumeMode

        return SetConsumeMode(self._gateway, self.overview, group, wanted)

    def delete(self, group: str, *, with_offsets: bool = True) -> "DeleteGroup":
        """Deletes it on every broker; its retry and dead-letter topics stay. Raises: InvalidError."""
        if is_system_group(group):
            raise InvalidError(f"{group} is one of RocketMQ's own groups.")
        from admin_api.groups.changes import DeleteGroup

        return DeleteGroup(self._gateway, self.overview, group, with_offsets=with_offsets)

    def _require(
        self,
        overview: Overview,
        group: str,
        clients: Mapping[str, Connections | None],
        troubles: Sequence[Trouble],
    ) -> None:
        if group in overview.names() or any(each is not None for each in clients.values()):
            return
        raise missing(f"the consumer group {group}", troubles)


def total_tps(tables: "Mapping[str, TopicRows]") -> float | None:
    known = [rows.tps for rows in tables.values() if rows.tps is not None]
    return sum(known) if known else None


def online_part(clients: Mapping[str, Connections | None]) -> Connections | None:
    """What one broker reports about the group's consumers; None when none has any."""
    return next((each for each in clients.values() if each is not None), None)


def presence(clients: Mapping[str, Connections | None], is_silent: bool) -> GroupPresence:
    if online_part(clients) is not None:
        return GroupPresence.ONLINE
    return GroupPresence.UNKNOWN if is_silent or not clients else GroupPresence.OFFLINE


def _has(connections: Connections, client_id: str) -> bool:
    return any(row.client_id == client_id for row in connections.connection_set)
