"""The keys of committed records, as the key index holds them: a hash of each and where its record stands.

A message is found, within its topic, by its UNIQ_KEY and by each word of its KEYS (RocketMQ's IndexService).

    unit: CRC-32 of topic # key 4 | position of the record, its low 32 bits 4        (big-endian)

CRC-32 tells apart any two keys of one length that differ in four neighbouring bytes only, as the ids of one
producer do; what it cannot tell apart is found out by looking at the records.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from isal import isal_zlib

import native
from commitlog.entry import HEADER_BYTES, Buffer, entry_starts
from commitlog.record import (
    BORN_HOST_V6,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    CorruptRecordError,
    Record,
    decode_record,
)

UNIT_BYTES: Final = 8
HASH_BYTES: Final = 4
POSITION_MASK: Final = 0xFFFFFFFF
NEVER: Final = (2**63 - 1, -(2**63))
"""Earliest and latest time of nothing."""
PROPERTY_KEYS: Final = b"KEYS"
PROPERTY_UNIQUE: Final = b"UNIQ_KEY"
_UNIQUE: Final = PROPERTY_UNIQUE + b"\x01"
_KEYS: Final = PROPERTY_KEYS + b"\x01"
# size magic . sysFlag . storeTime . bodySize; with two IPv4 hosts
_FIELDS: Final = struct.Struct(">iI28xi16xq20xi")
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_FIND: Final = native.function("_log", "key_units")

KeyUnits = tuple[bytes, int, int]
"""Units in log order; earliest and latest store time of the records they are of. A plain tuple, since the
compiled function makes it.
"""


@dataclass(slots=True)
class RecordStretch:
    """Committed records that stand together in the log, all of a stretch of it."""

    begin_index: int
    """The stretch begins with this entry; where the log begins behind it, with the log."""
    last_index: int
    position: int
    """Where `data` stands in the log."""
    data: Buffer
    header_bytes: int = HEADER_BYTES
    """Of the entry around each record; 0: the records stand back to back."""

    @property
    def end_position(self) -> int:
        """First byte behind the stretch."""
        return self.position + len(self.data)

    def key_units(self) -> KeyUnits:
        """The keys of the records."""
        if _FIND is not None:
            found: KeyUnits | None = _FIND(self.data, self.header_bytes, self.position)
            if found is not None:
                return found
        raw = bytes(self.data)
        return units_of(raw, self._starts(raw), self.position)

    def _starts(self, raw: bytes) -> Sequence[int]:
        if self.header_bytes:
            return [start + self.header_bytes for start in entry_starts(raw)]
        starts = []
        at = 0
        while at < len(raw):
            starts.append(at)
            at += int.from_bytes(raw[at : at + 4], "big")
        return starts


def units_of(data: bytes, starts: Iterable[int], position: int) -> KeyUnits:
    """The keys of the records at data[start], where data[0] stands at `position` in the log."""
    units = bytearray()
    earliest_ms, latest_ms = NEVER
    for start in starts:
        topic, properties, stored_ms = _keyed_parts(data, start)
        keys = list(_keys_in(properties))
        if not keys:
            continue
        low = (position + start & POSITION_MASK).to_bytes(4, "big")
        for key in keys:
            units += isal_zlib.crc32(b"%b#%b" % (topic, key)).to_bytes(HASH_BYTES, "big") + low
        earliest_ms = min(earliest_ms, stored_ms)
        latest_ms = max(latest_ms, stored_ms)
    return bytes(units), earliest_ms, latest_ms


def keys_of(record: Record) -> Iterator[bytes]:
    """What a message can be found by: its own id, and each word of its keys. Nothing for one that was rolled
    back.
    """
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        yield from _keys_in(record.properties)


def _keys_in(properties: bytes) -> Iterator[bytes]:
    for piece in properties.split(b"\x02"):
        if piece.startswith(_UNIQUE):
            if len(piece) > len(_UNIQUE):
                yield piece[len(_UNIQUE) :]
        elif piece.startswith(_KEYS):
            yield from filter(None, piece[len(_KEYS) :].split(b" "))


def _keyed_parts(data: bytes, start: int) -> tuple[bytes, bytes, int]:
    """Topic, properties and store time of a record; no properties where it is not to be found by any."""
    if len(data) - start < RECORD_BYTES_MIN:
        return b"", b"", 0
    size, magic, sys_flag, stored_ms, body_bytes = _FIELDS.unpack_from(data, start)
    topic_at = start + _FIELDS.size + 1 + body_bytes
    end = start + size
    if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return b"", b"", stored_ms
    is_ordinary = magic == MAGIC_V1 and not sys_flag & _HOSTS_V6 and body_bytes >= 0
    if is_ordinary and topic_at + 2 <= end <= len(data):
        properties_at = topic_at + data[topic_at - 1] + 2
        topic = data[topic_at : properties_at - 2]
        properties_bytes = int.from_bytes(data[properties_at - 2 : properties_at], "big", signed=True)
        if topic.isascii() and properties_at + properties_bytes == end:
            return topic, data[properties_at:end], stored_ms
    try:
        record = decode_record(data, start)
    except CorruptRecordError:
        return b"", b"", stored_ms  # the dispatching says so
    return record.topic.encode(), record.properties, record.store_timestamp_ms


def key_hash(topic: str, key: str) -> bytes:
    """The first half of the units of this key."""
    return isal_zlib.crc32(f"{topic}#{key}".encode(errors="surrogatepass")).to_bytes(HASH_BYTES, "big")
