"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151) and CHANGE_MESSAGE_INVISIBLETIME (200053)
(AckMessageProcessor, ChangeInvisibleTimeProcessor).

Each is answered when its record is committed: after SUCCESS, every later leader knows it. A handle that is
not valid any more, because the invisible time has ended or the message was acknowledged before, is answered
NO_MESSAGE; RocketMQ's broker answers SUCCESS and delivers the message again.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.consume.clients import ClientConnection
from broker.pop.checks import INVISIBLE_MAX_MS
from broker.pop.ledger import PopLedger
from broker.pop.ops import Changed, Finished, GroupQueueKey, whole
from broker.pop.table import GroupQueue
from broker.responses import put_answer
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog, PutStatus
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.errors import RequestError
from remoting.fastjson import FastjsonError, loads_request
from remoting.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from remoting.pop_receipts import ORDER_REVIVE_QUEUE, Handle, HandleError, marked_topic, parse_handle
from remoting.router import Router

BATCH_ACKS_MAX = 4_096
BATCH_OFFSETS_MAX = 65_536
BITS_BYTES_MAX = 4_096
STALE = "the handle is not valid: its invisible time has ended, or it was acknowledged or changed before"
BUSY = "[OVERLOAD]the log accepts no records now"


@dataclass(frozen=True, slots=True)
class _Acked:
    """What one handle, or one entry of a batch, acknowledges."""

    key: GroupQueueKey
    offsets: tuple[int, ...]
    handle: Handle


class PopAcks:
    """Handles the requests of one broker while its table is loaded. `on_free` is called with the key of a
    queue that is consumed in order as soon as it may be popped again.
    """

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        router: Router,
        clock: Callable[[], int],
        ledger: PopLedger,
        on_free: Callable[[GroupQueueKey], None],
    ) -> None:
        self._router = router
        self._clock = clock
        self._log = log
        self._state = state
        self._ledger = ledger
        self._on_free = on_free

    def ack(self, request: RemotingCommand, connection: ClientConnection) -> None:
        """200051. Raises RequestError, HeaderError."""
        header = AckMessageRequestHeader.parse(request.ext_fields)
        acked = _Acked(
            self._key(header.consumer_group, header.topic, header.queue_id),
            (header.offset,),
            _handle(header.extra_info),
        )
        self._check_offset(acked.key, header.offset)
        self._check_room()
        if not self._finish(acked):
            raise RequestError(ResponseCode.NO_MESSAGE, STALE)
        self._answer_later(request, connection, success_response(request))

    def batch_ack(self, request: RemotingCommand, connection: ClientConnection) -> None:
        """200151: SUCCESS when all of them were in flight."""
        self._check_room()
        entries = list(self._entries(request.body))
        finished = sum(self._finish(entry) for entry in entries)
        if finished == len(entries):
            self._answer_later(request, connection, success_response(request))
            return
        refused = len(entries) - finished
        remark = f"{refused} of {len(entries)} entries were not acknowledged as a whole: {STALE}"
        answer = error_response(request, ResponseCode.NO_MESSAGE, remark)
        self._answer_later(request, connection, answer)

    def change_invisible_time(self, request: RemotingCommand, connection: ClientConnection) -> None:
        """200053: the message stays invisible for `invisibleTime` from now on; 0: it is visible at once."""
        header = ChangeInvisibleTimeRequestHeader.parse(request.ext_fields)
        key = self._key(header.consumer_group, header.topic, header.queue_id)
        handle = _handle(header.extra_info)
        self._check_offset(key, header.offset)
        invisible_ms = header.invisible_time_ms
        if not 0 <= invisible_ms <= INVISIBLE_MAX_MS:
            remark = f"invisibleTime {invisible_ms} is not between 0 and {INVISIBLE_MAX_MS} ms"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        self._check_room()
        group_queue = self._ledger.group_queue(key)
        if group_queue is None or not _is_out(group_queue, header.offset, handle):
            raise RequestError(ResponseCode.NO_MESSAGE, STALE)
        now_ms = self._clock()
        self._ledger.record(Changed(key, header.offset, now_ms, invisible_ms))
        pop_time_ms = now_ms
        if header.offset not in group_queue.out:  # in order: the batch keeps its pop time
            order = group_queue.order
            assert order is not None, f"{header.offset} of {key} is in flight in no batch"
            assert header.offset in order.pending, f"{header.offset} of {key} is not in flight any more"
            pop_time_ms = handle.pop_time_ms
            invisible_ms += max(now_ms - pop_time_ms, 0)  # the wall clock may have been set back
            self._on_free(key)
        ext = {
            "popTime": str(pop_time_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(handle.revive_queue_id),
        }
        self._answer_later(request, connection, success_response(request, ext))

    def _finish(self, acked: _Acked) -> bool:
        """Whether all of it was in flight."""
        group_queue = self._ledger.group_queue(acked.key)
        out = tuple(
            offset
            for offset in acked.offsets
            if group_queue is not None and _is_out(group_queue, offset, acked.handle)
        )
        if out and group_queue is not None:
            self._ledger.record(Finished(acked.key, out))
            assert group_queue.out.keys().isdisjoint(out), f"{acked.key} still has {out} in flight"
            if group_queue.order is not None and not group_queue.order.pending:
                self._on_free(acked.key)
        if len(out) == len(acked.offsets):
            return True
        return all(
            offset in out or self._is_acked_in_order(group_queue, offset, acked) for offset in acked.offsets
        )

    @staticmethod
    def _is_acked_in_order(group_queue: GroupQueue | None, offset: int, acked: _Acked) -> bool:
        """Below what is consumed in order everything was acknowledged, by this handle or another. Behind it
        an acknowledgement counts in its own batch only: the next one has the message again.
        """
        order = group_queue.order if group_queue is not None else None
        if group_queue is None or order is None or not acked.handle.is_ordered:
            return False
        is_of_batch = order.pop_time_ms == acked.handle.pop_time_ms and offset in order.offsets
        return is_of_batch or offset < group_queue.order_start

    def _answer_later(
        self, request: RemotingCommand, connection: ClientConnection, answer: RemotingCommand
    ) -> None:
        """Answer when the ops of this turn are committed; at once when there are none."""
        if self._ledger.has_recorded:
            self._ledger.when_committed(partial(self._answer, request, connection, answer))
        else:
            self._router.answer(request, connection, answer)

    def _answer(
        self,
        request: RemotingCommand,
        connection: ClientConnection,
        answer: RemotingCommand,
        status: PutStatus,
    ) -> None:
        if status is not PutStatus.PUT_OK:
            answer = put_answer(request, status)
        self._router.answer(request, connection, answer)

    def _check_room(self) -> None:
        if not self._ledger.may_record():
            raise RequestError(ResponseCode.SYSTEM_BUSY, BUSY)

    def _key(self, group: str, topic: str, queue_id: int) -> GroupQueueKey:
        config = self._state.topics.get(topic)
        if config is None:
            remark = f"topic[{topic}] not exist, apply first please!"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not 0 <= queue_id < config.read_queue_nums:
            remark = (
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
        return GroupQueueKey(group, topic, queue_id)

    def _check_offset(self, key: GroupQueueKey, offset: int) -> None:
        queue = self._log.queues.get(key.topic, key.queue_id)
        first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        if not first <= offset < end:
            place = f"{key.topic}@{key.queue_id}"
            remark = f"offset is illegal, key:{place}, commit:{offset}, store:{first}~{end}"
            raise RequestError(ResponseCode.NO_MESSAGE, remark)

    def _entries(self, body: bytes) -> Iterator[_Acked]:
        """Raises RequestError."""
        try:
            data = loads_request(body)
            acks = data["acks"]
            if not isinstance(acks, list) or not acks:
                raise RequestError(ResponseCode.NO_MESSAGE, "the batch holds no acknowledgements")
            if len(acks) > BATCH_ACKS_MAX:
                remark = f"{len(acks)} acknowledgements at once; {BATCH_ACKS_MAX} are possible"
                raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
            room = BATCH_OFFSETS_MAX
            for ack in acks:
                entry = _entry(ack)
                room -= len(entry.offsets)
                if room < 0:
                    remark = f"more than {BATCH_OFFSETS_MAX} messages are acknowledged at once"
                    raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
                yield entry
        except (FastjsonError, ValueError, KeyError, TypeError) as error:
            remark = f"the batch of acknowledgements cannot be read: {error!r}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error


def _entry(ack: Mapping[str, Any]) -> _Acked:
    """One BatchAck, by its short names or its long ones. Raises ValueError, KeyError, TypeError."""

    def value(short: str, long: str) -> Any:
        return ack[short] if short in ack else ack[long]

    group = str(value("c", "consumerGroup"))
    topic = marked_topic(str(value("t", "topic")), group, str(value("r", "retry")))
    key = GroupQueueKey(group, topic, whole(value("q", "queueId")))
    start = whole(value("so", "startOffset"))
    pop_time_ms = whole(value("pt", "popTime"))
    handle = Handle(pop_time_ms, whole(value("it", "invisibleTime")), whole(value("rq", "reviveQueueId")))
    return _Acked(key, tuple(start + bit for bit in _bits(value("b", "bitSet"))), handle)


def _bits(encoded: object) -> Iterator[int]:
    """The set bits of a java.util.BitSet, as base64 of its little-endian bytes. Raises ValueError."""
    if not isinstance(encoded, str) or len(encoded) > BITS_BYTES_MAX * 4 // 3 + 4:
        raise ValueError("bitSet is no base64 text")
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"bitSet is no base64 text: {error}") from error
    for at, byte in enumerate(data):
        for bit in range(8):
            if byte >> bit & 1:
                yield at * 8 + bit


def _handle(text: str) -> Handle:
    try:
        return parse_handle(text)
    except HandleError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _is_out(group_queue: GroupQueue, offset: int, handle: Handle) -> bool:
    """Whether the message is in flight by the pop that this handle names."""
    in_flight_batch = group_queue.out.get(offset)
    if in_flight_batch is not None:
        return (
            in_flight_batch.pop_time_ms == handle.pop_time_ms and handle.revive_queue_id != ORDER_REVIVE_QUEUE
        )
    order = group_queue.order
    return order is not None and offset in order.pending and order.pop_time_ms == handle.pop_time_ms
