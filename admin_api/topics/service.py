"""Reads topics: the list, one topic, its route, queues and traffic."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from admin_api.errors import NotFoundError, PageWanted, missing, partial_fields
from admin_api.gateway import Gateway, Trouble
from admin_api.settings import Settings
from admin_api.sources.topics import QueueRow, TopicConfig, TopicSource
from admin_api.topics.schemas import (
    QueueView,
    RouteBroker,
    TopicConfigView,
    TopicKind,
    TopicPage,
    TopicQueues,
    TopicRouteView,
    TopicRow,
    TopicSort,
    TopicView,
)
from admin_api.topics.tables import Tables, TopicTables
from remoting.route import PERM_READ, PERM_WRITE, QueueData, TopicRoute

if TYPE_CHECKING:  # imported by the method that uses it: a list does without
    from admin_api.topics.traffic import TopicStats

GROUPS_COUNTED_MAX: Final = 50
"""Groups whose traffic is asked for: two asks a broker each."""
RETENTION_ATTRIBUTE: Final = "retention.ms"
_PUTS: Final = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
_GETS: Final = ("GROUP_GET_NUMS", "GROUP_GET_SIZE")
RETENTION_DIGITS_MAX: Final = 15
TYPE_ATTRIBUTE: Final = "message.type"
PERM_INHERIT: Final = 1
_NO_BROKER: Final = "the name server lists no broker"
"""Such as when all have been down for so long that it dropped them."""


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """Which topics: `name` is a part of it, case aside; no `kinds` means all."""

    name: str = ""
    kinds: Collection[TopicKind] = ()
    sort: TopicSort = TopicSort.NAME
    is_descending: bool = False


class Topics:
    """Reads; what changes topics is in `admin_api.topics.changes`."""

    def __init__(self, gateway: Gateway, tables: TopicTables, settings: Settings) -> None:
        self._gateway = gateway
        self._tables = tables
        self._settings = settings
        self._source = TopicSource(gateway)

    async def find(self, query: TopicQuery, page: PageWanted) -> TopicPage:
        """Raises: AskError when the name server is silent and was always."""
        tables = await self._tables.get()
        found = _found(tables, query)
        names = sorted(found)
        if query.sort is TopicSort.QUEUES:
            names.sort(key=lambda name: _read_queues(found[name]), reverse=query.is_descending)
        elif query.is_descending:
            names.reverse()
        return TopicPage(
            items=[_row(name, tables.kinds.of(name), found[name]) for name in page.of(names)],
            page=page.number,
            page_size=page.size,
            total=len(names),
            **partial_fields(tables.troubles),
        )

    async def one(self, topic: str) -> TopicView:
        """Raises: NotFoundError, UnavailableError, AskError."""
        tables = await self._known(topic)
        groups, troubles = await self._groups(tables, topic)
        return TopicView(
            name=topic,
            kind=tables.kinds.of(topic),
            configs=[config_view(broker, config) for broker, config in tables.of(topic).items()],
            consumer_groups=groups,
            **partial_fields(tables.troubles, troubles),
        )

    async def route(self, topic: str) -> TopicRouteView:
        """Raises: NotFoundError, AskError."""
        route = await self._source.route(self._settings.namesrv, topic)
        if route is None:
            raise NotFoundError(f"The name server has no route for the topic {topic}.")
        queues = {queue.broker_name: queue for queue in route.queue_datas}
        return TopicRouteView(
            topic=topic,
            namesrv=self._settings.namesrv,
            order_conf=route.order_topic_conf,
            brokers=_route_brokers(route, queues),
        )

    async def queues(self, topic: str) -> TopicQueues:
        """Raises: NotFoundError, UnavailableError, AskError."""
        tables = await self._known(topic)
        readers = tables.addresses_of(topic)
        asked = await self._gateway.ask_each(readers, lambda b: self._source.queues(readers[b], topic))
        queues = [_queue_view(broker, row) for broker, rows in asked.answers.items() for row in rows]
        return TopicQueues(
            topic=topic,
            message_count=sum(queue.message_count for queue in queues) if asked.answers else None,
            queues=queues if asked.answers else None,
            **partial_fields(tables.troubles, asked.troubles),
        )

    async def stats(self, topic: str) -> "TopicStats":
        """Raises: NotFoundError, UnavailableError, AskError."""
        from admin_api.topics.traffic import stats_view

        tables = await self._known(topic)
        groups, troubles = await self._groups(tables, topic)
        counted = (groups or [])[:GROUPS_COUNTED_MAX]
        readers = tables.addresses_of(topic)
        wanted = [
            (broker, stat, topic) for broker in readers for stat in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
        ]
        for stat in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            wanted += [(broker, stat, f"{topic}@{group}") for broker in readers for group in counted]
        asked = await self._gateway.ask_each(
            wanted, lambda key: self._source.figures(readers[key[0]], key[1], key[2])
        )
        shown = None if groups is None else counted
        left_out = None if groups is None else len(groups) - len(counted)
        troubled = partial_fields(tables.troubles, troubles, asked.troubles)
        return stats_view(topic, list(readers), shown, left_out, asked.answers, troubled)

    async def _known(self, topic: str) -> Tables:
        tables = await self._tables.get()
        if not tables.of(topic):
            no_broker = [] if tables.readers else [Trouble(self._settings.namesrv, _NO_BROKER)]
            raise missing(f"The topic {topic}", tables.troubles, no_broker)
        return tables

    async def _groups(self, tables: Tables, topic: str) -> tuple[list[str] | None, tuple[Trouble, ...]]:
        readers = tables.addresses_of(topic)
        asked = await self._gateway.ask_each(readers, lambda b: self._source.groups(readers[b], topic))
        if not asked.answers:
            return None, asked.troubles
        return sorted({group for groups in asked.answers.values() for group in groups}), asked.troubles


def _found(tables: Tables, query: TopicQuery) -> dict[str, dict[str, TopicConfig]]:
    """Topic -> broker name -> its configuration there."""
    part = query.name.casefold()
    found: dict[str, dict[str, TopicConfig]] = {}
    for broker, table in sorted(tables.by_broker.items()):
        for name, config in table.items():
            if part in name.casefold() and (not query.kinds or tables.kinds.of(name) in query.kinds):
                found.setdefault(name, {})[broker] = config
    return found


def _read_queues(configs: Mapping[str, TopicConfig]) -> int:
    return sum(config.read_queue_nums for config in configs.values())


def _row(name: str, kind: TopicKind, configs: Mapping[str, TopicConfig]) -> TopicRow:
    each = configs.values()
    return TopicRow(
        name=name,
        kind=kind,
        brokers=list(configs),
        read_queues=_read_queues(configs),
        write_queues=sum(config.write_queue_nums for config in each),
        can_read=any(config.perm & PERM_READ for config in each),
        can_write=any(config.perm & PERM_WRITE for config in each),
        is_ordered=any(config.order for config in each),
    )


def config_view(broker: str, config: TopicConfig) -> TopicConfigView:
    attributes = config.attributes or {}
    retention = attributes.get(RETENTION_ATTRIBUTE, "")
    return TopicConfigView(
        broker_name=broker,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        can_read=bool(config.perm & PERM_READ),
        can_write=bool(config.perm & PERM_WRITE),
        is_inherited=bool(config.perm & PERM_INHERIT),
        is_ordered=config.order,
        filter_type=config.topic_filter_type,
        attributes=config.attributes,
        message_type=attributes.get(TYPE_ATTRIBUTE),
        retention_ms=int(retention) if is_retention(retention) else None,
    )


def is_retention(text: str) -> bool:
    """Whether a broker takes it for a time in ms."""
    return text.isascii() and text.isdigit() and len(text) <= RETENTION_DIGITS_MAX


def _queue_view(broker: str, row: QueueRow) -> QueueView:
    bounds = row.bounds
    return QueueView(
        broker_name=broker,
        queue_id=row.queue_id,
        min_offset=bounds.min_offset,
        max_offset=bounds.max_offset,
        message_count=max(0, bounds.max_offset - bounds.min_offset),
        last_message_at_ms=bounds.last_update_timestamp if bounds.last_update_timestamp > 0 else None,
    )


def _route_brokers(route: TopicRoute, queues: Mapping[str, QueueData]) -> list[RouteBroker]:
    views = []
    for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name):
        queue = queues.get(broker.broker_name)
        views.append(
            RouteBroker(
                broker_name=broker.broker_name,
                cluster=broker.cluster,
                read_queues=None if queue is None else queue.read_queue_nums,
                write_queues=None if queue is None else queue.write_queue_nums,
                can_read=None if queue is None else bool(queue.perm & PERM_READ),
                can_write=None if queue is None else bool(queue.perm & PERM_WRITE),
                addresses={str(broker_id): at for broker_id, at in sorted(broker.broker_addrs.items())},
            )
        )
    return views
