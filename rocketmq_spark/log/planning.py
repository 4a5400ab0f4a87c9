"""Splits a log into ranges, one for each task.

A log is divided at places where an entry or record was seen to begin: at the start of each data file, and
inside files where the index (DLedger), the consume queues or a search (plain log) point to. A position that
cannot be verified is not used, so a damaged index costs parallelism but no entry.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from commitlog.entry import UNIT_BYTES
from rocketmq_spark.log.discovery import Log, NoLogError
from rocketmq_spark.log.entries import UNKNOWN, LogRange
from rocketmq_spark.log.index_files import QueueHints, UnitIndex
from rocketmq_spark.log.walk import find_whole_record, first_place, head_at, open_index, whole_record_at

Point = tuple[int, int]
"""(position, index) of an entry; of a record the index is UNKNOWN."""


def plan_ranges(
    log: Log, split_bytes: int, partitions_min: int = 1, include_uncommitted: bool = False
) -> list[LogRange]:
    """The ranges of a log, in its order: none when nothing is committed.

    Raises NoLogError when the committed end is unknown, or all committed entries are gone; OSError.
    """
    if not log.data.starts:
        committed = log.checkpoint.committed_index if log.checkpoint is not None else UNKNOWN
        if committed != UNKNOWN:
            raise NoLogError(
                f"{log.name} has no data files; by its checkpoint it has entries up to {committed}"
            )
        return []
    step = max(1, min(split_bytes, (log.data.end - log.data.begin) // partitions_min))
    if log.kind == "commitlog":
        return _plan_records(log, step)
    if log.checkpoint is None and not include_uncommitted:
        raise NoLogError(
            f"{log.name} has no checkpoint that can be read, so it is unknown what is committed;  "
            "with includeUncommitted=true all entries are read"
        )
    return _plan_entries(log, step, include_uncommitted)


def boundaries(log: Log, begin: int, end: int, step: int) -> Iterator[int]:
    """Approximate positions to split a log at: file starts, and every `step` bytes inside files."""
    for start in log.data.starts:
        for position in range(start, start + log.data.file_bytes, step):
            if begin < position < end:
                yield position


def log_begin(log: Log) -> Point:
    """Position of the log's first entry, present or missing; its index may be UNKNOWN."""
    begin = log.begin
    if begin is not None:
        return begin.begin_position, begin.begin_index
    start = log.data.begin
    found = first_place(log, start)
    if found is not None:
        return found[0], found[1].index
    index = open_index(log)
    first = index.first_from(start, 0, _units_end(log))
    unit = index.unit(first)
    return start, first if unit is not None and unit[0] == start else UNKNOWN


def committed_end(log: Log) -> Point:
    """Where the committed entries of a DLedger log end, and the last one's index; UNKNOWN for none."""
    committed = log.checkpoint.committed_index if log.checkpoint is not None else UNKNOWN
    begin = log_begin(log)
    if not log.data.starts or committed == UNKNOWN or committed < begin[1]:
        return begin[0], UNKNOWN
    end = end_of_entry(log, open_index(log), committed)
    return log.data.file_end(log.data.starts[-1]) if end is None else end, committed


def _plan_entries(log: Log, step: int, include_uncommitted: bool) -> list[LogRange]:
    index = open_index(log)
    begin = log_begin(log)
    end_position, last = (log.data.end, UNKNOWN) if include_uncommitted else committed_end(log)
    if not include_uncommitted and last == UNKNOWN:
        return []
    synced = log.checkpoint.end_index if log.checkpoint is not None else UNKNOWN
    high = _units_end(log) if include_uncommitted else last + 1
    places = boundaries(log, begin[0], end_position, step)
    points = [begin, *_entry_points(log, index, places, max(begin[1], 0), high)]
    ranges = _ranges(points, end_position, last)
    if include_uncommitted:
        synced_end = end_of_entry(log, index, synced) if synced != UNKNOWN else None
        ranges = [_open(each, synced_end or begin[0]) for each in ranges]
    return ranges


def end_of_entry(log: Log, index: UnitIndex, number: int) -> int | None:
    """Where an entry ends, if the entry or the unit before its own confirms the index; else None."""
    unit = index.unit(number)
    if unit is None:
        return None
    head = head_at(log, unit[0])
    if head is not None and (head.index, head.size) == (number, unit[1]):
        return unit[0] + unit[1]
    before = index.unit(number - 1)
    if before is None or unit[0] not in (sum(before[:2]), log.data.file_end(before[0])):
        return None
    return unit[0] + unit[1]


def _entry_points(log: Log, index: UnitIndex, places: Iterable[int], low: int, high: int) -> Iterator[Point]:
    starts = set(log.data.starts)
    for place in places:
        if place in starts:
            head = head_at(log, place)
            if head is not None and low <= head.index < high:
                yield place, head.index
                continue
        number = index.first_from(place, low, high)
        unit = index.unit(number) if number < high else None
        head = head_at(log, unit[0]) if unit is not None and unit[0] >= place else None
        if unit is not None and head is not None and (head.index, head.size) == (number, unit[1]):
            yield unit[0], number


def _plan_records(log: Log, step: int) -> list[LogRange]:
    begin, end = log.data.begin, log.data.end
    points = [(begin, UNKNOWN)]
    hints = QueueHints(log)
    starts = set(log.data.starts)
    for place in boundaries(log, begin, end, step):
        if place in starts:
            found = place if whole_record_at(log, place) else None
        else:
            found = next(filter(lambda at: whole_record_at(log, at), hints.first_from(place)), None)
            if found is None:
                found = find_whole_record(log, place)
        if found is not None:
            points.append((found, UNKNOWN))
    return [_open(each, log.flushed_position) for each in _ranges(points, end, UNKNOWN)]


def _ranges(points: list[Point], end_position: int, last_index: int) -> list[LogRange]:
    """Ranges between points; points that do not ascend are left out."""
    kept = points[:1]
    for position, index in points[1:]:
        before = kept[-1]
        ascends = position > before[0] and (index == UNKNOWN or index > before[1])
        if ascends and position < end_position and (last_index == UNKNOWN or index <= last_index):
            kept.append((position, index))
    edges = [*kept, (end_position, UNKNOWN if last_index == UNKNOWN else last_index + 1)]
    return [
        LogRange(index, position, behind, next_index - 1 if next_index != UNKNOWN else UNKNOWN)
        for (position, index), (behind, next_index) in pairwise(edges)
    ]


def _open(each: LogRange, synced_position: int) -> LogRange:
    return LogRange(
        each.first_index, each.first_position, each.end_position, each.last_index, True, synced_position
    )


def _units_end(log: Log) -> int:
    """First index after the last one that the index files can hold."""
    return log.index.end // UNIT_BYTES if log.index is not None else 0
