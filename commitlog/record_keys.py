"""The keys of committed records, as the key index holds them: a hash of each and where its record stands.

A message is found, within its topic, by its UNIQ_KEY and by each word of its KEYS (RocketMQ's IndexService).

    unit: CRC-32 of topic # key 4 | position of the record, its low 32 bits 4        (big-endian)

CRC-32 tells apart any two keys of one length that differ in four neighbouring bytes only, as the ids of one
producer do; what it cannot tell apart is found out by looking at the records.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from isal import isal_zlib

import native
from commitlog.entry import HEADER_BYTES, Buffer, entry_starts
from commitlog.record import (
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
_FIND: Final = native.function("_log", "key_units")

KeyUnits = tuple[bytes, int, int]
"""Units in log order; earliest and latest store time of the records they are of. A plain tuple, since the
compiled function makes it.
"""


@dataclass(frozen=True, slots=True)
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
        try:
            record = decode_record(data, start)
        except CorruptRecordError:
            continue  # the dispatching says so
        low = (position + start & POSITION_MASK).to_bytes(4, "big")
        head = record.topic.encode() + b"#"
        for key in keys_of(record):
            units += isal_zlib.crc32(head + key).to_bytes(HASH_BYTES, "big") + low
            earliest_ms = min(earliest_ms, record.store_timestamp_ms)
            latest_ms = max(latest_ms, record.store_timestamp_ms)
    return bytes(units), earliest_ms, latest_ms


def keys_of(record: Record) -> Iterator[bytes]:
    """What a message can be found by: its own id, and each word of its keys. Nothing for one that was rolled
    back.
    """
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return
    for piece in record.properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name == PROPERTY_UNIQUE and value:
            yield value
        elif name == PROPERTY_KEYS:
            yield from filter(None, value.split(b" "))


def key_hash(topic: str, key: str) -> bytes:
    """The first half of the units of this key."""
    return isal_zlib.crc32(f"{topic}#{key}".encode(errors="surrogatepass")).to_bytes(HASH_BYTES, "big")
