"""SendMessage and RecallMessage (SendMessageActivity, ProducerProcessor, RecallMessageActivity)."""

import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from commitlog.record import MessageIllegalError, format_properties, tags_code
from grpc_endpoint.brokers import Brokers
from grpc_endpoint.call import Call
from grpc_endpoint.handles import TransactionId
from grpc_endpoint.messaging_pb2 import (
    Code,
    Encoding,
    Message,
    MessageType,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
    SystemProperties,
)
from grpc_endpoint.properties import (
    BORN_HOST,
    BORN_MS,
    DELIVER_MS,
    IMMUNITY_S,
    KEY_SEPARATOR,
    KEYS,
    LITE_TOPIC,
    PRIORITY,
    PRODUCER_GROUP,
    SHARDING_KEY,
    TAGS,
    TRACE_CONTEXT,
    TRANSACTION,
    UNIQUE_KEY,
    type_of,
)
from grpc_endpoint.routes import Routes
from grpc_endpoint.status import StatusError, combined, ok, refused
from grpc_endpoint.validation import (
    BODY_BYTES_MAX,
    check_body,
    check_delivery,
    check_key,
    check_lite_topic,
    check_message_group,
    check_properties,
    check_recovery,
    check_tag,
    topic_of,
)
from remoting.acl import GrpcProof
from remoting.client.aio import SentRequest
from remoting.client.routes import Queue, publish_queues
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import RecallMessageRequestHeader, letters_of_send
from remoting.message_body import COMPRESSED
from remoting.recall_handle import HandleError, decode_handle
from remoting.record import TRANSACTION_PREPARED
from remoting.route import TopicRoute

SEND_S: Final = 10.0
"""The most that a send may take; a client waits 3 s unless it is configured otherwise."""
BATCH_MAX: Final = 1_024
TOPICS_MAX: Final = 1_000
"""Whose queues are kept."""
PROPERTIES_BYTES_MAX: Final = 2**15 - 1
"""Of a record, the system's properties among them."""
STORED: Final[Mapping[int, Code]] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
_POSITION_DIGITS: Final = 16
"""Of an offsetMsgId, at its end."""
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_LONG_MASK: Final = 2**64 - 1


class Sending:
    def __init__(self, brokers: Brokers, routes: Routes) -> None:
        self._brokers = brokers
        self._routes = routes
        self._turn = 0
        self._queues: dict[str, tuple[TopicRoute, list[Queue]]] = {}

    async def send_message(self, call: Call, request: SendMessageRequest) -> SendMessageResponse:
        messages, topic, properties = self._checked(call, request)
        types = await self._routes.accepted_types(topic)
        queues = self._publish_queues(topic, await self._brokers.route(topic))
        if not queues:
            queues = self._publish_queues(topic, await self._brokers.route(topic, is_fresh=True))
        send = self._send(call, topic, messages, properties, types, queues)
        return await send.result()

    def send_at_once(self, call: Call, request: SendMessageRequest) -> "Send | None":
        """Begin a send for which no one has to be asked first. None: `send_message` has to. Raises
        StatusError.
        """
        messages, topic, properties = self._checked(call, request)
        types, route = self._routes.known_types(topic), self._brokers.known_route(topic)
        if types is None or route is None or not (queues := self._publish_queues(topic, route)):
            return None
        send = self._send(call, topic, messages, properties, types, queues)
        send.begin(call.proof)
        return send

    def _checked(
        self, call: Call, request: SendMessageRequest
    ) -> tuple[Sequence[Message], str, list[dict[str, str]]]:
        """The messages, their topic and the properties of each. Raises StatusError."""
        messages: Sequence[Message] = [*request.messages]
        if not 0 < len(messages) <= BATCH_MAX:
            problem = f"more than {BATCH_MAX} messages" if messages else "no message to send"
            raise StatusError(Code.MESSAGE_CORRUPTED, problem)
        resource = messages[0].topic
        topic = topic_of(resource)
        if len(messages) > 1 and any(each.topic != resource for each in messages):
            raise StatusError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        now_ms = _now_ms()
        return messages, topic, [properties_of(each, topic, call.host, now_ms) for each in messages]

    def _send(
        self,
        call: Call,
        topic: str,
        messages: Sequence[Message],
        properties: Sequence[Mapping[str, str]],
        types: Sequence[MessageType],
        queues: Sequence[Queue],
    ) -> "Send":
        """Raises StatusError."""
        _check_type(types, properties)
        queue = self._queue(messages, queues)
        command = _command(topic, queue.queue_id, messages, properties)
        return Send(self._brokers, topic, queue.broker_name, messages, command, call.limit_s(SEND_S))

    def _queue(self, messages: Sequence[Message], queues: Sequence[Queue]) -> Queue:
        """The queue of a message group is always the same; other messages take the queues in turn."""
        if not queues:
            raise StatusError(Code.FORBIDDEN, "no writable queue")
        system = messages[0].system_properties
        if len(messages) == 1 and (group := system.message_group):
            queues = sorted(queues, key=lambda queue: (queue.broker_name, queue.queue_id))
            return queues[consistent_hash(tags_code(group), len(queues))]
        self._turn += 1
        queue = queues[self._turn % len(queues)]
        if system.HasField("priority"):
            own = [each for each in queues if each.broker_name == queue.broker_name]
            return own[min(system.priority, len(own) - 1)]
        return queue

    def _publish_queues(self, topic: str, route: TopicRoute) -> list[Queue]:
        """The route's writable queues, made once for each route."""
        known = self._queues.get(topic)
        if known is not None and known[0] is route:
            return known[1]
        if len(self._queues) >= TOPICS_MAX:
            self._queues.clear()
        queues = publish_queues(route)
        self._queues[topic] = route, queues
        return queues

    async def recall_message(self, call: Call, request: RecallMessageRequest) -> RecallMessageResponse:
        topic = topic_of(request.topic)
        accepted = await self._routes.accepted_types(topic)
        if MessageType.DELAY not in accepted:
            message = f"a topic of type {MessageType.Name(accepted[0])} has no messages to recall"
            raise StatusError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, message)
        try:
            handle = decode_handle(request.recall_handle)
        except HandleError as error:
            raise StatusError(Code.BAD_REQUEST, str(error)) from error
        header = RecallMessageRequestHeader(topic=topic, recall_handle=request.recall_handle)
        command = RemotingCommand(RequestCode.RECALL_MESSAGE, ext_fields=header.ext_fields())
        answer = await self._brokers.ask(handle.broker_name, command, call.limit_s(SEND_S), topic=topic)
        message_id = answer.command.ext_fields.get("msgId", handle.unique_key)
        return RecallMessageResponse(status=ok(), message_id=message_id)


class Send:
    """One request of a producer, and the broker's that it has become."""

    __slots__ = ("_broker_name", "_brokers", "_command", "_end_s", "_messages", "_topic", "sent")

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        broker_name: str,
        messages: Sequence[Message],
        command: RemotingCommand,
        end_s: float,
    ) -> None:
        self.sent: SentRequest | None = None
        self._brokers = brokers
        self._topic = topic
        self._broker_name = broker_name
        self._messages = messages
        self._command = command
        self._end_s = end_s

    def begin(self, proof: GrpcProof | None) -> None:
        """Send it, if that can be done at once."""
        self.sent = self._brokers.send(self._broker_name, self._command, self._end_s, proof)

    def response(self, answer: RemotingCommand) -> SendMessageResponse | None:
        """Begun: what the first try's answer becomes; None: `result` has to go on. Raises StatusError."""
        return self._response(answer) if answer.code in STORED else None

    async def result(self) -> SendMessageResponse:
        """From the first try on, or after it. Raises StatusError."""
        answer = await self._brokers.ask(
            *(self._broker_name, self._command, self._end_s),
            topic=self._topic,
            accepted=STORED,
            sent=self.sent,
        )
        return self._response(answer.command)

    def _response(self, answer: RemotingCommand) -> SendMessageResponse:
        entries = _entries(answer, self._messages, self._broker_name)
        return SendMessageResponse(
            status=combined((each.status for each in entries), "send status is empty"), entries=entries
        )


def _check_type(accepted: Sequence[MessageType], properties: Sequence[Mapping[str, str]]) -> None:
    """Raises StatusError."""
    for each in properties:
        found = type_of(each)
        if found not in accepted:
            expected = "/".join(MessageType.Name(value) for value in accepted)
            raise StatusError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"TopicMessageType validate failed, the expected type is {expected}, "
                f"but actual type is {MessageType.Name(found)}",
            )


def properties_of(message: Message, topic: str, host: str, now_ms: int) -> dict[str, str]:
    """The properties that the message is stored with. Raises StatusError when it may not be sent."""
    system = message.system_properties
    tag, keys, own, message_id = system.tag, system.keys, message.user_properties, system.message_id
    check_body(message.body)
    properties: dict[str, str] = {}
    if tag or keys or own:
        check_tag(tag)
        for key in keys:
            check_key(key)
        check_properties(own, tag, keys)
        properties |= own
    if not message_id.strip():
        raise StatusError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if tag:
        properties[TAGS] = tag
    if keys:
        properties[KEYS] = KEY_SEPARATOR.join(keys)
    properties[UNIQUE_KEY] = message_id
    properties[PRODUCER_GROUP] = topic
    _add_kind(properties, system, now_ms)
    if system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    properties[BORN_HOST] = system.born_host.strip() or host
    if system.HasField("born_timestamp"):
        with suppress(ValueError):  # no time at all: it counts as not given
            properties[BORN_MS] = str(system.born_timestamp.ToMilliseconds())
    return properties


def _add_kind(properties: dict[str, str], system: SystemProperties, now_ms: int) -> None:
    """What makes it a message of its type. Raises StatusError."""
    if system.message_type == MessageType.TRANSACTION:
        properties[TRANSACTION] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            check_recovery(seconds)
            properties[IMMUNITY_S] = str(seconds)
    if system.HasField("delivery_timestamp"):
        delivery_ms = _delivery_ms(system)
        check_delivery(delivery_ms, now_ms)
        properties[DELIVER_MS] = str(delivery_ms)
    if system.message_group:
        check_message_group(system.message_group)
        properties[SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        if system.priority < 0:
            raise StatusError(Code.BAD_REQUEST, "the priority must be greater than or equal to 0")
        properties[PRIORITY] = str(system.priority)
    if system.lite_topic:
        check_lite_topic(system.lite_topic)
        properties[LITE_TOPIC] = system.lite_topic


def _delivery_ms(system: SystemProperties) -> int:
    """Raises StatusError."""
    try:
        return system.delivery_timestamp.ToMilliseconds()
    except ValueError as error:
        raise StatusError(Code.ILLEGAL_DELIVERY_TIME, str(error)) from error


def _command(
    topic: str, queue_id: int, messages: Sequence[Message], properties: Sequence[Mapping[str, str]]
) -> RemotingCommand:
    """Raises StatusError."""
    system = messages[0].system_properties
    is_half = system.message_type == MessageType.TRANSACTION
    try:
        texts = [format_properties(each) for each in properties]
    except MessageIllegalError as error:
        raise StatusError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from error
    if max(map(len, texts)) > PROPERTIES_BYTES_MAX:
        message = f"the properties take more than {PROPERTIES_BYTES_MAX} bytes"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, message)
    is_batch = len(messages) > 1
    bodies, is_packed = _stored_bodies(messages)
    compressed = COMPRESSED if is_packed else 0
    header = letters_of_send(
        topic,
        queue_id,
        sys_flag=compressed | (TRANSACTION_PREPARED if is_half else 0),
        born_timestamp_ms=int(properties[0].get(BORN_MS) or _now_ms()),
        properties=texts[0].decode(),
        is_batch=is_batch,
    )
    body = batch_body(bodies, texts) if is_batch else bodies[0]
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand(code, ext_fields=header, body=body)


def _stored_bodies(messages: Sequence[Message]) -> tuple[list[bytes], bool]:
    """The bodies as they are stored, and whether they are packed. Raises StatusError."""
    bodies = [each.body for each in messages]
    packed = {each.system_properties.body_encoding == Encoding.GZIP for each in messages}
    if len(packed) > 1:
        raise StatusError(Code.MESSAGE_CORRUPTED, "some bodies of the batch are compressed, some not")
    plain = _gunzipped(bodies) if True in packed else bodies
    return (bodies, True) if plain is None else (plain, False)


def _gunzipped(bodies: Sequence[bytes]) -> list[bytes] | None:
    """What gzip has packed, by which gRPC's clients may mean zlib; None for anything else, and for more than
    one body may have. Java's remoting clients read zlib, and pass over a message with gzip's own format.
    """
    plain: list[bytes] = []
    room = BODY_BYTES_MAX
    for body in bodies:
        unpacker = zlib.decompressobj(wbits=_GZIP_WBITS)
        try:
            found = unpacker.decompress(body, room) if room else b""
        except zlib.error:
            return None
        if not found or not unpacker.eof or unpacker.unused_data:
            return None
        room -= len(found)
        plain.append(found)
    return plain


def batch_body(bodies: Sequence[bytes], properties: Sequence[bytes]) -> bytes:
    """The body of a batch send: size, magic, CRC and flag (0, 0, 0), body, properties of each message."""
    parts = []
    for body, text in zip(bodies, properties, strict=True):
        size = 4 * 5 + len(body) + 2 + len(text)
        parts += [size.to_bytes(4, "big"), bytes(12), len(body).to_bytes(4, "big"), body]
        parts += [len(text).to_bytes(2, "big"), text]
    return b"".join(parts)


def _entries(answer: RemotingCommand, messages: Sequence[Message], broker: str) -> list[SendResultEntry]:
    """Raises StatusError when the broker says nothing of the message's place."""
    code = STORED[answer.code]
    if code != Code.OK:
        status = Status(code=code, message=f"send message failed, code {answer.code}")
        return [SendResultEntry(status=status) for _ in messages]
    ext = answer.ext_fields
    try:
        offset = int(ext["queueOffset"])
        half = messages[0].system_properties.message_type == MessageType.TRANSACTION
        position = int(ext["msgId"][-_POSITION_DIGITS:], 16) if half else 0
    except (KeyError, ValueError) as error:
        raise refused(ResponseCode.SYSTEM_ERROR, f"the broker's answer lacks {error}") from error
    entries = []
    for number, message in enumerate(messages):
        message_id = message.system_properties.message_id
        transaction = str(TransactionId(offset, position, broker, message_id)) if half else ""
        entries.append(
            SendResultEntry(
                status=ok(),
                message_id=message_id,
                transaction_id=transaction,
                offset=offset + number,
                recall_handle=ext.get("recallHandle", ""),
            )
        )
    return entries


def consistent_hash(seed: int, buckets: int) -> int:
    """The queue of a message group (Lamping and Veach's jump hash, with Guava's generator), so that
    RocketMQ's proxy and this endpoint agree about it.
    """
    state = seed & _LONG_MASK
    candidate = 0
    while True:
        state = (2862933555777941757 * state + 1) & _LONG_MASK
        chosen = int((candidate + 1) / (((state >> 33) + 1) / 2**31))
        if not 0 <= chosen < buckets:
            return candidate
        candidate = chosen


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
