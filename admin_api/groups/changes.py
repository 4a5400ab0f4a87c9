"""Creates, edits and deletes consumer groups (200, 207), and sets whether a group pulls or pops a topic
(401).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview, outcome_of
from admin_api.errors import InvalidError, UnavailableError, missing
from admin_api.gateway import Gateway, Trouble
from admin_api.groups.details import SETTING_KEYS, ConsumeModeView
from admin_api.groups.overview import GroupOverview, Overview, joined, make_item, on_masters, sentence
from admin_api.schema import RequestSchema
from admin_api.sources.brokers import BrokerSet
from admin_api.sources.groups import ConsumeModeSource, GroupConfig, GroupSource, ModeRow
from admin_api.sources.offsets import OffsetSource


class GroupSettingsChange(RequestSchema):
    """What is left out stays as it is; a new group gets RocketMQ's values."""

    consume_enabled: bool | None = None
    consume_from_min_enabled: bool | None = None
    consume_broadcast_enabled: bool | None = None
    is_orderly: bool | None = None
    retry_queues: int | None = Field(default=None, ge=0, le=1024)
    retry_max_times: int | None = Field(default=None, ge=0, le=1_000_000)
    notify_consumer_ids_changed: bool | None = None
    consume_timeout_minutes: int | None = Field(default=None, ge=0, le=525_600)
    brokers: list[str] | None = Field(
        default=None, max_length=256, description="names of brokers; all of the cluster when left out"
    )


class ConsumeMode(StrEnum):
    """How RocketMQ 5 consumers get messages when the broker shares the queues out."""

    PULL = "PULL"
    POP = "POP"


class ConsumeModeChange(RequestSchema):
    """Of one topic, on all brokers that have it."""

    topic: str = Field(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_-]+$")
    mode: ConsumeMode
    pop_share_queues: int = Field(default=0, ge=0, le=100_000, description="for POP; 0: all share all queues")


def left_out(overview: Overview) -> tuple[Trouble, ...]:
    """Brokers that may have the group, and did not report what is kept of it."""
    answered = {overview.brokers.masters[name] for name in overview.configs}
    return tuple(trouble for trouble in overview.troubles if trouble.address not in answered)


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
        self._overview.invalidate()
        overview = await self._overview.current()
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
        self._overview.invalidate()
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
        self._overview.invalidate()
        overview = await self._overview.current()
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
        self._overview.invalidate()
        return outcomes


class ConsumeModes:
    """Reads what was set."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._source = ConsumeModeSource(gateway)

    async def of_group(self, brokers: BrokerSet, group: str) -> list[ConsumeModeView] | None:
        """By topic and broker; None where no broker reported it."""
        ask = on_masters(brokers, lambda address: self._source.of_group(address, group))
        answers = (await self._gateway.ask_each(brokers.masters, ask)).answers
        known = {name: modes for name, modes in answers.items() if modes is not None}
        rows = [
            ConsumeModeView(
                topic=topic, broker_name=name, mode=row.mode, pop_share_queues=row.pop_share_queue_num
            )
            for name, modes in known.items()
            for topic, row in modes.items()
        ]
        return sorted(rows, key=lambda row: (row.topic, row.broker_name)) if known else None


class SetConsumeMode:
    """Its consumers take the new mode over when they ask for their queues next."""

    action = Action.GROUP_UPDATE

    def __init__(
        self, gateway: Gateway, overview: GroupOverview, group: str, wanted: ConsumeModeChange
    ) -> None:
        self.target = group
        self._gateway = gateway
        self._overview = overview
        self._wanted = wanted
        self._source = ConsumeModeSource(gateway)
        self._offsets = OffsetSource(gateway)
        self._addresses: dict[str, str] = {}

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, ChangeRefusedError."""
        overview = await self._overview.current()
        topic, brokers = self._wanted.topic, overview.brokers
        if self.target not in overview.names():
            raise missing(f"the consumer group {self.target}", overview.troubles)
        bounds = await self._gateway.ask_each(
            brokers.masters, on_masters(brokers, lambda address: self._offsets.bounds(address, topic))
        )
        having = [name for name, queues in bounds.answers.items() if queues is not None]
        if not having:
            raise missing(f"the topic {topic}", overview.troubles, bounds.troubles)
        modes = await self._gateway.ask_each(
            having, on_masters(brokers, lambda address: self._source.of_group(address, self.target))
        )
        known = {name: table for name, table in modes.answers.items() if table is not None}
        if not known:
            raise ChangeRefusedError("No broker that has the topic knows consume modes; RocketMQ 5 does.")
        effects = []
        self._addresses = {}
        for name, table in sorted(known.items()):
            row = table.get(topic)
            before = None if row is None else _mode_text(row.mode, row.pop_share_queue_num)
            after = _mode_text(self._wanted.mode, self._wanted.pop_share_queues)
            if before != after:
                self._addresses[name] = brokers.masters[name]
                effects.append(Effect(f"{name}: {topic}", before, after))
        if not effects:
            raise ChangeRefusedError(f"The group {self.target} is like that already.")
        silent = joined(brokers.troubles, bounds.troubles, modes.troubles)
        return Preview(self.action, self.target, tuple(effects), left_out=silent)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        wanted = self._wanted
        row = ModeRow(
            topic=wanted.topic,
            consumer_group=self.target,
            mode=wanted.mode.value,
            pop_share_queue_num=wanted.pop_share_queues,
        )
        return [
            await outcome_of(name, self._source.put(address, row))
            for name, address in self._addresses.items()
        ]


def _mode_text(mode: str, pop_share_queues: int) -> str:
    if mode != ConsumeMode.POP:
        return str(mode)
    return "POP, all share all queues" if pop_share_queues <= 0 else f"POP, {pop_share_queues} share a queue"
