"""LEDGERMQ_GROUP_PROGRESS (65005): every consumer group's lag and who is connected, in one answer.

RocketMQ has it one group at a time (208, 203), or with a row and a read of the log for each queue (317). Here
no record is read, and a group costs some 20 microseconds. The answer is a `ProgressMessage`, made as plain
tables: checking it would double the time.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from broker.admin_answers import json_answer
from broker.admin_types import PROGRESS_VERSION
from broker.context import BrokerContext
from broker.pop.ledger import PopLedger
from broker.statistics.broker_statistics import GROUP_GET
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection

GROUPS_PER_TURN: Final = 200
"""Then the loop serves others first."""
Row = dict[str, Any]
_NONE: Final[Mapping[Any, Any]] = {}


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
        groups: dict[str, Row] = {}
        for number, name in enumerate(names, 1):
            groups[name] = row = self._group(name, offsets.get(name, _NONE), ends)
            row["popInFlight"] = None if popped is None else popped[name]
            if number % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        return json_answer(
            request,
            {
                "version": PROGRESS_VERSION,
                "brokerName": self._context.config.broker_name,
                "atMs": self._context.clock(),
                "groups": groups,
            },
        )

    def _group(self, name: str, offsets: Mapping[str, Mapping[int, int]], ends: dict[str, list[int]]) -> Row:
        online = self._context.clients.consumer_groups.get(name)
        rows: dict[str, Row] = {}
        tps = 0.0
        known, statistics = self._state.topics, self._context.statistics
        for topic in offsets if online is None else {*offsets, *online.subscriptions}:
            if topic in known:
                rows[topic] = topic_progress(self._ends(topic, ends), offsets.get(topic, _NONE))
                tps += statistics.tps(GROUP_GET, f"{topic}@{name}")
        row: Row = {"topics": rows, "consumeTps": tps, "members": 0}
        if online is not None:
            row["members"] = len(online.members)
            row["consumeType"], row["messageModel"] = online.consume_type.name, online.message_model.name
        return row

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


def topic_progress(ends: list[int], offsets: Mapping[int, int]) -> Row:
    """TopicProgress of a group with these offsets behind the ends of a topic's queues.

    The lag is None where every queue with messages lacks an offset: 0 would say that all is consumed.
    """
    lag = filled = unknown = 0
    for number, end in enumerate(ends):
        if end:
            offset = offsets.get(number)
            if offset is None:
                unknown += 1
            else:
                filled += 1
                lag += max(0, end - offset)
    is_known = filled > 0 or (bool(offsets) and not unknown)
    return {"lag": lag if is_known else None, "unknownQueues": unknown}


def register(context: BrokerContext) -> None:
    context.router.register(RequestCode.LEDGERMQ_GROUP_PROGRESS, ProgressAdmin(context).all_groups)
