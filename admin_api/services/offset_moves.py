"""Moves the queues of one broker, and reads back where they are."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from admin_api.changes import Outcome
from admin_api.gateway import AskError
from admin_api.services.offset_plans import QueuePlan
from admin_api.sources.offsets import OffsetSource
from remoting.codes import ResponseCode


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
            said = await self._one_by_one(plans, errors)
        else:
            said = await self._by_time(plans, time_ms, errors)
            plans = [replace(plan, after=said.get(plan.queue_id, plan.after)) for plan in plans]
        if not self._place.is_online:
            await self._commit_where_missing(plans, errors)
        done = {plan.queue_id for plan in plans if said.get(plan.queue_id) == plan.after}
        outcomes = await asyncio.gather(
            *(self._outcome(plan, errors.get(plan.queue_id), plan.queue_id in done) for plan in plans)
        )
        return [*outcomes, *_unplanned(plans, said)]

    async def read_back(self, plans: Sequence[QueuePlan]) -> Sequence[Outcome]:
        """Whether each queue is where it was to be."""
        return await asyncio.gather(*(self._outcome(plan, None, False) for plan in plans))

    async def _by_time(
        self, plans: Sequence[QueuePlan], time_ms: int, errors: dict[int, AskError]
    ) -> dict[int, int]:
        """The offsets that the broker says it has set."""
        place = self._place
        try:
            return await self._source.reset_by_time(place.address, place.group, place.topic, time_ms)
        except AskError as error:
            errors.update(dict.fromkeys((plan.queue_id for plan in plans), error))
            return {}

    async def _one_by_one(self, plans: Sequence[QueuePlan], errors: dict[int, AskError]) -> dict[int, int]:
        """The same, of queues that are named."""
        place = self._place
        said: dict[int, int] = {}
        if not place.is_ledgermq and not await self._can_single(plans, errors):
            return said

        async def reset(plan: QueuePlan) -> None:
            asked = (place.address, place.group, place.topic, plan.queue_id, plan.after)
            try:
                said[plan.queue_id] = await self._source.reset_queue(*asked)
            except AskError as error:
                errors[plan.queue_id] = error

        await asyncio.gather(*map(reset, plans))
        return said

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
                is_unsure = plan.after == 0 and not place.is_ledgermq  # RocketMQ 4.9 says 0 of a missing one
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


def _unplanned(plans: Sequence[QueuePlan], said: Mapping[int, int]) -> Iterator[Outcome]:
    """Queues that the broker moved besides: RocketMQ 4.9 also moves those that nobody reads, and one may have
    come in this very moment.
    """
    for queue_id in sorted(said.keys() - {plan.queue_id for plan in plans}):
        problem = f"the broker moved it too, to {said[queue_id]}: the preview did not have it"
        yield Outcome(f"{plans[0].broker_name}/{queue_id}", ok=False, problem=problem)


def has_moved(plan: QueuePlan, offset: int | None) -> bool:
    """A group that consumes goes on from where it was put, so that it may be seen further on."""
    if offset is None or offset < plan.after:
        return False
    return offset == plan.after or plan.before is None or plan.before <= plan.after or offset < plan.before
