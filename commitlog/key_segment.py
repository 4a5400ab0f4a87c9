"""A segment of the key index: the keys of one range of the log, in memory while it grows, then in a file.

A message is found, within its topic, by its UNIQ_KEY and by each word of its KEYS (RocketMQ's IndexService).

    unit: CRC-32 of topic # key 4 | position of the record, its low 32 bits 4        (big-endian)

CRC-32 distinguishes any two keys of one length that differ in four neighbouring bytes only, as the ids of one
producer do; other collisions are found by reading the records.

A file is under `<store>/keyindex`, written once, and sorted into buckets. A bucket has the units whose hashes
begin with its number, in the order of the log. It is searched from its end, the newest first, and only as far
as the requested times reach.

    header 76 | spans, 24 each | rows, 8 each | units, 8 each             (docs/formats/files.md)

A file is named by the 20-digit index of its first entry. It is not synced: each part has a CRC. A file torn
by a power failure is dropped, and its range of the log is read again.
"""

import errno
import logging
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from isal import isal_zlib

import native
from commitlog.dispatch import RecordRange
from commitlog.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, CorruptRecordError, Record, decode_record
from commitlog.segments import file_name
from dledger.fs import Buffer, Fs
from remoting.record_layout import (
    BORN_HOST_V6,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TOPIC_AT,
    fields_struct,
)

UNIT_BYTES: Final = 8
HASH_BYTES: Final = 4
POSITION_MASK: Final = 0xFFFFFFFF
NEVER: Final = (2**63 - 1, -(2**63))
"""Earliest and latest store time of no record."""
PROPERTY_KEYS: Final = b"KEYS"
PROPERTY_UNIQUE: Final = b"UNIQ_KEY"
_UNIQUE: Final = PROPERTY_UNIQUE + b"\x01"
_KEYS: Final = PROPERTY_KEYS + b"\x01"
_FIELDS: Final = fields_struct("size", "magic", "sys_flag", "store_timestamp_ms", "body_bytes")
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_FIND: Final = native.function("_log", "key_units")

KeyUnits = tuple[bytes, int, int]
"""Units in log order; earliest and latest store time of the records they are of. A plain tuple, since the
compiled function makes it.
"""


def key_units(records: RecordRange) -> KeyUnits:
    """The keys of the range's records."""
    if _FIND is not None:
        found: KeyUnits | None = _FIND(records.data, records.header_bytes, records.position)
        if found is not None:
            return found
    raw = bytes(records.data)
    return units_of(raw, records.starts(), records.position)


def units_of(data: bytes, starts: Iterable[int], position: int) -> KeyUnits:
    """The keys of the records at data[start], where data[0] is at `position` in the log."""
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
    """The keys by which a message is found: its own id, and each word of its KEYS. None for a message that
    was rolled back.
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
    """Topic, properties and store time of a record; empty properties when it must not be found."""
    if len(data) - start < RECORD_BYTES_MIN:
        return b"", b"", 0
    size, magic, sys_flag, stored_ms, body_bytes = _FIELDS.unpack_from(data, start)
    topic_at = start + TOPIC_AT + body_bytes
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
        return b"", b"", stored_ms  # dispatch logs it
    return record.topic.encode(), record.properties, record.store_timestamp_ms


def key_hash(topic: str, key: str) -> bytes:
    """The first half of the units of this key."""
    return isal_zlib.crc32(f"{topic}#{key}".encode(errors="surrogatepass")).to_bytes(HASH_BYTES, "big")


UNITS_PER_BUCKET: Final = 128
"""About so many: a search reads and checks one bucket of each file, 1 KiB."""
BUCKET_BITS_MAX: Final = 16
UNITS_PER_SPAN: Final = 4096
PIECE_BYTES: Final = 512 * 1024
ROW_BYTES: Final = 8
_SORT: Final = native.function("_log", "sort_keys")


class Span(NamedTuple):
    """Consecutive records of a segment: where they end, and when they were stored."""

    end_position: int
    earliest_ms: int
    latest_ms: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The entries that a segment covers, without a gap."""

    begin_index: int
    last_index: int
    begin_position: int
    end_position: int
    earliest_ms: int
    latest_ms: int
    unit_count: int

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether it may have a record that was stored between these times, both included."""
        return self.unit_count > 0 and self.earliest_ms <= end_ms and begin_ms <= self.latest_ms

    def is_within(self, begin_ms: int, end_ms: int) -> bool:
        """Whether all its records were stored between these times."""
        return begin_ms <= self.earliest_ms and self.latest_ms <= end_ms


class OpenSegment:
    """A segment that grows at its end."""

    def __init__(self, begin_index: int, begin_position: int) -> None:
        self.begin_index = begin_index
        self.begin_position = begin_position
        self.last_index = begin_index - 1
        self.end_position = begin_position
        self.unit_count = 0
        self._pieces: list[bytes] = []
        self._tail = bytearray()
        self._whole_spans: list[Span] = []
        self._span_units = 0
        self._span_end = begin_position
        self._earliest_ms, self._latest_ms = NEVER

    def add(self, last_index: int, end_position: int, found: KeyUnits) -> None:
        """Add the keys of all entries up to `last_index`, which ends at `end_position`."""
        units, earliest_ms, latest_ms = found
        self.last_index = last_index
        self.end_position = end_position
        if not units:
            return
        self._tail += units
        count = len(units) // UNIT_BYTES
        self.unit_count += count
        self._extend_span(count, end_position, earliest_ms, latest_ms)
        if len(self._tail) >= PIECE_BYTES:
            self._pieces.append(bytes(self._tail))
            self._tail = bytearray()

    def skip(self, last_index: int, end_position: int) -> None:
        """Cover entries without a key up to `last_index`, which ends at `end_position`."""
        self.add(last_index, end_position, (b"", *NEVER))

    def absorb(self, extent: Extent, spans: Sequence[Span], units: bytes) -> None:
        """Append a whole segment that follows this one."""
        assert extent.begin_index == self.last_index + 1, (extent, self.last_index)
        self.last_index = extent.last_index
        self.end_position = max(self.end_position, extent.end_position)
        self.unit_count += extent.unit_count
        for number, span in enumerate(spans):
            is_whole = number < len(spans) - 1
            self._extend_span(UNITS_PER_SPAN if is_whole else extent.unit_count, *span)
        self._pieces.append(units)

    @property
    def extent(self) -> Extent:
        """What it covers now."""
        earliest_ms, latest_ms = NEVER
        if spans := self.spans:
            earliest_ms = min(span.earliest_ms for span in spans)
            latest_ms = max(span.latest_ms for span in spans)
        return Extent(
            self.begin_index,
            self.last_index,
            self.begin_position,
            self.end_position,
            earliest_ms,
            latest_ms,
            self.unit_count,
        )

    @property
    def spans(self) -> tuple[Span, ...]:
        if not self._span_units:
            return tuple(self._whole_spans)
        return (*self._whole_spans, Span(self._span_end, self._earliest_ms, self._latest_ms))

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """All units, as they are now."""
        return (*self._pieces, bytes(self._tail))

    def newest(self, word: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Positions of records that may have the key of this hash, of what is here now, the newest first."""
        window = window_of(self.extent, self.spans, begin_ms, end_ms)
        return _newest_in(self.pieces, word, self.begin_position, window)

    def _extend_span(self, unit_count: int, end_position: int, earliest_ms: int, latest_ms: int) -> None:
        if self._span_units >= UNITS_PER_SPAN:
            self._whole_spans.append(Span(self._span_end, self._earliest_ms, self._latest_ms))
            self._span_units = 0
            self._earliest_ms, self._latest_ms = NEVER
        self._span_units += unit_count
        self._span_end = end_position
        if earliest_ms < self._earliest_ms:
            self._earliest_ms = earliest_ms
        if latest_ms > self._latest_ms:
            self._latest_ms = latest_ms


def _newest_in(pieces: Sequence[bytes], word: bytes, base: int, window: tuple[int, int]) -> Iterator[int]:
    for piece in reversed(pieces):
        yield from newest(piece, word, base, window)


def window_of(extent: Extent, spans: Sequence[Span], begin_ms: int, end_ms: int) -> tuple[int, int]:
    """A range of positions that holds all records stored between these times, and few others."""
    if extent.is_within(begin_ms, end_ms):
        return extent.begin_position, extent.end_position
    low, high = extent.end_position, extent.begin_position
    begin = extent.begin_position
    for span in spans:
        if span.earliest_ms <= end_ms and begin_ms <= span.latest_ms:
            low = min(low, begin)
            high = span.end_position
        begin = span.end_position
    return low, high


def newest(units: bytes, word: bytes, base: int, window: tuple[int, int]) -> Iterator[int]:
    """Positions in the window that units with this hash have, the last unit first.

    The units are in the order of the log; `base` is a position before all theirs, less than 4 GiB before.
    """
    low, high = window

    def distance(number: int) -> int:
        at = number * UNIT_BYTES + HASH_BYTES
        return int.from_bytes(units[at : at + 4], "big") - base & POSITION_MASK

    end = bisect_left(range(len(units) // UNIT_BYTES), high - base, key=distance) * UNIT_BYTES
    while (at := units.rfind(word, 0, end)) >= 0:
        if at % UNIT_BYTES:
            end = at + HASH_BYTES - 1
            continue
        position = base + distance(at // UNIT_BYTES)
        if position < low:
            return
        yield position
        end = at


def bucket_bits(unit_count: int) -> int:
    """How many bits of the hash number the buckets."""
    return min((unit_count // UNITS_PER_BUCKET).bit_length(), BUCKET_BITS_MAX)


def bucket_of(word: bytes, bits: int) -> int:
    """The bucket that a hash belongs to."""
    return int.from_bytes(word[:HASH_BYTES], "big") >> (32 - bits)


def bucket_crc(bucket: int, units: bytes) -> int:
    """The CRC in a bucket's row. An empty bucket has one that is not 0, so that a zeroed row is never
    right.
    """
    return isal_zlib.crc32(units, bucket + 1)


def sort_units(pieces: Sequence[bytes], bits: int) -> tuple[bytes, bytes]:
    """(rows, units): all units by bucket, in each as they came. A bucket's row is the number of units in it
    and all before it, and its CRC.
    """
    if _SORT is not None:
        done: tuple[bytes, bytes] | None = _SORT(tuple(pieces), bits)
        if done is not None:
            return done
    return sort_in_python(pieces, bits)


def sort_in_python(pieces: Sequence[bytes], bits: int) -> tuple[bytes, bytes]:
    """As `sort_units`."""
    buckets = [bytearray() for _ in range(1 << bits)]
    for piece in pieces:
        for at in range(0, len(piece), UNIT_BYTES):
            buckets[bucket_of(piece[at : at + HASH_BYTES], bits)] += piece[at : at + UNIT_BYTES]
    rows = bytearray()
    end = 0
    for number, units in enumerate(buckets):
        end += len(units) // UNIT_BYTES
        rows += end.to_bytes(4, "big") + bucket_crc(number, bytes(units)).to_bytes(4, "big")
    return bytes(rows), b"".join(buckets)


logger = logging.getLogger(__name__)

DIRECTORY: Final = "keyindex"
MAGIC: Final = b"LMQ_KEYS"
VERSION: Final = 1
NAME_DIGITS: Final = 20
# magic version bits units spans | begin, last index | positions | times | CRC of the spans, CRC of this
_HEADER: Final = struct.Struct(">8sHHIIqqqqqqII")
_SPAN: Final = struct.Struct(">qqq")
_CRC_BYTES: Final = 4
_UINT32: Final = struct.Struct(">I")
_ROW: Final = struct.Struct(">II")


class DamagedKeyFileError(Exception):
    """A file of the key index is damaged."""


class SealedSegment:
    """A segment in its file. It keeps no file open, and only the header's fields in memory."""

    def __init__(
        self, fs: Fs, path: Path, extent: Extent, bits: int, span_count: int, spans_crc: int
    ) -> None:
        self.path = path
        self.extent = extent
        self._fs = fs
        self._bits = bits
        self._span_count = span_count
        self._spans_crc = spans_crc
        self._rows_at = _HEADER.size + span_count * _SPAN.size
        self._units_at = self._rows_at + (ROW_BYTES << bits)

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return self._units_at + self.extent.unit_count * UNIT_BYTES

    def newest(self, word: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """As OpenSegment.newest. Reads the file with the first position.

        Raises DamagedKeyFileError, OSError.
        """
        fd = self._open()
        try:
            spans = () if self.extent.is_within(begin_ms, end_ms) else self._spans(fd)
            units = self._bucket(fd, bucket_of(word, self._bits))
        finally:
            self._fs.close(fd)
        window = window_of(self.extent, spans, begin_ms, end_ms)
        yield from newest(units, word, self.extent.begin_position, window)

    def read_all(self) -> tuple[Sequence[Span], bytes]:
        """Spans and units, checked. Raises DamagedKeyFileError, OSError."""
        fd = self._open()
        try:
            rows = self._read(fd, self._rows_at, ROW_BYTES << self._bits)
            units = self._read(fd, self._units_at, self.extent.unit_count * UNIT_BYTES)
            begin = 0
            for number, (end, crc) in enumerate(_ROW.iter_unpack(rows)):
                if bucket_crc(number, units[begin * UNIT_BYTES : end * UNIT_BYTES]) != crc or end < begin:
                    raise self._damage(f"bucket {number} does not have its CRC")
                begin = end
            return self._spans(fd), units
        finally:
            self._fs.close(fd)

    def _open(self) -> int:
        fd = self._fs.open(self.path)
        if self._fs.size(fd) != self.size_bytes:
            self._fs.close(fd)
            raise self._damage(f"it does not have {self.size_bytes} bytes")
        return fd

    def _spans(self, fd: int) -> list[Span]:
        data = self._read(fd, _HEADER.size, self._span_count * _SPAN.size)
        if isal_zlib.crc32(data) != self._spans_crc:
            raise self._damage("the spans do not have their CRC")
        return [Span(*each) for each in _SPAN.iter_unpack(data)]

    def _bucket(self, fd: int, bucket: int) -> bytes:
        # The row before names the begin of the bucket. The bytes before the first row are no row.
        data = self._read(fd, self._rows_at + bucket * ROW_BYTES - ROW_BYTES, 2 * ROW_BYTES)
        (before, _), (end, crc) = _ROW.iter_unpack(data)
        begin = before if bucket else 0
        if not begin <= end <= self.extent.unit_count:
            raise self._damage(f"bucket {bucket} is from unit {begin} to {end}")
        units = self._read(fd, self._units_at + begin * UNIT_BYTES, (end - begin) * UNIT_BYTES)
        if bucket_crc(bucket, units) != crc:
            raise self._damage(f"bucket {bucket} does not have its CRC")
        return units

    def _read(self, fd: int, at: int, size_bytes: int) -> bytes:
        try:
            data = self._fs.pread(fd, size_bytes, at) if size_bytes else b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise self._damage(str(error.strerror)) from error
        if len(data) != size_bytes:
            raise self._damage("it ends too early")
        return data

    def _damage(self, reason: str) -> DamagedKeyFileError:
        return DamagedKeyFileError(f"{self.path}: {reason}")


def write_segment(fs: Fs, directory: Path, segment: OpenSegment) -> SealedSegment:
    """Put a segment into its file, in place of one that begins with the same entry. Raises OSError."""
    extent, spans = segment.extent, segment.spans
    bits = bucket_bits(extent.unit_count)
    rows, units = sort_units(segment.pieces, bits)
    packed_spans = b"".join(_SPAN.pack(*span) for span in spans)
    spans_crc = isal_zlib.crc32(packed_spans)
    header = _header(extent, bits, len(spans), spans_crc)
    path = directory / file_name(extent.begin_index)
    _write(fs, path, [header, packed_spans, rows, units])
    return SealedSegment(fs, path, extent, bits, len(spans), spans_crc)


def _header(extent: Extent, bits: int, span_count: int, spans_crc: int) -> bytes:
    numbers = (extent.begin_index, extent.last_index, extent.begin_position, extent.end_position)
    times = (extent.earliest_ms, extent.latest_ms)
    parts = (MAGIC, VERSION, bits, extent.unit_count, span_count, *numbers, *times, spans_crc)
    head = _HEADER.pack(*parts, 0)[:-_CRC_BYTES]
    return head + _UINT32.pack(isal_zlib.crc32(head))


def _write(fs: Fs, path: Path, buffers: Sequence[Buffer]) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    fd = fs.open(unfinished)
    try:
        fs.set_size(fd, 0)
        fs.pwrite(fd, [buffer for buffer in buffers if buffer], 0)
    finally:
        fs.close(fd)
    fs.rename(unfinished, path)


def load_segments(fs: Fs, directory: Path) -> list[SealedSegment]:
    """The whole files of a directory that do not overlap; the others are deleted.

    Raises OSError.
    """
    found: list[SealedSegment] = []
    for name in fs.list(directory):
        path = directory / name
        segment = _load(fs, path) if len(name) == NAME_DIGITS and name.isdecimal() else None
        if segment is not None and (not found or found[-1].extent.last_index < segment.extent.begin_index):
            found.append(segment)
            continue
        logger.info("%s: not a whole file of the key index, deleted", path)
        fs.delete(path)
    return found


def _load(fs: Fs, path: Path) -> SealedSegment | None:
    fd = fs.open(path)
    try:
        head = fs.pread(fd, _HEADER.size, 0)
        size_bytes = fs.size(fd)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    finally:
        fs.close(fd)
    if len(head) < _HEADER.size:
        return None
    magic, version, bits, unit_count, span_count, *numbers, spans_crc, crc = _HEADER.unpack(head)
    if (magic, version) != (MAGIC, VERSION) or crc != isal_zlib.crc32(head[:-_CRC_BYTES]):
        return None
    begin_index, last_index, begin_position, end_position, earliest_ms, latest_ms = numbers
    is_sound = begin_index <= last_index and 0 <= begin_position <= end_position and bits <= BUCKET_BITS_MAX
    if not is_sound or path.name != file_name(begin_index):
        return None
    positions = (begin_position, end_position)
    extent = Extent(begin_index, last_index, *positions, earliest_ms, latest_ms, unit_count)
    segment = SealedSegment(fs, path, extent, bits, span_count, spans_crc)
    return segment if segment.size_bytes == size_bytes else None
