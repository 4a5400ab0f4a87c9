"""One stretch of the log in the key index: its units in memory while it grows, sorted into buckets for its
file.

A bucket has the units whose hashes begin with its number, in the order of the log. It is searched from its
end, the newest first, and only as far as the times asked for reach.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from isal import isal_zlib

import native
from commitlog.record_keys import HASH_BYTES, NEVER, POSITION_MASK, UNIT_BYTES, KeyUnits

UNITS_PER_BUCKET: Final = 128
"""About so many: what a search reads and checks of each file, 1 KiB."""
BUCKET_BITS_MAX: Final = 16
UNITS_PER_SPAN: Final = 4096
PIECE_BYTES: Final = 512 * 1024
ROW_BYTES: Final = 8
_SORT: Final = native.function("_log", "sort_keys")


class Span(NamedTuple):
    """Some of a segment's records that follow each other: where they end, and when they were stored."""

    end_position: int
    earliest_ms: int
    latest_ms: int


@dataclass(frozen=True, slots=True)
class Extent:
    """What a segment covers: all entries from one index to another."""

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
        """Take the keys of all entries up to one that ends there."""
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
        """Take entries up to one that ends there and has no key."""
        self.add(last_index, end_position, (b"", *NEVER))

    def absorb(self, extent: Extent, spans: Sequence[Span], units: bytes) -> None:
        """Take a whole segment that follows this one."""
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
    """From which position to before which the records stored between these times stand, and few others."""
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

    The units stand in the order of the log; `base` is a position before all theirs, less than 4 GiB before.
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
    """What a bucket's row says of its units; an empty one has one too, so that zeros are never right."""
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
