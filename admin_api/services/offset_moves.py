"""Moves the queues of one broker, and reads back where they are."""

import asyncio
from collections.abc import Mapping, Sequence

from admin_api.changes import Outcome
from admin_api.gateway import AskError
from admin_api.services.offset_plans import QueuePlan
from admin_api.sources.offsets import OffsetSource


class Mover:
    """Knows what brokers of different kinds need."""

    def __init__(self, source: OffsetSource) -> None:
        self._source = source

    async def move(
        self,
        address: str,
        group: str,
        topic: str,
        plans: Sequence[QueuePlan],
        time_ms: int | None,
        *,
        is_online: bool,
    ) -> Sequence[Outcome]:
        """One outcome a queue. `time_ms` is that of request 222 where all queues are meant, else None."""
        problems: dict[int, str] = {}
        if time_ms is not None:
            plans, problem = await self._by_time(address, group, topic, plans, time_ms)
            if problem is not None:
                problems = dict.fromkeys((plan.queue_id for plan in plans), problem)
        else:
            for plan, error in zip(plans, await self._one_by_one(address, group, topic, plans), strict=True):
                if error is not None:
                    problems[plan.queue_id] = error
        if not is_online:
            problems = await self._commit_where_missing(address, group, topic, plans, problems)
        outcomes = await self.read_back(address, group, topic, plans, is_online=is_online)
        return [
            _with_problem(each, problems.get(plan.queue_id))
            for plan, each in zip(plans, outcomes, strict=True)
        ]

    async def _by_time(
        self, address: str, group: str, topic: str, plans: Sequence[QueuePlan], time_ms: int
    ) -> tuple[Sequence[QueuePlan], str | None]:
        """The plans with the offsets that the broker says it has set, and what went wrong."""
        try:
            offsets = await self._source.reset_by_time(address, group, topic, time_ms)
        except AskError as error:
            return plans, str(error)
        return [_at(plan, offsets.get(plan.queue_id, plan.after)) for plan in plans], None

    async def _one_by_one(
        self, address: str, group: str, topic: str, plans: Sequence[QueuePlan]
    ) -> Sequence[str | None]:
        async def reset(plan: QueuePlan) -> str | None:
            try:
                await self._source.reset_queue(address, group, topic, plan.queue_id, plan.after)
            except AskError as error:
                return str(error)
            return None

        return await asyncio.gather(*map(reset, plans))

    async def _commit_where_missing(
        self,
        address: str,
        group: str,
        topic: str,
        plans: Sequence[QueuePlan],
        problems: Mapping[int, str],
    ) -> dict[int, str]:
        """A broker that resets only with consumers, or only all queues, takes offsets as the group's own."""

        async def commit(plan: QueuePlan) -> tuple[int, str | None]:
            try:
                if await self._source.committed(address, group, topic, plan.queue_id) != plan.after:
                    await self._source.commit(address, group, topic, plan.queue_id, plan.after)
            except AskError as error:
                return plan.queue_id, problems.get(plan.queue_id, str(error))
            return plan.queue_id, None

        done = await asyncio.gather(*map(commit, plans))
        return {queue_id: problem for queue_id, problem in done if problem is not None}

    async def read_back(
        self, address: str, group: str, topic: str, plans: Sequence[QueuePlan], *, is_online: bool = False
    ) -> Sequence[Outcome]:
        """Whether each queue is where it was to be, or has gone on from there."""

        async def look(plan: QueuePlan) -> Outcome:
            try:
                offset = await self._source.committed(address, group, topic, plan.queue_id)
            except AskError as error:
                return Outcome(plan.name, ok=False, problem=f"it is not known whether it moved: {error}")
            if has_moved(plan, offset):
                return Outcome(plan.name, ok=True)
            there = "without an offset" if offset is None else f"at {offset}"
            hint = "; its consumers have not gone there yet" if is_online else ""
            return Outcome(plan.name, ok=False, problem=f"it is still {there}{hint}")

        return await asyncio.gather(*map(look, plans))


def has_moved(plan: QueuePlan, offset: int | None) -> bool:
    """A group that consumes goes on from where it was put, so that it may be seen further on."""
    if offset is None or offset < plan.after:
        return False
    return offset == plan.after or plan.before is None or plan.before <= plan.after or offset < plan.before


def _at(plan: QueuePlan, after: int) -> QueuePlan:
    return QueuePlan(plan.topic, plan.broker_name, plan.queue_id, plan.first, plan.end, plan.before, after)


def _with_problem(outcome: Outcome, problem: str | None) -> Outcome:
    """What was said when it was asked for explains more than what was read back."""
    if outcome.ok or problem is None:
        return outcome
    return Outcome(outcome.subject, ok=False, problem=problem)
