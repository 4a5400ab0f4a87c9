"""Changes keys of a broker's configuration, previewed with the current values."""

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from admin_api.brokers.service import BrokerService
from admin_api.changes import (
    Action,
    ChangeRefusedError,
    Effect,
    Outcome,
    Preview,
    settings_outcomes,
    unread_outcomes,
)
from admin_api.errors import InvalidError
from admin_api.gateway import AskError, Gateway
from admin_api.security.masking import masked
from admin_api.sources.broker_admin import BrokerSettings, ConfigSource
from admin_api.sources.brokers import Brokers

NEAR_NAMES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class BrokerChanger:
    """Makes the changes; each is one of `admin_api.changes.Changes`."""

    gateway: Gateway
    directory: Brokers
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
        source = ConfigSource(self.changer.gateway)
        try:
            before = await source.read(self.address)
            await source.change(self.address, values)
        except AskError as error:
            return [Outcome.failed(key, error) for key in sorted(values)]
        self.changer.brokers.invalidate()
        if before.runtime_keys is not None:  # LedgerMQ refuses what it cannot use
            return [Outcome(key, ok=True) for key in sorted(values)]
        try:
            after = await source.read(self.address)
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
