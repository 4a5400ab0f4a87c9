"""Creates, edits and deletes topics, each previewed first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import orjson
from pydantic import Field, StringConstraints

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview, outcome_of
from admin_api.errors import InvalidError, missing
from admin_api.gateway import Gateway
from admin_api.schema import RequestSchema
from admin_api.settings import Settings
from admin_api.sources.name_server import NameServerSource, NameServersSource
from admin_api.sources.topics import TopicConfig, TopicSource
from admin_api.topics.service import (
    RETENTION_ATTRIBUTE,
    TYPE_ATTRIBUTE,
    Tables,
    TopicKind,
    TopicTables,
    is_retention,
)
from remoting.route import PERM_READ, PERM_WRITE

QUEUES_MAX = 4_096
ATTRIBUTES_MAX = 64
TopicName = Annotated[str, StringConstraints(pattern=r"^[%|a-zA-Z0-9_+-]+$", max_length=127)]
AttributeKey = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]+$", max_length=64)]
AttributeValue = Annotated[str, StringConstraints(pattern=r"^[^,=\x00-\x1f]*$", max_length=1024)]


class TopicSpec(RequestSchema):
    """What a topic shall be. What is left out stays as it is, and is 8 queues, readable and writable for a
    new topic."""

    read_queues: int | None = Field(default=None, ge=1, le=QUEUES_MAX)
    write_queues: int | None = Field(default=None, ge=1, le=QUEUES_MAX)
    can_read: bool | None = None
    can_write: bool | None = None
    is_ordered: bool | None = None
    attributes: dict[AttributeKey, AttributeValue | None] = Field(
        default={}, max_length=ATTRIBUTES_MAX, description="what to set; null takes an attribute away"
    )
    brokers: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="broker names; left out: those that have it, or all for a new topic",
    )


class NewTopic(TopicSpec):
    """A topic that is not there yet."""

    name: TopicName


NEW_QUEUES: Final = 8
FIFO: Final = "FIFO"
GROUPS_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class TopicChanger:
    """Makes the changes; each is one of `admin_api.changes.Changes`."""

    gateway: Gateway
    tables: TopicTables
    settings: Settings

    def create(self, topic: str, spec: TopicSpec) -> "PutTopic":
        return PutTopic(self, topic, spec, Action.TOPIC_CREATE)

    def edit(self, topic: str, spec: TopicSpec) -> "PutTopic":
        return PutTopic(self, topic, spec, Action.TOPIC_UPDATE)

    def delete(self, topic: str, brokers: Sequence[str] | None = None) -> "DeleteTopic":
        return DeleteTopic(self, topic, brokers)

    async def current_tables(self, topic: str) -> Tables:
        """The topics of now. Raises: ChangeRefusedError for a topic of the brokers' own, AskError."""
        self.tables.invalidate()
        tables = await self.tables.get()
        if tables.kinds.of(topic) is TopicKind.SYSTEM:
            raise ChangeRefusedError(f"{topic} is a system topic and cannot be changed.")
        return tables


@dataclass(frozen=True, slots=True)
class _PlannedPut:
    """What a preview found: the masters, and by broker the changed topic with the attributes to send."""

    masters: Mapping[str, str]
    changed: Mapping[str, tuple[TopicConfig, str]]


@dataclass(slots=True)
class PutTopic:
    """Creates the topic or edits it, on each broker on its own."""

    changer: TopicChanger
    topic: str
    spec: TopicSpec
    action: Action
    _planned: "_PlannedPut | None" = field(default=None, init=False)
    """Of the preview: execution uses the same, even if other brokers answer by then."""

    @property
    def target(self) -> str:
        return self.topic

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, InvalidError, ChangeRefusedError, AskError."""
        tables = await self.changer.current_tables(self.topic)
        wanted = self._wanted(tables)
        known = tables.of(self.topic)
        effects: list[Effect] = []
        losses: list[str] = []
        for broker, (config, _) in wanted.items():
            before = known.get(broker)
            effects += _effects(broker, before, config)
            losses += () if before is None else _losses(broker, before, config)
        unordered = _unordered(known, wanted)
        warnings = (*losses, *unordered, *(() if effects else ("Nothing would change.",)))
        changed = {broker: each for broker, each in wanted.items() if known.get(broker) != each[0]}
        self._planned = _PlannedPut(tables.masters, changed)
        silent = tables.troubles if self.spec.brokers is None else ()
        return Preview(self.action, self.topic, tuple(effects), warnings, bool(losses), left_out=silent)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        planned = self._planned
        assert planned is not None, "carried out without a preview"
        source = TopicSource(self.changer.gateway)
        outcomes = [
            await outcome_of(broker, source.put(planned.masters[broker], config, attributes))
            for broker, (config, attributes) in planned.changed.items()
        ]
        self.changer.tables.invalidate()
        return outcomes

    def _wanted(self, tables: Tables) -> dict[str, tuple[TopicConfig, str]]:
        """Broker name -> what the topic shall be there, and the attributes to send."""
        known = tables.of(self.topic)
        self._check_there(tables, known)
        default = tables.by_broker if self.action is Action.TOPIC_CREATE else known
        brokers = self.spec.brokers if self.spec.brokers is not None else sorted(default)
        for broker in brokers:
            _require_master(tables, broker)
            if any(value is not None for value in self.spec.attributes.values()):
                _require_attributes(tables, broker)
        if not brokers:
            raise ChangeRefusedError("No broker accepts writes now.")
        return {broker: self._config(known.get(broker)) for broker in brokers}

    def _check_there(self, tables: Tables, known: Mapping[str, TopicConfig]) -> None:
        if self.action is Action.TOPIC_UPDATE and not known:
            raise missing(f"The topic {self.topic}", tables.troubles)
        if self.action is Action.TOPIC_CREATE and known:
            there = ", ".join(known)
            raise ChangeRefusedError(f"The topic {self.topic} exists already, on {there}; edit it.")

    def _config(self, known: TopicConfig | None) -> tuple[TopicConfig, str]:
        spec = self.spec
        base = known or TopicConfig(
            topic_name=self.topic, read_queue_nums=NEW_QUEUES, write_queue_nums=NEW_QUEUES
        )
        perm = _with_bit(_with_bit(base.perm, PERM_READ, spec.can_read), PERM_WRITE, spec.can_write)
        attributes = dict(base.attributes or {})
        parts = []
        for key, value in spec.attributes.items():
            if value is None:
                parts += [f"-{key}"] if attributes.pop(key, None) is not None else []
            elif attributes.get(key) != value:
                attributes[key] = value
                parts.append(f"+{key}={value}")
        changed: dict[str, object] = {
            "read_queue_nums": spec.read_queues,
            "write_queue_nums": spec.write_queues,
            "order": spec.is_ordered,
        }
        update = {key: value for key, value in changed.items() if value is not None}
        if parts:
            update["attributes"] = attributes
        return base.model_copy(update={**update, "perm": perm}), ",".join(parts)


@dataclass(slots=True)
class DeleteTopic:
    """Takes the topic from brokers, and its route from the name servers when no broker keeps it."""

    changer: TopicChanger
    topic: str
    brokers: Sequence[str] | None
    action: Action = Action.TOPIC_DELETE
    _tables: Tables | None = field(default=None, init=False)
    """Of the preview: execution uses the same, even if other brokers answer by then."""

    @property
    def target(self) -> str:
        return self.topic

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, InvalidError, ChangeRefusedError, AskError."""
        tables = self._tables = await self.changer.current_tables(self.topic)
        masters = self._masters(tables)
        source, gateway = TopicSource(self.changer.gateway), self.changer.gateway
        queues = await gateway.ask_each(masters, lambda b: source.queues(masters[b], self.topic))
        asked = await gateway.ask_each(masters, lambda b: source.groups(masters[b], self.topic))
        counts = {
            broker: sum(max(0, row.bounds.max_offset - row.bounds.min_offset) for row in rows)
            for broker, rows in queues.answers.items()
        }
        effects = [
            Effect(broker, f"{_queues_text(config)}, {_messages_text(counts.get(broker))}", None)
            for broker, config in tables.of(self.topic).items()
            if broker in masters
        ]
        if self._ends_route(tables, masters):
            servers = NameServersSource(gateway, self.changer.settings).addresses
            effects += [Effect(f"name server {address}", "a route", None) for address in servers]
        groups = sorted({group for each in asked.answers.values() for group in each})
        unknown = [f"Unknown: {trouble.problem}." for trouble in (*queues.troubles, *asked.troubles)]
        warnings = (*_offset_warnings(groups), *unknown)
        # The number of messages moves while people read; which brokers and groups lose what must not.
        basis = orjson.dumps([sorted(masters), groups, bool(unknown)]).decode()
        silent = tables.troubles if self.brokers is None else ()
        return Preview(self.action, self.topic, tuple(effects), warnings, True, basis, silent)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        tables = self._tables
        assert tables is not None, "carried out without a preview"
        masters = self._masters(tables)
        source = TopicSource(self.changer.gateway)
        outcomes = [await outcome_of(broker, source.delete(at, self.topic)) for broker, at in masters.items()]
        if self._ends_route(tables, masters) and all(outcome.ok for outcome in outcomes):
            outcomes += await self._delete_route()
        self.changer.tables.invalidate()
        return outcomes

    async def _delete_route(self) -> list[Outcome]:
        """At every name server, an outcome each."""
        servers = NameServersSource(self.changer.gateway, self.changer.settings)

        async def delete(server: NameServerSource) -> Outcome:
            return await outcome_of(f"name server {server.address}", server.delete_route(self.topic))

        return list((await servers.ask_each(delete)).answers.values())

    def _masters(self, tables: Tables) -> dict[str, str]:
        there = tables.of(self.topic)
        if not there:
            raise missing(f"The topic {self.topic}", tables.troubles)
        brokers = sorted(there if self.brokers is None else self.brokers)
        for broker in brokers:
            _require_master(tables, broker)
            if broker not in there:
                raise InvalidError(f"{broker} has no topic {self.topic}.")
        return {broker: tables.masters[broker] for broker in brokers}

    def _ends_route(self, tables: Tables, masters: Mapping[str, str]) -> bool:
        """Whether no broker is known or may be thought to keep the topic."""
        return not tables.troubles and masters.keys() >= tables.of(self.topic).keys()


def _require_master(tables: Tables, broker: str) -> None:
    """Raises: InvalidError, UnavailableError."""
    if broker not in tables.masters:
        raise missing(f"A broker {broker} that accepts writes", tables.troubles)


def _require_attributes(tables: Tables, broker: str) -> None:
    """RocketMQ 4 accepts attributes and ignores them. Raises: ChangeRefusedError."""
    topics = tables.by_broker.get(broker, {}).values()
    if topics and all(config.attributes is None for config in topics):
        raise ChangeRefusedError(f"{broker} does not store topic attributes: RocketMQ does from 5.0 on.")


def _with_bit(perm: int, bit: int, is_set: bool | None) -> int:
    if is_set is None:
        return perm
    return perm | bit if is_set else perm & ~bit


def _shown(config: TopicConfig) -> dict[str, str]:
    """Field -> its value for people."""
    letters = ("r" if config.perm & PERM_READ else "") + ("w" if config.perm & PERM_WRITE else "")
    fields = {
        "readQueues": str(config.read_queue_nums),
        "writeQueues": str(config.write_queue_nums),
        "permissions": letters or "none",
        "isOrdered": str(config.order).lower(),
    }
    return fields | {f"attribute {key}": value for key, value in sorted((config.attributes or {}).items())}


def _effects(broker: str, before: TopicConfig | None, after: TopicConfig) -> Iterator[Effect]:
    old, new = {} if before is None else _shown(before), _shown(after)
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Effect(f"{broker}: {name}", old.get(name), new.get(name))


def _losses(broker: str, before: TopicConfig, after: TopicConfig) -> Iterator[str]:
    """What this edit takes away, in sentences."""
    if after.read_queue_nums < before.read_queue_nums:
        cut = f"{after.read_queue_nums} to {before.read_queue_nums - 1}"
        yield f"{broker}: consumers no longer receive the messages in queues {cut}."
    if before.perm & PERM_READ and not after.perm & PERM_READ:
        yield f"{broker}: consumers can no longer read it."
    if before.perm & PERM_WRITE and not after.perm & PERM_WRITE:
        yield f"{broker}: producers can no longer send to it."
    if _retention_ms(after) < _retention_ms(before):
        yield f"{broker}: messages older than {_retention_ms(after):.0f} ms are no longer shown."


def _unordered(
    known: Mapping[str, TopicConfig], wanted: Mapping[str, tuple[TopicConfig, str]]
) -> Iterator[str]:
    """Of an ordered topic that is there: what another number of queues does to the order."""
    after = {broker: config for broker, (config, _) in wanted.items()}
    is_ordered = any(
        config.order or (config.attributes or {}).get(TYPE_ATTRIBUTE) == FIFO for config in after.values()
    )
    queues = {broker: config.write_queue_nums for broker, config in known.items()}
    if (
        known
        and is_ordered
        and queues != queues | {name: each.write_queue_nums for name, each in after.items()}
    ):
        yield (
            "Producers choose a message's queue by its key and the number of queues: keys move to other "
            "queues, and what is unread in the old ones is no longer consumed before what follows. Keep the "
            "order by letting consumers read everything before."
        )


def _retention_ms(config: TopicConfig) -> float:
    text = (config.attributes or {}).get(RETENTION_ATTRIBUTE, "")
    return float(text) if is_retention(text) else float("inf")


def _offset_warnings(groups: Sequence[str]) -> Iterator[str]:
    if groups:
        more = f" and {len(groups) - GROUPS_NAMED_MAX} more" if len(groups) > GROUPS_NAMED_MAX else ""
        named = ", ".join(groups[:GROUPS_NAMED_MAX])
        yield f"These groups lose their offsets in the topic: {named}{more}."


def _queues_text(config: TopicConfig) -> str:
    return f"{max(config.read_queue_nums, config.write_queue_nums)} queues"


def _messages_text(count: int | None) -> str:
    return "an unknown number of messages" if count is None else f"{count} messages"
