"""What reading a log's bytes yields: blocks of whole entries, and the damage between them; and DLedger's
entries parsed in bulk: their starts in a window of bytes, and one check for all of them.

The checks are those of `commitlog.recovery.scan_entries`, which also makes the error texts.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

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
from rocketmq_spark.records.fields import bytes_at

Int64s = npt.NDArray[np.int64]
Status = Literal["ok", "corrupt", "missing", "torn"]

UNKNOWN: Final = -1
"""An unknown index; a plain log has none."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The part of a log that one task reads: all entries that begin at `first_position` or later and before
    `end_position`. The ranges of a plan follow each other without a gap.
    """

    first_index: int
    """Index of the entry at `first_position`, or UNKNOWN."""
    first_position: int
    end_position: int
    last_index: int
    """Index of the last entry in the range; if UNKNOWN, the bytes show it."""
    is_open: bool = False
    """Whether the log ends somewhere in the range: bytes behind its last whole entry are no damage."""
    synced_position: int = 0
    """In an open range: all bytes before it were synced to the disk."""


@dataclass(frozen=True, slots=True)
class EntryBlock:
    """Whole entries (in a plain log: records), their sizes and CRCs checked, back to back in one file."""

    data: bytes
    position: int
    """Position of data[0] in the log."""
    starts: Int64s
    """Where in `data` each entry begins."""
    sizes: Int64s
    first_index: int
    """Index of the first entry; the others follow by one. UNKNOWN in a plain log."""
    terms: Int64s
    """Term of each entry; empty in a plain log."""
    record_at: int
    """Where in an entry its record begins."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """Size of all entries together."""
        return int(self.starts[-1] + self.sizes[-1]) if len(self.starts) else 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no whole entry though there should be some."""

    status: Status
    """`corrupt`; `missing`: the file is gone or ends before; `torn`: after all that was surely written,
    where an unfinished write and damage cannot be distinguished."""
    position: int
    length: int
    error: str
    first_index: int = UNKNOWN
    """The entries expected there; UNKNOWN when there are none, or they are unknown."""
    last_index: int = UNKNOWN


def int64s(values: list[int]) -> Int64s:
    """The values as an array."""
    return np.array(values, dtype=np.int64)


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
    """The entries found in one window of bytes."""

    starts: Int64s
    sizes: Int64s
    terms: Int64s
    stop: str
    """Why parsing stopped, as in `commitlog.recovery.Scan`."""
    bytes_needed: int

    @property
    def size_bytes(self) -> int:
        """Size of all whole entries together."""
        return int(self.starts[-1] + self.sizes[-1]) if len(self.starts) else 0


def entry_heads(data: bytes, starts: Int64s) -> npt.NDArray[Any]:
    """The headers, as HEAD_TYPE, of the entries at `starts`; all headers must be inside `data`."""
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
    """How many entries before the first wrong CRC there are."""
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
