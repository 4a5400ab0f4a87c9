"""Whether a group's RocketMQ 5 consumers pull or pop a topic: read, and changed on all brokers with it."""

from collections.abc import Sequence

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.gateway import Gateway
from admin_api.schemas.group_details import ConsumeModeView
from admin_api.schemas.group_orders import ConsumeMode, ConsumeModeChange
from admin_api.services.group_changes import outcome_of
from admin_api.services.group_overview import GroupOverview, joined, on_masters
from admin_api.services.partial import missing
from admin_api.sources.brokers import BrokerSet
from admin_api.sources.consume_modes import ConsumeModeSource, ModeRow
from admin_api.sources.offsets import OffsetSource


class ConsumeModes:
    """Reads what was set."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._source = ConsumeModeSource(gateway)

    async def of_group(self, brokers: BrokerSet, group: str) -> list[ConsumeModeView] | None:
        """By topic and broker; None where no broker could say."""
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
        overview = await self._overview.look()
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
