"""Opens an entry store after a crash or a stop: finds the end of the log, checks the index, cuts a torn tail.

The data and index that the checkpoint counts were synced. Only the last part of them is read again, so that
the time to open a log does not grow with its length; earlier damage is found by the scrubber and by reads.
When the checkpoint is missing or wrong, the walk begins as in DLedgerMmapFileStore.recover: with the third
last data file, before which everything was synced too, or with an earlier one.

Damage of synced bytes that the walk finds raises CorruptLogError, or is reported to `on_damage` and then cut
like a torn tail.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commitlog.checkpoint import LogBegin
from commitlog.entry import BLANK_BYTES, HEADER_BYTES, UNIT, UNIT_BYTES, Buffer, blank
from commitlog.entry_files import EntryFiles, EntryStoreConfig
from commitlog.errors import CorruptLogError
from commitlog.recovery import (
    BLANK_STOP,
    MORE,
    EntryHead,
    check_torn_tail,
    entry_head,
    find_entry,
    find_epochs,
    leading_blank,
    scan_entries,
)
from dledger.core.types import Epoch

FILES_WALKED = 3


@dataclass(frozen=True, slots=True)
class RecoveryStart:
    """The entry that the walk begins with: its index, the term of the one before it or its own, its
    position.
    """

    index: int
    term: int
    position: int


def recovery_start(files: EntryFiles, begin: LogBegin, recheck_bytes: int) -> RecoveryStart:
    """The latest place up to which the index is whole, and where it points to an entry.

    At least `recheck_bytes` before the checkpoint's end, or with one of the last files.
    """
    files_start = first_file_read(files)
    near = _before_checkpoint(files, begin, recheck_bytes)
    if near is not None and near.position >= files_start:
        return near
    return next(_file_starts(files, begin), RecoveryStart(begin.begin_index, 0, begin.begin_position))


def first_file_read(files: EntryFiles) -> int:
    """Where the first data file begins that a start without a checkpoint reads."""
    starts = files.data.starts()
    return starts[-FILES_WALKED] if len(starts) >= FILES_WALKED else 0


def _before_checkpoint(files: EntryFiles, begin: LogBegin, recheck_bytes: int) -> RecoveryStart | None:
    first, last = begin.begin_index, files.checkpoint.end_index
    if last <= first or not _has_units(files, first, last):
        return None
    from_position = files.locate(last)[0] - recheck_bytes
    index = bisect_left(range(first, last), from_position, key=lambda at: files.locate(at)[0]) + first
    position = files.locate(index)[0]
    head = _head_at(files, position)
    if head is None or head.index != index or position <= begin.begin_position:
        return None
    return RecoveryStart(index, head.term, position)


def _file_starts(files: EntryFiles, begin: LogBegin) -> Iterator[RecoveryStart]:
    for start in files.data.starts()[-FILES_WALKED::-1]:
        if start <= begin.begin_position:
            return
        head = _head_at(files, start)
        if head is not None and _index_leads_to(files, begin.begin_index, head.index, start):
            yield RecoveryStart(head.index, head.term, start)


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
        return None  # not in the log


logger = logging.getLogger(__name__)

WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The log after recovery; an empty log ends one entry before it begins."""

    begin: LogBegin
    end_index: int
    end_position: int


@dataclass(slots=True)
class _Walk:
    """How far the walk is: the next entry expected, and where the last whole one ended."""

    index: int
    term: int
    position: int
    end_position: int


def recover(
    files: EntryFiles,
    known: LogBegin | None,
    limits: EntryStoreConfig,
    on_damage: Callable[[str], None] | None = None,
) -> RecoveredLog:
    """Check the loaded files and leave them ready to be appended to.

    `known` is the content of the epochs file, if it can be read; `files.checkpoint` and `files.mark` have
    been read. Raises CorruptLogError when what was synced is damaged or missing; with `on_damage` that is
    called with the reason instead, and the log cut at the damage. OSError.
    """
    try:
        begin, is_empty = _find_begin(files, known)
    except CorruptLogError as error:
        begin = known or LogBegin()
        _report(on_damage, error)
        files.restart_at(LogBegin(begin.begin_index, begin.begin_position))
        is_empty = True
    files.write_leading_blank(begin.begin_position)
    if is_empty:
        _cut(files, begin.begin_index, begin.begin_position)
        files.recovered(begin.begin_index - 1)
        return RecoveredLog(
            LogBegin(begin.begin_index, begin.begin_position), begin.begin_index - 1, begin.begin_position
        )
    start = recovery_start(files, begin, limits.recheck_bytes)
    walk = _Walk(start.index, start.term, start.position, start.position)
    try:
        _walk_entries(files, walk, limits.unsynced_bytes_max)
    except CorruptLogError as error:
        _report(on_damage, error)
        files.lower_synced_to(walk.index - 1)
    # The process before this one may have left unsynced units in the page cache.
    files.index.sync_from(start.index * UNIT_BYTES)
    files.data.sync()  # what the walk wrote again may be in files before the last one, which _cut syncs
    _cut(files, walk.index, walk.end_position)
    files.end_rebuild()
    files.recovered(walk.index - 1)
    assert walk.index >= begin.begin_index, (walk, begin)
    assert begin.begin_position <= walk.end_position <= walk.position, (walk, begin)
    epochs = _epochs(files, known, begin.begin_index, walk.index - 1)
    return RecoveredLog(
        LogBegin(begin.begin_index, begin.begin_position, epochs), walk.index - 1, walk.end_position
    )


def _report(on_damage: Callable[[str], None] | None, error: CorruptLogError) -> None:
    if on_damage is None:
        raise error
    logger.error("the log is cut at the damage: %s", error)
    on_damage(str(error))


def _find_begin(files: EntryFiles, known: LogBegin | None) -> tuple[LogBegin, bool]:
    """Where the log begins, and whether it is empty. Raises CorruptLogError."""
    expected = known or LogBegin()
    starts = files.data.starts()
    if not starts:
        if files.synced_index >= expected.begin_index:
            raise CorruptLogError(
                f"{files.data.directory}: no files, entries up to {files.synced_index} were on the disk"
            )
        return expected, True
    position = starts[0]
    if known is not None and known.begin_position < position:
        raise CorruptLogError(
            f"{files.data.path_of(known.begin_position)}: missing, the log begins at {known.begin_position}"
        )
    blank_bytes = leading_blank(files.data.read(position, HEADER_BYTES))
    if 0 < blank_bytes <= files.data.file_bytes - HEADER_BYTES:
        position += blank_bytes
    head = entry_head(files.data.read(position, HEADER_BYTES), position)
    if head is not None and (known is None or head.index == known.begin_index):
        return LogBegin(head.index, position), False
    if starts[0] <= expected.begin_position < starts[0] + files.data.file_bytes:
        return expected, False  # the walk decides about the bytes there
    if files.synced_index < 0 and _find_later(files, position, 0) is None:
        return LogBegin(), True
    raise CorruptLogError(
        f"{files.data.path_of(position)}: no entry at position {position}, where the log begins"
    )


def _walk_entries(files: EntryFiles, walk: _Walk, unsynced_bytes_max: int) -> None:
    """Move `walk` to the end of the whole entries, repairing index and blanks on the way.

    Raises CorruptLogError when what follows was synced.
    """
    file_bytes = files.data.file_bytes
    window_bytes = WINDOW_BYTES
    while True:
        if not files.data.has(walk.position):
            # A blank ended the last file, or the log was cut at a file's start.
            _check_stop(files, walk, "the next data file is missing", unsynced_bytes_max)
            return
        room = file_bytes - walk.position % file_bytes
        data = files.data.read(walk.position, min(window_bytes, room))
        scan = scan_entries(data, walk.position, walk.index, walk.term, room)
        mismatch = _repair_index(files, walk.index, scan.units, data)
        if mismatch is not None:
            _end_before(walk, mismatch, scan.units)
            raise CorruptLogError(
                f"{files.data.path_of(walk.position)}: position {walk.position}: {mismatch[1]}"
            )
        if scan.next_index - 1 > files.synced_index and scan.size_bytes > 0:
            # The process before this one may have stopped because a sync failed. Its pages can still be read,
            # but the kernel has marked them clean, so that a sync would succeed without writing them. They
            # are written again.
            files.data.write(walk.position, [memoryview(data)[: scan.size_bytes]])
        walk.position += scan.size_bytes
        if scan.size_bytes > 0:
            walk.end_position = walk.position
        walk.index = scan.next_index
        walk.term = scan.last_term
        if scan.stop == MORE:
            window_bytes = max(WINDOW_BYTES, scan.bytes_needed)
        elif scan.stop == BLANK_STOP or _repair_blank(files, walk):
            walk.position += file_bytes - walk.position % file_bytes
        else:
            _check_stop(files, walk, scan.stop, unsynced_bytes_max)
            return


_Mismatch = tuple[int, str]
"""The number of the first wrong unit, and what is wrong."""


def _repair_index(files: EntryFiles, first_index: int, units: bytes, data: Buffer) -> _Mismatch | None:
    """Write the units of the entries in `data` where the index differs. Returns a unit whose term differs, so
    that either it or its entry is damaged; then nothing is written.
    """
    if not units:
        return None
    at = first_index * UNIT_BYTES
    found = b""
    if files.index.has(at) and files.index.has(at + len(units) - 1):
        found = files.index.read(at, len(units))
        if found == units and first_index + len(units) // UNIT_BYTES - 1 <= files.checkpoint.end_index:
            return None
        mismatch = _term_mismatch(found, units, data, files.synced_index)
        if mismatch is not None:
            return mismatch
        if found == units:
            files.index.write(at, [units])  # as for the data: its sync may have failed
            return None
    logger.info("%s: writing the units of %d entries again", files.index.directory, len(units) // UNIT_BYTES)
    counted_bytes = max(0, (files.checkpoint.end_index - first_index + 1) * UNIT_BYTES)
    # A start skips the units that the checkpoint counts, and those of earlier files: before they are written,
    # the file `index.rebuilding` is made.
    is_counted = found[:counted_bytes] != units[:counted_bytes]
    if is_counted or UNIT.unpack_from(units)[1] < first_file_read(files):
        files.begin_rebuild()
    files.index.write(at, [units])
    return None


def _term_mismatch(found: bytes, units: bytes, data: Buffer, synced_index: int) -> _Mismatch | None:
    """In an entry that Java wrote, no CRC covers the term: when only the term differs from the index, one of
    both is damaged.
    """
    base = UNIT.unpack_from(units)[1]
    pairs = zip(UNIT.iter_unpack(found), UNIT.iter_unpack(units), strict=True)
    for number, (indexed, unit) in enumerate(pairs):
        _, position, _, index, term = unit
        if indexed[:4] == unit[:4] and indexed[4] != term and index <= synced_index:
            head = entry_head(data[position - base :][:HEADER_BYTES], position)
            if head is None or not head.has_crc:
                reason = (
                    f"entry {index} has term {term}, in the index term {indexed[4]}; both were on the disk"
                )
                return number, reason
    return None


def _end_before(walk: _Walk, mismatch: _Mismatch, units: bytes) -> None:
    """Put the end of the walk before the entry with the wrong term."""
    walk.position = UNIT.unpack_from(units, mismatch[0] * UNIT_BYTES)[1]
    walk.index += mismatch[0]
    if mismatch[0] > 0:
        walk.end_position = walk.position


def _repair_blank(files: EntryFiles, walk: _Walk) -> bool:
    """Write a damaged blank again; False when the walk is not at one.

    It is a blank if the next file begins with exactly the expected entry: that file was created after
    everything before it was synced, so no entry can be missing here.
    """
    start = walk.position - walk.position % files.data.file_bytes + files.data.file_bytes
    if not files.data.has(start) or start - walk.position < BLANK_BYTES:
        return False
    head = entry_head(files.data.read(start, HEADER_BYTES), start)
    if head is None or head.index != walk.index or head.term < walk.term:
        return False
    logger.warning(
        "%s: position %d: writing the blank again", files.data.path_of(walk.position), walk.position
    )
    files.data.write(walk.position, [blank(start - walk.position)])
    files.data.sync()
    return True


def _place(files: EntryFiles, walk: _Walk) -> str:
    return f"{files.data.path_of(walk.position)}: position {walk.position}"


def _check_stop(files: EntryFiles, walk: _Walk, reason: str, unsynced_bytes_max: int) -> None:
    is_flushed = walk.index <= files.synced_index
    later_valid = _find_later(files, walk.position + unsynced_bytes_max, walk.index + 1)
    check_torn_tail(_place(files, walk), reason, is_flushed, later_valid)


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
    """The epochs of the entries that are there, by the terms in the entries themselves.

    The index only points to them. Where it does not, `known` decides, which has a CRC.
    """

    def term_of(index: int) -> int:
        head = _head_by_index(files, index)
        if head is not None:
            return head.term
        _, _, _, own_index, term = UNIT.unpack(files.read_units(index, 1))
        if known is None or not known.epochs or own_index == index:
            return int(term)
        return max((epoch.term for epoch in known.epochs if epoch.first_index <= index), default=0)

    epochs = tuple(Epoch(term, first) for term, first in find_epochs(begin_index, end_index, term_of))
    if known is not None and known.epochs != epochs:
        logger.info("%s: the epochs file was behind the log", files.data.directory.parent)
    return epochs


def _head_by_index(files: EntryFiles, index: int) -> EntryHead | None:
    position = files.locate(index)[0]
    try:
        head = entry_head(files.data.read(position, HEADER_BYTES), position)
    except CorruptLogError:
        return None  # not in the log
    return head if head is not None and head.index == index else None
