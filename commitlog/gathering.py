"""The body of a pull answer in few steps: all records that its units lead to, found, checked and put together by
a compiled function. Where there is none, or anything is not as the units say, the reader goes record by record.
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

_gather_records = function("_remoting", "gather_records")

Unit = tuple[int, int]
"""Position and size of a record."""
Part = tuple[int, Buffer]
"""Where some bytes of the log begin, and the bytes."""


def gather_records(units: list[Unit], cache: EntryCache, cached_from: int, cold: ColdReader) -> bytes | None:
    """The records at ascending units within the log, back to back; None when Python has to read them."""
    if _gather_records is None:
        return None
    first_cached = bisect_left(units, (cached_from,))
    pieces = []
    for chosen, is_cold in ((units[:first_cached], True), (units[first_cached:], False)):
        parts = (_cold_parts(cold, chosen) if is_cold else _cached_parts(cache, chosen)) if chosen else []
        piece: bytes | None = None if parts is None else _gather_records(chosen, parts, is_cold)
        if piece is None:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _cached_parts(cache: EntryCache, units: Sequence[Unit]) -> list[Part] | None:
    """The chunks that hold the units."""
    parts: list[Part] = []
    at = 0
    while at < len(units):
        chunk = cache.chunk_at(units[at][0])
        if chunk is None:
            return None
        parts.append((chunk.position, chunk.data))
        at = bisect_left(units, (chunk.end_position,), at + 1)
    return parts


def _cold_parts(cold: ColdReader, units: Sequence[Unit]) -> list[Part] | None:
    """The entries of the units, read from the files in as few goes as it takes."""
    starts: list[int] = []
    ends: list[int] = []
    end = -1
    for position, size in units:
        if position < end:
            return None
        if end < 0 or position > end + GAP_BYTES_MAX:
            starts.append(position - HEADER_BYTES)
            ends.append(end)
        end = position + size
    ends.append(end)
    try:
        return [(start, cold.raw(start, end - start)) for start, end in zip(starts, ends[1:], strict=True)]
    except (CorruptLogError, OSError):
        return None
