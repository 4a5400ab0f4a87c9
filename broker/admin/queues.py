"""Queues for operators: 321 the units of one consume queue, 317 how far every group is."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry
from broker.monitoring.statistics import GROUP_GET, BrokerStatistics
from broker.responses import invalid, json_answer, message_queue, progress
from broker.state.state import ReplicatedState
from broker.state.topics import TopicConfig
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import object_key_map
from remoting.headers.admin import BrokerConsumeStatsRequestHeader, QueryConsumeQueueRequestHeader
from remoting.router import Handlers

UNITS_MAX: Final = 1_000
"""In one answer, whatever is asked for: the tools page on."""
ROWS_MAX: Final = 50_000
"""Queues in one answer: about 10 MB, and a frame holds 16."""
ROWS_PER_TURN: Final = 100
"""Each may read a record from the disk."""


class QueueAdmin:
    """Reads consume queues and offsets."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clients: ClientRegistry,
        statistics: BrokerStatistics,
    ) -> None:
        self._config = config
        self._clients = clients
        self._statistics = statistics
        self._log = log
        self._state = state

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_CONSUME_QUEUE: self.units,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_progress,
        }

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
        for group, topic in self._pairs(only_ordered):
            rows = []
            for queue_id in range(topic.write_queue_nums):
                row = self._row(group, topic.name, queue_id)
                rows.append(row)
                total += row[1]["brokerOffset"] - row[1]["consumerOffset"]
                rows_made += 1
                if rows_made > ROWS_MAX:
                    remark = f"more than {ROWS_MAX} queues are consumed: ask for one group (208) at a time"
                    raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
                if rows_made % ROWS_PER_TURN == 0:
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

    def _pairs(self, only_ordered: bool) -> Iterator[tuple[str, TopicConfig]]:
        """Groups and what they have consumed, of the topics that are."""
        by_group: dict[str, list[TopicConfig]] = {}
        for name, group, _ in self._state.offsets.items():
            topic = self._state.topics.get(name)
            if topic is not None and group in self._state.groups and (topic.is_ordered or not only_ordered):
                by_group.setdefault(group, []).append(topic)
        for group in sorted(by_group):
            for topic in by_group[group]:
                yield group, topic

    def _row(self, group: str, topic: str, queue_id: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        offset = self._state.offsets.get(group, topic, queue_id)
        key = message_queue(topic, self._config.broker_name, queue_id)
        return key, progress(self._log, topic, queue_id, offset)
