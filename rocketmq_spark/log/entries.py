"""DLedger's entries in bulk: where they begin in a window of bytes, checked all at once.

What is checked is what `commitlog.recovery.scan_entries` checks, which also words what is wrong.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commitlog.entry import (
    BLANK_BYTES,
    ENTRY_MAGIC,
    HEADER_BYTES,
    has_right_crcs,
    verify_entries,
)
from commitlog.recovery import MORE, scan_entries
from dledger.core.types import CorruptRangeError, EntryRange
from rocketmq_spark.log.byte_range import Int64s, int64s
from rocketmq_spark.records.fields import bytes_at

HEAD_TYPE: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("header_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_bytes", ">i4"),
    ]
)
_INT32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Parsed:
    """What was found in a window."""

    starts: Int64s
    sizes: Int64s
    terms: Int64s
    stop: str
    """As in `commitlog.recovery.Scan`."""
    bytes_needed: int

    @property
    def size_bytes(self) -> int:
        """Length of the whole entries."""
        return int(self.starts[-1] + self.sizes[-1]) if len(self.starts) else 0


def entry_heads(data: bytes, starts: Int64s) -> npt.NDArray[Any]:
    """The headers, of HEAD_TYPE, of the entries that begin there and have one."""
    return bytes_at(np.frombuffer(data, np.uint8), starts, HEADER_BYTES).reshape(-1).view(HEAD_TYPE)


def parse_entries(data: bytes, position: int, room: int, index: int, term: int) -> Parsed:
    """The whole entries that data[0] begins with: it is at `position`, `room` bytes before its file's
    end, where entry `index` of `term` or later is expected.
    """
    starts = int64s(_walk_sizes(data))
    heads = entry_heads(data, starts)
    sizes = heads["size"].astype(np.int64)
    terms = heads["term"].astype(np.int64)
    is_right = (
        (heads["magic"] == ENTRY_MAGIC)
        & (heads["index"] == index + np.arange(len(starts)))
        & (heads["position"] == position + starts)
        & (terms >= np.concatenate(([term], terms[:-1])))
        & (sizes == HEADER_BYTES + heads["body_bytes"].astype(np.int64))
        & (starts + sizes + BLANK_BYTES <= room)
    )
    count = len(starts) if is_right.all() else int(np.argmin(is_right))
    count = _count_with_crcs(data, starts[:count], sizes[:count], terms[:count], index)
    at = int(starts[count - 1] + sizes[count - 1]) if count else 0
    last_term = int(terms[count - 1]) if count else term
    scan = scan_entries(memoryview(data)[at:], position + at, index + count, last_term, room - at)
    assert scan.size_bytes == 0, (position, at, scan.size_bytes)
    needed = scan.bytes_needed if scan.stop == MORE else 0
    return Parsed(starts[:count], sizes[:count], terms[:count], scan.stop, needed)


def _walk_sizes(data: bytes) -> list[int]:
    size_at = _INT32.unpack_from
    starts = []
    end = len(data)
    at = 0
    while at + HEADER_BYTES <= end:
        (size,) = size_at(data, at + 4)
        if size < HEADER_BYTES or at + size > end:
            break
        starts.append(at)
        at += size
    return starts


def _count_with_crcs(data: bytes, starts: Int64s, sizes: Int64s, terms: Int64s, index: int) -> int:
    """How many of the entries have their CRCs, up to the first that has not."""
    view = memoryview(data)
    edges = [0, *(np.flatnonzero(np.diff(terms)) + 1).tolist(), len(starts)]
    for first, end in pairwise(edges):
        if first == end:
            break
        part = view[int(starts[first]) : int(starts[end - 1] + sizes[end - 1])]
        try:
            verify_entries(EntryRange(index + first, index + end - 1, int(terms[first]), part))
        except CorruptRangeError:
            return next(
                number
                for number in range(first, end)
                if not has_right_crcs(view, int(starts[number]), int(sizes[number]))
            )
    return len(starts)
