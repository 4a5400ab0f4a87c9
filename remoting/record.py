"""RocketMQ's message record: the unit of every pull, query and view answer, and of the commit log.

    size magic crc queueId flag queueOffset physicalOffset sysFlag bornTime bornHost
     4     4    4     4     4       8             8           4       8        8
    storeTime storeHost reconsumeTimes preparedOffset bodySize body topicSize topic propertiesSize properties
       8         8            4              8            4      n    1 or 2     t         2            p

All integers are big-endian. The topic size has one byte in V1 and two in V2. A host is 4 address bytes and a
4-byte port; with the IPv6 bits of sysFlag it is 16 address bytes and the port. Sources: RocketMQ's
MessageExtEncoder and MessageDecoder. The head's fields are those of `remoting.record_layout`. Pure: bytes in,
values out. `commitlog.record` writes records.
"""

import ipaddress
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from isal import isal_zlib

from remoting.record_layout import (
    AT,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    fields_struct,
    head_struct,
)

TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

PROPERTY_TAGS: Final = b"TAGS"
PROPERTY_DELAY: Final = b"DELAY"

_VALUE_END: Final = 2


# By the two IPv6 bits of sysFlag, moved down to 0..3.
RECORD_HEADS: Final = (
    head_struct(HOST_V4_BYTES, HOST_V4_BYTES),
    head_struct(HOST_V6_BYTES, HOST_V4_BYTES),
    head_struct(HOST_V4_BYTES, HOST_V6_BYTES),
    head_struct(HOST_V6_BYTES, HOST_V6_BYTES),
)
_INT16: Final = struct.Struct(">h")
_SIZE_AND_MAGIC: Final = fields_struct("size", "magic")
_SYS_FLAG: Final = fields_struct("sys_flag")
_HOST_BITS_AT: Final = AT["sys_flag"] + 3
_MAGIC_LOW_AT: Final = AT["magic"] + 3


class MessageIllegalError(ValueError):
    """The message cannot be written as a record: a field is too long or out of its range."""


class CorruptRecordError(ValueError):
    """The bytes are not a complete, consistent record."""


@dataclass(slots=True)
class Record:
    """Every field of a stored record."""

    size: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: bytes
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int


def record_size(data: bytes | memoryview, start: int = 0) -> int:
    """TOTALSIZE of the record that begins at `start`. Raises CorruptRecordError when none begins there."""
    if start < 0 or len(data) - start < _SIZE_AND_MAGIC.size:
        raise CorruptRecordError(f"{len(data) - start} bytes are no record")
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, start)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecordError(f"magic {magic:#010x} is not a record's")
    if size < RECORD_BYTES_MIN:
        raise CorruptRecordError(f"size {size} is below the smallest record")
    return int(size)


def decode_record(data: bytes | memoryview, start: int = 0, check_crc: bool = False) -> Record:
    """The record at `start`; what follows it is ignored. Raises CorruptRecordError."""
    size = record_size(data, start)
    end = start + size
    if end > len(data):
        raise CorruptRecordError(f"size {size} but only {len(data) - start} bytes")
    (sys_flag,) = _SYS_FLAG.unpack_from(data, start)
    head = RECORD_HEADS[sys_flag >> 4 & 3]
    if size < head.size + 3:
        raise CorruptRecordError(f"size {size} is too small for the hosts of sysFlag {sys_flag:#x}")
    fields = head.unpack_from(data, start)
    body_at = start + head.size
    topic_size_at = body_at + fields[14]
    topic_size_bytes = 1 if fields[1] == MAGIC_V1 else 2
    topic_at = topic_size_at + topic_size_bytes
    if fields[14] < 0 or topic_at > end:
        raise CorruptRecordError(f"body of {fields[14]} bytes in a record of {size}")
    properties_size_at = topic_at + int.from_bytes(data[topic_size_at:topic_at], "big")
    if properties_size_at + 2 > end:
        raise CorruptRecordError(f"topic of {properties_size_at - topic_at} bytes in a record of {size}")
    (properties_bytes,) = _INT16.unpack_from(data, properties_size_at)
    properties_at = properties_size_at + 2
    if properties_bytes < 0 or properties_at + properties_bytes != end:
        raise CorruptRecordError(f"properties of {properties_bytes} bytes do not end a record of {size}")
    body = bytes(data[body_at:topic_size_at])
    if check_crc and fields[2] != isal_zlib.crc32(body) & 0x7FFFFFFF:
        raise CorruptRecordError(f"body CRC {fields[2]:#x} is not that of the body")
    return Record(
        size=size,
        topic=_topic_text(data[topic_at:properties_size_at]),
        queue_id=fields[3],
        queue_offset=fields[5],
        physical_offset=fields[6],
        body=body,
        properties=bytes(data[properties_at:end]),
        body_crc=fields[2],
        flag=fields[4],
        sys_flag=fields[7],
        born_timestamp_ms=fields[8],
        born_host=fields[9],
        store_timestamp_ms=fields[10],
        store_host=fields[11],
        reconsume_times=fields[12],
        prepared_transaction_offset=fields[13],
    )


def decode_records(data: bytes | memoryview) -> list[Record]:
    """Records that follow each other without a gap, as in answers to pulls and queries. Raises
    CorruptRecordError.
    """
    records, start = [], 0
    while start < len(data):
        record = decode_record(data, start)
        start += record.size
        records.append(record)
    return records


def properties_of(data: bytes | memoryview, start: int, size: int) -> bytes:
    """Only the properties of the record of `size` bytes at `start`, as decode_record gives them. Raises
    CorruptRecordError.
    """
    if size < RECORD_BYTES_MIN or start + size > len(data):
        raise CorruptRecordError(f"no record of {size} bytes in {len(data) - start}")
    end = start + size
    body_at = start + RECORD_HEADS[data[start + _HOST_BITS_AT] >> 4 & 3].size
    body_bytes = int.from_bytes(data[body_at - 4 : body_at], "big", signed=True)
    topic_size_at = body_at + body_bytes
    if body_bytes < 0 or topic_size_at + 3 > end:
        raise CorruptRecordError(f"body of {body_bytes} bytes in a record of {size}")
    topic_at = topic_size_at + (1 if data[start + _MAGIC_LOW_AT] == MAGIC_V1 & 0xFF else 2)
    properties_at = topic_at + int.from_bytes(data[topic_size_at:topic_at], "big") + 2
    if properties_at > end:
        raise CorruptRecordError(f"a topic that does not end in a record of {size} bytes")
    return bytes(data[properties_at:end])


def _topic_text(raw: bytes | memoryview) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError("the topic is not UTF-8") from error


def parse_properties(data: bytes) -> dict[str, str]:
    """The properties by name; pieces with an empty name or value are dropped, as Java's reader does."""
    properties = {}
    for piece in data.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            properties[name.decode(errors="replace")] = value.decode(errors="replace")
    return properties


def format_properties(properties: Mapping[str, str]) -> bytes:
    """The wire string, each pair ended by 0x02. Empty names and values are left out: no reader sees them.

    Raises MessageIllegalError for text that holds one of the separators.
    """
    pieces = [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    text, count = "".join(pieces), len(properties)
    if not len(pieces) == text.count("\x01") == text.count("\x02") == count:
        for name, value in properties.items():
            if "\x01" in name or "\x02" in name or "\x02" in value:
                raise MessageIllegalError(f"property {name!r} holds a separator")
    return text.encode()


def get_property(data: bytes, name: bytes) -> bytes | None:
    """One property's value without building a dict; of several the last one not empty, as in Java's map."""
    key = name + b"\x01"
    at = data.rfind(key)
    while at >= 0:
        if at == 0 or data[at - 1] == _VALUE_END:
            value_at = at + len(key)
            end = data.find(_VALUE_END, value_at)
            value = data[value_at:] if end < 0 else data[value_at:end]
            if value:
                return value
        at = data.rfind(key, 0, at + len(key) - 1)
    return None


def tags_code(tag: str) -> int:
    """Java's String.hashCode: s[0]·31^(n-1) + … over UTF-16 units, as a signed 32-bit number; 0 for ""."""
    units = tag.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = code * 31 + (high << 8 | low) & 0xFFFFFFFF
    return code - (code >> 31 << 32)


def host_bytes(ip: str, port: int) -> bytes:
    """Address bytes and a 4-byte port. Raises ValueError for text that is no IP address."""
    return ipaddress.ip_address(ip).packed + port.to_bytes(4, "big")


def offset_msg_id(store_host: bytes, position: int) -> str:
    """The broker-side message id: upper-case hex of the store host and the record's position."""
    return f"{store_host.hex().upper()}{position:016X}"
