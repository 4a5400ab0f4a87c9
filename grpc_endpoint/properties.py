"""A message on both sides: gRPC's message with its system properties, and a record with RocketMQ's named ones
(GrpcConverter, SendMessageActivity.buildMessageProperty). Remoting and gRPC clients read each other's
messages because every field has its property.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from grpc_endpoint.messaging_pb2 import (
    DeadLetterQueue,
    DigestType,
    Encoding,
    Message,
    MessageType,
    SystemProperties,
)
from remoting.message_body import COMPRESSED, BodyError, unpack_body
from remoting.pop_receipts import origin_topic
from remoting.record import Record, offset_msg_id, parse_properties

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
TRANSACTION: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
DELAY_LEVEL: Final = "DELAY"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
DELAY_S: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
OUT_MS: Final = "TIMER_OUT_MS"
LITE_TOPIC: Final = "__LITE_TOPIC"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "__BORNHOST"
BORN_MS: Final = "BORN_TIMESTAMP"
IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DLQ_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
KEY_SEPARATOR: Final = " "
UNPACKED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one answer; the bodies beyond it stay packed."""
SYSTEM_PROPERTIES: Final = frozenset(
    {
        *(TAGS, KEYS, UNIQUE_KEY, TRANSACTION, PRODUCER_GROUP, PRIORITY, DELAY_LEVEL, DELIVER_MS),
        *(DELAY_S, DELAY_MS, OUT_MS, BORN_HOST, BORN_MS, DLQ_TOPIC, DLQ_MESSAGE_ID, LITE_TOPIC),
        *(
            "TRACE_ON",
            "MSG_REGION",
            "WAIT",
            "RETRY_TOPIC",
            "ORIGIN_GROUP",
            "REAL_TOPIC",
            "REAL_QID",
            "MIN_OFFSET",
        ),
        *("MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG"),
        *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET"),
        *("1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID"),
        *("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER"),
        *("MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "__CRC32#"),
    }
)
"""Names that users cannot give their own properties, and which are not shown as such (MessageConst)."""
_HIDDEN: Final = SYSTEM_PROPERTIES | {SHARDING_KEY, TRACE_CONTEXT, "__transactionId__", IMMUNITY_S}
"""RocketMQ's proxy shows the last four as user properties, too; their fields have them already."""

_OF_DELAYS: Final = frozenset({DELAY_LEVEL, DELIVER_MS, DELAY_S, DELAY_MS})
_HOSTS_KEPT: Final = 1_024
_DIGITS_MAX: Final = 14
_INT_MAX: Final = 2**31 - 1


def type_of(properties: Mapping[str, str]) -> MessageType:
    """The type of a message with these properties (TopicMessageType.parseFromMessageProperty)."""
    if properties.get(TRANSACTION) == "true":
        return MessageType.TRANSACTION
    if not _OF_DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    if SHARDING_KEY in properties:
        return MessageType.FIFO
    if PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.LITE if LITE_TOPIC in properties else MessageType.NORMAL


def timestamp(time_ms: int) -> Timestamp:
    made = Timestamp()
    _set_time(made, time_ms)
    return made


def _set_time(field: Timestamp, time_ms: int) -> None:
    seconds, ms = divmod(time_ms, 1_000)
    field.seconds = seconds
    field.nanos = ms * 1_000_000


def unique_id(record: Record, properties: Mapping[str, str]) -> str:
    """The id that its producer gave the message; of one without an id, the broker's."""
    return properties.get(UNIQUE_KEY) or offset_msg_id(record.store_host, record.physical_offset)


@lru_cache(_HOSTS_KEPT)
def host_text(packed: bytes) -> str:
    """`address:port` of a record's host."""
    address = ipaddress.ip_address(packed[:-4])
    host = f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address)
    return f"{host}:{int.from_bytes(packed[-4:], 'big')}"


def message_of(record: Record, group: str, properties: Mapping[str, str] | None = None) -> Message:
    """The record as its consumers see it: in the topic that it was sent to, with no receipt handle."""
    known = parse_properties(record.properties) if properties is None else properties
    made = Message(body=record.body)
    made.topic.name = origin_topic(record.topic, group)
    if own := {name: value for name, value in known.items() if name not in _HIDDEN}:
        made.user_properties.update(own)
    # Field by field: a message that is made apart and then put in is copied.
    system, get = made.system_properties, known.get
    system.message_id = unique_id(record, known)
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = _md5(record.body)
    system.body_encoding = Encoding.GZIP if record.sys_flag & COMPRESSED else Encoding.IDENTITY
    system.message_type = type_of(known)
    _set_time(system.born_timestamp, record.born_timestamp_ms)
    system.born_host = get(BORN_HOST) or host_text(record.born_host).rpartition(":")[0].strip("[]")
    _set_time(system.store_timestamp, record.store_timestamp_ms)
    system.store_host = host_text(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = record.reconsume_times + 1
    _add_optional(system, known)
    return made


def unpack(records: Iterable[Record]) -> None:
    """Make the bodies of one answer plain, as long as there is room: gRPC knows gzip only, and of its clients
    Node.js' and Rust's cannot read zlib, by which Java's remoting clients pack what has more than 4 KiB.
    """
    room = UNPACKED_BYTES_MAX
    for record in records:
        if not record.sys_flag & COMPRESSED:
            continue
        try:
            body = unpack_body(record.body, record.sys_flag, room)
        except BodyError:
            room //= 2  # so all failures together cost no more than twice the room
        else:
            room -= len(body)
            record.body, record.sys_flag = body, record.sys_flag & ~COMPRESSED


def _add_optional(system: SystemProperties, properties: Mapping[str, str]) -> None:
    get = properties.get
    if keys := get(KEYS, "").rstrip(KEY_SEPARATOR):
        system.keys.extend(keys.split(KEY_SEPARATOR))
    if (tag := get(TAGS)) is not None:
        system.tag = tag
    if (message_group := get(SHARDING_KEY)) is not None:
        system.message_group = message_group
    if (lite_topic := get(LITE_TOPIC)) is not None:
        system.lite_topic = lite_topic
    if (context := get(TRACE_CONTEXT)) is not None:
        system.trace_context = context
    delivery_ms, priority = _number(get(DELIVER_MS) or get(OUT_MS)), _number(get(PRIORITY))
    if delivery_ms is not None:
        _set_time(system.delivery_timestamp, delivery_ms)
    if priority is not None and priority <= _INT_MAX:
        system.priority = priority
    origin, origin_id = get(DLQ_TOPIC), get(DLQ_MESSAGE_ID)
    if origin and origin_id:
        system.dead_letter_queue.CopyFrom(DeadLetterQueue(topic=origin, message_id=origin_id))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= _DIGITS_MAX else None


def _md5(body: bytes) -> str:
    """A checksum against faults on the way, which the clients compare; no proof of anything."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
