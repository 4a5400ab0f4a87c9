"""What a change of consumer offsets would do to each queue. Pure, except for the requests of `PlanReader`."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import AwareDatetime, Field, model_validator

from admin_api.changes import ChangeRefusedError, Effect
from admin_api.gateway import Gateway, Gathered
from admin_api.groups.overview import on_masters
from admin_api.schema import RequestSchema, Schema
from admin_api.sources.bodies import QueueKey
from admin_api.sources.brokers import BrokerSet
from admin_api.sources.offsets import BoundsRow, OffsetSource, Progress

QUEUES_MAX = 4096
OFFSET_MAX = 2**63 - 1


class ResetTo(StrEnum):
    """Where a group is to go on. EARLIEST: the first message. LATEST: behind the last. TIME: the first that
    was stored at or after it. OFFSET: exactly there.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


class QueueOffset(Schema):
    """One queue, and for an exact reset its offset."""

    broker_name: str = Field(min_length=1, max_length=127)
    queue_id: int = Field(ge=0, le=2**31 - 1)
    offset: int | None = Field(default=None, ge=0, le=OFFSET_MAX)


class OffsetReset(RequestSchema):
    """Moves a group in one topic."""

    topic: str = Field(min_length=1, max_length=255)
    to: ResetTo
    time: AwareDatetime | None = Field(default=None, description="for `time`, with its zone")
    time_ms: int | None = Field(default=None, ge=0, le=253_402_300_799_999, description="the same as Unix ms")
    offset: int | None = Field(
        default=None, ge=0, le=OFFSET_MAX, description="for `offset`: of every queue that names none itself"
    )
    queues: list[QueueOffset] | None = Field(
        default=None,
        min_length=1,
        max_length=QUEUES_MAX,
        description="only these; all of the topic when left out",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> "OffsetReset":
        times = sum(value is not None for value in (self.time, self.time_ms))
        if times != (self.to is ResetTo.TIME):
            raise ValueError("`time` or `timeMs` belongs to a reset to `time`, and only to it")
        named = [queue.offset for queue in self.queues or ()]
        if self.to is not ResetTo.OFFSET and (self.offset is not None or any(o is not None for o in named)):
            raise ValueError("an offset belongs to a reset to `offset`")
        if self.to is ResetTo.OFFSET and self.offset is None and (not named or None in named):
            raise ValueError("a reset to `offset` needs `offset`, or one for each of `queues`")
        keys = [(queue.broker_name, queue.queue_id) for queue in self.queues or ()]
        if len(set(keys)) != len(keys):
            raise ValueError("a queue is named twice")
        return self

    def unix_ms(self) -> int:
        """The time of a reset to one."""
        if self.time is not None:
            return max(0, int(self.time.timestamp() * 1000))
        assert self.time_ms is not None, self
        return self.time_ms


class OffsetSkip(RequestSchema):
    """Skips everything that has accumulated: a reset to the latest."""

    topic: str | None = Field(
        default=None, min_length=1, max_length=255, description="all that the group consumes when left out"
    )


class OffsetClone(RequestSchema):
    """Has another group go on where this one is. Its own offsets of the topics are overwritten."""

    target_group: str = Field(min_length=1, max_length=255, pattern=r"^[%|a-zA-Z0-9_-]+$")
    topic: str | None = Field(
        default=None, min_length=1, max_length=255, description="all that the group consumes when left out"
    )


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """One queue: where its group is (None: it has no offset), and where it is to be."""

    topic: str
    broker_name: str
    queue_id: int
    first: int
    end: int
    before: int | None
    after: int

    @property
    def name(self) -> str:
        return f"{self.broker_name}/{self.queue_id}"

    def effect(self, subject: str) -> Effect:
        """How many messages are consumed again, or never."""
        return Effect(
            subject, None if self.before is None else str(self.before), f"{self.after}{self._what()}"
        )

    def _what(self) -> str:
        if self.before is None:
            return f", {self.end - self.after} messages to consume"
        kept = max(self.before, self.first)
        if self.after < kept:
            return f", {kept - self.after} messages again"
        return f", {self.after - kept} messages skipped" if self.after > kept else ", as it is"


@dataclass(frozen=True, slots=True)
class TopicState:
    """One broker's queues of a topic, and where the group is in each."""

    bounds: Mapping[QueueKey, BoundsRow]
    offsets: Mapping[QueueKey, int | None]


class PlanReader:
    """Asks the masters of a BrokerSet."""

    def __init__(self, gateway: Gateway, source: OffsetSource) -> None:
        self._gateway = gateway
        self._source = source

    async def state(self, brokers: BrokerSet, group: str, topic: str) -> Gathered[str, TopicState | None]:
        """By broker name; None where the broker does not have the topic."""

        async def read(address: str) -> TopicState | None:
            found = await self._queues(address, group, topic)
            if found is None:
                return None
            bounds, progress = found
            known = {
                key: row.consumer_offset for key, row in progress.rows.items() if row.consumer_offset > 0
            }
            unsure = [key for key in bounds if key not in known]
            asked = await asyncio.gather(
                *(self._source.committed(address, group, topic, key.queue_id) for key in unsure)
            )
            stored = dict(zip(unsure, asked, strict=True))
            if address not in brokers.statuses:
                stored = await self._source.without_missing(address, group, stored)
            offsets = {**known, **stored}
            return TopicState(bounds, offsets)

        return await self._gateway.ask_each(brokers.masters, on_masters(brokers, read))

    async def queue_ids(self, address: str, group: str, topic: str) -> set[int]:
        """The queues that a reset of the whole topic touches there. Raises: AskError."""
        found = await self._queues(address, group, topic)
        return set() if found is None else {key.queue_id for key in found[0]}

    async def _queues(
        self, address: str, group: str, topic: str
    ) -> tuple[dict[QueueKey, BoundsRow], Progress] | None:
        """Those that consumers read, and how far the group is. Raises: AskError."""
        bounds = await self._source.bounds(address, topic)
        if bounds is None:
            return None
        progress = await self._source.progress(address, group, topic)
        read = {key: row for key, row in bounds.items() if not progress.rows or key in progress.rows}
        return read, progress

    async def reset(
        self, brokers: BrokerSet, states: Mapping[str, TopicState | None], request: OffsetReset
    ) -> list[QueuePlan]:
        """Raises: AskError, ChangeRefusedError for a queue or an offset that is not there."""
        chosen = _chosen(states, request)
        if request.to is ResetTo.TIME:
            time_ms = request.unix_ms()
            found = await asyncio.gather(
                *(
                    self._source.by_time(brokers.masters[key.broker_name], key.topic, key.queue_id, time_ms)
                    for key, _ in chosen
                )
            )
        else:
            found = [
                _target(row, request, named)
                for (_, row), named in zip(chosen, _named(chosen, request), strict=True)
            ]
        plans = []
        for (key, row), after in zip(chosen, found, strict=True):
            state = states[key.broker_name]
            assert state is not None, key
            if request.to is ResetTo.OFFSET and not row.min_offset <= after <= row.max_offset:
                raise ChangeRefusedError(
                    f"{key.broker_name}/{key.queue_id} has no offset {after}: it goes from {row.min_offset} "
                    f"to {row.max_offset}."
                )
            after = min(max(after, row.min_offset), row.max_offset)
            before = state.offsets.get(key)
            plans.append(
                QueuePlan(
                    key.topic, key.broker_name, key.queue_id, row.min_offset, row.max_offset, before, after
                )
            )
        return plans


def _chosen(
    states: Mapping[str, TopicState | None], request: OffsetReset
) -> list[tuple[QueueKey, BoundsRow]]:
    """The queues that are meant, in order. Raises: ChangeRefusedError."""
    there = {
        (key.broker_name, key.queue_id): (key, row)
        for state in states.values()
        if state is not None
        for key, row in state.bounds.items()
    }
    if request.queues is None:
        return [there[name] for name in sorted(there)]
    named = {(queue.broker_name, queue.queue_id) for queue in request.queues}
    for broker_name, queue_id in sorted(named - there.keys()):
        raise ChangeRefusedError(
            f"{request.topic} has no queue {broker_name}/{queue_id} that can be reached."
        )
    return [there[name] for name in sorted(named)]


def _named(chosen: Iterable[tuple[QueueKey, BoundsRow]], request: OffsetReset) -> list[QueueOffset | None]:
    by_name = {(queue.broker_name, queue.queue_id): queue for queue in request.queues or ()}
    return [by_name.get((key.broker_name, key.queue_id)) for key, _ in chosen]


def _target(row: BoundsRow, request: OffsetReset, named: QueueOffset | None) -> int:
    if request.to is ResetTo.EARLIEST:
        return row.min_offset
    if request.to is ResetTo.LATEST:
        return row.max_offset
    offset = named.offset if named is not None and named.offset is not None else request.offset
    assert offset is not None, request
    return offset


def clone_plans(source: TopicState, target: TopicState) -> list[QueuePlan]:
    """Of the queues that the source has an offset for."""
    plans = []
    for key, row in source.bounds.items():
        after = source.offsets.get(key)
        if after is not None:
            plan = QueuePlan(
                key.topic,
                key.broker_name,
                key.queue_id,
                row.min_offset,
                row.max_offset,
                target.offsets.get(key),
                after,
            )
            plans.append(plan)
    return sorted(plans, key=lambda plan: plan.queue_id)


def effects_of(plans: Sequence[QueuePlan]) -> tuple[Effect, ...]:
    """`broker-a/3`, behind the topic's name where there are several."""
    several = len({plan.topic for plan in plans}) > 1
    return tuple(plan.effect(f"{plan.topic} {plan.name}" if several else plan.name) for plan in plans)
