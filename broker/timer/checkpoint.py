"""The checkpoint of a node's timer index: how far it is in the timer queue, what waits, and its runs. Pure.

    magic 8 | version 4 | crc 4 of all behind it | end 8 | position 8 | last delivery 8 | runs 4 | pieces 4
    runs: number 8 | rows 8 | crc 4; pieces: rows of PendingSet

Big-endian. Written to a side file and renamed, not synced: one that a crash left half written is found by its
checksum, and the index is built from the log again.
"""

import struct
import zlib
from dataclasses import dataclass

from broker.timer.pending import PIECE_ROW_BYTES, PendingSet
from broker.timer.runs import RunExtent

MAGIC = b"LMQTIMER"
VERSION = 1
CHECKPOINT_BYTES_MAX = 1 << 30

_HEAD = struct.Struct(">8sII")
_BODY = struct.Struct(">qqqII")
_RUN = struct.Struct(">QQI")


class CheckpointError(ValueError):
    """The checkpoint cannot be used."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`end`: everything of the timer queue below it is in the runs. `position`: of the record before it, by
    which it is known whose queue that was. `last_delivery`: offset of the last record of deliveries, or -1.
    """

    end: int
    position: int
    last_delivery: int
    runs: tuple[RunExtent, ...]
    pending: PendingSet


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    pieces = list(checkpoint.pending.rows())
    parts = [
        _BODY.pack(
            checkpoint.end, checkpoint.position, checkpoint.last_delivery, len(checkpoint.runs), len(pieces)
        ),
        *(_RUN.pack(run.number, run.rows, run.crc) for run in checkpoint.runs),
        *pieces,
    ]
    body = b"".join(parts)
    return _HEAD.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises CheckpointError."""
    try:
        if len(data) < _HEAD.size + _BODY.size:
            raise CheckpointError(f"it has only {len(data)} bytes")
        magic, version, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if (magic, version) != (MAGIC, VERSION) or zlib.crc32(body) != crc:
            raise CheckpointError("magic, version or checksum do not fit")
        end, position, last_delivery, runs, pieces = _BODY.unpack_from(body)
        pieces_at = _BODY.size + runs * _RUN.size
        if len(body) != pieces_at + pieces * PIECE_ROW_BYTES:
            raise CheckpointError("its length does not fit")
        extents = tuple(RunExtent(*_RUN.unpack_from(body, _BODY.size + at * _RUN.size)) for at in range(runs))
        rows = (body[at : at + PIECE_ROW_BYTES] for at in range(pieces_at, len(body), PIECE_ROW_BYTES))
        return Checkpoint(end, position, last_delivery, extents, PendingSet.restored(rows))
    except (struct.error, CheckpointError, ValueError) as error:
        raise CheckpointError(f"the timer index's checkpoint cannot be used: {error}") from error
