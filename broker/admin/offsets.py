"""Consumer offsets for operators: 222 reset, 314 clone, 43 and 45 show all, 303 how far a group is in time,
308 the lowest offsets of all groups.

A reset and a clone change the replicated state, so only the leader makes them; running consumers learn of a
reset by their next pull (broker/consume/offset_resets.py).
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

from broker.config import BrokerConfig
from broker.consume.consumers import Consumers
from broker.consume.offset_commits import OFFSETS_PER_CHANGE_MAX
from broker.leadership import OnLeader
from broker.responses import (
    committed_answer,
    invalid,
    json_answer,
    message_queue,
    put_error,
    store_timestamp_ms,
)
from broker.state.changes import CommitOffsets
from broker.state.groups import group_name_error
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import TopicConfig
from commitlog.consume_queue import Boundary
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import list_in_steps, object_in_steps, object_key_map_in_steps
from remoting.headers.admin import (
    CloneGroupOffsetRequestHeader,
    CorrectionOffsetRequestHeader,
    GroupTopicRequestHeader,
    ResetOffsetRequestHeader,
)
from remoting.router import Handlers, Router
from remoting.slices import Steps

JAVA_LONG_MAX = 2**63 - 1


class OffsetAdmin:
    """Shows and changes groups' offsets."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
        consumers: Consumers,
        on_leader: OnLeader,
        router: Router,
    ) -> None:
        self._on_leader = on_leader
        self._router = router
        self._config = config
        self._clock = clock
        self._resets = consumers.resets
        self._state = state
        self._log = log
        self._commits = consumers.commits
        self._groups = consumers.running_groups
        self._now_ms = now_ms

    def handlers(self) -> Handlers:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._on_leader(self.reset),
            RequestCode.CLONE_GROUP_OFFSET: self._on_leader(self.clone),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.all_delay_offsets,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
        }

    async def reset(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """222: answered with the new offsets once they are committed."""
        header = ResetOffsetRequestHeader.parse(request.ext_fields)
        topic = self._topic(header.topic)
        if header.group not in self._state.groups:
            remark = f"Group {header.group[:255]} does not exist"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        offsets = await self._router.in_slices(self._targets(header, topic), connection.remote_host)
        await self._store(request, header.group, topic.name, offsets)
        if not self._groups.may_run(header.group):
            # No consumer runs any more: the next one starts there, and its commits are accepted.
            self._resets.drop(header.group, topic.name, offsets)
        broker_name = self._config.broker_name
        rows = (
            (message_queue(topic.name, broker_name, number), offset) for number, offset in offsets.items()
        )
        table = await self._router.in_slices(object_key_map_in_steps(rows), connection.remote_host)
        return json_answer(request, {"offsetTable": table})

    async def _store(
        self, request: RemotingCommand, group: str, topic: str, offsets: Mapping[int, int]
    ) -> None:
        """Raises RequestError when they are not committed, or marks have no room."""
        resets = self._resets
        has_consumers = self._groups.may_run(group)
        if has_consumers and not resets.has_room(group, topic, offsets, self._now_ms(), self._groups.may_run):
            raise RequestError(ResponseCode.SYSTEM_ERROR, self._no_room(group, len(offsets)))
        rows = list(offsets.items())
        futures = []
        for first in range(0, len(rows), OFFSETS_PER_CHANGE_MAX):
            part = dict(rows[first : first + OFFSETS_PER_CHANGE_MAX])
            futures.append(self._commits.reset(group, topic, part, has_consumers))
            if has_consumers:
                resets.begin(group, topic, part, futures[-1])
        for future in futures:
            await committed_answer(request, asyncio.shield(future))

    def _no_room(self, group: str, count: int) -> str:
        return (
            f"Consumers of group {group[:255]} run and could not be notified of a reset of {count} queues: "
            f"{len(self._resets)} queues still wait for their consumers after earlier resets, and "
            f"offsetResetMarksMax is {self._config.reset_marks_max}. Nothing was reset. Stop the "
            "consumers, or wait until earlier resets are done, or raise offsetResetMarksMax."
        )

    def _targets(self, header: ResetOffsetRequestHeader, topic: TopicConfig) -> Steps[dict[int, int]]:
        """The new offset of each requested queue."""
        if header.queue_id >= topic.read_queue_nums:
            raise invalid(
                f"queue {header.queue_id} is not below {topic.read_queue_nums}, the topic's read queues"
            )
        queue_ids = range(topic.read_queue_nums) if header.queue_id < 0 else [header.queue_id]
        if header.queue_id >= 0 and header.offset >= 0:
            first, end = self._bounds(topic.name, header.queue_id)
            if not first <= header.offset <= end:
                remark = f"Target offset {header.offset} not in consume queue range [{first}-{end}]"
                raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
            return {header.queue_id: header.offset}
        targets = {}
        for number in queue_ids:
            targets[number] = self._by_time(topic.name, number, header.timestamp_ms)
            yield
        if not targets:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        if header.is_force:
            return targets
        current = {number: self._commits.current(header.group, topic.name, number) for number in targets}
        return {
            number: min(target, target if (known := current[number]) is None else known)
            for number, target in targets.items()
        }

    def _by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        queue = self._log.queues.get(topic, queue_id)
        if queue is None:
            return 0
        if timestamp_ms < 0 or queue.min_offset >= queue.max_offset:
            return queue.max_offset
        return queue.offset_by_time(timestamp_ms, Boundary.LOWER)

    async def clone(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """314: the destination continues where the source is. The group is created if that is allowed:
        retention removes the offsets of groups that do not exist.
        """
        header = CloneGroupOffsetRequestHeader.parse(request.ext_fields)
        error = group_name_error(header.dest_group)
        if error is not None:
            raise invalid(error)
        changes = await self._router.in_slices(self._cloned(header), connection.remote_host)
        if not changes:
            return success_response(request)
        try:
            group = await self._state.ensure_group(header.dest_group)
        except StateChangeError as failure:
            raise RequestError(*put_error(failure.status)) from failure
        if group is None:
            remark = f"Group {header.dest_group} does not exist, and groups are not created by themselves"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        changes = await self._router.in_slices(self._cloned(header), connection.remote_host)
        return await committed_answer(request, self._state.propose(*changes))

    def _cloned(self, header: CloneGroupOffsetRequestHeader) -> Steps[list[CommitOffsets]]:
        """What the destination gets, of each topic that the source has consumed."""
        topics = [header.topic]
        if not header.topic:
            topics = yield from self._state.offsets.topics_of(header.src_group)
        changes = []
        for topic in topics:
            if offsets := self._current(header.src_group, topic):
                changes.append(CommitOffsets(header.dest_group, topic, offsets))
            yield
        return changes

    def _current(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets in an existing topic, including proposed ones."""
        config = self._state.topics.get(topic)
        numbers = range(0 if config is None else config.read_queue_nums)
        current = {number: self._commits.current(group, topic, number) for number in numbers}
        return {number: offset for number, offset in current.items() if offset is not None}

    def all_offsets(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """43 GET_ALL_CONSUMER_OFFSET: the content of RocketMQ's consumerOffset.json."""
        offsets = self._state.offsets
        rows = ((f"{topic}@{group}", offsets.queues(group, topic)) for topic, group in offsets.pairs())
        return json_answer(request, {"offsetTable": (yield from object_in_steps(rows))})

    def all_delay_offsets(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """45 GET_ALL_DELAY_OFFSET: the content of delayOffset.json."""
        table = {str(level): offset for level, offset in sorted(self._state.delay_offsets.items())}
        return json_answer(request, {"offsetTable": table})

    def time_spans(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """303 QUERY_CONSUME_TIME_SPAN"""
        header = GroupTopicRequestHeader.parse(request.ext_fields)
        topic = self._topic(header.topic)
        numbers = range(topic.write_queue_nums)
        spans = yield from list_in_steps(self._span(header.group, topic.name, number) for number in numbers)
        return json_answer(request, {"consumeTimeSpanSet": spans})

    def _span(self, group: str, topic: str, queue_id: int) -> Mapping[str, Any]:
        log = self._log
        first, end = self._bounds(topic, queue_id)
        begin_ms = store_timestamp_ms(log, topic, queue_id, first)
        offset = self._state.offsets.get(group, topic, queue_id) or 0
        consumed_ms = store_timestamp_ms(log, topic, queue_id, offset - 1) if offset > 0 else begin_ms
        delay_ms = 0
        if offset < end:
            next_ms = store_timestamp_ms(log, topic, queue_id, max(offset, first))
            delay_ms = max(0, self._clock() - next_ms) if next_ms else 0
        return {
            "consumeTimeStamp": consumed_ms,
            "delayTime": delay_ms,
            "maxTimeStamp": store_timestamp_ms(log, topic, queue_id, end - 1) if end else 0,
            "messageQueue": message_queue(topic, self._config.broker_name, queue_id),
            "minTimeStamp": begin_ms,
        }

    def corrections(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """308: of each queue the lowest offset of any group; Java's greatest long where the compared group is
        below it.
        """
        header = CorrectionOffsetRequestHeader.parse(request.ext_fields)
        left_out = set(header.filter_groups.split(","))
        lowest: dict[int, int] = {}
        for group in (yield from self._state.offsets.groups_of(header.topic)):
            if group not in left_out:
                for queue_id, offset in self._state.offsets.queues(group, header.topic).items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, sys.maxsize))
            yield
        for queue_id, offset in self._state.offsets.queues(header.compare_group, header.topic).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = JAVA_LONG_MAX
        return json_answer(request, {"correctionOffsets": {str(key): value for key, value in lowest.items()}})

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._log.queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _topic(self, name: str) -> TopicConfig:
        topic = self._state.topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist")
        return topic
