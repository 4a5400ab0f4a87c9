"""The body of a pull answer in few steps: the records that all its units lead to, found, checked and put
together by a compiled function. Where there is none, or anything is not as the units say, the reader goes
record by record.

Consumers of a topic read its queues side by side, so what one pull passes over the next ones want. Stretches
of the files that pulls read densely are kept for a while in blocks. Only bytes before the readable end are:
those never change again, whatever happens to the log behind them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from commitlog.cold_reads import ColdReader
from commitlog.entry import HEADER_BYTES, Buffer
from commitlog.entry_cache import EntryCache
from commitlog.recovery import CorruptLogError
from native import function

GAP_BYTES_MAX: Final = 8 * 1024
"""Records no farther apart than this are read from the files in one go."""
BLOCK_BYTES: Final = 256 * 1024
OVERLAP_BYTES: Final = 16 * 1024
"""How far a block reaches into the next one: smaller records are whole in one of the two."""
BLOCKS_MAX: Final = 32
SPREAD_MAX: Final = 16
"""Blocks are used for records that are at least one in so many of the bytes between them."""
RUN_BYTES_MIN: Final = 64 * 1024
"""Records that stand in runs as long as this, on the average, are read as they stand, without blocks: those
of producers that send many at once.
"""

_gather_records = function("_remoting", "gather_records")

Unit = tuple[int, int]
"""Position and size of a record."""
Part = tuple[int, Buffer]
"""Where some bytes of the log begin, and the bytes."""


class Gatherer:
    """Of one store of entries."""

    def __init__(self, cache: EntryCache, cold: ColdReader) -> None:
        self._cache = cache
        self._cold = cold
        self._blocks: dict[int, bytes] = {}
        """By number, the one used last at the end."""

    def gather(self, units: list[Unit], cached_from: int, readable_end: int) -> bytes | None:
        """The records at ascending units, back to back; None when Python has to read them one by one."""
        if _gather_records is None:
            return None
        first_cached = bisect_left(units, (cached_from,))
        pieces = []
        for chosen, is_cold in ((units[:first_cached], True), (units[first_cached:], False)):
            if chosen:
                parts = self._cold_parts(chosen, readable_end) if is_cold else self._cached_parts(chosen)
                piece: bytes | None = None if parts is None else _gather_records(chosen, parts, is_cold)
                if piece is None:
                    return None
                pieces.append(piece)
        return b"".join(pieces)

    def _cached_parts(self, units: Sequence[Unit]) -> list[Part] | None:
        """The chunks that hold the units."""
        parts: list[Part] = []
        at = 0
        while at < len(units):
            chunk = self._cache.chunk_at(units[at][0])
            if chunk is None:
                return None
            parts.append((chunk.position, chunk.data))
            at = bisect_left(units, (chunk.end_position,), at + 1)
        return parts

    def _cold_parts(self, units: Sequence[Unit], readable_end: int) -> list[Part] | None:
        sizes = [size for _, size in units]
        first = units[0][0] - HEADER_BYTES
        is_dense = sum(units[-1]) - first <= SPREAD_MAX * sum(sizes)
        try:
            if sum(sizes) >= RUN_BYTES_MIN:  # less cannot be a run
                spans = _spans(units)
                if spans is not None and _are_runs(spans, sum(sizes)):
                    return self._read(spans)
            if is_dense and max(sizes) <= OVERLAP_BYTES - HEADER_BYTES:
                last = (units[-1][0] - HEADER_BYTES) // BLOCK_BYTES
                if last * BLOCK_BYTES + BLOCK_BYTES + OVERLAP_BYTES <= readable_end:
                    return [self._block(number) for number in range(first // BLOCK_BYTES, last + 1)]
            spans = _spans(units)
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

    def _read(self, spans: Sequence[tuple[int, int]]) -> list[Part]:
        read = self._cold.raw
        return [(start, read(start, end - start)) for start, end in spans]


def _are_runs(spans: Sequence[tuple[int, int]], wanted_bytes: int) -> bool:
    """Whether the spans are long and hold little else than what is wanted."""
    read_bytes = sum(end - start for start, end in spans)
    return len(spans) * RUN_BYTES_MIN <= wanted_bytes and read_bytes * 3 <= wanted_bytes * 4


def _spans(units: Sequence[Unit]) -> list[tuple[int, int]] | None:
    """Where to read the entries of the units, from and to, in as few goes as it takes; None for overlaps."""
    spans: list[tuple[int, int]] = []
    start = end = -1
    for position, size in units:
        if position < end:
            return None
        if end < 0 or position > end + GAP_BYTES_MAX:
            if end >= 0:
                spans.append((start, end))
            start = position - HEADER_BYTES
        end = position + size
    return [*spans, (start, end)]
