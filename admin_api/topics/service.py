"""Reads topics: the list, one topic, its route, queues and traffic. Which broker has which topics is cached
for a short time; a topic's name says its kind.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pydantic import Field

from admin_api.cached import Cached
from admin_api.errors import NotFoundError, PageWanted, missing, partial_fields
from admin_api.gateway import Gateway, Trouble
from admin_api.schema import Page, Partial, Schema
from admin_api.settings import Settings
from admin_api.sources.brokers import BrokerDirectory
from admin_api.sources.name_server import NameServersSource
from admin_api.sources.topics import QueueRow, TopicConfig, TopicSource
from remoting.route import DEFAULT_TOPIC, PERM_READ, PERM_WRITE, QueueData, TopicRoute
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from admin_api.topics.traffic import TopicStats


class TopicKind(StrEnum):
    """NORMAL: made by people or by a first send. RETRY, DLQ: a consumer group's own. SYSTEM: the brokers'."""

    NORMAL = "normal"
    RETRY = "retry"
    DLQ = "dlq"
    SYSTEM = "system"


class TopicSort(StrEnum):
    """By what a list of topics is sorted; those that are the same go by name."""

    NAME = "name"
    QUEUES = "queues"


class TopicRow(Schema):
    """One topic over all brokers that have it."""

    name: str
    kind: TopicKind
    brokers: list[str] = Field(description="names of the brokers that have it")
    read_queues: int = Field(description="over all its brokers")
    write_queues: int = Field(description="over all its brokers")
    can_read: bool = Field(description="on one of its brokers at least")
    can_write: bool = Field(description="on one of its brokers at least")
    is_ordered: bool


class TopicConfigView(Schema):
    """A topic's configuration on one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    can_read: bool
    can_write: bool
    is_inherited: bool = Field(description="topics made by a first send take its queues and permissions")
    is_ordered: bool
    filter_type: str
    attributes: dict[str, str] | None = Field(description="null: the broker has none (before RocketMQ 5)")
    message_type: str | None = Field(description="the attribute message.type; null where there is none")
    retention_ms: int | None = Field(
        description="the attribute retention.ms; null: messages stay as long as the broker's log has them"
    )


class TopicView(Partial):
    """One topic: how every broker that has it keeps it, and who consumes it."""

    name: str
    kind: TopicKind
    configs: list[TopicConfigView]
    consumer_groups: list[str] | None = Field(
        description="groups that subscribe to it or have offsets in it; null when no broker could say"
    )


class RouteBroker(Schema):
    """A broker that clients are sent to for the topic."""

    broker_name: str
    cluster: str
    read_queues: int | None = Field(description="null: it has no queues of the topic now")
    write_queues: int | None
    can_read: bool | None
    can_write: bool | None
    addresses: dict[str, str] = Field(description="broker id -> address; 0 takes the writes")


class TopicRouteView(Schema):
    """What the name servers that answer tell clients that ask for the topic."""

    topic: str
    namesrv: str = Field(description="those that were asked, separated by `;`")
    order_conf: str | None = Field(description="brokers and queues of a strictly ordered topic")
    brokers: list[RouteBroker]


class QueueView(Schema):
    """One queue. It shows the messages from `minOffset` to before `maxOffset`."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    message_count: int
    last_message_at_ms: int | None = Field(description="Unix time in ms; null when it shows none")


class TopicQueues(Partial):
    """Every queue of a topic, by broker and id."""

    topic: str
    message_count: int | None = Field(description="in all queues; null when no broker could say")
    queues: list[QueueView] | None = Field(description="null when no broker could say")


class TopicPage(Page[TopicRow]):
    """Topics over all brokers."""


_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
_SYSTEM: Final = frozenset(
    {
        DEFAULT_TOPIC,
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)


class TopicKinds:
    """Every broker has a topic of its own name, one of its cluster's, and one for the cluster's replies."""

    def __init__(self, clusters: Iterable[str], broker_names: Iterable[str]) -> None:
        clusters = set(clusters)
        replies = {cluster + _REPLY_SUFFIX for cluster in clusters}
        self._own = _SYSTEM | clusters | replies | set(broker_names)

    def of(self, topic: str) -> TopicKind:
        if topic.startswith(RETRY_PREFIX):
            return TopicKind.RETRY
        if topic.startswith(DLQ_PREFIX):
            return TopicKind.DLQ
        is_system = topic in self._own or topic.startswith(_SYSTEM_PREFIXES)
        return TopicKind.SYSTEM if is_system else TopicKind.NORMAL


@dataclass(frozen=True, slots=True)
class Tables:
    """Broker name -> topic -> configuration, of the brokers that answered.

    `masters`: whom to ask for a change. `readers`: whom to ask else, also while there is no master.
    """

    masters: Mapping[str, str]
    readers: Mapping[str, str]
    by_broker: Mapping[str, Mapping[str, TopicConfig]]
    troubles: tuple[Trouble, ...]
    kinds: TopicKinds

    def of(self, topic: str) -> dict[str, TopicConfig]:
        """Broker name -> the topic there, by name; empty when no broker has it."""
        return {broker: table[topic] for broker, table in sorted(self.by_broker.items()) if topic in table}

    def addresses_of(self, topic: str) -> dict[str, str]:
        """Broker name -> whom to ask, of those that have the topic."""
        return {broker: self.readers[broker] for broker in self.of(topic)}


class TopicTables:
    """Reads them on demand."""

    def __init__(
        self,
        gateway: Gateway,
        directory: BrokerDirectory,
        settings: Settings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._directory = directory
        self._source = TopicSource(gateway)
        self._tables = Cached(self._read, settings.brokers_cache_ms / 1000, now_s)

    async def get(self) -> Tables:
        """At most `brokers_cache_ms` old. Raises: AskError when the name server is silent and was always."""
        return await self._tables.get()

    def invalidate(self) -> None:
        """The next caller reads again: a topic was changed."""
        self._tables.invalidate()

    async def _read(self) -> Tables:
        found = await self._directory.current()
        readers = found.readers
        gathered = await self._gateway.ask_each(readers, lambda broker: self._source.configs(readers[broker]))
        kinds = TopicKinds({entry.cluster for entry in found.listed}, {e.broker_name for e in found.listed})
        return Tables(found.masters, readers, gathered.answers, found.troubles + gathered.troubles, kinds)


GROUPS_COUNTED_MAX: Final = 50
"""Groups whose traffic is asked for: two asks a broker each."""
RETENTION_ATTRIBUTE: Final = "retention.ms"
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
        self._name_servers = NameServersSource(gateway, settings)
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
        route = await self._name_servers.route(topic)
        if route is None:
            raise NotFoundError(f"The name server has no route for the topic {topic}.")
        queues = {queue.broker_name: queue for queue in route.queue_datas}
        return TopicRouteView(
            topic=topic,
            namesrv=";".join(self._name_servers.addresses),
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
            no_broker = [] if tables.readers else [Trouble(self._name_servers.addresses[0], _NO_BROKER)]
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
