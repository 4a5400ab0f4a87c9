"""Opening an entry store after any kind of end: find where the log ends, check the index, cut a torn tail.

As DLedgerMmapFileStore.recover: the walk begins with the third last data file, or an earlier one when that
does not begin with an entry the index agrees with, so that a large log opens quickly.
"""

import logging
from dataclasses import dataclass

from commitlog.checkpoint import Checkpoint, LogBegin
from commitlog.entry import HEADER_BYTES, UNIT, UNIT_BYTES
from commitlog.entry_files import EntryFiles
from commitlog.recovery import (
    BLANK_STOP,
    MORE,
    CorruptLogError,
    entry_head,
    find_entry,
    find_epochs,
    judge_stop,
    leading_blank,
    scan_entries,
)
from dledger.core.types import Epoch

logger = logging.getLogger(__name__)

WINDOW_BYTES = 8 * 1024 * 1024
FILES_WALKED = 3


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What the files hold after recovery; an empty log ends one before it begins."""

    begin: LogBegin
    end_index: int
    end_position: int


@dataclass(slots=True)
class _Walk:
    """Where the walk stands: the next entry expected, and where the last whole one ended."""

    index: int
    term: int
    position: int
    end_position: int


def recover(files: EntryFiles, known: LogBegin | None, unsynced_bytes_max: int) -> RecoveredLog:
    """Check the loaded files and leave them ready to be appended to. Raises CorruptLogError, OSError.

    `known` is what the epochs file says, if it can be read; `files.checkpoint` has been read.
    """
    checkpoint = files.checkpoint
    begin_index, begin_position, is_empty = _find_begin(files, known, checkpoint)
    files.write_leading_blank(begin_position)
    if is_empty:
        _cut(files, begin_index, begin_position)
        return RecoveredLog(LogBegin(begin_index, begin_position), begin_index - 1, begin_position)
    walk = _find_start(files, begin_index, begin_position)
    walked_from = walk.index
    _walk_entries(files, walk, checkpoint, unsynced_bytes_max)
    # The process before this one may have left units in the page cache that only it knew to be unsynced.
    files.index.sync_from(walked_from * UNIT_BYTES)
    _cut(files, walk.index, walk.end_position)
    files.written_end_index = walk.index - 1
    epochs = _epochs(files, known, begin_index, walk.index - 1)
    return RecoveredLog(LogBegin(begin_index, begin_position, epochs), walk.index - 1, walk.end_position)


def _find_begin(files: EntryFiles, known: LogBegin | None, checkpoint: Checkpoint) -> tuple[int, int, bool]:
    """(begin index, begin position, whether no entry stands there)."""
    known = known or LogBegin()
    starts = files.data.starts()
    if not starts:
        if checkpoint.end_index >= known.begin_index:
            raise CorruptLogError(
                f"{files.data.directory}: no files, the checkpoint says entries up to {checkpoint.end_index}"
            )
        return known.begin_index, known.begin_position, True
    position = starts[0]
    blank_bytes = leading_blank(files.data.read(position, HEADER_BYTES))
    if 0 < blank_bytes <= files.data.file_bytes - HEADER_BYTES:
        position += blank_bytes
    head = entry_head(files.data.read(position, HEADER_BYTES), position)
    if head is not None:
        return head.index, position, False
    if starts[0] <= known.begin_position < starts[0] + files.data.file_bytes:
        return known.begin_index, known.begin_position, False  # the walk judges what stands there
    if checkpoint.end_index < 0 and _find_later(files, position, 0) is None:
        return 0, 0, True
    raise CorruptLogError(
        f"{files.data.path_of(position)}: no entry at position {position}, where the log begins"
    )


def _find_start(files: EntryFiles, begin_index: int, begin_position: int) -> _Walk:
    for start in files.data.starts()[-FILES_WALKED::-1]:
        if start <= begin_position:
            break
        head = entry_head(files.data.read(start, HEADER_BYTES), start)
        if head is not None and _index_leads_to(files, begin_index, head.index, start):
            return _Walk(head.index, head.term, start, start)
    return _Walk(begin_index, 0, begin_position, begin_position)


def _index_leads_to(files: EntryFiles, begin_index: int, index: int, file_start: int) -> bool:
    """Whether the index is there from the log's begin on and puts entry `index` at the start of this file."""
    if index <= begin_index:
        return False
    first = begin_index * UNIT_BYTES
    if any(not files.index.has(at) for at in range(first, index * UNIT_BYTES, files.index.file_bytes)):
        return False
    if not files.index.has(index * UNIT_BYTES):
        return False
    _, position, size, own_index, _ = UNIT.unpack(files.read_units(index - 1, 1))
    previous_fits = (
        own_index == index - 1 and file_start - files.data.file_bytes < position + size <= file_start
    )
    return previous_fits and files.locate(index)[0] == file_start


def _walk_entries(files: EntryFiles, walk: _Walk, checkpoint: Checkpoint, unsynced_bytes_max: int) -> None:
    """Move `walk` to the end of the whole entries, mending the index on the way."""
    file_bytes = files.data.file_bytes
    window_bytes = WINDOW_BYTES
    while True:
        if not files.data.has(walk.position):
            # A blank ended the last file, or the log was cut at a file's start.
            _judge(files, walk, "the next data file is missing", checkpoint, unsynced_bytes_max)
            return
        room = file_bytes - walk.position % file_bytes
        data = files.data.read(walk.position, min(window_bytes, room))
        scan = scan_entries(data, walk.position, walk.index, walk.term, room)
        _mend_index(files, walk.index, scan.units, checkpoint)
        walk.position += scan.size_bytes
        if scan.size_bytes > 0:
            walk.end_position = walk.position
        walk.index = scan.next_index
        walk.term = scan.last_term
        if scan.stop == MORE:
            window_bytes = max(WINDOW_BYTES, scan.bytes_needed)
        elif scan.stop == BLANK_STOP:
            walk.position += room - scan.size_bytes
        else:
            _judge(files, walk, scan.stop, checkpoint, unsynced_bytes_max)
            return


def _mend_index(files: EntryFiles, first_index: int, units: bytes, checkpoint: Checkpoint) -> None:
    if not units:
        return
    at = first_index * UNIT_BYTES
    if files.index.has(at) and files.index.has(at + len(units) - 1):
        found = files.index.read(at, len(units))
        if found == units:
            return
        _check_terms(files, found, units, checkpoint)
    logger.info("%s: writing the units of %d entries again", files.index.directory, len(units) // UNIT_BYTES)
    files.index.write(at, [units])


def _check_terms(files: EntryFiles, found: bytes, units: bytes, checkpoint: Checkpoint) -> None:
    """An entry's term has no CRC; when only that differs from a synced index, one of both is damaged."""
    for indexed, unit in zip(UNIT.iter_unpack(found), UNIT.iter_unpack(units), strict=True):
        _, position, _, index, term = unit
        if indexed[:4] == unit[:4] and indexed[4] != term and index <= checkpoint.end_index:
            raise CorruptLogError(
                f"{files.data.path_of(position)}: position {position}: entry {index} has term {term}, in the "
                f"index term {indexed[4]}; the checkpoint says both were on the disk"
            )


def _judge(
    files: EntryFiles, walk: _Walk, reason: str, checkpoint: Checkpoint, unsynced_bytes_max: int
) -> None:
    where = f"{files.data.path_of(walk.position)}: position {walk.position}"
    is_flushed = walk.index <= checkpoint.end_index
    later_valid = _find_later(files, walk.position + unsynced_bytes_max, walk.index + 1)
    judge_stop(where, reason, is_flushed, later_valid)


def _find_later(files: EntryFiles, position: int, index_min: int) -> int | None:
    """A whole entry near `position`, which may be in the middle of one."""
    starts = files.data.starts()
    end = starts[-1] + files.data.file_bytes if starts else 0
    size_bytes = min(WINDOW_BYTES, end - position)
    if size_bytes <= 0:
        return None
    return find_entry(files.data.read(position, size_bytes), position, index_min)


def _cut(files: EntryFiles, index: int, position: int) -> None:
    """Nothing but zeros behind the last entry: what a crash left there must never pass for an entry."""
    if files.data.starts():
        files.data.truncate(position)
    if files.index.starts():
        files.index.truncate(index * UNIT_BYTES)


def _epochs(files: EntryFiles, known: LogBegin | None, begin_index: int, end_index: int) -> tuple[Epoch, ...]:
    """The epochs of the entries that are there; the index knows them, `known` only says whether all was
    well.
    """

    def term_of(index: int) -> int:
        return files.locate(index)[2]

    epochs = tuple(Epoch(term, first) for term, first in find_epochs(begin_index, end_index, term_of))
    if known is not None and known.epochs != epochs:
        logger.info("%s: the epochs file was behind the log", files.data.directory.parent)
    return epochs
