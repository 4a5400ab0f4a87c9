"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue, over the brokers'
POP requests (ReceiveMessageActivity, AckMessageActivity, ChangeInvisibleDurationActivity,
ForwardMessageToDLQActivity, ConsumerProcessor).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from grpc_endpoint.brokers import Answer, Brokers, UnknownBrokerError
from grpc_endpoint.call import Call
from grpc_endpoint.clients import Clients
from grpc_endpoint.handles import check_not_over, read_handle
from grpc_endpoint.messaging_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    FilterExpression,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Message,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
)
from grpc_endpoint.properties import TAGS, message_of, timestamp, unpack
from grpc_endpoint.renewal import INVISIBLE_MS, Renewals
from grpc_endpoint.routes import ANY_QUEUE
from grpc_endpoint.status import StatusError, combined, ok, status_of
from grpc_endpoint.validation import INVISIBLE_MIN_MS, check_invisible, group_of, topic_of
from remoting import pop_receipts
from remoting.acl import GrpcProof
from remoting.client.aio import SentRequest
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import ConsumerSendMsgBackRequestHeader
from remoting.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from remoting.pop_receipts import PopAnswerError, ReceiptHandle
from remoting.record import Record, parse_properties
from remoting.route import PERM_READ
from remoting.tag_filters import (
    EXPRESSION_TYPE_SQL92,
    EXPRESSION_TYPE_TAG,
    MATCH_ALL,
    FilterError,
    parse_tag_expression,
)

POLL_MIN_S: Final = 5.0
POLL_MAX_S: Final = 20.0
POP_MAX: Final = 32
"""Messages of one pop (MAX_MSG_NUMS_FOR_POP_REQUEST)."""
INIT_AT_END: Final = 1
"""A group that is new to a queue begins at its end, as RocketMQ's proxy has it (ConsumeInitMode.MAX)."""
REQUEST_S: Final = 3.0
POP_EXTRA_S: Final = 3.0
"""Beyond the time that the broker may hold a pop."""
NACK_MS: Final = 1_000
"""A message that did not reach its consumer is visible again after this time."""
_POPPED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.POLLING_FULL,
    }
)
_ENDED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE})
_NEW_CODE_SINCE: Final = "5.0.3"
"""Older clients do not know ILLEGAL_POLLING_TIME."""

logger = logging.getLogger(__name__)
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Popped(NamedTuple):
    """One message that was handed out. `attempts`: how often it was before."""

    handle: ReceiptHandle
    message: Message
    tag: str
    attempts: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A receive that was found good."""

    topic: str
    group: str
    broker_name: str
    in_order: bool
    attempts_max: int
    expression_type: str
    expression: str
    tags: frozenset[str]


class Receiving:
    """`spawn` runs what no caller waits for."""

    def __init__(self, brokers: Brokers, clients: Clients, renewals: Renewals, spawn: Spawn) -> None:
        self._brokers = brokers
        self._clients = clients
        self._renewals = renewals
        self._spawn = spawn
        self._turn = 0

    # -- receive

    async def receive_message(
        self, call: Call, request: ReceiveMessageRequest
    ) -> AsyncIterator[ReceiveMessageResponse]:
        """The status, then the messages, then the time: always these, whatever happens."""
        found: list[Popped] = []
        try:
            found = await self._receive(call, request)
            status = ok()
        except StatusError as error:
            status = status_of(error)
        undelivered = list(found)
        try:
            yield ReceiveMessageResponse(status=status)
            for each in found:
                yield ReceiveMessageResponse(message=each.message)
                undelivered.pop(0)  # it is written when the stream asks for the next
            yield ReceiveMessageResponse(delivery_timestamp=timestamp(_now_ms()))
        finally:
            group = request.group.name
            for each in undelivered:
                self._renewals.take(call.client_id, group, each.handle)
            self._return(group, request.message_queue.topic.name, undelivered)

    async def _receive(self, call: Call, request: ReceiveMessageRequest) -> list[Popped]:
        poll_s = self._poll_s(call, request)
        wanted = await self._wanted(call, request)
        is_renewed, was_known = request.auto_renew, call.client_id in self._clients
        invisible_ms = INVISIBLE_MS if is_renewed else request.invisible_duration.ToMilliseconds()
        if not is_renewed:
            check_invisible(invisible_ms, INVISIBLE_MIN_MS)
        attempt_id = request.attempt_id if request.HasField("attempt_id") else None
        command = _pop_command(wanted, request.batch_size, invisible_ms, poll_s, attempt_id)
        popping = asyncio.ensure_future(self._pop(call, wanted, command, poll_s))
        try:
            popped = await asyncio.shield(popping)
        except asyncio.CancelledError:
            # The broker holds the pop and may still hand messages out: they are given back.
            popping.add_done_callback(lambda done: self._return_late(wanted, done))
            raise
        if not popped:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "no new message")
        found = self._filtered(wanted, popped)
        if not found:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "no match message")
        if is_renewed:
            self._renew(call, wanted, found, was_known=was_known)
        return found

    def _renew(self, call: Call, wanted: _Wanted, found: Sequence[Popped], *, was_known: bool) -> None:
        """Until their client ends them or goes; what it gets before it has announced itself is not renewed.
        Raises StatusError: it has gone while it waited.
        """
        if call.client_id in self._clients:
            for each in found:
                self._renewals.add(call.client_id, wanted.group, wanted.topic, each.handle, each.attempts)
        elif was_known:
            self._return(wanted.group, wanted.topic, found)
            raise StatusError(Code.MESSAGE_NOT_FOUND, f"The client [{call.client_id}] is disconnected.")

    def _poll_s(self, call: Call, request: ReceiveMessageRequest) -> float:
        """How long the broker may hold the pop. Raises StatusError."""
        remaining_s = call.remaining_s
        if request.HasField("long_polling_timeout"):
            poll_s = request.long_polling_timeout.ToMilliseconds() / 1000
        else:
            poll_s = remaining_s - self._clients.request_timeout_s(call.client_id) / 2
        poll_s = min(max(poll_s, POLL_MIN_S), POLL_MAX_S)
        if poll_s <= remaining_s:
            return poll_s
        if remaining_s >= POLL_MIN_S:
            return remaining_s
        code = Code.ILLEGAL_POLLING_TIME if call.version >= _NEW_CODE_SINCE else Code.BAD_REQUEST
        message = "The deadline time remaining is not enough for polling, please check network condition"
        raise StatusError(code, message)

    async def _wanted(self, call: Call, request: ReceiveMessageRequest) -> _Wanted:
        """Raises StatusError."""
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        expression_type, expression, tags = read_filter(request.filter_expression)
        policy = await self._clients.policy(group)
        route = await self._brokers.route(topic)
        names = sorted(data.broker_name for data in route.queue_datas if data.perm & PERM_READ)
        if not names:
            raise StatusError(Code.FORBIDDEN, "no readable queue")
        name = request.message_queue.broker.name
        if name not in names:
            self._turn += 1
            name = names[self._turn % len(names)]
        return _Wanted(
            topic, group, name, policy.in_order, policy.attempts_max, expression_type, expression, tags
        )

    async def _pop(
        self, call: Call, wanted: _Wanted, command: RemotingCommand, poll_s: float
    ) -> list[Popped]:
        loop = asyncio.get_running_loop()
        answer = await self._brokers.ask(
            wanted.broker_name,
            command,
            max(call.limit_s(poll_s + POP_EXTRA_S), loop.time() + REQUEST_S),
            topic=wanted.topic,
            accepted=_POPPED,
            try_s=poll_s + POP_EXTRA_S,
        )
        if answer.command.code == ResponseCode.POLLING_FULL:
            raise StatusError(Code.TOO_MANY_REQUESTS, "polling full")
        if answer.command.code != ResponseCode.SUCCESS:
            return []
        return read_popped(answer.command, wanted.group, wanted.broker_name, in_order=wanted.in_order)

    def _filtered(self, wanted: _Wanted, popped: Sequence[Popped]) -> list[Popped]:
        """A broker compares hashes of tags only; and what was tried too often is a dead letter."""
        found = []
        for each in popped:
            if wanted.tags and each.tag not in wanted.tags:
                self._spawn(self._quietly(self._ack(wanted.group, wanted.topic, each.handle)))
            elif each.attempts >= wanted.attempts_max:
                message_id = each.message.system_properties.message_id
                self._spawn(
                    self._quietly(self._to_dead_letters(wanted.group, wanted.topic, each.handle, message_id))
                )
            else:
                found.append(each)
        return found

    def _return_late(self, wanted: _Wanted, popping: "asyncio.Future[list[Popped]]") -> None:
        if not popping.cancelled() and popping.exception() is None and popping.result():
            self._return(wanted.group, wanted.topic, popping.result())

    def _return(self, group: str, topic: str, popped: Sequence[Popped]) -> None:
        """Make messages visible again that their consumer did not get."""
        for each in popped:
            self._spawn(self._quietly(self.change(group, topic, each.handle, NACK_MS)))

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        """What fails here is done by the end of the message's invisible time."""
        try:
            await work
        except StatusError as error:
            logger.info("a popped message could not be ended or given back: %s", error)

    # -- what ends a message

    async def ack_message(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        entries = await asyncio.gather(
            *(self._ack_entry(call, group, topic, entry) for entry in request.entries)
        )
        status = combined((entry.status for entry in entries), "ack message result is empty")
        return AckMessageResponse(status=status, entries=entries)

    def ack_at_once(self, call: Call, request: AckMessageRequest) -> "Ack | None":
        """Begin to acknowledge one message. None: there are more, it is renewed (which may be under way), or
        `ack_message` says what is wrong.
        """
        if len(request.entries) != 1:
            return None
        topic, group, entry = topic_of(request.topic), group_of(request.group), request.entries[0]
        try:
            handle = read_handle(entry.receipt_handle)
            if self._renewals.has(call.client_id, group, handle):
                return None
            ack = Ack(self._brokers, topic, handle, _ack_command(group, topic, handle), entry)
        except StatusError:
            return None
        ack.begin(call.proof)
        return ack

    async def _ack_entry(
        self, call: Call, group: str, topic: str, entry: AckMessageEntry
    ) -> AckMessageResultEntry:
        try:
            known = read_handle(entry.receipt_handle)
            async with self._renewals.ending(call.client_id, group, known) as handle:
                await self._ack(group, topic, handle)
        except StatusError as error:
            return _ack_result(entry, status_of(error))
        return _ack_result(entry, ok())

    async def _ack(self, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Raises StatusError."""
        await Ack(self._brokers, topic, handle, _ack_command(group, topic, handle)).ended()

    async def change_invisible_duration(
        self, call: Call, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        invisible_ms = request.invisible_duration.ToMilliseconds()
        check_invisible(invisible_ms)
        known = read_handle(request.receipt_handle)
        try:
            async with self._renewals.ending(call.client_id, group, known) as handle:
                changed = await self.change(group, topic, handle, invisible_ms)
        except StatusError as error:
            kept = request.receipt_handle if error.code == Code.TOO_MANY_REQUESTS else ""
            return ChangeInvisibleDurationResponse(status=status_of(error), receipt_handle=kept)
        return ChangeInvisibleDurationResponse(status=ok(), receipt_handle=str(changed))

    async def change(self, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int) -> ReceiptHandle:
        """The message stays invisible for so long from now on; its new handle. Raises StatusError."""
        check_not_over(handle, _now_ms())
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=group,
            topic=handle.topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            invisible_time_ms=invisible_ms,
        )
        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext_fields=header.ext_fields())
        answer = await self._ask(handle, command, topic, frozenset({ResponseCode.SUCCESS}))
        try:
            return handle.changed(answer.command)
        except PopAnswerError as error:
            message = f"the broker's answer cannot be read: {error}"
            raise StatusError(Code.INTERNAL_SERVER_ERROR, message) from error

    async def forward_message_to_dead_letter_queue(
        self, call: Call, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        known = read_handle(request.receipt_handle)
        async with self._renewals.ending(call.client_id, group, known) as handle:
            await self._to_dead_letters(group, topic, handle, request.message_id)
        return ForwardMessageToDeadLetterQueueResponse(status=ok())

    async def _to_dead_letters(self, group: str, topic: str, handle: ReceiptHandle, message_id: str) -> None:
        """Copied, then acknowledged: it may be there twice, but is never lost. Raises StatusError."""
        if handle.position < 0:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        header = ConsumerSendMsgBackRequestHeader(
            position=handle.position,
            group=group,
            delay_level=-1,
            origin_msg_id=message_id,
            origin_topic=handle.topic(topic, group),
            max_reconsume_times=0,
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=header.ext_fields())
        await self._ask(handle, command, topic, frozenset({ResponseCode.SUCCESS}))
        await self._quietly(self._ack(group, topic, handle))

    async def _ask(
        self, handle: ReceiptHandle, command: RemotingCommand, topic: str, accepted: frozenset[int]
    ) -> Answer:
        end_s = asyncio.get_running_loop().time() + REQUEST_S
        try:
            return await self._brokers.ask(handle.broker_name, command, end_s, topic=topic, accepted=accepted)
        except UnknownBrokerError as error:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, error.message) from error


class Ack:
    """An acknowledgement: the broker's request, and the entry of a caller's that it is."""

    __slots__ = ("_brokers", "_command", "_end_s", "_entry", "_handle", "_topic", "sent")

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        handle: ReceiptHandle,
        command: RemotingCommand,
        entry: AckMessageEntry | None = None,
    ) -> None:
        self.sent: SentRequest | None = None
        self._brokers = brokers
        self._topic = topic
        self._handle = handle
        self._command = command
        self._entry = entry
        self._end_s = asyncio.get_running_loop().time() + REQUEST_S

    def begin(self, proof: GrpcProof | None) -> None:
        """Send it, if that can be done at once."""
        self.sent = self._brokers.send(self._handle.broker_name, self._command, self._end_s, proof)

    def response(self, answer: RemotingCommand) -> AckMessageResponse | None:
        """Begun: what the first try's answer becomes; None: `result` has to go on."""
        return _ack_response(_ack_result(self._entry, ok())) if answer.code == ResponseCode.SUCCESS else None

    async def result(self) -> AckMessageResponse:
        """From the first try on, or after it."""
        return _ack_response(await self.entry())

    async def entry(self) -> AckMessageResultEntry:
        """How it has ended, for the caller."""
        try:
            await self.ended()
        except StatusError as error:
            return _ack_result(self._entry, status_of(error))
        return _ack_result(self._entry, ok())

    async def ended(self) -> None:
        """Raises StatusError. After a repeated request an ended handle is the first one's doing."""
        try:
            answer = await self._brokers.ask(
                *(self._handle.broker_name, self._command, self._end_s),
                topic=self._topic,
                accepted=_ENDED,
                sent=self.sent,
            )
        except UnknownBrokerError as error:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, error.message) from error
        if answer.command.code == ResponseCode.NO_MESSAGE and not answer.is_repeated:
            message = answer.command.remark or "the handle is not valid any more"
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, message)


def read_popped(answer: RemotingCommand, group: str, broker_name: str, *, in_order: bool) -> list[Popped]:
    """Raises StatusError for an answer that cannot be read."""
    try:
        found = pop_receipts.read_popped(answer, broker_name, in_order=in_order)
        unpack(record for _, record in found)
        return [_popped(handle, record, group) for handle, record in found]
    except ValueError as error:
        raise StatusError(
            Code.INTERNAL_SERVER_ERROR, f"the broker's answer cannot be read: {error}"
        ) from error


def _popped(handle: ReceiptHandle, record: Record, group: str) -> Popped:
    properties = parse_properties(record.properties)
    message = message_of(record, group, properties)
    system = message.system_properties
    system.receipt_handle = str(handle)
    system.invisible_duration.seconds, ms = divmod(handle.invisible_ms, 1_000)
    system.invisible_duration.nanos = ms * 1_000_000
    return Popped(handle, message, properties.get(TAGS, ""), record.reconsume_times)


def _ack_result(entry: AckMessageEntry | None, status: Status) -> AckMessageResultEntry:
    if entry is None:
        return AckMessageResultEntry(status=status)
    return AckMessageResultEntry(
        message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
    )


def _ack_response(result: AckMessageResultEntry) -> AckMessageResponse:
    return AckMessageResponse(status=combined((result.status,), ""), entries=(result,))


def _ack_command(group: str, topic: str, handle: ReceiptHandle) -> RemotingCommand:
    """Raises StatusError."""
    check_not_over(handle, _now_ms())
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=handle.topic(topic, group),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.offset,
    )
    return RemotingCommand(RequestCode.ACK_MESSAGE, ext_fields=header.ext_fields())


def _pop_command(
    wanted: _Wanted, batch_size: int, invisible_ms: int, poll_s: float, attempt_id: str | None
) -> RemotingCommand:
    header = PopMessageRequestHeader(
        consumer_group=wanted.group,
        topic=wanted.topic,
        queue_id=ANY_QUEUE,
        max_msg_nums=min(max(batch_size, 1), POP_MAX),
        invisible_time_ms=invisible_ms,
        poll_time_ms=int(poll_s * 1000),
        init_mode=INIT_AT_END,
        exp_type=wanted.expression_type,
        exp=wanted.expression,
        order=wanted.in_order,
        attempt_id=attempt_id,
    )
    return RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=header.ext_fields())


def read_filter(wanted: FilterExpression) -> tuple[str, str, frozenset[str]]:
    """The expression's type and text as brokers have them, and the tags that match, none for all. Raises
    StatusError.
    """
    if wanted.type == FilterType.SQL:
        if not wanted.expression.strip():
            raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, "an SQL expression cannot be empty")
        return EXPRESSION_TYPE_SQL92, wanted.expression, frozenset()
    try:
        parsed = parse_tag_expression(wanted.expression)
    except FilterError as error:
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
    return EXPRESSION_TYPE_TAG, wanted.expression or MATCH_ALL.expression, frozenset(parsed.tags)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
