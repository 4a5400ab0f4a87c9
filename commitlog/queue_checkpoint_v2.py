"""Reads version 2 of the consume queues' checkpoint: sums only, so each queue's ends are searched in its
files.
"""

from collections.abc import Callable
from operator import index
from pathlib import Path

from commitlog.checkpoint import unseal
from commitlog.consume_queue import PREFIX_UNIT, UNIT, UNIT_BYTES
from commitlog.queue_checkpoint import Applied, QueueCheckpoint, QueueExtent
from commitlog.unit_files import UnitFiles
from dledger.fs import Fs

VERSION = 2


def read_version_2(fs: Fs, root: Path, files: UnitFiles, content: bytes | None) -> QueueCheckpoint | None:
    """None when it is another version's, damaged, or not what the files hold. Raises OSError."""
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
