"""Changes of brokers and of name servers: keys of their configuration, previewed with the current values,
the name servers' key-value table, write permissions, and clean-up of brokers.
"""

import asyncio
import difflib
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson
from pydantic import Field

from admin_api.brokers.service import BrokerService
from admin_api.changes import (
    Action,
    ChangeRefusedError,
    Effect,
    FunctionChange,
    Outcome,
    Preview,
    settings_outcomes,
    unread_outcomes,
)
from admin_api.errors import InvalidError, NotFoundError
from admin_api.gateway import AskError, Gateway
from admin_api.schema import RequestSchema, Schema
from admin_api.security.masking import masked
from admin_api.sources.broker_admin import BrokerSettings, ConfigSource, Garbage, clean
from admin_api.sources.brokers import BrokerDirectory
from admin_api.sources.name_server import NameServerSource, NameServersSource

NEAR_NAMES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class BrokerChanger:
    """Makes the changes; each is one of `admin_api.changes.Changes`."""

    gateway: Gateway
    directory: BrokerDirectory
    brokers: BrokerService

    def configure(self, address: str, settings: Mapping[str, str]) -> "ConfigChange":
        return ConfigChange(self, address, dict(settings))


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Some keys of one broker; of a LedgerMQ broker, those of its whole group."""

    changer: BrokerChanger
    address: str
    settings: Mapping[str, str]
    action: Action = Action.BROKER_CONFIG

    @property
    def target(self) -> str:
        return self.address

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, InvalidError, ChangeRefusedError, AskError."""
        row = await self.changer.brokers.one(self.address)
        current = await ConfigSource(self.changer.gateway).read(self.address)
        _check(self.settings, current)
        rows = [
            (key, current.values.get(key), value)
            for key, value in sorted(self.settings.items())
            if current.values.get(key) != value
        ]
        effects = [Effect(key, masked(key, before), masked(key, after)) for key, before, after in rows]
        status = await self.changer.directory.status_of(self.address)
        warnings = [] if effects else ["Nothing would change."]
        if status is not None and effects:
            warnings.append(f"This holds for every node of {row.broker_name}, also after a restart.")
        if current.runtime_keys is None and effects:
            warnings.append("The broker does not report which keys take effect only after a restart.")
        # Of the values as they are: all secrets are shown alike, and none may take the place of another.
        basis = hashlib.sha256(orjson.dumps(rows)).hexdigest()
        return Preview(self.action, self.address, tuple(effects), tuple(warnings), True, basis)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        """All keys or none."""
        changed = {effect.subject for effect in preview.effects}
        values = {key: value for key, value in self.settings.items() if key in changed}
        if not values:
            return ()
        outcomes = await change_settings(ConfigSource(self.changer.gateway), self.address, values)
        self.changer.brokers.invalidate()
        return outcomes


async def change_settings(source: ConfigSource, address: str, values: Mapping[str, str]) -> Sequence[Outcome]:
    """Change these keys of one broker, all or none; an outcome for each."""
    try:
        before = await source.read(address)
        await source.change(address, values)
    except AskError as error:
        return [Outcome.failed(key, error) for key in sorted(values)]
    if before.runtime_keys is not None:  # LedgerMQ refuses what it cannot use
        return [Outcome(key, ok=True) for key in sorted(values)]
    try:
        after = await source.read(address)
    except AskError as silence:
        return unread_outcomes(values, silence)
    return settings_outcomes(values, before.values, after.values)


def _check(settings: Mapping[str, str], current: BrokerSettings) -> None:
    """Raises: InvalidError for keys the broker does not have, ChangeRefusedError for those that are fixed."""
    unknown = list(_unknown(settings, current))
    if unknown:
        raise InvalidError(f"{'; '.join(unknown)}.")
    if current.runtime_keys is None:
        return
    fixed = [
        key
        for key, value in sorted(settings.items())
        if key not in current.runtime_keys and current.values.get(key) != value
    ]
    if fixed:
        raise ChangeRefusedError(
            f"{', '.join(fixed)}: cannot be changed while the broker runs. "
            "Set it in the configuration file of each node and restart them."
        )


def _unknown(settings: Mapping[str, str], current: BrokerSettings) -> Iterator[str]:
    """LedgerMQ does not list a key without a value, though such a key may be changeable."""
    known = {*current.values, *(current.runtime_keys or ())}
    by_lower = {key.lower(): key for key in known}
    for key in sorted(settings):
        if key not in known:
            near = difflib.get_close_matches(key.lower(), by_lower, n=NEAR_NAMES_MAX, cutoff=0.5)
            hint = f" (near: {', '.join(by_lower[name] for name in near)})" if near else ""
            yield f"the broker has no key {key}{hint}"


class NameServerConfig(Schema):
    """One name server."""

    address: str
    config: dict[str, str] | None = Field(
        description="every key with its value in force; secrets masked; null: it does not answer"
    )
    problem: str | None = None


class NameServerView(Schema):
    """The name servers that this service asks; `address` and `config` are of the first that answers."""

    address: str
    config: dict[str, str] = Field(description="every key with its value in force; secrets masked")
    name_servers: list[NameServerConfig]


class NameServerChange(RequestSchema):
    """Keys of its configuration that are to change, all or none."""

    values: dict[str, str] = Field(min_length=1, max_length=100)


class ItemsView(Schema):
    """The key-value items of one namespace."""

    namespace: str
    items: dict[str, str]


class ItemValue(RequestSchema):
    """What an item is to be."""

    value: str = Field(max_length=32_000)


class WritePermission(RequestSchema):
    """Whether the routes of a broker's topics show it as writable."""

    is_writable: bool


class Cleaning(RequestSchema):
    """What is to be deleted at once, and where."""

    garbage: Garbage
    addresses: list[str] | None = Field(
        default=None, max_length=256, description="of brokers; null: all that the name server lists"
    )


_TEXT_MAX = 200


class NameServers:
    """Reads while one answers; changes all. What is asked raises AskError when none answers."""

    def __init__(self, source: NameServersSource) -> None:
        self._source = source

    async def view(self) -> NameServerView:
        asked = await self._source.ask(lambda server: server.config())
        problems = {trouble.address: trouble.problem for trouble in asked.troubles}
        configs = {address: _shown(values) for address, values in asked.answers.items()}
        first = next(iter(configs))
        servers = [
            NameServerConfig(address=each, config=configs.get(each), problem=problems.get(each))
            for each in self._source.addresses
        ]
        return NameServerView(address=first, config=configs[first], name_servers=servers)

    async def items(self, namespace: str) -> ItemsView:
        """Where their items differ, those of the first that answers. Raises: NotFoundError."""
        asked = await self._source.ask(lambda server: server.items(namespace))
        tables = [items for items in asked.answers.values() if items is not None]
        if not tables:
            raise NotFoundError(f"The name server has no item of the namespace {namespace}.")
        merged = {key: value for items in reversed(tables) for key, value in items.items()}
        return ItemsView(namespace=namespace, items=_shown(merged))

    def configure(self, values: Mapping[str, str]) -> FunctionChange:
        """Raises: InvalidError."""
        for key, value in values.items():
            if not key.strip() or not f"{key}{value}".isprintable() or "=" in key or key.startswith("#"):
                raise InvalidError(f"{key[:_TEXT_MAX]!r} cannot be a key, or has a value of several lines.")

        async def preview() -> Preview:
            asked = await self._source.ask(lambda server: server.config())
            unknown = {key for now in asked.answers.values() for key in values.keys() - now}
            if unknown:  # RocketMQ's would take it, and do nothing
                raise InvalidError(f"The name server has no key {', '.join(sorted(unknown))}.")
            effects = tuple(
                Effect(self._at(address, key), masked(key, now.get(key)), masked(key, value))
                for address, now in asked.answers.items()
                for key, value in values.items()
            )
            return Preview(Action.NAMESRV_CONFIG, target, effects, left_out=asked.troubles)

        async def configure(server: NameServerSource) -> Sequence[Outcome]:
            before = await server.config()
            await server.configure(values)
            try:
                after = await server.config()
            except AskError as silence:
                return unread_outcomes(values, silence)
            return settings_outcomes(values, before, after)

        target = f"name server {', '.join(self._source.addresses)}"
        return FunctionChange(Action.NAMESRV_CONFIG, target, preview, self._at_each(configure))

    def put_item(self, namespace: str, key: str, value: str | None) -> FunctionChange:
        """`value` None deletes it."""

        async def preview() -> Preview:
            asked = await self._source.ask(lambda server: server.items(namespace))
            before = {address: (items or {}).get(key) for address, items in asked.answers.items()}
            if value is None and not any(item is not None for item in before.values()):
                raise NotFoundError(f"{target} does not exist.")
            effects = tuple(
                Effect(self._at(address, key), masked(key, item), masked(key, value))
                for address, item in before.items()
            )
            is_destructive = value is None
            left_out = asked.troubles
            return Preview(
                Action.NAMESRV_KV, target, effects, is_destructive=is_destructive, left_out=left_out
            )

        async def put(server: NameServerSource) -> Sequence[Outcome]:
            if value is None:
                await server.delete(namespace, key)
            else:
                await server.put(namespace, key, value)
            return (Outcome(key, ok=True),)

        target = f"item {key} of {namespace}"
        return FunctionChange(Action.NAMESRV_KV, target, preview, self._at_each(put))

    def allow_writes(self, broker_name: str, *, allow: bool) -> FunctionChange:
        """Only routes change: a broker registers its own permissions again when a topic of its changes."""

        async def preview() -> Preview:
            asked = await self._source.ask(lambda server: server.brokers())
            listing = [address for address, info in asked.answers.items() if broker_name in info.brokers]
            if not listing:
                raise NotFoundError(f"The name server lists no broker {broker_name}.")
            after = "readable and writable" if allow else "readable only"
            effects = tuple(
                Effect(self._at(address, f"routes to {broker_name}"), None, after) for address in listing
            )
            warning = "It holds until the broker registers a change of its topics, or starts again."
            return Preview(
                Action.BROKER_PERMISSION,
                target,
                effects,
                (warning,),
                is_destructive=not allow,
                left_out=asked.troubles,
            )

        async def allow_at(server: NameServerSource) -> Sequence[Outcome]:
            topics = await server.allow_writes(broker_name, allow=allow)
            return (Outcome(f"{topics} topics of {broker_name}", ok=True),)

        target = f"broker {broker_name}"
        return FunctionChange(Action.BROKER_PERMISSION, target, preview, self._at_each(allow_at))

    def _at_each(
        self, change: Callable[[NameServerSource], Awaitable[Sequence[Outcome]]]
    ) -> Callable[[Preview], Awaitable[Sequence[Outcome]]]:
        """Makes the change at every name server that its preview did not leave out."""

        async def outcomes_of(server: NameServerSource) -> list[Outcome]:
            try:
                outcomes = await change(server)
            except AskError as error:
                return [Outcome.failed(f"name server {server.address}", error)]
            return [replace(each, subject=self._at(server.address, each.subject)) for each in outcomes]

        async def execute(preview: Preview) -> Sequence[Outcome]:
            left_out = {trouble.address for trouble in preview.silent}
            asked = await self._source.ask_each(outcomes_of, without=left_out)
            return [outcome for outcomes in asked.answers.values() for outcome in outcomes]

        return execute

    def _at(self, address: str, subject: str) -> str:
        """With the name server, where there are several."""
        return subject if len(self._source.addresses) == 1 else f"{subject} at {address}"


def _shown(values: Mapping[str, str]) -> dict[str, str]:
    return {key: masked(key, value) or "" for key, value in values.items()}


_WORDS = {
    Garbage.COMMIT_LOG: "log files past their time",
    Garbage.CONSUME_QUEUES: "files of consume queues whose messages are gone",
    Garbage.UNUSED_TOPICS: "queues of topics that no longer exist",
}


class CleaningService:
    """Asks brokers to clean up."""

    def __init__(self, gateway: Gateway, directory: BrokerDirectory) -> None:
        self._gateway = gateway
        self._directory = directory

    def clean(self, garbage: Garbage, addresses: Sequence[str] | None) -> FunctionChange:
        """On these brokers, or on all that the name server lists."""

        async def preview() -> Preview:
            known = {entry.address for entry in (await self._directory.current()).listed}
            unknown = set(addresses or ()) - known
            if unknown:
                raise NotFoundError(f"The name server lists no broker {min(unknown)}.")
            wanted = sorted(known if addresses is None else set(addresses))
            effects = tuple(Effect(address, _WORDS[garbage], "deleted") for address in wanted)
            is_destructive = garbage is Garbage.COMMIT_LOG
            warnings = ("Messages in them can be read no more.",) if is_destructive else ()
            return Preview(Action.BROKER_CLEAN, target, effects, warnings, is_destructive=is_destructive)

        async def execute(preview: Preview) -> Sequence[Outcome]:
            return await asyncio.gather(*(self._clean(each.subject, garbage) for each in preview.effects))

        target = _WORDS[garbage]
        return FunctionChange(Action.BROKER_CLEAN, target, preview, execute)

    async def _clean(self, address: str, garbage: Garbage) -> Outcome:
        try:
            removed = await clean(self._gateway, address, garbage)
        except AskError as error:
            return Outcome.failed(address, error)
        return Outcome(f"{address}: {removed}" if removed else address, ok=True)
