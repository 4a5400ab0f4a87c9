"""LEDGERMQ_GROUP_PROGRESS (65005): every consumer group's lag and members, in one answer.

RocketMQ has it one group at a time (208, 203), or with a row and a read of the log for each queue (317). Here
no record is read. It is put together over as many turns of the loop as there are groups and topics for, and
encoded a group at a time. The answer is a `ProgressMessage`, made as plain tables: checking it would double
the time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import orjson

from broker.admin.types import PROGRESS_VERSION
from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry
from broker.monitoring.lags import QueueEnds, TopicLag, topic_lag
from broker.monitoring.statistics import GROUP_GET, BrokerStatistics
from broker.pop.table import GroupQueue
from broker.responses import json_answer
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.router import Handlers

ROWS_PER_TURN: Final = 200
"""Groups, and topics of groups, that are handled in one turn of the loop: about a millisecond."""
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

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clients: ClientRegistry,
        clock: Callable[[], int],
        statistics: BrokerStatistics,
        group_queues: Callable[[], Iterable[GroupQueue] | None] = lambda: None,
    ) -> None:
        """`group_queues` gives the queues that groups pop; None while this node does not know them."""
        self._group_queues = group_queues
        self._config = config
        self._log = log
        self._clients = clients
        self._clock = clock
        self._statistics = statistics
        self._state = state

    def handlers(self) -> Handlers:
        return {
            RequestCode.LEDGERMQ_GROUP_PROGRESS: self.all_groups,
        }

    async def all_groups(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65005"""
        topics = await self._topics_by_group()
        popped = await self._pop_in_flight()
        ends = QueueEnds(self._state.topics.get, self._log.queues.get)
        turns = _Turns(ROWS_PER_TURN)
        groups: dict[str, orjson.Fragment] = {}
        for name in sorted({*self._state.groups, *topics, *self._clients.consumer_groups}):
            row = await self._group(name, topics.get(name, ()), ends, turns)
            row["popInFlight"] = None if popped is None else popped[name]
            groups[name] = orjson.Fragment(orjson.dumps(row))
        return json_answer(
            request,
            {
                "version": PROGRESS_VERSION,
                "brokerName": self._config.broker_name,
                "atMs": self._clock(),
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
        online = self._clients.consumer_groups.get(name)
        rows: dict[str, Row] = {}
        tps = 0.0
        statistics = self._statistics
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
        group_queues = self._group_queues()
        if group_queues is None:
            return None
        turns = _Turns(NAMES_PER_TURN)
        counts: Counter[str] = Counter()
        for group_queue in list(group_queues):
            counts[group_queue.key.group] += group_queue.in_flight
            await turns.row()
        return counts


def _row(lag: TopicLag) -> Row:
    """As TopicProgress."""
    return {"lag": lag.lag, "unknownQueues": lag.unknown_queues}
