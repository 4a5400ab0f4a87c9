"""What a walk over a log's bytes yields: blocks of whole entries, and the damage between them."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Status = Literal["ok", "corrupt", "missing", "torn"]

UNKNOWN: Final = -1
"""An unknown index; a plain log has none."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """A piece of a log to be read by one task: all that begins from `first_position` on and before
    `end_position`. The pieces of a plan follow each other without a gap.
    """

    first_index: int
    """Of the entry at `first_position`, or UNKNOWN."""
    first_position: int
    end_position: int
    last_index: int
    """Of the last entry in the range; with UNKNOWN it follows from the bytes."""
    is_open: bool = False
    """Whether the log ends somewhere in the range: bytes behind its last whole entry are no damage."""
    synced_position: int = 0
    """In an open range: all before it was on the disk."""


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
    """Of the first entry; the others count on. UNKNOWN in a plain log."""
    terms: Int64s
    """Of each entry; empty in a plain log."""
    record_at: int
    """Where in an entry its record begins."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """Length of the entries."""
        return int(self.starts[-1] + self.sizes[-1]) if len(self.starts) else 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no whole entry though there should be some."""

    status: Status
    """`corrupt`; `missing`: the file is gone or ends before; `torn`: behind all that was surely written,
    where an unfinished write and damage cannot be distinguished."""
    position: int
    length: int
    error: str
    first_index: int = UNKNOWN
    """The entries expected there; UNKNOWN when there are none, or they are unknown."""
    last_index: int = UNKNOWN


def int64s(values: list[int]) -> Int64s:
    """As an array."""
    return np.array(values, dtype=np.int64)
