"""How far every consumer group is: LEDGERMQ_GROUP_PROGRESS (65005) and 317; and the units of one consume
queue (321).

65005 has every group's lag and members in one answer. RocketMQ has it one group at a time (208, 203), or with
a row and a read of the log for each queue (317). For 65005 no record is read. It is put together over as many
turns of the loop as there are groups and topics for, and encoded a group at a time. The answer is a
`ProgressMessage`, made as plain tables: checking it would double the time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from broker.admin.types import PROGRESS_VERSION, UNREAD_MAX
from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry
from broker.monitoring.lags import QueueEnds, TopicLag, topic_lag
from broker.monitoring.statistics import GROUP_GET, BrokerStatistics
from broker.pop.table import GroupQueue
from broker.responses import invalid, json_answer, message_queue, progress
from broker.state.state import ReplicatedState
from broker.state.topics import TopicConfig, is_system_topic
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import object_key_map
from remoting.headers.admin import BrokerConsumeStatsRequestHeader, QueryConsumeQueueRequestHeader
from remoting.router import Handlers

ROWS_PER_TURN: Final = 200
"""Groups, and topics of groups, that are handled in one turn of the loop: about a millisecond."""
NAMES_PER_TURN: Final = 5_000
"""Rows that are only sorted or added up."""
UNITS_MAX: Final = 1_000
"""In one answer, whatever is asked for: the tools page on."""
ROWS_MAX: Final = 50_000
"""Queues in one answer: about 10 MB, and a frame holds 16."""
DISK_ROWS_PER_TURN: Final = 100
"""Each may read a record from the disk."""
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
        waiting: Mapping[str, Callable[[], int | None]] | None = None,
    ) -> None:
        """`group_queues` gives the queues that groups pop; None while this node does not know them.
        `waiting`: how many messages of a kind the broker itself has still to deliver.
        """
        self._group_queues = group_queues
        self._waiting = waiting or {}
        self._config = config
        self._log = log
        self._clients = clients
        self._clock = clock
        self._statistics = statistics
        self._state = state

    def handlers(self) -> Handlers:
        return {
            RequestCode.LEDGERMQ_GROUP_PROGRESS: self.all_groups,
            RequestCode.QUERY_CONSUME_QUEUE: self.units,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_progress,
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
        unread = await self._unread({topic for names in topics.values() for topic in names})
        return json_answer(
            request,
            {
                "version": PROGRESS_VERSION,
                "brokerName": self._config.broker_name,
                "atMs": self._clock(),
                "groups": groups,
                "quietMs": self._statistics.quiet_ms(),
                "waiting": {kind: count() for kind, count in self._waiting.items()},
                "unread": dict(sorted(unread.items())[:UNREAD_MAX]),
                "unreadTopics": len(unread),
                "refusesMessages": self._config.refuse_messages,
            },
        )

    async def _unread(self, consumed: set[str]) -> dict[str, int]:
        """Topics that have messages and no reader, with how many: dead letters among them."""
        online = self._clients.consumer_groups.values()
        wanted = consumed | {topic for group in online for topic in group.subscriptions}
        turns = _Turns(ROWS_PER_TURN)
        unread: dict[str, int] = {}
        for topic in list(self._state.topics.values()):
            await turns.row()
            if topic.name in wanted or is_system_topic(topic.name):
                continue
            queues = (self._log.queues.get(topic.name, number) for number in range(topic.read_queue_nums))
            count = sum(queue.max_offset - queue.min_offset for queue in queues if queue is not None)
            if count:
                unread[topic.name] = count
        return unread

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

    def units(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """321 QUERY_CONSUME_QUEUE"""
        header = QueryConsumeQueueRequestHeader.parse(request.ext_fields)
        queue = self._log.queues.get(header.topic, header.queue_id)
        if queue is None:
            remark = f"{header.queue_id}@{header.topic[:127]} is not exist!"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        if header.index < 0 or header.count <= 0:
            raise invalid(f"{header.count} units from {header.index} on cannot be shown")
        rows = queue.units(max(header.index, queue.min_offset), min(header.count, UNITS_MAX))
        answer: dict[str, Any] = {
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "queueData": [
                {"eval": False, "physicOffset": position, "physicSize": size, "tagsCode": code}
                for position, size, code in rows
            ],
        }
        if header.consumer_group:
            answer |= self._subscription(header)
        return json_answer(request, answer)

    def _subscription(self, header: QueryConsumeQueueRequestHeader) -> Mapping[str, Any]:
        group = self._clients.consumer_groups.get(header.consumer_group)
        found = None if group is None else group.subscriptions.get(header.topic)
        if found is None:
            return {"filterData": f"{header.consumer_group}@{header.topic} is not online!"}
        return {"subscriptionData": found.to_json()}

    async def all_progress(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """317 GET_BROKER_CONSUME_STATS: made in pieces, since it may read from the disk for each queue."""
        only_ordered = BrokerConsumeStatsRequestHeader.parse(request.ext_fields).is_order
        groups: dict[str, list[Any]] = {}
        total = rows_made = 0
        for group, topic in await self._pairs(only_ordered):
            rows = []
            for queue_id in range(topic.write_queue_nums):
                row = self._row(group, topic.name, queue_id)
                rows.append(row)
                total += row[1]["brokerOffset"] - row[1]["consumerOffset"]
                rows_made += 1
                if rows_made > ROWS_MAX:
                    remark = f"more than {ROWS_MAX} queues are consumed: ask for one group (208) at a time"
                    raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
                if rows_made % DISK_ROWS_PER_TURN == 0:
                    await asyncio.sleep(0)
            tps = self._statistics.tps(GROUP_GET, f"{topic.name}@{group}")
            groups.setdefault(group, []).append({"consumeTps": tps, "offsetTable": object_key_map(rows)})
        return json_answer(
            request,
            {
                "brokerAddr": self._config.broker_address,
                "consumeStatsList": [{group: stats} for group, stats in groups.items()],
                "totalDiff": total,
                "totalInflightDiff": 0,
            },
        )

    async def _pairs(self, only_ordered: bool) -> Iterator[tuple[str, TopicConfig]]:
        """Groups and what they have consumed, of the topics that are."""
        turns = _Turns(NAMES_PER_TURN)
        by_group: dict[str, list[TopicConfig]] = {}
        for name, group in self._state.offsets.pairs():
            topic = self._state.topics.get(name)
            if topic is not None and group in self._state.groups and (topic.is_ordered or not only_ordered):
                by_group.setdefault(group, []).append(topic)
            await turns.row()
        return ((group, topic) for group in sorted(by_group) for topic in by_group[group])

    def _row(self, group: str, topic: str, queue_id: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        offset = self._state.offsets.get(group, topic, queue_id)
        key = message_queue(topic, self._config.broker_name, queue_id)
        return key, progress(self._log, topic, queue_id, offset)


def _row(lag: TopicLag) -> Row:
    """As TopicProgress."""
    return {"lag": lag.lag, "unknownQueues": lag.unknown_queues}
