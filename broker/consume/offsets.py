"""Consumer offsets (14, 15) and the bounds of queues (29 by time, 30 max, 31 min, 32 earliest store time).

Only the writable leader answers them, unless the request accepts a follower: a consumer that believes there
is no offset skips messages. What each client makes of the refusal is in
docs/decisions/replicated_state.md#followers-refuse-offset-queries.
"""

import asyncio
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.consume.offset_commits import OFFSET_MAX, OffsetCommits
from broker.consume.offset_resets import OffsetResets
from broker.consume.read_advice import machine_memory_bytes, warm_bytes
from broker.consume.read_choice import COMMITTED, Consistency, ReadChoice, age_ext, read_choice
from broker.leadership import Readiness
from broker.read_index import ReadIndex
from broker.responses import put_error
from broker.state.state import ReplicatedState
from commitlog.consume_queue import Boundary, ConsumeQueue
from commitlog.errors import PositionError
from commitlog.log import MessageLog, PutStatus
from commitlog.record import CorruptRecordError, decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.consume import (
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.router import Handler, HandlerResult, Handlers
from remoting.slices import Steps
from remoting.topic_names import RETRY_PREFIX

NO_TIMESTAMP = -1
"""Answered for the earliest store time of a queue without messages."""


class OffsetProcessor:
    """Answers from the replicated state and the consume queues."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        now_ms: Callable[[], int],
        resets: OffsetResets,
        commits: OffsetCommits,
        readiness: Readiness,
        read_index: ReadIndex,
    ) -> None:
        self._read_index = read_index
        self._log = log
        self._state = state
        self._commits = commits
        self._readiness = readiness
        self._resets = resets
        self._now_ms = now_ms
        self._warm_bytes = warm_bytes(config, machine_memory_bytes())

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.as_chosen(self.query),
            RequestCode.UPDATE_CONSUMER_OFFSET: self.on_leader(self.update),
            RequestCode.GET_MAX_OFFSET: self.as_chosen(self.max_offset),
            RequestCode.GET_MIN_OFFSET: self.as_chosen(self.min_offset),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.as_chosen(self.search_offset),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.as_chosen(self.earliest_store_time),
        }

    def on_leader(self, answer: Callable[[RemotingCommand], HandlerResult]) -> Handler:
        """A handler that runs `answer` on the writable leader only, and holds the request during an election
        that may make this node the leader.
        """

        def handle(request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
            return answer(request) if self._readiness.is_ready() else self._wait(request, answer)

        return handle

    def as_chosen(self, answer: Callable[[RemotingCommand], RemotingCommand]) -> Handler:
        """A handler that runs `answer` where and when the request's choice, or its topic's, allows it."""
        on_leader = self.on_leader(answer)

        def handle(
            request: RemotingCommand, connection: Connection
        ) -> HandlerResult | Steps[RemotingCommand | None]:
            topic = self._state.topics.get(request.ext_fields.get("topic", ""))
            choice = read_choice(request.ext_fields, topic)
            if choice is COMMITTED:
                return on_leader(request, connection)
            return self._answer_chosen(request, choice, answer)

        return handle

    async def _answer_chosen(
        self,
        request: RemotingCommand,
        choice: ReadChoice,
        answer: Callable[[RemotingCommand], RemotingCommand],
    ) -> RemotingCommand:
        """Raises RequestError when this node cannot give what the request asks for."""
        if choice.consistency is Consistency.LINEARIZABLE:
            await self._read_index.confirm()
            return answer(request)
        age_ms = await self._read_index.age_ms(choice.max_age_ms)
        if not choice.accepts(age_ms):
            remark = f"this node's answer may be {'of unknown age' if age_ms is None else f'{age_ms} ms old'}"
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"{remark}: {self._readiness.leader_hint()}"
            )
        found = answer(request)
        found.ext_fields |= age_ext(self._read_index.known_age_ms)
        return found

    def query(self, request: RemotingCommand) -> RemotingCommand:
        """14: the group's offset; 0 for a group without an offset in the queue, when the queue's first
        message still exists and is recent enough to be in memory. Otherwise the client decides where to
        begin.
        """
        header = QueryConsumerOffsetRequestHeader.parse(request.ext_fields)
        offset = self._commits.current(header.consumer_group, header.topic, header.queue_id)
        if offset is not None:
            return _offset_answer(request, offset)
        if self._begins_warm(header.topic, header.queue_id) and header.set_zero_if_not_found is not False:
            return _offset_answer(request, 0)
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, remark)

    def _begins_warm(self, topic: str, queue_id: int) -> bool:
        """The negation of checkInDiskByConsumeOffset for offset 0."""
        queue = self._log.queues.get(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return queue is None
        return all(
            self._log.max_position - position <= self._warm_bytes for position, _, _ in queue.units(0, 1)
        )

    def update(self, request: RemotingCommand) -> HandlerResult:
        """15: answered when the offset is committed. One from before a reset is ignored (RocketMQ 5).

        The group must exist; it does once one of its consumers has sent a heartbeat or pulled. mqadmin
        commits for any group name (cloneGroupOffset), and a misspelt name would otherwise create a group.
        """
        header = UpdateConsumerOffsetRequestHeader.parse(request.ext_fields)
        if header.consumer_group not in self._state.groups:
            remark = f"Group {header.consumer_group} not exist!"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if header.topic not in self._state.topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        is_queue = self._commits.is_queue(header.topic, header.queue_id)
        if not is_queue or not 0 <= header.commit_offset <= OFFSET_MAX:
            remark = f"offset {header.commit_offset} of queue {header.queue_id} is out of range"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        return self._commit(request, header)

    def max_offset(self, request: RemotingCommand) -> RemotingCommand:
        """30: the offset the next message gets; 0 for a queue nothing was sent to."""
        header = QueueRequestHeader.parse(request.ext_fields)
        return _offset_answer(request, _bounds(self._log, header.topic, header.queue_id)[1])

    def min_offset(self, request: RemotingCommand) -> RemotingCommand:
        """31."""
        header = QueueRequestHeader.parse(request.ext_fields)
        return _offset_answer(request, _bounds(self._log, header.topic, header.queue_id)[0])

    def search_offset(self, request: RemotingCommand) -> RemotingCommand:
        """29: by store time; LOWER: the first message at or after the time, UPPER: the last at or before
        it.
        """
        header = SearchOffsetRequestHeader.parse(request.ext_fields)
        queue = self._log.queues.get(header.topic, header.queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return _offset_answer(request, 0)
        boundary = Boundary.UPPER if header.boundary_type.upper() == "UPPER" else Boundary.LOWER
        return _offset_answer(request, queue.offset_by_time(header.timestamp_ms, boundary))

    def earliest_store_time(self, request: RemotingCommand) -> RemotingCommand:
        """32."""
        header = QueueRequestHeader.parse(request.ext_fields)
        queue = self._log.queues.get(header.topic, header.queue_id)
        timestamp_ms = NO_TIMESTAMP
        if queue is not None and queue.min_offset < queue.max_offset:
            timestamp_ms = _store_time_ms(self._log, queue, queue.min_offset)
        return success_response(request, {"timestamp": str(timestamp_ms)})

    def _commit(self, request: RemotingCommand, header: UpdateConsumerOffsetRequestHeader) -> HandlerResult:
        row = header.consumer_group, header.topic, header.queue_id, header.commit_offset
        if self._resets and self._resets.keeps_out(*row, self._now_ms()):
            return success_response(request, remark="Offset has been previously reset")
        future = self._commits.commit(*row)
        return success_response(request) if future is None else _committed(request, future)

    async def _wait(
        self, request: RemotingCommand, answer: Callable[[RemotingCommand], HandlerResult]
    ) -> RemotingCommand | None:
        if await self._readiness.wait():
            return await _resolved(answer(request))
        known = self._known_retry_offset(request)
        if known is None:
            raise self._readiness.refusal()
        return _offset_answer(request, known)

    def _known_retry_offset(self, request: RemotingCommand) -> int | None:
        """The offset this follower has applied, where a refusal does more harm than an offset that may be
        old.

        C++ clients treat a refused 14 for a retry topic as offset 0 and consume the complete topic again.
        """
        if request.code != RequestCode.QUERY_CONSUMER_OFFSET or request.language != "CPP":
            return None
        header = QueryConsumerOffsetRequestHeader.parse(request.ext_fields)
        if not header.topic.startswith(RETRY_PREFIX):
            return None
        return self._state.offsets.get(header.consumer_group, header.topic, header.queue_id)


async def _resolved(result: HandlerResult) -> RemotingCommand | None:
    return result if result is None or isinstance(result, RemotingCommand) else await result


async def _committed(request: RemotingCommand, future: "asyncio.Future[PutStatus]") -> RemotingCommand:
    status = await asyncio.shield(future)
    if status is not PutStatus.PUT_OK:
        code, remark = put_error(status)
        raise RequestError(code, remark)
    return success_response(request)


def _offset_answer(request: RemotingCommand, offset: int) -> RemotingCommand:
    return success_response(request, {"offset": str(offset)})


def _bounds(log: MessageLog, topic: str, queue_id: int) -> tuple[int, int]:
    queue = log.queues.get(topic, queue_id)
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def _store_time_ms(log: MessageLog, queue: ConsumeQueue, offset: int) -> int:
    """Store timestamp (ms) of the message at `offset`; NO_TIMESTAMP when it was deleted."""
    for position, size, _ in queue.units(offset, 1):
        try:
            return decode_record(log.read(position, size)).store_timestamp_ms
        except (PositionError, CorruptRecordError):
            break
    return NO_TIMESTAMP
