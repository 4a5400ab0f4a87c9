"""Groups that come and go: a group takes no more messages and is consumed to its end before it is removed; a
new one gets the topics and consumer groups of another.

`brokerPermission` 4 takes the group's queues out of the routes that producers choose from. Sends of producers
that have an older route are still taken, so that none of them fails: stock clients ask for routes each 30 s.
Once nothing is left, `refuseMessages` has these refused too, and what is left is looked at again: a message
that came between the first look and the end of the group's nodes would be lost.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field, model_validator

from admin_api.changes import (
    Action,
    ChangeRefusedError,
    Effect,
    FunctionChange,
    Outcome,
    Preview,
    outcome_of,
)
from admin_api.cluster.replication import Replication, is_stock, present_leader
from admin_api.cluster.schemas import GroupState, GroupView
from admin_api.errors import UnavailableError
from admin_api.gateway import Gateway
from admin_api.groups.overview import is_system_group
from admin_api.schema import RequestSchema, Schema
from admin_api.sources.groups import GroupConfig, GroupSource
from admin_api.sources.offsets import OffsetSource
from admin_api.sources.topics import TopicConfig, TopicSource
from admin_api.topics.service import TopicKind, TopicKinds
from broker.admin.types import ProgressMessage

QUIET_MS: Final = 60_000
"""Stock clients ask for routes each 30 s."""
REFUSED_QUIET_MS: Final = 10_000
"""A send that was taken before the group refused them is answered within 5 s."""
LAGS_MAX: Final = 100
NAMED_MAX: Final = 20
BROADCASTING: Final = "BROADCASTING"
PERMISSION: Final = "brokerPermission"
REFUSAL: Final = "refuseMessages"


class LagHere(Schema):
    """What one consumer group has not consumed of one topic, in the queues of this group."""

    consumer_group: str
    topic: str
    lag: int | None = Field(description="null: the group has no offset in queues with messages")


class DrainingView(Schema):
    """Whether a replication group may be removed without the loss of a message."""

    group: str
    accepts_messages: bool = Field(description="false: routes give its queues for reading only")
    refuses_messages: bool = Field(description="true: sends by older routes are refused as well")
    is_drained: bool = Field(description="nothing would be lost with it")
    reasons: list[str] = Field(description="why it is not drained, in sentences")
    quiet_ms: int | None = Field(description="since the last message was stored; null: unknown")
    lags: list[LagHere] = Field(description="of those that are not 0 the first 100")
    waiting: dict[str, int | None] = Field(
        description="messages that the broker has still to deliver: delay, timer, transaction; null: unknown"
    )
    unread: dict[str, int] = Field(
        description="messages of topics that no consumer group reads, of the first 100"
    )


class AcceptedMessages(RequestSchema):
    """Whether producers may choose the group's queues."""

    accepted: bool
    refused: bool | None = Field(
        default=None,
        description="true: refuse also sends of producers with an older route, once nothing is left; "
        "null: they are taken if `accepted`, and as before if not",
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.accepted and self.refused:
            raise ValueError("`accepted` and `refused` exclude each other")
        return self


class SettingsSource(RequestSchema):
    """From where topics and consumer groups are copied."""

    source: str = Field(min_length=1, max_length=255, description="a replication group, such as `broker-a`")


class Draining:
    """Looks at one group, and changes whether it takes messages and what topics it has."""

    def __init__(self, gateway: Gateway, replication: Replication, quiet_ms: int = QUIET_MS) -> None:
        """`quiet_ms`: producers have left a group that got no message for so long."""
        self._replication = replication
        self._quiet_ms = quiet_ms
        self._groups = GroupSource(gateway)
        self._topics = TopicSource(gateway)
        self._offsets = OffsetSource(gateway)

    async def view(self, group: str) -> DrainingView:
        """Raises: NotFoundError, UnavailableError, AskError."""
        found = await self._replication.find(group)
        address, accepts = address_of_leader(found), found.accepts_messages is not False
        progress, absent = await asyncio.gather(self._groups.progress(address), self._absent(group, address))
        if progress is None or progress.quiet_ms is None:
            raise UnavailableError(
                f"The leader of {group} is of a release that does not say what is left there."
            )
        lags = _lags(progress, absent)
        reasons = list(_reasons(progress, lags, self._quiet_ms, accepts=accepts))
        return DrainingView(
            group=group,
            accepts_messages=accepts,
            refuses_messages=progress.refuses_messages is True,
            is_drained=not reasons,
            reasons=reasons,
            quiet_ms=progress.quiet_ms,
            lags=lags[:LAGS_MAX],
            waiting=progress.waiting or {},
            unread=progress.unread or {},
        )

    async def _absent(self, group: str, address: str) -> set[tuple[str, str]]:
        """(topic, consumer group) that have offsets in another replication group and none in this one, which
        has messages: who was away all the time since this one was added. Raises: UnavailableError, AskError.
        """
        others = [
            each for each in await self._replication.groups() if each.group != group and not is_stock(each)
        ]
        asked = [self._offsets.pairs(at) for at in (address, *map(address_of_leader, others))]
        here, *elsewhere = await asyncio.gather(*asked)
        missing = set().union(*elsewhere) - here
        missing = {(topic, name) for topic, name in missing if not is_system_group(name)}
        topics = {topic for topic, _ in missing if await self._has_messages(address, topic)}
        return {(topic, name) for topic, name in missing if topic in topics}

    async def _has_messages(self, address: str, topic: str) -> bool:
        bounds = await self._offsets.bounds(address, topic)
        return any(row.max_offset > row.min_offset for row in (bounds or {}).values())

    async def _leader_address(self, group: str) -> str:
        """Raises: NotFoundError, UnavailableError."""
        return address_of_leader(await self._replication.find(group))

    def accept(self, group: str, wanted: AcceptedMessages) -> FunctionChange:
        """The change that lets producers choose the group's queues, or not."""
        changed: dict[str, str] = {}

        async def preview() -> Preview:
            found = await self._replication.find(group)
            progress = await self._groups.progress(address_of_leader(found))
            accepts = found.accepts_messages is not False
            refuses = progress is not None and bool(progress.refuses_messages)
            refused = wanted.refused if wanted.refused is not None else refuses and not wanted.accepted
            changed.clear()
            effects: list[Effect] = []
            if accepts is not wanted.accepted:
                changed[PERMISSION] = "6" if wanted.accepted else "4"
                effects.append(Effect("accepts messages", _word(accepts), _word(wanted.accepted)))
            if refuses is not refused:
                changed[REFUSAL] = "true" if refused else "false"
                effects.append(Effect("refuses messages by older routes", _word(refuses), _word(refused)))
            if not effects:
                return Preview(action, target, (), ("Nothing would change.",))
            leaves = accepts and not wanted.accepted
            warnings = (await self._warning(group),) if leaves else ()
            return Preview(action, target, tuple(effects), warnings, is_destructive=not wanted.accepted)

        async def carry_out(_: Preview) -> Sequence[Outcome]:
            address = await self._leader_address(group)
            await self._replication.configs.change(address, changed)
            return (Outcome(target, ok=True),)

        action, target = Action.GROUP_WRITES, f"replication group {group}"
        return FunctionChange(action, target, preview, carry_out)

    async def _warning(self, group: str) -> str:
        """What happens when the group takes no more messages."""
        if await self._others_accept(group):
            return "Keys whose messages went to its queues go to others: order across the change is lost."
        return "No other group takes messages: sends fail as soon as producers ask for routes again."

    async def _others_accept(self, group: str) -> bool:
        return any(
            other.state is GroupState.WRITABLE and other.accepts_messages is not False
            for other in await self._replication.groups()
            if other.group != group
        )

    def copy_settings(self, source: str, group: str) -> FunctionChange:
        """The change that makes in `group` the topics and consumer groups of `source` that it lacks."""
        missing = _Missing()

        async def preview() -> Preview:
            if source == group:
                raise ChangeRefusedError(f"{group} has its own topics already.")
            here, there = await self._leader_address(source), await self._leader_address(group)
            missing.groups = await self._missing_groups(here, there)
            missing.topics = await self._missing_topics(here, there)
            effects = [
                Effect(f"consumer group {each.group_name}", None, "as there") for each in missing.groups
            ]
            effects += [Effect(f"topic {each.topic_name}", None, _queues(each)) for each in missing.topics]
            warnings = ("Users and policies are not copied: make them there, if access control is on.",)
            return Preview(Action.GROUP_SETTINGS, target, tuple(effects), warnings if effects else ())

        async def carry_out(_: Preview) -> Sequence[Outcome]:
            # Consumer groups first: a consumer of a new topic finds its settings there.
            there = await self._leader_address(group)
            outcomes = [
                await outcome_of(f"consumer group {each.group_name}", self._groups.put(there, each))
                for each in missing.groups
            ]
            for each in missing.topics:
                made = self._topics.put(there, each, attributes_of(each))
                outcomes.append(await outcome_of(f"topic {each.topic_name}", made))
            return outcomes

        target = f"replication group {group}"
        return FunctionChange(Action.GROUP_SETTINGS, target, preview, carry_out)

    async def _missing_groups(self, here: str, there: str) -> list[GroupConfig]:
        wanted, known = await asyncio.gather(self._groups.configs(here), self._groups.configs(there))
        return [
            config
            for name, config in sorted(wanted.items())
            if name not in known and not is_system_group(name)
        ]

    async def _missing_topics(self, here: str, there: str) -> list[TopicConfig]:
        wanted, known = await asyncio.gather(self._topics.configs(here), self._topics.configs(there))
        groups = await self._replication.groups()
        kinds = TopicKinds(
            {each.cluster for each in groups if each.cluster}, [each.broker_name for each in groups]
        )
        return [
            config
            for name, config in sorted(wanted.items())
            if name not in known and kinds.of(name) is TopicKind.NORMAL
        ]


@dataclass(slots=True)
class _Missing:
    """What the last preview found that one group lacks."""

    groups: Sequence[GroupConfig] = ()
    topics: Sequence[TopicConfig] = ()


def address_of_leader(group: GroupView) -> str:
    """Raises: UnavailableError."""
    address = present_leader(group).remoting_address
    assert address is not None
    return address


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _queues(config: TopicConfig) -> str:
    return f"{config.write_queue_nums} queues"


def attributes_of(config: TopicConfig) -> str:
    """As a request to make the topic has them."""
    return ",".join(f"+{key}={value}" for key, value in sorted((config.attributes or {}).items()))


def _lags(progress: ProgressMessage, absent: Iterable[tuple[str, str]]) -> list[LagHere]:
    """Those that are not 0. A group that broadcasts keeps its offsets in its members. `absent`: see
    Draining.
    """
    known = [
        LagHere(consumer_group=name, topic=topic, lag=None if each.unknown_queues else each.lag)
        for name, group in sorted(progress.groups.items())
        for topic, each in sorted(group.topics.items())
        if group.message_model != BROADCASTING and (each.lag or each.unknown_queues)
    ]
    named = {(each.topic, each.consumer_group) for each in known}
    return known + [
        LagHere(consumer_group=name, topic=topic, lag=None) for topic, name in sorted({*absent} - named)
    ]


def _reasons(
    progress: ProgressMessage, lags: Sequence[LagHere], least_ms: int, *, accepts: bool
) -> Iterator[str]:
    """Why messages would be lost with the group, in sentences."""
    assert progress.quiet_ms is not None
    if accepts:
        yield "It accepts messages."
    if progress.refuses_messages:
        least_ms = min(least_ms, REFUSED_QUIET_MS)
    if progress.quiet_ms < least_ms:
        ago_s, least_s = progress.quiet_ms // 1_000, least_ms // 1_000
        what = "a message was stored, a setting was changed, or its leader is new"
        yield f"{ago_s} s ago {what}; wait for {least_s} s without."
    if lags:
        names = ", ".join(dict.fromkeys(each.consumer_group for each in lags[:NAMED_MAX]))
        yield f"Consumer groups have not consumed everything: {names}."
    popping = sorted(name for name, group in progress.groups.items() if group.pop_in_flight)
    if popping:
        yield f"Popped messages are not acknowledged: {', '.join(popping[:NAMED_MAX])}."
    for kind, count in sorted((progress.waiting or {}).items()):
        if count is None or count:
            yield f"Messages wait in the broker: {kind}, {'unknown' if count is None else count}."
    if progress.unread_topics:
        names = ", ".join(sorted(progress.unread or {})[:NAMED_MAX])
        yield f"Topics have messages that no consumer group reads: {names}."
