"""LEDGERMQ_GROUP_PROGRESS (65005): every consumer group's lag and who is connected, in one answer.

RocketMQ has it one group at a time (208, 203), or with a row and a read of the log for each queue (317). Here
no record is read, and a group costs a few microseconds.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from broker.admin_types import GroupProgress, ProgressMessage, TopicProgress
from broker.context import BrokerContext
from broker.pop.ledger import PopLedger
from broker.statistics.broker_statistics import GROUP_GET
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection

GROUPS_PER_TURN: Final = 200
"""Then the loop serves others first."""


class ProgressAdmin:
    """Puts the groups' progress together from the replicated offsets, the queues' ends and the heartbeats."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._state = context.state

    async def all_groups(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65005"""
        offsets: dict[str, dict[str, Mapping[int, int]]] = {}
        for topic, group, queues in self._state.offsets.items():
            offsets.setdefault(group, {})[topic] = queues
        names = sorted({*self._state.groups, *offsets, *self._context.clients.consumer_groups})
        popped = self._pop_in_flight()
        ends: dict[str, list[int]] = {}
        groups: dict[str, GroupProgress] = {}
        for number, name in enumerate(names, 1):
            in_flight = None if popped is None else popped[name]
            groups[name] = self._group(name, offsets.get(name, {}), ends, in_flight)
            if number % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        message = ProgressMessage(
            broker_name=self._context.config.broker_name, at_ms=self._context.clock(), groups=groups
        )
        return success_response(request, body=message.to_json())

    def _group(
        self,
        name: str,
        offsets: Mapping[str, Mapping[int, int]],
        ends: dict[str, list[int]],
        pop_in_flight: int | None,
    ) -> GroupProgress:
        online = self._context.clients.consumer_groups.get(name)
        topics = set(offsets) if online is None else {*offsets, *online.subscriptions}
        rows: dict[str, TopicProgress] = {}
        tps = 0.0
        for topic in sorted(topics & self._state.topics.keys()):
            rows[topic] = topic_progress(self._ends(topic, ends), offsets.get(topic, {}))
            tps += self._context.statistics.tps(GROUP_GET, f"{topic}@{name}")
        return GroupProgress(
            topics=rows,
            members=0 if online is None else len(online.members),
            consume_type=None if online is None else online.consume_type.name,
            message_model=None if online is None else online.message_model.name,
            consume_tps=tps,
            pop_in_flight=pop_in_flight,
        )

    def _ends(self, topic: str, known: dict[str, list[int]]) -> list[int]:
        """The end of each read queue, looked up once per answer."""
        ends = known.get(topic)
        if ends is None:
            config = self._state.topics.get(topic)
            numbers = range(0 if config is None else config.read_queue_nums)
            queues = (self._context.log.queues.get(topic, number) for number in numbers)
            ends = known[topic] = [0 if queue is None else queue.max_offset for queue in queues]
        return ends

    def _pop_in_flight(self) -> Counter[str] | None:
        """By group; None while this node does not know."""
        ledger = next((each for each in self._context.services if isinstance(each, PopLedger)), None)
        if ledger is None or ledger.table is None:
            return None
        counts: Counter[str] = Counter()
        for lane in ledger.table.lanes.values():
            counts[lane.key.group] += lane.in_flight
        return counts


def topic_progress(ends: list[int], offsets: Mapping[int, int]) -> TopicProgress:
    """The lag of a group with these offsets behind the ends of a topic's queues.

    None where every queue with messages lacks an offset: 0 would say that all is consumed.
    """
    behind = [max(0, end - offsets[number]) for number, end in enumerate(ends) if end and number in offsets]
    unknown = sum(1 for number, end in enumerate(ends) if end and number not in offsets)
    is_known = bool(behind) or (bool(offsets) and not unknown)
    return TopicProgress(lag=sum(behind) if is_known else None, unknown_queues=unknown)


def register(context: BrokerContext) -> None:
    context.router.register(RequestCode.LEDGERMQ_GROUP_PROGRESS, ProgressAdmin(context).all_groups)
