"""The consume queues' `.checkpoint`: up to which entry they are complete, and how far each one's files go.

Two lines, JSON and its CRC-32. It is written after everything it speaks of was synced.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, Final

from commitlog.checkpoint import seal, unseal
from dledger.core.types import NO_INDEX

CHECKPOINT_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class Applied:
    """Up to which entry, and up to which position, the queues are complete."""

    index: int = NO_INDEX
    position: int = 0


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """What the files hold of one queue; never of an empty one."""

    topic: str
    queue_id: int
    begin_offset: int
    end_offset: int
    last_unit: tuple[int, int, int]
    """Position, size and tags code."""


@dataclass(frozen=True, slots=True)
class QueueCheckpoint:
    """All that a start needs to know. Messages behind `applied` may be in the queues as well."""

    applied: Applied
    extents: tuple[QueueExtent, ...] = ()


NOTHING: Final = QueueCheckpoint(Applied())


def encode_queue_checkpoint(applied: Applied, extents: Iterable[QueueExtent]) -> bytes:
    """The file's content."""
    rows = [
        [each.topic, each.queue_id, each.begin_offset, each.end_offset, *each.last_unit] for each in extents
    ]
    return seal(
        {
            "version": CHECKPOINT_VERSION,
            "appliedIndex": applied.index,
            "appliedPosition": applied.position,
            "queues": rows,
        }
    )


def decode_queue_checkpoint(content: bytes | None) -> QueueCheckpoint | None:
    """None when it is missing, damaged, or of a version that is not known."""
    fields = unseal(content)
    if fields is None or fields.get("version") != CHECKPOINT_VERSION:
        return None
    try:
        applied = Applied(index(fields["appliedIndex"]), index(fields["appliedPosition"]))
        return QueueCheckpoint(applied, tuple(map(_extent, fields["queues"])))
    except (KeyError, TypeError, ValueError):
        return None


def _extent(row: list[Any]) -> QueueExtent:
    topic, *numbers = row
    queue_id, begin, end, position, size, tags_code = map(index, numbers)
    if not isinstance(topic, str) or not 0 <= begin < end or queue_id < 0:
        raise ValueError(f"{row} is no queue")
    return QueueExtent(topic, queue_id, begin, end, (position, size, tags_code))
