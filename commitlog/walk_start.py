"""Where the walk over a log's entries begins when its store is opened.

What the checkpoint counts was on the disk, data and index both. Only the last of that is read again, so that
the time to open a log does not grow with it; damage before is found by the scrubber and by whoever reads it.
When the checkpoint is of no help the walk begins as in DLedgerMmapFileStore.recover: with the third last data
file, before which all was synced too, or with an earlier one.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from commitlog.checkpoint import LogBegin
from commitlog.entry import HEADER_BYTES, UNIT, UNIT_BYTES
from commitlog.entry_files import EntryFiles
from commitlog.recovery import CorruptLogError, EntryHead, entry_head

FILES_WALKED = 3


@dataclass(frozen=True, slots=True)
class WalkStart:
    """The entry that the walk begins with, the term of the one before it or its own, and its position."""

    index: int
    term: int
    position: int


def find_start(files: EntryFiles, begin: LogBegin, recheck_bytes: int) -> WalkStart:
    """The latest place up to which the index is whole, and where it leads to an entry.

    At least `recheck_bytes` before the checkpoint's end, or with one of the last files.
    """
    files_start = first_walked(files)
    near = _before_checkpoint(files, begin, recheck_bytes)
    if near is not None and near.position >= files_start:
        return near
    return next(_file_starts(files, begin), WalkStart(begin.begin_index, 0, begin.begin_position))


def first_walked(files: EntryFiles) -> int:
    """Where the first data file begins that a start without a checkpoint looks at."""
    starts = files.data.starts()
    return starts[-FILES_WALKED] if len(starts) >= FILES_WALKED else 0


def _before_checkpoint(files: EntryFiles, begin: LogBegin, recheck_bytes: int) -> WalkStart | None:
    first, last = begin.begin_index, files.checkpoint.end_index
    if last <= first or not _has_units(files, first, last):
        return None
    from_position = files.locate(last)[0] - recheck_bytes
    index = bisect_left(range(first, last), from_position, key=lambda at: files.locate(at)[0]) + first
    position = files.locate(index)[0]
    head = _head_at(files, position)
    if head is None or head.index != index or position <= begin.begin_position:
        return None
    return WalkStart(index, head.term, position)


def _file_starts(files: EntryFiles, begin: LogBegin) -> Iterator[WalkStart]:
    for start in files.data.starts()[-FILES_WALKED::-1]:
        if start <= begin.begin_position:
            return
        head = _head_at(files, start)
        if head is not None and _index_leads_to(files, begin.begin_index, head.index, start):
            yield WalkStart(head.index, head.term, start)


def _index_leads_to(files: EntryFiles, begin_index: int, index: int, file_start: int) -> bool:
    """Whether the index is there from the log's begin on and puts entry `index` at the start of this file."""
    if index <= begin_index or not _has_units(files, begin_index, index):
        return False
    _, position, size, own_index, _ = UNIT.unpack(files.read_units(index - 1, 1))
    previous_fits = (
        own_index == index - 1 and file_start - files.data.file_bytes < position + size <= file_start
    )
    return previous_fits and files.locate(index)[0] == file_start


def _has_units(files: EntryFiles, first_index: int, last_index: int) -> bool:
    """Whether there are files for all units from one to the other."""
    first, last = first_index * UNIT_BYTES, last_index * UNIT_BYTES
    return files.index.has(last) and all(
        files.index.has(at) for at in range(first, last, files.index.file_bytes)
    )


def _head_at(files: EntryFiles, position: int) -> EntryHead | None:
    if position < 0:
        return None
    try:
        return entry_head(files.data.read(position, HEADER_BYTES), position)
    except CorruptLogError:
        return None  # nowhere in the log
