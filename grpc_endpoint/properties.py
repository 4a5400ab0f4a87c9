"""A message on both sides: gRPC's message with its system properties, and a record with RocketMQ's named ones
(GrpcConverter, SendMessageActivity.buildMessageProperty). Remoting and gRPC clients read each other's
messages because every field has its property.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from broker.pop.names import origin_topic
from grpc_endpoint.messaging_pb2 import (
    DeadLetterQueue,
    Digest,
    DigestType,
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from remoting.message_body import COMPRESSED, BodyError, unpack_body
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

_DIGITS_MAX: Final = 14
_INT_MAX: Final = 2**31 - 1


def type_of(properties: Mapping[str, str]) -> MessageType:
    """The type of a message with these properties (TopicMessageType.parseFromMessageProperty)."""
    if properties.get(TRANSACTION) == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in (DELAY_LEVEL, DELIVER_MS, DELAY_S, DELAY_MS)):
        return MessageType.DELAY
    if SHARDING_KEY in properties:
        return MessageType.FIFO
    if PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.LITE if LITE_TOPIC in properties else MessageType.NORMAL


def timestamp(time_ms: int) -> Timestamp:
    seconds, ms = divmod(time_ms, 1_000)
    return Timestamp(seconds=seconds, nanos=ms * 1_000_000)


def unique_id(record: Record, properties: Mapping[str, str]) -> str:
    """The id that its producer gave the message; of one without an id, the broker's."""
    return properties.get(UNIQUE_KEY) or offset_msg_id(record.store_host, record.physical_offset)


def host_text(packed: bytes) -> str:
    """`address:port` of a record's host."""
    address = ipaddress.ip_address(packed[:-4])
    host = f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address)
    return f"{host}:{int.from_bytes(packed[-4:], 'big')}"


def message_of(record: Record, group: str, properties: Mapping[str, str] | None = None) -> Message:
    """The record as its consumers see it: in the topic that it was sent to, with no receipt handle."""
    known = parse_properties(record.properties) if properties is None else properties
    return Message(
        topic=Resource(name=origin_topic(record.topic, group)),
        user_properties={name: value for name, value in known.items() if name not in _HIDDEN},
        system_properties=_system_properties(record, known),
        body=record.body,
    )


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


def _keys_of(text: str) -> list[str]:
    text = text.rstrip(KEY_SEPARATOR)
    return text.split(KEY_SEPARATOR) if text else []


def _system_properties(record: Record, properties: Mapping[str, str]) -> SystemProperties:
    get = properties.get
    made = SystemProperties(
        keys=_keys_of(get(KEYS, "")),
        message_id=unique_id(record, properties),
        body_digest=Digest(type=DigestType.MD5, checksum=_md5(record.body)),
        body_encoding=Encoding.GZIP if record.sys_flag & COMPRESSED else Encoding.IDENTITY,
        message_type=type_of(properties),
        born_timestamp=timestamp(record.born_timestamp_ms),
        born_host=get(BORN_HOST) or str(ipaddress.ip_address(record.born_host[:-4])),
        store_timestamp=timestamp(record.store_timestamp_ms),
        store_host=host_text(record.store_host),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=record.reconsume_times + 1,
        tag=get(TAGS),
        message_group=get(SHARDING_KEY),
        lite_topic=get(LITE_TOPIC),
        trace_context=get(TRACE_CONTEXT),
    )
    delivery_ms, priority = _number(get(DELIVER_MS) or get(OUT_MS)), _number(get(PRIORITY))
    if delivery_ms is not None:
        made.delivery_timestamp.CopyFrom(timestamp(delivery_ms))
    if priority is not None and priority <= _INT_MAX:
        made.priority = priority
    origin, origin_id = get(DLQ_TOPIC), get(DLQ_MESSAGE_ID)
    if origin and origin_id:
        made.dead_letter_queue.CopyFrom(DeadLetterQueue(topic=origin, message_id=origin_id))
    return made


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= _DIGITS_MAX else None


def _md5(body: bytes) -> str:
    """A checksum against faults on the way, which the clients compare; no proof of anything."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
