"""One waiting timer message as the index keeps it. Pure.

    wake 8 (ms << 1, and 1 for a message, 0 for a recall) | offset in the timer queue 8 | key 8

Big-endian, so that rows compare as bytes: by time; at one time recalls before messages; then in the order in
which they were stored.

The records of the timer queue, and the messages that are delivered from them. Pure.

rmq_sys_wheel_timer, queue 0, holds two kinds of records:

    a message that waits: the sender's, with TIMER_OUT_MS and where it is to go among its properties
    deliveries, tag LMQ_DELIVERED: the waiting messages that end with this record

        version 1 | kept 4 | messages 4 | offsets 8 each                                       big-endian

Of the offsets, the first `messages` ones are delivered: their messages are the next records of the log, in
this order. The others end without a message. After a leader's crash the log may hold only some of these
messages; `kept` is the number that it holds of the previous record of deliveries.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

from broker.store.redelivery import copy_of, property_of
from broker.timer.scheduling import (
    PROPERTY_DEQUEUE_MS,
    PROPERTY_ENQUEUE_MS,
    PROPERTY_OUT_MS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECALL_KEY,
    PROPERTY_ROLL_TIMES,
    TIMER_QUEUE_ID,
    TIMER_TOPIC,
)
from commitlog.record import Message, Record, format_properties, get_property, parse_properties

KEY_BYTES = 8
ROW_BYTES = 16 + KEY_BYTES
WAKE_MS_MAX = (1 << 62) - 1
NO_KEY = bytes(KEY_BYTES)

_ROW = struct.Struct(f">QQ{KEY_BYTES}s")


class Row(NamedTuple):
    """`wake_ms`: when something is to be done about it. `key`: what a recall names it by."""

    wake_ms: int
    offset: int
    key: bytes
    is_message: bool = True

    def pack(self) -> bytes:
        return _ROW.pack(self.wake_ms << 1 | self.is_message, self.offset, self.key)


def unpack(data: bytes) -> Row:
    wake, offset, key = _ROW.unpack(data)
    return Row(wake >> 1, offset, key, bool(wake & 1))


def offset_of(data: bytes) -> int:
    return int.from_bytes(data[8:16], "big")


def first_at(wake_ms: int) -> bytes:
    """Not behind any row of this time, and behind all of earlier ones."""
    return _ROW.pack(wake_ms << 1, 0, NO_KEY)


def recall_key(topic: str, unique_key: str) -> bytes:
    """Hash of the text that names a message in a recall (TimerMessageStore.buildDeleteKey). Two messages may
    have the same hash: the caller must compare a row that it finds with the row's message.
    """
    return key_of(f"{topic}+{unique_key}")


def key_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=KEY_BYTES).digest()


TAG_DELIVERED = "LMQ_DELIVERED"
DELIVERIES_VERSION = 1
ALL_KEPT = (1 << 32) - 1
"""Value of `kept` when there is no previous record of deliveries, or it can no longer be read. Such
deliveries are complete: a leader that finds incomplete ones writes the missing messages at once.
"""
OWN_PROPERTIES_BYTES = 128
"""Bytes reserved in a waiting message for the properties that are added when it is delivered or rolled."""

_HEAD = struct.Struct(">BII")


class TimerRecordError(ValueError):
    """A record of the timer queue was not written by a broker of this version or earlier."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """See the module."""

    kept: int
    delivered: tuple[int, ...]
    dropped: tuple[int, ...] = ()


def deliveries_message(deliveries: Deliveries, host: bytes, now_ms: int) -> Message:
    """What is put into the log before the messages."""
    offsets = deliveries.delivered + deliveries.dropped
    head = _HEAD.pack(DELIVERIES_VERSION, deliveries.kept, len(deliveries.delivered))
    return Message(
        topic=TIMER_TOPIC,
        queue_id=TIMER_QUEUE_ID,
        body=head + struct.pack(f">{len(offsets)}Q", *offsets),
        properties=format_properties({"TAGS": TAG_DELIVERED}),
        born_timestamp_ms=now_ms,
        born_host=host,
        store_host=host,
    )


def read_deliveries(record: Record) -> Deliveries | None:
    """None for a message that waits. Raises TimerRecordError."""
    if get_property(record.properties, PROPERTY_OUT_MS.encode()) is not None:
        return None
    try:
        version, kept, messages = _HEAD.unpack_from(record.body)
        offsets = struct.unpack(f">{(len(record.body) - _HEAD.size) // 8}Q", record.body[_HEAD.size :])
    except struct.error as error:
        raise TimerRecordError(f"the timer record {record.queue_offset} cannot be read: {error}") from error
    if version != DELIVERIES_VERSION or messages > len(offsets):
        raise TimerRecordError(f"the timer record {record.queue_offset} is of version {version}")
    return Deliveries(kept, offsets[:messages], offsets[messages:])


def row_of(record: Record, roll_ms: int) -> Row:
    """The row of a waiting message or recall. It is processed when it is due, but at the latest `roll_ms`
    after it was stored.

    Raises TimerRecordError.
    """
    due_ms = out_ms(record)
    recall = property_of(record, PROPERTY_RECALL_KEY)
    if recall:
        key = key_of(recall)
    else:
        key = recall_key(property_of(record, PROPERTY_REAL_TOPIC), property_of(record, "UNIQ_KEY"))
    return Row(min(due_ms, max(record.store_timestamp_ms, 0) + roll_ms), record.queue_offset, key, not recall)


def out_ms(record: Record) -> int:
    """Raises TimerRecordError."""
    value = property_of(record, PROPERTY_OUT_MS)
    if not value.isdecimal() or int(value) > WAKE_MS_MAX:
        raise TimerRecordError(f"the timer message {record.queue_offset} has no time: {value[:32]!r}")
    return int(value)


def delivered(record: Record, topic: str, queue_id: int, host: bytes, now_ms: int) -> Message:
    """The message for its real topic: its properties stay, those of its waiting among them
    (TimerMessageStore.convert).
    """
    own = f"{PROPERTY_ENQUEUE_MS}\x01{record.store_timestamp_ms}\x02{PROPERTY_DEQUEUE_MS}\x01{now_ms}\x02"
    return _copy(record, topic, queue_id, host, _ended(record.properties) + own.encode())


def rolled(record: Record, host: bytes) -> Message:
    """The message at the end of the log, where it waits on: what old files hold is deleted."""
    properties = parse_properties(record.properties)
    times = properties.get(PROPERTY_ROLL_TIMES, "0")
    properties[PROPERTY_ROLL_TIMES] = str(int(times) + 1 if times.isdecimal() else 1)
    return _copy(record, TIMER_TOPIC, TIMER_QUEUE_ID, host, format_properties(properties))


def _copy(record: Record, topic: str, queue_id: int, host: bytes, properties: bytes) -> Message:
    """`prepared_transaction_offset` holds the position of the record that the message is made from: a new
    leader searches for it (LogTail).
    """
    message = copy_of(record, topic, queue_id, host, properties)
    message.prepared_transaction_offset = record.physical_offset
    return message


def _ended(properties: bytes) -> bytes:
    return properties if not properties or properties.endswith(b"\x02") else properties + b"\x02"
