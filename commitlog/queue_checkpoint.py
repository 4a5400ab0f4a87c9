"""The consume queues' `.checkpoint`: up to which entry they are complete, and how far each one's files go.

Two lines, JSON and its CRC-32. It is written after everything it names was synced. Version 2 holds sums only;
each queue's ends are then searched in its files.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Final

from commitlog.checkpoint import seal, unseal
from commitlog.consume_queue import PREFIX_UNIT, UNIT, UNIT_BYTES, UnitFiles
from commitlog.dispatch import Applied
from dledger.fs import Fs

CHECKPOINT_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """The range of offsets that the files of one queue have; never empty."""

    topic: str
    queue_id: int
    begin_offset: int
    end_offset: int
    last_unit: tuple[int, int, int]
    """Position, size and tags code."""


@dataclass(frozen=True, slots=True)
class QueueCheckpoint:
    """The content of the checkpoint. The queues may also have messages behind `applied`."""

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


VERSION = 2


def read_version_2(fs: Fs, root: Path, files: UnitFiles, content: bytes | None) -> QueueCheckpoint | None:
    """None when it is of another version, damaged, or does not agree with the files. Raises OSError."""
    fields = unseal(content)
    if fields is None or fields.get("version") != VERSION:
        return None
    try:
        applied = Applied(index(fields["appliedIndex"]), index(fields["appliedPosition"]))
        sums = [index(fields[name]) for name in ("queues", "begins", "ends")]
    except (KeyError, TypeError):
        return None
    extents = [
        extent
        for topic in fs.list(root)
        if not topic.startswith(".")
        for name in fs.list(root / topic)
        if name.isdecimal() and (extent := _find(root, files, topic, int(name), applied)) is not None
    ]
    files.close()
    # The sums show whether files of any queue were lost or cut since the checkpoint.
    begins, ends = sum(each.begin_offset for each in extents), sum(each.end_offset for each in extents)
    return QueueCheckpoint(applied, tuple(extents)) if sums == [len(extents), begins, ends] else None


def _find(root: Path, files: UnitFiles, topic: str, queue_id: int, applied: Applied) -> QueueExtent | None:
    directory = root / topic / str(queue_id)
    starts = files.starts(directory)
    if not starts:
        return None

    def raw(offset: int) -> bytes:
        unit = files.read(directory, offset * UNIT_BYTES, UNIT_BYTES)
        return unit if len(unit) == UNIT_BYTES else bytes(UNIT_BYTES)  # the file ends in it

    def is_past(offset: int) -> bool:
        position, size, _ = UNIT.unpack(raw(offset))
        return bool(size <= 0 or position >= applied.position)

    per_file = files.file_bytes // UNIT_BYTES
    first = starts[0] // UNIT_BYTES
    begin = _bisect(first, first + per_file, lambda offset: raw(offset) != PREFIX_UNIT)
    end = _bisect(begin, first + per_file * len(starts), is_past)
    if begin >= end:
        return None
    position, size, tags_code = UNIT.unpack(raw(end - 1))
    return QueueExtent(topic, queue_id, begin, end, (position, size, tags_code))


def _bisect(low: int, high: int, is_past: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which `is_past` holds, high for none."""
    while low < high:
        middle = (low + high) // 2
        if is_past(middle):
            high = middle
        else:
            low = middle + 1
    return low
