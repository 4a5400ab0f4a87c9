"""Changes consumer offsets: reset, skip, clone, each previewed queue by queue.

Where consumers are connected, the broker sends them the new offsets (222). Where none is, storing the offsets
is enough. RocketMQ 4.9 refuses a reset without consumers; there the offsets are committed as the group would
(15). Success is verified by reading each queue's offset back.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import orjson
from pydantic import AwareDatetime, Field, model_validator

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.errors import UnavailableError, missing
from admin_api.gateway import AskError, Gateway, Gathered, Trouble
from admin_api.groups.overview import BROADCASTING, GroupOverview, Overview, on_masters
from admin_api.schema import RequestSchema, Schema
from admin_api.sources.bodies import QueueKey
from admin_api.sources.brokers import BrokerSet
from admin_api.sources.groups import Connections, GroupSource
from admin_api.sources.offsets import BoundsRow, OffsetSource, Progress
from remoting.codes import ResponseCode
from remoting.topic_names import RETRY_PREFIX

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


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A group in a topic on one broker. `is_ledgermq`: what it answers to a reset is committed, and consumers
    that run cannot take it back.
    """

    address: str
    group: str
    topic: str
    is_online: bool
    is_ledgermq: bool


class Mover:
    """Knows what brokers of different kinds need."""

    def __init__(self, source: OffsetSource, place: GroupPlace) -> None:
        self._source = source
        self._place = place

    async def move(self, plans: Sequence[QueuePlan], time_ms: int | None) -> Sequence[Outcome]:
        """One outcome a queue. `time_ms` is that of request 222 where all queues are meant, else None."""
        errors: dict[int, AskError] = {}
        if time_ms is None:
            moved = await self._one_by_one(plans, errors)
        else:
            moved = await self._by_time(plans, time_ms, errors)
            plans = [replace(plan, after=moved.get(plan.queue_id, plan.after)) for plan in plans]
        if not self._place.is_online:
            await self._commit_where_missing(plans, errors)
        done = {plan.queue_id for plan in plans if moved.get(plan.queue_id) == plan.after}
        outcomes = await asyncio.gather(
            *(self._outcome(plan, errors.get(plan.queue_id), plan.queue_id in done) for plan in plans)
        )
        return [*outcomes, *_unplanned(plans, moved)]

    async def read_back(self, plans: Sequence[QueuePlan]) -> Sequence[Outcome]:
        """Whether each queue is where it was to be."""
        return await asyncio.gather(*(self._outcome(plan, None, False) for plan in plans))

    async def _by_time(
        self, plans: Sequence[QueuePlan], time_ms: int, errors: dict[int, AskError]
    ) -> dict[int, int]:
        """The offsets that the broker reports as set."""
        place = self._place
        try:
            return await self._source.reset_by_time(place.address, place.group, place.topic, time_ms)
        except AskError as error:
            errors.update(dict.fromkeys((plan.queue_id for plan in plans), error))
            return {}

    async def _one_by_one(self, plans: Sequence[QueuePlan], errors: dict[int, AskError]) -> dict[int, int]:
        """The same, of queues that are named."""
        place = self._place
        moved: dict[int, int] = {}
        if not place.is_ledgermq and not await self._can_single(plans, errors):
            return moved

        async def reset(plan: QueuePlan) -> None:
            asked = (place.address, place.group, place.topic, plan.queue_id, plan.after)
            try:
                moved[plan.queue_id] = await self._source.reset_queue(*asked)
            except AskError as error:
                errors[plan.queue_id] = error

        await asyncio.gather(*map(reset, plans))
        return moved

    async def _can_single(self, plans: Sequence[QueuePlan], errors: dict[int, AskError]) -> bool:
        """False with the reason in `errors`; without consumers the offsets can be committed all the same."""
        address = self._place.address
        words = "moves single queues only while no consumer of the group runs: stop them, or move all queues"
        refusal = AskError(address, f"{address} {words}", ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        try:
            if await self._source.moves_single_queues(address):
                return True
        except AskError as error:
            refusal = error
        errors.update(dict.fromkeys((plan.queue_id for plan in plans), refusal))
        return False

    async def _commit_where_missing(self, plans: Sequence[QueuePlan], errors: dict[int, AskError]) -> None:
        """A broker that resets only with consumers, or only all queues, takes offsets as the group's own."""
        place = self._place

        async def commit(plan: QueuePlan) -> None:
            queue = (place.address, place.group, place.topic, plan.queue_id)
            try:
                # RocketMQ 4.9 answers 0 for a missing offset.
                is_unsure = plan.after == 0 and not place.is_ledgermq
                if is_unsure or await self._source.committed(*queue) != plan.after:
                    await self._source.commit(*queue, plan.after)
            except AskError as error:
                errors.setdefault(plan.queue_id, error)
            else:
                errors.pop(plan.queue_id, None)

        await asyncio.gather(*map(commit, plans))

    async def _outcome(self, plan: QueuePlan, error: AskError | None, is_said: bool) -> Outcome:
        """What went wrong when it was asked for explains more than where the queue is. A queue that the
        broker moved may have been consumed up to where it was again by now.
        """
        place = self._place
        try:
            offset = await self._source.committed(place.address, place.group, place.topic, plan.queue_id)
        except AskError as silence:
            problem = f"it is not known whether it moved: {silence}"
            return Outcome(plan.name, ok=False, problem=problem, code=silence.code)
        if has_moved(plan, offset) or (is_said and (place.is_ledgermq or offset != plan.before)):
            return Outcome(plan.name, ok=True)
        if error is not None:
            return Outcome.failed(plan.name, error)
        there = "without an offset" if offset is None else f"at {offset}"
        hint = "; its consumers have not gone there yet" if place.is_online else ""
        return Outcome(plan.name, ok=False, problem=f"it is still {there}{hint}")


def _unplanned(plans: Sequence[QueuePlan], moved: Mapping[int, int]) -> Iterator[Outcome]:
    """Queues that the broker moved besides: RocketMQ 4.9 also moves those without a reader, and one may have
    come in this very moment.
    """
    for queue_id in sorted(moved.keys() - {plan.queue_id for plan in plans}):
        problem = f"the broker moved it too, to {moved[queue_id]}: the preview did not have it"
        yield Outcome(f"{plans[0].broker_name}/{queue_id}", ok=False, problem=problem)


def has_moved(plan: QueuePlan, offset: int | None) -> bool:
    """A group that consumes goes on from where it was put, so that it may be seen further on."""
    if offset is None or offset < plan.after:
        return False
    return offset == plan.after or plan.before is None or plan.before <= plan.after or offset < plan.before


TOPICS_MAX: Final = 100
"""In one change."""
_OTHER_QUEUES: Final = "not moved: the queues of its topic are others than those of the preview"


class Offsets:
    """One per process; `overview` is that of `ConsumerGroups`."""

    def __init__(self, gateway: Gateway, overview: GroupOverview) -> None:
        self._gateway = gateway
        self._overview = overview

    def reset(self, group: str, request: OffsetReset) -> "ResetOffsets":
        """To be given to `Changes`."""
        return ResetOffsets(Action.OFFSET_RESET, self._gateway, self._overview, group, request)

    def skip(self, group: str, request: OffsetSkip) -> "ResetOffsets":
        """A reset to the latest, of one topic or of all that the group consumes; retries stay."""
        wanted = None if request.topic is None else OffsetReset(topic=request.topic, to=ResetTo.LATEST)
        return ResetOffsets(Action.OFFSET_SKIP, self._gateway, self._overview, group, wanted)

    def clone(self, group: str, request: OffsetClone) -> "CloneOffsets":
        return CloneOffsets(self._gateway, self._overview, group, request)


class _OffsetChange:
    """What resets and clones share: who is asked, and how far the group is."""

    target: str

    def __init__(self, gateway: Gateway, overview: GroupOverview) -> None:
        self._gateway = gateway
        self._overview = overview
        self._brokers: BrokerSet | None = None
        self._online: dict[str, bool] = {}
        self._groups = GroupSource(gateway)
        self._source = OffsetSource(gateway)
        self._reader = PlanReader(gateway, self._source)
        self._left_out: dict[Trouble, None] = {}
        self._unknown: list[str] = []
        """Warnings about brokers that do not report which clients are connected."""

    async def _read_overview(self, group: str) -> Overview:
        """Raises: NotFoundError, UnavailableError."""
        self._left_out = {}
        overview = await self._overview.current()
        if group not in overview.names():
            self._overview.invalidate()
            overview = await self._overview.current()
        if group not in overview.names():
            raise missing(f"the consumer group {group}", overview.troubles)
        self._note(overview.brokers.troubles)
        return overview

    def _note(self, troubles: Sequence[Trouble]) -> None:
        self._left_out.update(dict.fromkeys(troubles))

    async def _clients(self, brokers: BrokerSet, group: str) -> Mapping[str, Connections | None]:
        ask = on_masters(brokers, lambda address: self._groups.connections(address, group))
        gathered = await self._gateway.ask_each(brokers.masters, ask)
        self._unknown = [f"who is connected is not known: {each.problem}" for each in gathered.troubles]
        self._online = {name: each is not None for name, each in gathered.answers.items()}
        return gathered.answers

    def _address(self, broker_name: str) -> str:
        assert self._brokers is not None, "carried out without a preview"
        return self._brokers.masters[broker_name]

    def _mover(self, topic: str, broker_name: str) -> Mover:
        assert self._brokers is not None, "carried out without a preview"
        address = self._address(broker_name)
        is_online = self._online.get(broker_name, True)
        is_ledgermq = address in self._brokers.statuses
        return Mover(self._source, GroupPlace(address, self.target, topic, is_online, is_ledgermq))

    async def _state(self, brokers: BrokerSet, group: str, topic: str) -> Mapping[str, TopicState | None]:
        """Raises: NotFoundError, UnavailableError."""
        gathered = await self._reader.state(brokers, group, topic)
        self._note(gathered.troubles)
        if all(state is None for state in gathered.answers.values()):
            raise missing(f"the topic {topic}", self._left_out)
        return gathered.answers

    async def _topics(self, brokers: BrokerSet, group: str) -> list[str]:
        """What the group consumes, without its retries. Raises: ChangeRefusedError."""
        ask = on_masters(brokers, lambda address: self._source.progress(address, group))
        gathered = await self._gateway.ask_each(brokers.masters, ask)
        self._note(gathered.troubles)
        rows = (key.topic for progress in gathered.answers.values() for key in progress.rows)
        topics = sorted({topic for topic in rows if not topic.startswith(RETRY_PREFIX)})
        if not topics:
            raise ChangeRefusedError(f"The group {group} has no offsets: it consumed nothing yet.")
        if len(topics) > TOPICS_MAX:
            raise ChangeRefusedError(f"The group {group} consumes {len(topics)} topics; name one of them.")
        return topics


class ResetOffsets(_OffsetChange):
    """Moves a group in a topic; without a request, behind the last message of all its topics."""

    def __init__(
        self,
        action: Action,
        gateway: Gateway,
        overview: GroupOverview,
        group: str,
        request: OffsetReset | None,
    ) -> None:
        super().__init__(gateway, overview)
        self.action = action
        self.target = group
        self._group = group
        self._request = request
        self._plans: dict[str, list[QueuePlan]] = {}

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, ChangeRefusedError."""
        overview = await self._read_overview(self._group)
        brokers = self._brokers = overview.brokers
        clients = await self._clients(brokers, self._group)
        self._plans = {}
        for request in await self._requests(brokers):
            states = await self._state(brokers, self._group, request.topic)
            try:
                self._plans[request.topic] = await self._reader.reset(brokers, states, request)
            except AskError as error:
                raise UnavailableError(f"{error}.") from error
        plans = [plan for rows in self._plans.values() for plan in rows]
        if not plans:
            raise ChangeRefusedError("No queue can be reached.")
        warnings = (*self._unknown, *_client_warnings(clients))
        named = self._request is not None and self._request.queues is not None
        silent = () if named else tuple(self._left_out)
        return Preview(
            self.action, self.target, effects_of(plans), warnings, True, self._basis(plans), silent
        )

    async def _requests(self, brokers: BrokerSet) -> list[OffsetReset]:
        if self._request is not None:
            return [self._request]
        topics = await self._topics(brokers, self._group)
        return [OffsetReset(topic=topic, to=ResetTo.LATEST) for topic in topics]

    def _basis(self, plans: Sequence[QueuePlan]) -> str:
        """What was asked for, and of which queues. The offsets move while the group consumes."""
        wanted = None if self._request is None else self._request.model_dump_json()
        return orjson.dumps([wanted, sorted([plan.topic, plan.name] for plan in plans)]).decode()

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for topic, plans in self._plans.items():
            by_broker: dict[str, list[QueuePlan]] = {}
            for plan in plans:
                by_broker.setdefault(plan.broker_name, []).append(plan)
            parts = await asyncio.gather(*(self._move(topic, rows) for rows in by_broker.values()))
            prefix = f"{topic} " if len(self._plans) > 1 else ""
            outcomes += [replace(each, subject=prefix + each.subject) for part in parts for each in part]
        self._overview.invalidate()
        return outcomes

    async def _move(self, topic: str, plans: Sequence[QueuePlan]) -> Sequence[Outcome]:
        time_ms = _whole_topic_time(self._request)
        if time_ms is not None:
            try:
                found = await self._reader.queue_ids(self._address(plans[0].broker_name), self._group, topic)
            except AskError as error:
                return [Outcome.failed(plan.name, error) for plan in plans]
            if found != {plan.queue_id for plan in plans}:
                return [Outcome(plan.name, False, _OTHER_QUEUES, is_refused=True) for plan in plans]
        return await self._mover(topic, plans[0].broker_name).move(plans, time_ms)


def _whole_topic_time(request: OffsetReset | None) -> int | None:
    """What request 222 has in place of offsets where all queues are meant; None where it has to name them."""
    if request is None:
        return -1
    if request.queues is not None:
        return None
    match request.to:
        case ResetTo.EARLIEST:
            return 0
        case ResetTo.LATEST:
            return -1
        case ResetTo.TIME:
            return request.unix_ms()
        case _:
            return None


def _client_warnings(clients: Mapping[str, Connections | None]) -> list[str]:
    online = [each for each in clients.values() if each is not None]
    if not online:
        return []
    if any(each.message_model == BROADCASTING for each in online):
        return [
            "its consumers broadcast: they keep their own offsets, and what brokers store moves none of them"
        ]
    return ["its consumers run: they are sent to the new offsets while they work"]


class CloneOffsets(_OffsetChange):
    """Has the target group go on where the source is."""

    action = Action.OFFSET_CLONE

    def __init__(self, gateway: Gateway, overview: GroupOverview, source: str, request: OffsetClone) -> None:
        super().__init__(gateway, overview)
        self.target = request.target_group
        self._from = source
        self._request = request
        self._plans: dict[tuple[str, str], list[QueuePlan]] = {}

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, ChangeRefusedError."""
        if self._from == self.target:
            raise ChangeRefusedError(f"{self.target} is the group itself.")
        overview = await self._read_overview(self._from)
        brokers = self._brokers = overview.brokers
        clients = await self._clients(brokers, self.target)
        if any(each is not None for each in clients.values()):
            raise ChangeRefusedError(
                f"Consumers of {self.target} run and would overwrite the offsets; stop them first."
            )
        topics = [self._request.topic] if self._request.topic else await self._topics(brokers, self._from)
        await self._plan(brokers, topics)
        plans = [plan for rows in self._plans.values() for plan in rows]
        if not plans:
            raise ChangeRefusedError(f"The group {self._from} has no offsets there: it consumed nothing yet.")
        warnings = list(self._unknown)
        if self.target not in overview.names():
            warnings.append(f"there is no group {self.target} yet")
        overwrites = any(plan.before not in (None, plan.after) for plan in plans)
        basis = orjson.dumps([self._from, sorted([plan.topic, plan.name] for plan in plans), overwrites])
        effects = effects_of(plans)
        silent = tuple(self._left_out)
        return Preview(self.action, self.target, effects, tuple(warnings), overwrites, basis.decode(), silent)

    async def _plan(self, brokers: BrokerSet, topics: Sequence[str]) -> None:
        self._plans = {}
        for topic in topics:
            source, target = await asyncio.gather(
                self._state(brokers, self._from, topic), self._state(brokers, self.target, topic)
            )
            for broker_name in sorted(source.keys() & target.keys()):
                have, had = source[broker_name], target[broker_name]
                if have is not None and had is not None:
                    self._plans[topic, broker_name] = clone_plans(have, had)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        several = len({topic for topic, _ in self._plans}) > 1
        outcomes: list[Outcome] = []
        for (topic, broker_name), plans in self._plans.items():
            if plans:
                part = await self._clone(topic, broker_name, plans)
                prefix = f"{topic} " if several else ""
                outcomes += [replace(each, subject=prefix + each.subject) for each in part]
        self._overview.invalidate()
        return outcomes

    async def _clone(self, topic: str, broker_name: str, plans: Sequence[QueuePlan]) -> Sequence[Outcome]:
        mover = self._mover(topic, broker_name)
        try:
            await self._source.clone(self._address(broker_name), self._from, self.target, topic)
        except AskError as error:
            return [Outcome.failed(plan.name, error) for plan in plans]
        return await mover.read_back(plans)
