"""Messages: what a producer sends and gets back, what a consumer receives, and their form on the wire."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from ledgermq.client.errors import UnreadableError, WrongMessageError
from remoting.client.routes import MessageQueue
from remoting.client.send_requests import encode_message
from remoting.message_body import BodyError, compressed_flags, pack_body, unpack_body
from remoting.record import (
    CorruptRecordError,
    MessageIllegalError,
    Record,
    decode_records,
    format_properties,
    offset_msg_id,
    parse_properties,
)
from remoting.topic_names import RETRY_PREFIX, topic_name_error

UNIQUE_KEY: Final = "UNIQ_KEY"
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
SHARDING_KEY: Final = "__SHARDINGKEY"
DELAY_LEVEL: Final = "DELAY"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
WAIT: Final = "WAIT"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""RocketMQ's maxMessageSize."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
PROPERTIES_BYTES_MAX: Final = 32_767
_KEPT: Final = 4_096
_OWN: Final = frozenset({UNIQUE_KEY, TAGS, KEYS, SHARDING_KEY, DELAY_LEVEL, DELAY_MS, DELIVER_MS, WAIT})


@dataclass(slots=True)
class Message:
    """What is sent.

    tag: consumers filter by it. keys: the message is found by them.
    ordering_key: messages of one key are in one queue, in the order in which they were sent.
    delay_level: 1 to 18, RocketMQ's levels; `delay_ms`, `deliver_at_ms` (Unix time): any time. At most one.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str | None = None
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    flag: int = 0


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where an acknowledged message is: on the disks of a majority.

    message_id: made by the client (UNIQ_KEY). offset_message_id: the broker's.
    queue_offset: None where an earlier try of a numbered send had stored the message.
    tries: 1 when the first was acknowledged. recall_handle: takes a message for later back; empty: none.
    is_durable: false where a stock broker has answered that its disk or its slave was not in time.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int | None
    tries: int = 1
    transaction_id: str = ""
    recall_handle: str = ""
    is_durable: bool = True


@dataclass(slots=True)
class ReceivedMessage:
    """A message as a consumer gets it. `topic` is the one that it was sent to, also in a retry.

    message_id: the client's id, or the broker's where there is none.
    attempts: deliveries to this consumer group before this one. Times are Unix times in ms.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    position: int
    message_id: str
    offset_message_id: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    flag: int
    born_at_ms: int
    stored_at_ms: int
    born_host: str
    attempts: int
    handle: Any = field(default=None, repr=False)
    """Of a popped message: what acknowledges it."""

    @property
    def ordering_key(self) -> str | None:
        return self.properties.get(SHARDING_KEY)


@dataclass(frozen=True, slots=True)
class Packed:
    """A message in its form on the wire."""

    message_id: str
    properties: str
    body: bytes
    sys_flag: int


@dataclass(frozen=True, slots=True)
class Compression:
    """Bodies of at least `from_bytes` are packed by `kind` (zlib, lz4, zstd). Level: the library's."""

    kind: str = "zlib"
    from_bytes: int = 4096
    level: int = 5


def pack(message: Message, message_id: str, compression: Compression | None = None) -> Packed:
    """Raises WrongMessageError."""
    body = message.body
    if len(body) > BODY_BYTES_MAX:
        raise WrongMessageError(f"the body has {len(body)} bytes; {BODY_BYTES_MAX} are possible")
    sys_flag = 0
    if compression is not None and len(body) >= compression.from_bytes:
        body = _packed(body, compression)
        sys_flag = compressed_flags(compression.kind)
    return Packed(message_id, properties_text(message, message_id), body, sys_flag)


def _packed(body: bytes, compression: Compression) -> bytes:
    try:
        return pack_body(body, compression.kind, compression.level)
    except BodyError as error:
        raise WrongMessageError(str(error)) from error


def check_topic(topic: str) -> None:
    """Raises WrongMessageError for a name that no topic can have."""
    problem = topic_name_error(topic)
    if problem is not None:
        raise WrongMessageError(problem)


def properties_text(message: Message, message_id: str) -> str:
    """Raises WrongMessageError."""
    if not (message.properties or message.keys or message.tag) and _is_plain(message):
        return f"{UNIQUE_KEY}\x01{message_id}\x02{WAIT}\x01true\x02"
    return _all_properties(message, message_id)


def _is_plain(message: Message) -> bool:
    times = (message.ordering_key, message.delay_level, message.delay_ms, message.deliver_at_ms)
    return all(each is None for each in times)


def _all_properties(message: Message, message_id: str) -> str:
    delays = {
        DELAY_LEVEL: message.delay_level,
        DELAY_MS: message.delay_ms,
        DELIVER_MS: message.deliver_at_ms,
    }
    given = {name: str(value) for name, value in delays.items() if value is not None}
    if len(given) > 1:
        raise WrongMessageError("a message has one of delay_level, delay_ms and deliver_at_ms")
    own = {name for name in message.properties if name in _OWN}
    if own:
        raise WrongMessageError(f"the properties {', '.join(sorted(own))} are fields of a Message")
    if any(" " in key for key in message.keys):
        raise WrongMessageError("a key has no blank: RocketMQ separates keys by it")
    text = {
        UNIQUE_KEY: message_id,
        WAIT: "true",
        TAGS: message.tag or "",
        KEYS: " ".join(message.keys),
        SHARDING_KEY: message.ordering_key or "",
    }
    try:
        data = format_properties(
            {name: value for name, value in text.items() if value} | given | dict(message.properties)
        )
    except MessageIllegalError as error:
        raise WrongMessageError(str(error)) from error
    if len(data) > PROPERTIES_BYTES_MAX:
        raise WrongMessageError(f"the properties have {len(data)} bytes; {PROPERTIES_BYTES_MAX} are possible")
    return data.decode()


def batch_part(message: Message, packed: Packed, queue_id: int = 0) -> bytes:
    """The message as a part of a request for several. `queue_id` is for sequenced sends.

    Raises WrongMessageError.
    """
    try:
        return encode_message(packed.body, packed.properties.encode(), message.flag, queue_id)
    except ValueError as error:
        raise WrongMessageError(str(error)) from error


def received_messages(body: bytes, broker_name: str) -> list[ReceivedMessage]:
    """The messages in the body of a broker's answer. Raises UnreadableError."""
    try:
        return [received_message(record, broker_name) for record in decode_records(body)]
    except (CorruptRecordError, BodyError) as error:
        raise UnreadableError(f"a message of {broker_name} cannot be read: {error}") from error


def received_message(record: Record, broker_name: str) -> ReceivedMessage:
    """Raises BodyError."""
    properties = parse_properties(record.properties)
    queue = _queue_of(record.topic, broker_name, record.queue_id)
    offset_id = offset_msg_id(record.store_host, record.physical_offset)
    return ReceivedMessage(
        topic=properties.get(RETRY_TOPIC, record.topic)
        if record.topic.startswith(RETRY_PREFIX)
        else record.topic,
        body=unpack_body(record.body, record.sys_flag, UNPACKED_BYTES_MAX),
        queue=queue,
        queue_offset=record.queue_offset,
        position=record.physical_offset,
        message_id=properties.get(UNIQUE_KEY, offset_id),
        offset_message_id=offset_id,
        tag=properties.get(TAGS),
        keys=tuple(properties.get(KEYS, "").split()),
        properties=properties,
        flag=record.flag,
        born_at_ms=record.born_timestamp_ms,
        stored_at_ms=record.store_timestamp_ms,
        born_host=_host_text(record.born_host),
        attempts=record.reconsume_times,
    )


@lru_cache(_KEPT)
def _queue_of(topic: str, broker_name: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)


@lru_cache(_KEPT)
def _host_text(host: bytes) -> str:
    address = ipaddress.ip_address(host[:-4])
    port = int.from_bytes(host[-4:], "big")
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
