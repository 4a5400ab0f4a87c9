"""The snapshot file of the replicated state: the tables after one entry of the log, so that a start need not
read the log from its beginning. It can be deleted at any time while the log still holds its first entry.

    8 bytes  magic "LMQSTATE"
    u32      version (1)
    u32      CRC-32 of the body
    u64      body length
    body     JSON: {"appliedIndex": N, "tables": {…}}

All integers big-endian. Written to a side file, synced, renamed over the old one, and the folder synced.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any

import orjson

from dledger.fs import Fs, read_replaced_file, replace_file

MAGIC = b"LMQSTATE"
SNAPSHOT_VERSION = 1
SNAPSHOT_BYTES_MAX = 1 << 31
_ROWS_PER_PIECE = 500
_HEADER = struct.Struct(">8sIIQ")


class CorruptSnapshotError(Exception):
    """The snapshot file is damaged or of a version this node does not know."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables after the entry `applied_index` was applied."""

    applied_index: int
    tables: Mapping[str, Any]
    """The rows of each; iterators, which can be encoded once, when they are many."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Piece by piece: a million rows in one call would hold up every other thread."""
    tables = b",".join(b"%s:%s" % (orjson.dumps(name), _rows(rows)) for name, rows in snapshot.tables.items())
    body = b'{"appliedIndex":%d,"tables":{%s}}' % (snapshot.applied_index, tables)
    return _HEADER.pack(MAGIC, SNAPSHOT_VERSION, zlib.crc32(body), len(body)) + body


def _rows(rows: Any) -> bytes:
    if not isinstance(rows, Iterator):
        return orjson.dumps(rows)
    pieces = iter(lambda: list(islice(rows, _ROWS_PER_PIECE)), [])
    return b"[%s]" % b",".join(orjson.dumps(piece)[1:-1] for piece in pieces)


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises CorruptSnapshotError; its message names the fault."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are no snapshot")
    magic, version, crc, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != MAGIC:
        raise CorruptSnapshotError("the file does not begin with the magic of a snapshot")
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"version {version}; this node knows {SNAPSHOT_VERSION}")
    if len(body) != length or zlib.crc32(body) != crc:
        raise CorruptSnapshotError("length or checksum does not fit the body")
    try:
        content = orjson.loads(body)
        return Snapshot(index(content["appliedIndex"]), content["tables"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptSnapshotError(f"the body is no snapshot: {error!r}") from error


def read_snapshot(fs: Fs, path: Path) -> Snapshot | None:
    """The snapshot in the file; None when there is no file. Raises CorruptSnapshotError, OSError."""
    data = read_replaced_file(fs, path, SNAPSHOT_BYTES_MAX)
    return None if data is None else decode_snapshot(data)


def write_snapshot(fs: Fs, path: Path, snapshot: Snapshot) -> None:
    """Encode a snapshot and put it in place of the file, so that a crash at any moment leaves the old or the
    new one. Blocks; not for the loop's thread. Raises OSError.
    """
    fs.make_directory(path.parent)
    replace_file(fs, path, encode_snapshot(snapshot))


def drop_snapshot(fs: Fs, path: Path) -> None:
    """Remove the file for good: it must not be found by a later start either. Raises OSError."""
    fs.delete(path)
    fs.fsync_directory(path.parent)
