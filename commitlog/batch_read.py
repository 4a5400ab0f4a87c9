"""Reads the body of a pull answer in one step: a compiled function finds, checks and joins the records of all
its units. Without the compiled module, or when a record does not agree with its unit, the caller reads record
by record, and its error names the wrong record.

Consumers of a topic read its queues in parallel, so one pull skips the records that the next pulls need.
Parts of the files that pulls read densely are cached in blocks. A block holds only bytes before the readable
end: they are committed and never change again, so a block stays valid when the log behind it is truncated.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Final

from commitlog.cold_reads import ColdReader
from commitlog.consume_queue import UNIT, UNIT_BYTES
from commitlog.entry import HEADER_BYTES, Buffer
from commitlog.entry_chunks import EntryCache
from commitlog.errors import CorruptLogError
from native import function

GAP_BYTES_MAX: Final = 8 * 1024
"""Records no farther apart than this are read from the files with one call."""
BLOCK_BYTES: Final = 256 * 1024
OVERLAP_BYTES: Final = 16 * 1024
"""How far a block reaches into the next one: every smaller record is whole in one of the two."""
BLOCKS_MAX: Final = 32
SPREAD_MAX: Final = 16
"""Blocks are used when at least one of so many bytes between the first and the last record is needed."""
RUN_BYTES_MIN: Final = 64 * 1024
"""When the requested records are in runs of at least this average length, as from producers that send
batches, the runs are read directly, without blocks.
"""

_spans_of = function("_remoting", "spans_of")
_gather_records = function("_remoting", "gather_records")

Span = tuple[int, int]
"""Where some bytes of the log begin and end."""
Part = tuple[int, Buffer]
"""Where some bytes of the log begin, and the bytes."""


class BatchReader:
    """Reads the records of many units of one entry store."""

    def __init__(self, cache: EntryCache, cold: ColdReader) -> None:
        self._cache = cache
        self._cold = cold
        self._blocks: dict[int, bytes] = {}
        """By number, the least recently used first."""

    def read(self, units: bytes, readable_end: int) -> bytes | None:
        """The records of a consume queue's units, which ascend, back to back; None when Python has to read
        them one by one. All of them end before `readable_end`.
        """
        if _gather_records is None:
            return None
        cached_from = self._cache.first_position
        cold_bytes = len(units) if cached_from is None else _bytes_before(cached_from, units)
        pieces = []
        for chosen, is_cold in ((units[:cold_bytes], True), (units[cold_bytes:], False)):
            if chosen:
                parts = self._cold_parts(chosen, readable_end) if is_cold else self._cached_parts(chosen)
                piece: bytes | None = None if parts is None else _gather_records(chosen, parts, is_cold)
                if piece is None:
                    return None
                pieces.append(piece)
        return b"".join(pieces)

    def _cached_parts(self, units: bytes) -> list[Part] | None:
        """The chunks that hold the units' records."""
        parts: list[Part] = []
        at = 0
        while at < len(units):
            chunk = self._cache.chunk_at(_position(units, at))
            if chunk is None:
                return None
            parts.append((chunk.position, chunk.data))
            at = _bytes_before(chunk.end_position, units, at + UNIT_BYTES)
        return parts

    def _cold_parts(self, units: bytes, readable_end: int) -> list[Part] | None:
        assert _spans_of is not None
        found: tuple[int, int, list[Span] | None] | None = _spans_of(units, GAP_BYTES_MAX)
        if found is None:
            return None
        wanted_bytes, largest, spans = found
        first = _position(units, 0) - HEADER_BYTES
        last_position = _position(units, len(units) - UNIT_BYTES)
        is_dense = last_position - first <= SPREAD_MAX * wanted_bytes
        try:
            if spans is not None and _are_runs(spans, wanted_bytes):
                return self._read(spans)
            if is_dense and largest <= OVERLAP_BYTES - HEADER_BYTES:
                last = (last_position - HEADER_BYTES) // BLOCK_BYTES
                if last * BLOCK_BYTES + BLOCK_BYTES + OVERLAP_BYTES <= readable_end:
                    return [self._block(number) for number in range(first // BLOCK_BYTES, last + 1)]
            return None if spans is None else self._read(spans)
        except (CorruptLogError, OSError):
            return None

    def _block(self, number: int) -> Part:
        block = self._blocks.pop(number, None)
        start = number * BLOCK_BYTES
        if block is None:
            block = self._cold.raw(start, BLOCK_BYTES + OVERLAP_BYTES)
            if len(self._blocks) >= BLOCKS_MAX:
                del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = block
        return start, block

    def _read(self, spans: Sequence[Span]) -> list[Part]:
        read = self._cold.raw
        return [(start, read(start, end - start)) for start, end in spans]


def _position(units: bytes, at: int) -> int:
    """The position of the record whose unit is at byte `at` of `units`."""
    position: int = UNIT.unpack_from(units, at)[0]
    return position


def _bytes_before(position: int, units: bytes, start: int = 0) -> int:
    """How many bytes of `units` belong to records before a position; the first `start` bytes do."""
    if start < len(units) and _position(units, len(units) - UNIT_BYTES) < position:
        return len(units)  # the usual answer
    numbers = range(start, len(units), UNIT_BYTES)
    return start + UNIT_BYTES * bisect_left(numbers, position, key=partial(_position, units))


def _are_runs(spans: Sequence[Span], wanted_bytes: int) -> bool:
    """Whether the spans are long and have few bytes besides the requested records."""
    read_bytes = sum(end - start for start, end in spans)
    return len(spans) * RUN_BYTES_MIN <= wanted_bytes and read_bytes * 3 <= wanted_bytes * 4
