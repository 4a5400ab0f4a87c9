"""The messages of the pipeline's benchmark: bodies that contain their number, and the expected sums.

A body is 16 hexadecimal digits of its number, then random bytes, which nothing can compress. The bodies whose
last digit is 0 are the sample: the sum of their CRC-32s stands for the content.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NUMBER_CHARS = 16
SAMPLED_AT = NUMBER_CHARS - 1
SAMPLED = b"0"
CHUNK_MESSAGES = 10_000
CHUNKS_A_FILE = 12
"""Of 1 KiB each: files of about 120 MB, each of which one task of Spark reads."""
_SEED = 20
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
Say = Callable[[str], None]


class WrongResultError(Exception):
    """A measured part gave a wrong result: its figures must not count."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums of a reading: messages, bytes of their bodies, CRC-32s of the sampled bodies."""

    messages: int
    body_bytes: int
    sampled: int

    def require(self, expected: Tally) -> None:
        """Raises: WrongResultError."""
        if self != expected:
            raise WrongResultError(f"found {self}, expected {expected}")


@dataclass(slots=True)
class Counter:
    """Computes a tally, one body after the other."""

    messages: int = 0
    body_bytes: int = 0
    sampled: int = 0

    def add(self, body: bytes) -> None:
        self.messages += 1
        self.body_bytes += len(body)
        if body[SAMPLED_AT:NUMBER_CHARS] == SAMPLED:
            self.sampled += zlib.crc32(body)

    def tally(self) -> Tally:
        return Tally(self.messages, self.body_bytes, self.sampled)


@dataclass(frozen=True, slots=True)
class Messages:
    """Bodies in Parquet files, not compressed: what the sink sends, and what Spark's own scan reads."""

    path: Path
    size: int
    tally: Tally
    file_bytes: int


def bodies(first: int, count: int, size: int) -> list[bytes]:
    """The bodies of these numbers, the same at every call.

    Raises: ValueError when a body cannot hold its number.
    """
    if size < NUMBER_CHARS:
        raise ValueError(f"a body of {size} bytes cannot hold {NUMBER_CHARS} digits")
    rows = np.random.default_rng([_SEED, first]).integers(0, 256, (count, size), np.uint8)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    for place in range(NUMBER_CHARS):
        shift = np.uint64(4 * (NUMBER_CHARS - 1 - place))
        rows[:, place] = _DIGITS[((numbers >> shift) & np.uint64(15)).astype(np.intp)]
    raw = rows.tobytes()
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def write_messages(folder: Path, count: int, size: int, say: Say) -> Messages:
    """Make the files in a folder that is not there yet."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    schema = pa.schema([("body", pa.binary())])
    counter = Counter()
    writer: Any = None
    for chunk, first in enumerate(range(0, count, CHUNK_MESSAGES)):
        made = bodies(first, min(CHUNK_MESSAGES, count - first), size)
        for body in made:
            counter.add(body)
        if chunk % CHUNKS_A_FILE == 0:
            writer = _next_file(writer, folder / f"{chunk:05d}.parquet", schema)
        writer.write_table(pa.table({"body": pa.array(made, pa.binary())}, schema))
        say(f"making messages: {first + len(made):,} of {count:,}")
    if writer is not None:
        writer.close()
    file_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return Messages(folder, size, counter.tally(), file_bytes)


def _next_file(writer: Any, path: Path, schema: Any) -> Any:
    import pyarrow.parquet as pq

    if writer is not None:
        writer.close()
    return pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)
