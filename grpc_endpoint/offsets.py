"""PullMessage, QueryOffset, UpdateOffset and GetOffset: reading a queue by its offsets, and a group's
progress in it. RocketMQ's proxy of 5.5.0 has no implementation of them; the answers follow the interface.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from grpc_endpoint.brokers import Answer, Brokers
from grpc_endpoint.call import Call
from grpc_endpoint.messaging_pb2 import (
    Code,
    GetOffsetRequest,
    GetOffsetResponse,
    MessageQueue,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetPolicy,
    QueryOffsetRequest,
    QueryOffsetResponse,
    Status,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)
from grpc_endpoint.properties import message_of, unpack
from grpc_endpoint.receiving import read_filter
from grpc_endpoint.status import StatusError, ok, status_of
from grpc_endpoint.validation import group_of, topic_of
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.fields import RequestHeader
from remoting.record import CorruptRecordError, decode_records, parse_properties

REQUEST_S: Final = 3.0
PULL_EXTRA_S: Final = 3.0
POLL_MAX_S: Final = 20.0
PULL_MAX: Final = 32
MAY_BE_HELD: Final = 2
HAS_SUBSCRIPTION: Final = 4
OFFSET_MAX: Final = 2**53 - 1
_SUCCESS: Final = frozenset({ResponseCode.SUCCESS})
_PULLED: Final = _SUCCESS | {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}


class Offsets:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def pull_message(
        self, call: Call, request: PullMessageRequest
    ) -> AsyncIterator[PullMessageResponse]:
        """The status, the messages, and where to read on."""
        try:
            answers = await self._pull(call, request)
        except StatusError as error:
            yield PullMessageResponse(status=status_of(error))
            return
        for answer in answers:
            yield answer

    async def _pull(self, call: Call, request: PullMessageRequest) -> list[PullMessageResponse]:
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        expression_type, expression, tags = read_filter(request.filter_expression)
        wait_s = min(max(request.long_polling_timeout.ToMilliseconds() / 1000, 0.0), POLL_MAX_S)
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=request.message_queue.id,
            queue_offset=_offset(request.offset),
            max_msg_nums=min(max(request.batch_size, 1), PULL_MAX),
            sys_flag=HAS_SUBSCRIPTION | (MAY_BE_HELD if wait_s else 0),
            commit_offset=0,
            suspend_timeout_ms=int(wait_s * 1000),
            subscription=expression,
            expression_type=expression_type,
        )
        answer = await self._ask(
            RequestCode.PULL_MESSAGE, header, request.message_queue, call, _PULLED, wait_s + PULL_EXTRA_S
        )
        next_offset = PullMessageResponse(next_offset=_number(answer, "nextBeginOffset"))
        if answer.command.code == ResponseCode.PULL_OFFSET_MOVED:
            moved = Status(code=Code.ILLEGAL_OFFSET, message=f"the queue has no offset {request.offset}")
            return [PullMessageResponse(status=moved), next_offset]
        try:
            records = decode_records(answer.command.body)
        except CorruptRecordError as error:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        unpack(records)
        found = [(record, parse_properties(record.properties)) for record in records]
        messages = [
            PullMessageResponse(message=message_of(record, group, properties))
            for record, properties in found
            if not tags or properties.get("TAGS", "") in tags
        ]
        if not messages:
            nothing = Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
            return [PullMessageResponse(status=nothing), next_offset]
        return [PullMessageResponse(status=ok()), *messages, next_offset]

    async def query_offset(self, call: Call, request: QueryOffsetRequest) -> QueryOffsetResponse:
        topic, queue_id = topic_of(request.message_queue.topic), request.message_queue.id
        policy = request.query_offset_policy
        header: RequestHeader
        if policy == QueryOffsetPolicy.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise StatusError(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            header = SearchOffsetRequestHeader(topic, queue_id, _time_ms(request.timestamp))
        elif policy in (QueryOffsetPolicy.BEGINNING, QueryOffsetPolicy.END):
            is_end = policy == QueryOffsetPolicy.END
            code = RequestCode.GET_MAX_OFFSET if is_end else RequestCode.GET_MIN_OFFSET
            header = QueueRequestHeader(topic, queue_id)
        else:
            raise StatusError(Code.BAD_REQUEST, f"there is no policy {policy}")
        answer = await self._ask(code, header, request.message_queue, call)
        return QueryOffsetResponse(status=ok(), offset=_number(answer, "offset"))

    async def update_offset(self, call: Call, request: UpdateOffsetRequest) -> UpdateOffsetResponse:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            queue_id=request.message_queue.id,
            commit_offset=_offset(request.offset),
        )
        await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, header, request.message_queue, call)
        return UpdateOffsetResponse(status=ok())

    async def get_offset(self, call: Call, request: GetOffsetRequest) -> GetOffsetResponse:
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            queue_id=request.message_queue.id,
            set_zero_if_not_found=False,
        )
        accepted = _SUCCESS | {ResponseCode.QUERY_NOT_FOUND}
        answer = await self._ask(
            RequestCode.QUERY_CONSUMER_OFFSET, header, request.message_queue, call, accepted
        )
        if answer.command.code == ResponseCode.QUERY_NOT_FOUND:
            raise StatusError(Code.OFFSET_NOT_FOUND, "the group has no offset in this queue")
        return GetOffsetResponse(status=ok(), offset=_number(answer, "offset"))

    async def _ask(
        self,
        code: RequestCode,
        header: RequestHeader,
        queue: MessageQueue,
        call: Call,
        accepted: frozenset[int] = _SUCCESS,
        limit_s: float = REQUEST_S,
    ) -> Answer:
        route = await self._brokers.route(queue.topic.name)
        names = {data.broker_name for data in route.queue_datas}
        name = queue.broker.name
        if not name and len(names) == 1:
            name = next(iter(names))
        if name not in names:
            raise StatusError(Code.BAD_REQUEST, f"the topic has no queue at a broker {name[:80]!r}")
        command = RemotingCommand(code, ext_fields=header.ext_fields())
        end_s = max(call.limit_s(limit_s), asyncio.get_running_loop().time())
        return await self._brokers.ask(
            name, command, end_s, topic=queue.topic.name, accepted=accepted, try_s=limit_s
        )


def _time_ms(time: Timestamp) -> int:
    try:
        return time.ToMilliseconds()
    except ValueError as error:
        raise StatusError(Code.BAD_REQUEST, str(error)) from error


def _offset(offset: int) -> int:
    if not 0 <= offset <= OFFSET_MAX:
        raise StatusError(Code.ILLEGAL_OFFSET, f"the offset {offset} is not between 0 and {OFFSET_MAX}")
    return offset


def _number(answer: Answer, name: str) -> int:
    try:
        return int(answer.command.ext_fields[name])
    except (KeyError, ValueError) as error:
        message = f"the broker's answer lacks {name}"
        raise StatusError(Code.INTERNAL_SERVER_ERROR, message) from error
