"""Writes RocketMQ's message record, the unit of the commit log: one at a time, or a put's records at once by
compiled code, in one buffer with room for the header of each one's entry.

`remoting.record` has the layout and reads it; its names are offered here too, so that code of the log finds
the record in one place. Source: RocketMQ's MessageExtEncoder. Pure: values in, bytes out.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from isal import isal_zlib

import native
from remoting.record import (
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    RECORD_HEADS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    CorruptRecordError,
    MessageIllegalError,
    Record,
    decode_record,
    format_properties,
    get_property,
    host_bytes,
    offset_msg_id,
    parse_properties,
    properties_of,
    record_size,
    tags_code,
)
from remoting.record_layout import (
    AT,
    BODY_AT,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    fields_struct,
)

__all__ = [
    "PHYSICAL_OFFSET_AT",
    "PROPERTIES_BYTES_MAX",
    "PROPERTY_DELAY",
    "PROPERTY_TAGS",
    "QUEUE_OFFSET_AT",
    "TOPIC_BYTES_MAX",
    "TOPIC_BYTES_V1_MAX",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "CorruptRecordError",
    "Message",
    "MessageIllegalError",
    "Record",
    "decode_record",
    "encode_record",
    "format_properties",
    "get_property",
    "host_bytes",
    "offset_msg_id",
    "parse_properties",
    "properties_of",
    "record_size",
    "size_and_position",
    "tags_code",
]

TOPIC_BYTES_V1_MAX: Final = 127
TOPIC_BYTES_MAX: Final = 32_767
PROPERTIES_BYTES_MAX: Final = 32_767

QUEUE_OFFSET_AT: Final = AT["queue_offset"]
PHYSICAL_OFFSET_AT: Final = AT["physical_offset"]
"""Where a record holds its own position, which is written when it is known."""

_TOPIC_SIZE_V2: Final = struct.Struct(">H")
_OWN_WORDS: Final = fields_struct("size", "physical_offset")


@dataclass(slots=True)
class Message:
    """A message to store. ``properties`` is the wire string NAME 0x01 VALUE 0x02 …, in UTF-8."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def encode_record(message: Message, queue_offset: int, store_timestamp_ms: int) -> bytes:
    """The record with PHYSICALOFFSET 0 (the log fills it in when it lays the record out).

    V1, or V2 when the topic is longer than 127 bytes. Raises MessageIllegalError.
    """
    topic = message.topic.encode()
    topic_bytes = len(topic)
    if topic_bytes <= TOPIC_BYTES_V1_MAX:
        magic = MAGIC_V1
        topic_size = topic_bytes.to_bytes(1, "big")
    else:
        magic = MAGIC_V2
        topic_size = _two_byte_size(topic_bytes)
    body = message.body
    properties = message.properties
    properties_bytes = len(properties)
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise MessageIllegalError(f"properties of {properties_bytes} bytes, at most {PROPERTIES_BYTES_MAX}")
    head = RECORD_HEADS[message.sys_flag >> 4 & 3]
    body_bytes = len(body)
    try:
        fixed = head.pack(
            head.size + body_bytes + len(topic_size) + topic_bytes + 2 + properties_bytes,
            magic,
            isal_zlib.crc32(body) & 0x7FFFFFFF,
            message.queue_id,
            message.flag,
            queue_offset,
            0,
            message.sys_flag,
            message.born_timestamp_ms,
            message.born_host,
            store_timestamp_ms,
            message.store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body_bytes,
        )
    except struct.error as error:
        raise MessageIllegalError(f"a field of the message is out of its range: {error}") from error
    if len(message.born_host) + len(message.store_host) != head.size - BODY_AT + 2 * HOST_V4_BYTES:
        raise MessageIllegalError("the hosts' lengths do not fit the IPv6 bits of sysFlag")
    return b"".join((fixed, body, topic_size, topic, properties_bytes.to_bytes(2, "big"), properties))


def _two_byte_size(topic_bytes: int) -> bytes:
    if topic_bytes > TOPIC_BYTES_MAX:
        raise MessageIllegalError(f"topic of {topic_bytes} bytes, at most {TOPIC_BYTES_MAX}")
    return _TOPIC_SIZE_V2.pack(topic_bytes)


def size_and_position(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """(TOTALSIZE, PHYSICALOFFSET) of bytes that should be a record; (0, -1) when they are too short for
    one.
    """
    if len(data) < RECORD_BYTES_MIN:
        return 0, -1
    size, position = _OWN_WORDS.unpack_from(data)
    return size, position


_MESSAGE_LAYOUT: Final = native.function("_log", "message_layout")
_ENCODE_RECORDS: Final = native.function("_log", "encode_records")
_LAY_OUT: Final[Callable[..., tuple[bytes, bytes, list[int]]] | None] = native.function("_log", "lay_out")
_BODIES: Final[Callable[..., list[bytes]] | None] = native.function("_log", "bodies")
_LAYOUT: Final = None if _MESSAGE_LAYOUT is None else _MESSAGE_LAYOUT(Message)

OffsetKey = tuple[str, int]


class PackedBodies(Sequence[bytes]):
    """The bodies of a batch of entries. `lay_out` uses them up."""

    def __init__(self, packed: Any, count: int, entry_bytes: int) -> None:
        self._packed = packed
        self._count = count
        self.entry_bytes = entry_bytes
        """Bytes of the entries, headers included."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.unpack())

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        return self.unpack()[at]

    def unpack(self) -> list[bytes]:
        """The bodies one by one, with PHYSICALOFFSET 0."""
        assert _BODIES is not None
        return _BODIES(self._packed)

    def lay_out(self, first_index: int, term: int, position: int) -> tuple[bytes, bytes, list[int]]:
        """As `commitlog.entry.encode_entries` with `write_physical_offset`, once."""
        assert _LAY_OUT is not None
        return _LAY_OUT(self._packed, first_index, term, position)


def encode_ordinary(
    messages: Sequence[Message],
    known_offsets: dict[OffsetKey, int],
    store_timestamp_ms: int,
    body_bytes_max: int,
    record_bytes_max: int,
) -> tuple[PackedBodies, list[int], dict[OffsetKey, int]] | None:
    """Records, their queue offsets, and the offsets after them; None when there is no compiled code or a
    message is not ordinary: a field out of its bounds, a topic over 127 bytes, IPv6, no queue, or a queue
    that `known_offsets` lacks.
    """
    if _ENCODE_RECORDS is None:
        return None
    found = _ENCODE_RECORDS(
        _LAYOUT, messages, known_offsets, store_timestamp_ms, body_bytes_max, record_bytes_max
    )
    if found is None:
        return None
    packed, entry_bytes, offsets, next_offsets = found
    return PackedBodies(packed, len(offsets), entry_bytes), offsets, next_offsets
