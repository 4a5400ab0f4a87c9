"""Creating, editing and deleting consumer groups (200, 207), as changes that say first what they do."""

from collections.abc import Sequence
from typing import Any

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.gateway import AskError, Gateway, Trouble
from admin_api.schemas.group_orders import GroupSettingsChange
from admin_api.services.errors import InvalidError, UnavailableError
from admin_api.services.group_items import make_item
from admin_api.services.group_overview import GroupOverview, Overview, joined, on_masters, sentence
from admin_api.services.group_views import SETTING_KEYS
from admin_api.services.partial import missing
from admin_api.sources.consumer_groups import GroupConfig, GroupSource


def left_out(overview: Overview) -> tuple[Trouble, ...]:
    """Who may have the group, and did not say what is kept of it."""
    told = {overview.brokers.masters[name] for name in overview.configs}
    return tuple(trouble for trouble in overview.troubles if trouble.address not in told)


class PutGroup:
    """Creates the group where it is missing, and changes what is named where it is not."""

    action = Action.GROUP_UPDATE

    def __init__(
        self, gateway: Gateway, overview: GroupOverview, group: str, settings: GroupSettingsChange
    ) -> None:
        self.target = group
        self._gateway = gateway
        self._overview = overview
        self._source = GroupSource(gateway)
        self._wanted = settings
        self._addresses: dict[str, str] = {}
        self._configs: dict[str, GroupConfig] = {}

    async def preview(self) -> Preview:
        """Raises: InvalidError, UnavailableError, ChangeRefusedError when nothing would change."""
        self._overview.forget()
        overview = await self._overview.look()
        names = self._brokers(overview)
        values = self._wanted.model_dump(exclude={"brokers"}, exclude_none=True)
        effects: list[Effect] = []
        self._addresses, self._configs = dict(overview.brokers.masters), {}
        is_new = True
        for name in names:
            known = overview.configs[name].get(self.target)
            is_new = is_new and known is None
            config = self._merged(known, values)
            changes = _effects(name, known, config, values)
            if changes:
                self._configs[name] = config
                effects.extend(changes)
        if not effects:
            raise ChangeRefusedError(f"The group {self.target} is like that already.")
        stops = any(
            effect.after == "false" and effect.subject.endswith("consumeEnabled") for effect in effects
        )
        return Preview(
            Action.GROUP_CREATE if is_new else Action.GROUP_UPDATE,
            self.target,
            tuple(effects),
            ("its consumers get no messages any more",) if stops else (),
            is_destructive=stops and not is_new,
            left_out=left_out(overview) if self._wanted.brokers is None else (),
        )

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        async def put(name: str) -> None:
            await self._source.put(self._addresses[name], self._configs[name])

        outcomes = [await outcome_of(name, put(name)) for name in self._configs]
        self._overview.forget()
        return outcomes

    def _brokers(self, overview: Overview) -> list[str]:
        wanted = self._wanted.brokers
        if wanted is None:
            return sorted(overview.configs)
        unknown = set(wanted) - overview.brokers.masters.keys()
        if unknown:
            raise InvalidError(f"No broker is named {sorted(unknown)[0]}.")
        silent = set(wanted) - overview.configs.keys()
        if silent:
            raise UnavailableError(sentence(overview.troubles))
        return sorted(set(wanted))

    def _merged(self, known: GroupConfig | None, values: dict[str, Any]) -> GroupConfig:
        base = known or GroupConfig(group_name=self.target)
        return base.model_copy(update={SETTING_KEYS[key]: value for key, value in values.items()})


def _effects(
    broker_name: str, known: GroupConfig | None, config: GroupConfig, values: dict[str, Any]
) -> list[Effect]:
    if known is None:
        named = ", ".join(f"{_wire_name(key)}={_text(value)}" for key, value in values.items())
        return [Effect(broker_name, None, named or "with the usual settings")]
    rows = []
    for key in values:
        before, after = getattr(known, SETTING_KEYS[key]), getattr(config, SETTING_KEYS[key])
        if before != after:
            rows.append(Effect(f"{broker_name}: {_wire_name(key)}", _text(before), _text(after)))
    return rows


def _wire_name(key: str) -> str:
    return GroupSettingsChange.model_fields[key].alias or key


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class DeleteGroup:
    """Deletes the group on every broker that has it; its retry and dead-letter topics stay."""

    action = Action.GROUP_DELETE

    def __init__(self, gateway: Gateway, overview: GroupOverview, group: str, *, with_offsets: bool) -> None:
        self.target = group
        self._gateway = gateway
        self._overview = overview
        self._source = GroupSource(gateway)
        self._with_offsets = with_offsets
        self._addresses: dict[str, str] = {}

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError."""
        self._overview.forget()
        overview = await self._overview.look()
        holding = sorted(name for name, configs in overview.configs.items() if self.target in configs)
        self._addresses = {name: overview.brokers.masters[name] for name in holding}
        if not holding:
            raise missing(f"the consumer group {self.target}", overview.troubles)
        clients = await self._gateway.ask_each(
            holding,
            on_masters(overview.brokers, lambda address: self._source.connections(address, self.target)),
        )
        is_online = any(each is not None for each in clients.answers.values())
        warnings = [
            f"who is connected is not known: {trouble.problem}" for trouble in joined(clients.troubles)
        ]
        if is_online:
            warnings.append(
                "its consumers are connected: where brokers make groups by themselves, it comes back at once"
            )
        effects = [Effect(f"{name}: settings", "there", None) for name in holding]
        effects += self._offset_effects(overview)
        basis = f"{holding} {self._with_offsets} {is_online}"
        silent = left_out(overview)
        return Preview(self.action, self.target, tuple(effects), tuple(warnings), True, basis, silent)

    def _offset_effects(self, overview: Overview) -> list[Effect]:
        if not self._with_offsets:
            return []
        lags = make_item(overview, self.target).lag_by_topic
        if not lags:
            return [Effect("its offsets", "there", None)]
        return [
            Effect(
                f"offsets of {topic}", "there" if lag is None else f"there, {lag} messages not consumed", None
            )
            for topic, lag in lags.items()
        ]

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        async def delete(address: str) -> None:
            await self._source.delete(address, self.target, with_offsets=self._with_offsets)

        outcomes = [await outcome_of(name, delete(address)) for name, address in self._addresses.items()]
        self._overview.forget()
        return outcomes


async def outcome_of(subject: str, doing: Any) -> Outcome:
    """Awaits it; an AskError is the outcome's problem."""
    try:
        await doing
    except AskError as error:
        return Outcome.failed(subject, error)
    return Outcome(subject, ok=True)
