"""Changes of brokers and of the name server: keys of their configuration, previewed with the current values,
the name server's key-value table, write permissions, and clean-up of brokers.
"""

import asyncio
import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from admin_api.sources.name_server import NameServerSource

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


class NameServerView(Schema):
    """The name server that this service asks."""

    address: str
    config: dict[str, str] = Field(description="every key with its value in force; secrets masked")


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


class NameServer:
    """Reads and changes. What is asked raises AskError."""

    def __init__(self, source: NameServerSource, directory: BrokerDirectory) -> None:
        self._source = source
        self._directory = directory

    async def view(self) -> NameServerView:
        values = await self._source.config()
        shown = {key: masked(key, value) or "" for key, value in values.items()}
        return NameServerView(address=self._source.address, config=shown)

    async def items(self, namespace: str) -> ItemsView:
        """Raises: NotFoundError."""
        items = await self._source.items(namespace)
        if items is None:
            raise NotFoundError(f"The name server has no item of the namespace {namespace}.")
        shown = {key: masked(key, value) or "" for key, value in items.items()}
        return ItemsView(namespace=namespace, items=shown)

    def configure(self, values: Mapping[str, str]) -> FunctionChange:
        """Raises: InvalidError."""
        for key, value in values.items():
            if not key.strip() or not f"{key}{value}".isprintable() or "=" in key or key.startswith("#"):
                raise InvalidError(f"{key[:_TEXT_MAX]!r} cannot be a key, or has a value of several lines.")

        async def preview() -> Preview:
            now = await self._source.config()
            unknown = ", ".join(sorted(values.keys() - now.keys()))
            if unknown:  # RocketMQ's would take it, and do nothing
                raise InvalidError(f"The name server has no key {unknown}.")
            effects = (
                Effect(key, masked(key, now.get(key)), masked(key, value)) for key, value in values.items()
            )
            return Preview(Action.NAMESRV_CONFIG, target, tuple(effects))

        async def execute(_: Preview) -> Sequence[Outcome]:
            before = await self._source.config()
            await self._source.configure(values)
            try:
                after = await self._source.config()
            except AskError as silence:
                return unread_outcomes(values, silence)
            return settings_outcomes(values, before, after)

        target = f"name server {self._source.address}"
        return FunctionChange(Action.NAMESRV_CONFIG, target, preview, execute)

    def put_item(self, namespace: str, key: str, value: str | None) -> FunctionChange:
        """`value` None deletes it."""

        async def preview() -> Preview:
            before = (await self._source.items(namespace) or {}).get(key)
            if before is None and value is None:
                raise NotFoundError(f"{target} does not exist.")
            effect = Effect(key, masked(key, before), masked(key, value))
            return Preview(Action.NAMESRV_KV, target, (effect,), is_destructive=value is None)

        async def execute(_: Preview) -> Sequence[Outcome]:
            if value is None:
                await self._source.delete(namespace, key)
            else:
                await self._source.put(namespace, key, value)
            return (Outcome(key, ok=True),)

        target = f"item {key} of {namespace}"
        return FunctionChange(Action.NAMESRV_KV, target, preview, execute)

    def allow_writes(self, broker_name: str, *, allow: bool) -> FunctionChange:
        """Only routes change: a broker registers its own permissions again when a topic of its changes."""

        async def preview() -> Preview:
            listed = (await self._directory.current()).listed
            if broker_name not in {entry.broker_name for entry in listed}:
                raise NotFoundError(f"The name server lists no broker {broker_name}.")
            effect = Effect(
                f"routes to {broker_name}", None, "readable and writable" if allow else "readable only"
            )
            warning = "It holds until the broker registers a change of its topics, or starts again."
            return Preview(Action.BROKER_PERMISSION, target, (effect,), (warning,), is_destructive=not allow)

        async def execute(_: Preview) -> Sequence[Outcome]:
            topics = await self._source.allow_writes(broker_name, allow=allow)
            return (Outcome(f"{topics} topics of {broker_name}", ok=True),)

        target = f"broker {broker_name}"
        return FunctionChange(Action.BROKER_PERMISSION, target, preview, execute)


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
