"""36 CONSUMER_SEND_MSG_BACK: a message whose consumption failed is delivered again later, or becomes a
dead letter.

The copy is delivered to %RETRY%<group> through the delay levels, from the third on (10 s, 30 s, 1 m …); after
the last retry it is stored in %DLQ%<group> instead. The answer waits only for the commit: C++ clients of 2.0
and 2.1 give up after maxReconsumeTimes ms (they confuse the timeout with that number) and consume the message
again locally.
"""

from dataclasses import dataclass
from functools import partial

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.leadership import Readiness
from broker.monitoring.statistics import BrokerStatistics
from broker.responses import put_answer, put_error
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import PERM_WRITE, TopicConfig, dlq_topic, retry_topic
from broker.timer.scheduling import PROPERTY_DELAY, effective_level, to_scheduled
from commitlog.log import MessageLog, PutStatus
from commitlog.record import (
    Message,
    MessageIllegalError,
    Record,
    decode_record,
    format_properties,
    offset_msg_id,
    parse_properties,
)
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import RequestError
from remoting.headers.consume import ConsumerSendMsgBackRequestHeader
from remoting.record_layout import STORE_HOST_V6
from remoting.router import HandlerResult, Router

PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
FIRST_RETRY_LEVEL = 3
HEADER_MAXIMUM_SINCE_VERSION = 121
"""V3_4_9: older clients' maxReconsumeTimes means nothing."""
CPP_SWAPPED_MAXIMUM = 3_000
"""C++ 2.0's time-out in ms, sent as maxReconsumeTimes: as a number of retries, no message would become a dead
letter.
"""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be stored, once its topic exists."""

    topic: TopicConfig
    message: Message
    group: str
    origin_topic: str
    is_dead: bool


class SendBackProcessor:
    """Stores the retry copies. Only the writable leader can."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        router: Router,
        store_host: bytes,
        statistics: BrokerStatistics,
        readiness: Readiness,
    ) -> None:
        self._router = router
        self._store_host = store_host
        self._statistics = statistics
        self._log = log
        self._state = state
        self._readiness = readiness
        self._levels = len(config.delay_levels_ms)

    def handle(self, request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
        """36."""
        header = ConsumerSendMsgBackRequestHeader.parse(request.ext_fields)
        self._readiness.check()
        group = self._state.groups.get(header.group)
        if group is None:
            return self._prepare_and_store(request, connection, header)
        if group.retry_queue_nums <= 0:
            return success_response(request)
        plan = self._plan(request, header, group)
        if plan.topic.name not in self._state.topics:
            return self._prepare_and_store(request, connection, header)
        self._store(request, connection, plan)
        return None

    async def _prepare_and_store(
        self, request: RemotingCommand, connection: ClientConnection, header: ConsumerSendMsgBackRequestHeader
    ) -> RemotingCommand | None:
        try:
            group = await self._state.ensure_group(header.group)
            if group is None:
                remark = f"subscription group not exist, {header.group}"
                raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
            if group.retry_queue_nums <= 0:
                return success_response(request)
            plan = self._plan(request, header, group)
            await self._state.ensure_topic_config(plan.topic)
        except StateChangeError as error:
            code, remark = put_error(error.status)
            raise RequestError(code, remark) from error
        self._store(request, connection, plan)
        return None

    def _plan(
        self,
        request: RemotingCommand,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
    ) -> _Plan:
        data = self._log.record_at(header.position)
        if data is None:
            remark = f"look message by offset failed, {header.position}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        record = decode_record(data)
        is_dead = header.delay_level < 0 or record.reconsume_times >= _retries_max(request, header, group)
        topic = dlq_topic(group.name) if is_dead else retry_topic(group.name, group.retry_queue_nums)
        known = self._state.topics.get(topic.name, topic)
        if not known.perm & PERM_WRITE:
            remark = f"the topic[{topic.name}] sending message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        try:
            copy = self._copy(record, known, 0 if is_dead else self._level(header, record))
            return _Plan(topic, copy, group.name, record.topic, is_dead)
        except MessageIllegalError as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error

    def _level(self, header: ConsumerSendMsgBackRequestHeader, record: Record) -> int:
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        return effective_level(str(level), self._levels)

    def _copy(self, record: Record, topic: TopicConfig, level: int) -> Message:
        """The message as its next try: same body, birth and key, one more in reconsumeTimes."""
        properties = parse_properties(record.properties)
        properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
        origin = offset_msg_id(record.store_host, record.physical_offset)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, origin)
        properties[PROPERTY_DELAY] = str(level)
        message = Message(
            topic=topic.name,
            queue_id=record.queue_id % max(topic.write_queue_nums, 1),
            body=record.body,
            properties=format_properties(properties),
            flag=record.flag,
            sys_flag=record.sys_flag & ~STORE_HOST_V6,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            store_host=self._store_host,
            reconsume_times=record.reconsume_times + 1,
        )
        return to_scheduled(message, level) if level > 0 else message

    def _store(self, request: RemotingCommand, connection: ClientConnection, plan: _Plan) -> None:
        """Raises RequestError when the log refuses; else the answer is sent with the commit."""
        result = self._log.put([plan.message], partial(self._done, request, connection, plan))
        if result.status is not PutStatus.PUT_OK:
            code, remark = put_error(result.status)
            raise RequestError(code, remark)

    def _done(
        self, request: RemotingCommand, connection: ClientConnection, plan: _Plan, status: PutStatus
    ) -> None:
        if status is PutStatus.PUT_OK:
            self._statistics.sent_back(plan.origin_topic, plan.group, plan.is_dead)
        self._router.answer(request, connection, put_answer(request, status))


def _retries_max(
    request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
) -> int:
    most = header.max_reconsume_times
    if most is None or most < 0 or request.version < HEADER_MAXIMUM_SINCE_VERSION:
        return group.retry_max_times
    if most == CPP_SWAPPED_MAXIMUM and request.language == "CPP":
        return group.retry_max_times
    return most
