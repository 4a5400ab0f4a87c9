"""Which broker has which topics, cached for a short time; and what a topic's name says about its kind."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from admin_api.cached import Cached
from admin_api.gateway import Gateway, Trouble
from admin_api.settings import Settings
from admin_api.sources.brokers import Brokers
from admin_api.sources.topics import TopicConfig, TopicSource
from admin_api.topics.schemas import TopicKind
from remoting.route import DEFAULT_TOPIC

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
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
        directory: Brokers,
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
