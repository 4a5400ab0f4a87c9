"""The name server itself: its configuration, its key-value table, and the write permission of brokers."""

from collections.abc import Mapping, Sequence

from admin_api.changes import Action, Effect, Outcome, Preview
from admin_api.gateway import AskError
from admin_api.schemas.maintenance import ItemsView, NameServerView
from admin_api.security.masking import masked
from admin_api.services.deed import Deed, settings_outcomes, unread_outcomes
from admin_api.services.errors import InvalidError, NotFoundError
from admin_api.sources.brokers import Brokers
from admin_api.sources.name_server import NameServerSource

_TEXT_MAX = 200


class NameServer:
    """Reads and changes. What is asked raises AskError."""

    def __init__(self, source: NameServerSource, directory: Brokers) -> None:
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

    def configure(self, values: Mapping[str, str]) -> Deed:
        """Raises: InvalidError."""
        for key, value in values.items():
            if not key.strip() or not f"{key}{value}".isprintable() or "=" in key or key.startswith("#"):
                raise InvalidError(f"{key[:_TEXT_MAX]!r} cannot be a key, or has a value of several lines.")

        async def look() -> Preview:
            now = await self._source.config()
            unknown = ", ".join(sorted(values.keys() - now.keys()))
            if unknown:  # RocketMQ's would take it, and do nothing
                raise InvalidError(f"The name server has no key {unknown}.")
            effects = (
                Effect(key, masked(key, now.get(key)), masked(key, value)) for key, value in values.items()
            )
            return Preview(Action.NAMESRV_CONFIG, target, tuple(effects))

        async def do(_: Preview) -> Sequence[Outcome]:
            before = await self._source.config()
            await self._source.configure(values)
            try:
                after = await self._source.config()
            except AskError as silence:
                return unread_outcomes(values, silence)
            return settings_outcomes(values, before, after)

        target = f"name server {self._source.address}"
        return Deed(Action.NAMESRV_CONFIG, target, look, do)

    def put_item(self, namespace: str, key: str, value: str | None) -> Deed:
        """`value` None deletes it."""

        async def look() -> Preview:
            before = (await self._source.items(namespace) or {}).get(key)
            if before is None and value is None:
                raise NotFoundError(f"{target} does not exist.")
            effect = Effect(key, masked(key, before), masked(key, value))
            return Preview(Action.NAMESRV_KV, target, (effect,), is_destructive=value is None)

        async def do(_: Preview) -> Sequence[Outcome]:
            if value is None:
                await self._source.delete(namespace, key)
            else:
                await self._source.put(namespace, key, value)
            return (Outcome(key, ok=True),)

        target = f"item {key} of {namespace}"
        return Deed(Action.NAMESRV_KV, target, look, do)

    def allow_writes(self, broker_name: str, *, allow: bool) -> Deed:
        """Only routes change: a broker registers its own permissions again when a topic of its changes."""

        async def look() -> Preview:
            listed = (await self._directory.look()).listed
            if broker_name not in {entry.broker_name for entry in listed}:
                raise NotFoundError(f"The name server lists no broker {broker_name}.")
            effect = Effect(
                f"routes to {broker_name}", None, "readable and writable" if allow else "readable only"
            )
            warning = "It holds until the broker registers a change of its topics, or starts again."
            return Preview(Action.BROKER_PERMISSION, target, (effect,), (warning,), is_destructive=not allow)

        async def do(_: Preview) -> Sequence[Outcome]:
            topics = await self._source.allow_writes(broker_name, allow=allow)
            return (Outcome(f"{topics} topics of {broker_name}", ok=True),)

        target = f"broker {broker_name}"
        return Deed(Action.BROKER_PERMISSION, target, look, do)
