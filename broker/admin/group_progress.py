"""LEDGERMQ_GROUP_PROGRESS (65005): every consumer group's lag and who is connected, in one answer.

RocketMQ has it one group at a time (208, 203), or with a row and a read of the log for each queue (317). Here
no record is read. It is put together over as many turns of the loop as there are groups and topics for, and
encoded a group at a time. The answer is a `ProgressMessage`, made as plain tables: checking it would double
the time.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import orjson

from broker.admin.types import PROGRESS_VERSION
from broker.context import BrokerContext
from broker.monitoring.group_lag import QueueEnds, TopicLag, topic_lag
from broker.monitoring.statistics import GROUP_GET
from broker.pop.ledger import PopLedger
from broker.responses import json_answer
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection

ROWS_PER_TURN: Final = 200
"""Groups, and topics of groups, that are looked at in one turn of the loop: about a millisecond."""
NAMES_PER_TURN: Final = 5_000
"""Rows that are only sorted or added up."""
Row = dict[str, Any]


class _Turns:
    """Lets the loop serve others after so many rows."""

    def __init__(self, rows_per_turn: int) -> None:
        self._rows_per_turn = rows_per_turn
        self._rows = 0

    async def row(self) -> None:
        """One more is done."""
        self._rows += 1
        if self._rows >= self._rows_per_turn:
            self._rows = 0
            await asyncio.sleep(0)


class ProgressAdmin:
    """Puts the groups' progress together from the replicated offsets, the queues' ends and the heartbeats."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._state = context.state

    async def all_groups(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65005"""
        topics = await self._topics_by_group()
        popped = await self._pop_in_flight()
        ends = QueueEnds(self._state.topics.get, self._context.log.queues.get)
        turns = _Turns(ROWS_PER_TURN)
        groups: dict[str, orjson.Fragment] = {}
        for name in sorted({*self._state.groups, *topics, *self._context.clients.consumer_groups}):
            row = await self._group(name, topics.get(name, ()), ends, turns)
            row["popInFlight"] = None if popped is None else popped[name]
            groups[name] = orjson.Fragment(orjson.dumps(row))
        return json_answer(
            request,
            {
                "version": PROGRESS_VERSION,
                "brokerName": self._context.config.broker_name,
                "atMs": self._context.clock(),
                "groups": groups,
            },
        )

    async def _topics_by_group(self) -> dict[str, list[str]]:
        """Where each group has offsets."""
        turns = _Turns(NAMES_PER_TURN)
        topics: dict[str, list[str]] = {}
        for topic, group in self._state.offsets.pairs():
            topics.setdefault(group, []).append(topic)
            await turns.row()
        return topics

    async def _group(self, name: str, consumed: Sequence[str], ends: QueueEnds, turns: _Turns) -> Row:
        online = self._context.clients.consumer_groups.get(name)
        rows: dict[str, Row] = {}
        tps = 0.0
        statistics = self._context.statistics
        for topic in consumed if online is None else {*consumed, *online.subscriptions}:
            await turns.row()
            topic_ends = ends.of(topic)
            if topic_ends is not None:
                rows[topic] = _row(topic_lag(topic_ends, self._state.offsets.queues(name, topic)))
                tps += statistics.tps(GROUP_GET, f"{topic}@{name}")
        await turns.row()
        row: Row = {"topics": rows, "consumeTps": tps, "members": 0}
        if online is not None:
            row["members"] = len(online.members)
            row["consumeType"], row["messageModel"] = online.consume_type.name, online.message_model.name
        return row

    async def _pop_in_flight(self) -> Counter[str] | None:
        """By group; None while this node does not know."""
        ledger = next((each for each in self._context.services if isinstance(each, PopLedger)), None)
        if ledger is None or ledger.table is None:
            return None
        turns = _Turns(NAMES_PER_TURN)
        counts: Counter[str] = Counter()
        for lane in list(ledger.table.lanes.values()):
            counts[lane.key.group] += lane.in_flight
            await turns.row()
        return counts


def _row(lag: TopicLag) -> Row:
    """As TopicProgress."""
    return {"lag": lag.lag, "unknownQueues": lag.unknown_queues}


def register(context: BrokerContext) -> None:
    context.router.register(RequestCode.LEDGERMQ_GROUP_PROGRESS, ProgressAdmin(context).all_groups)
