"""What one replica holds in a range: every entry read once, every CRC checked, every byte hashed, and its
consume queues compared with the messages.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.entry import HEADER_BYTES
from commitlog.record import CorruptRecordError, decode_record
from rocketmq_spark.jobs.audit.model import Problem, QueueKey, QueueRun, QueueUnits, Replica
from rocketmq_spark.log.byte_range import UNKNOWN, Damage, EntryBlock, Int64s, LogRange
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.index_files import PREFILL_SIZE, queue_row, read_units
from rocketmq_spark.log.reader import walk_of
from rocketmq_spark.log.rows import IN_NO_QUEUE, RowContext, Rows, entry_damage
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.records.columns import property_column

INNER_BATCH: Final = 0x80
"""Of sysFlag: one record that uses as many offsets as its INNER_NUM property says."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The places of the entries of one block; without their bytes."""

    position: int
    starts: Int64s
    sizes: Int64s
    first_index: int
    terms: Int64s
    record_at: int

    @property
    def end(self) -> int:
        """First position behind."""
        return self.position + int(self.starts[-1] + self.sizes[-1])

    def entry_at(self, position: int) -> tuple[int, int, int]:
        """(start, size, index) of the entry that holds a position of this extent."""
        number = int(np.searchsorted(self.starts, position - self.position, side="right")) - 1
        index = UNKNOWN if self.first_index == UNKNOWN else self.first_index + number
        return self.position + int(self.starts[number]), int(self.sizes[number]), index


@dataclass(frozen=True, slots=True)
class QueueUnitsWanted:
    """The units that a consume queue should hold for consecutive messages."""

    key: QueueKey
    offset: int
    positions: Int64s
    sizes: Int64s


@dataclass(slots=True)
class Content:
    """The sum of a walk over one range of one replica."""

    wanted: LogRange
    damages: list[Damage] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    entries: int = 0
    size_bytes: int = 0
    sha256: str = ""
    runs: dict[QueueKey, list[QueueRun]] = field(default_factory=dict)
    units: list[QueueUnitsWanted] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.damages

    def gaps(self) -> Iterator[tuple[int, int]]:
        """(position, length) of the blanks between and behind the entries of an undamaged range."""
        at = self.wanted.first_position
        for extent in self.extents:
            if extent.position > at:
                yield at, extent.position - at
            at = extent.end
        if self.wanted.end_position > at:
            yield at, self.wanted.end_position - at

    def epochs(self) -> list[tuple[int, int, int]]:
        """(term, index, position) of the first entry of each term."""
        found: list[tuple[int, int, int]] = []
        for extent in self.extents:
            if not len(extent.terms):
                continue
            changes = np.concatenate(([0], np.flatnonzero(np.diff(extent.terms)) + 1))
            for number in changes.tolist():
                term = int(extent.terms[number])
                if not found or found[-1][0] != term:
                    position = extent.position + int(extent.starts[number])
                    found.append((term, extent.first_index + number, position))
        return found


OnBlock = Callable[[EntryBlock], None]


def examine(
    log: Log, wanted: LogRange, on_block: OnBlock | None = None, wants_units: bool = False
) -> Content:
    """Walk a range; `on_block` sees each block while its bytes are there. Raises OSError."""
    content = Content(wanted)
    digest = hashlib.sha256()
    for found in walk_of(log, wanted):
        if isinstance(found, Damage):
            content.damages.append(found)
            continue
        if on_block is not None:
            on_block(found)
        digest.update(memoryview(found.data)[: found.size_bytes])
        content.entries += len(found)
        content.size_bytes += found.size_bytes
        content.extents.append(
            Extent(found.position, found.starts, found.sizes, found.first_index, found.terms, found.record_at)
        )
        _read_records(content, found, wants_units)
    content.sha256 = digest.hexdigest()
    return content


def _read_records(content: Content, block: EntryBlock, wants_units: bool) -> None:
    """Check every record and note its queue's offsets."""
    rows = Rows(RowContext(""), block)
    records = rows.records
    is_whole = records.is_whole.copy()
    wrong = np.flatnonzero(~is_whole).tolist()
    if block.record_at == HEADER_BYTES:  # a plain log's have been checked by the walk
        wrong += records.wrong_body_crcs(np.flatnonzero(is_whole))
    if wrong:
        content.damages += [entry_damage(block, at, records.fault_of(at)) for at in sorted(wrong)]
        is_whole[wrong] = False
    rows = rows.choose(is_whole & ((records.heads["sys_flag"] & IN_NO_QUEUE) == 0))
    if len(rows):
        _note_queues(content, rows, wants_units)


def _note_queues(content: Content, rows: Rows, wants_units: bool) -> None:
    heads = rows.records.heads
    offsets = heads["queue_offset"].astype(np.int64)
    queue_ids = heads["queue_id"].astype(np.int64)
    topics = rows.topics.indices.to_numpy().astype(np.int64)
    order = np.lexsort((np.arange(len(rows)), queue_ids, topics))
    offsets, queue_ids, topics = offsets[order], queue_ids[order], topics[order]
    positions, sizes = rows.records.positions[order], rows.records.sizes[order]
    next_offsets = offsets + _steps(rows)[order]
    is_new_queue = (np.diff(topics) != 0) | (np.diff(queue_ids) != 0)
    breaks = np.flatnonzero(is_new_queue | (offsets[1:] != next_offsets[:-1])) + 1
    names = rows.topics.dictionary.to_pylist()
    edges = [0, *breaks.tolist(), len(order)]
    for first, end in pairwise(edges):
        key = (str(names[int(topics[first])]), int(queue_ids[first]))
        run = QueueRun(
            int(offsets[first]),
            int(next_offsets[end - 1]),
            int(positions[first]),
            int(positions[end - 1]),
            end - first,
        )
        join_runs(content.runs.setdefault(key, []), run)
        if wants_units:
            content.units.append(
                QueueUnitsWanted(key, int(offsets[first]), positions[first:end], sizes[first:end])
            )


def _steps(rows: Rows) -> Int64s:
    """How many offsets each record uses."""
    steps = np.ones(len(rows), np.int64)
    batches = np.flatnonzero(rows.fields.sys_flag & INNER_BATCH)
    if len(batches):
        counts = property_column(rows.properties, b"INNER_NUM").take(pa.array(batches)).to_pylist()
        steps[batches] = [int(count) if count and count.isdecimal() else 1 for count in counts]
    return steps


def join_runs(runs: list[QueueRun], run: QueueRun) -> None:
    """Append a run, or lengthen the last one when it continues that."""
    if runs and runs[-1].next_offset == run.first_offset:
        last = runs[-1]
        last.next_offset, last.last_position = run.next_offset, run.last_position
        last.messages += run.messages
    else:
        runs.append(run)


LATER_LOOKED_AT_MAX: Final = 64
"""So many units of a run that lead to later messages are followed; the others are supposed to be like them.
"""


def check_queues(
    replica: Replica, wanted: Sequence[QueueUnitsWanted], begin: int, end: int
) -> Iterator[Problem | QueueUnits]:
    """The first wrong unit of each run, and how many are there; of messages from position `begin` to
    before `end`.
    """
    root, storage = replica.log.queues, replica.log.storage
    assert root is not None, replica.name
    rows = {each.key: queue_row(storage, f"{root}/{each.key[0]}/{each.key[1]}") for each in wanted}
    for each in wanted:
        chosen = np.flatnonzero((each.positions >= begin) & (each.positions < end))
        if not len(chosen):
            continue
        offset = each.offset + int(chosen[0])
        positions, sizes = each.positions[chosen], each.sizes[chosen]
        units = read_units(storage, rows[each.key], offset, len(chosen))
        found, length = units["position"].astype(np.int64), units["size"].astype(np.int64)
        count = len(units)
        is_written = (length > 0) & (length != PREFILL_SIZE)
        is_later = is_written & (found > positions[:count])
        for at in np.flatnonzero(is_later)[:LATER_LOOKED_AT_MAX].tolist():
            is_later[at] = _stands_for(replica.log, int(found[at]), int(length[at]), each.key, offset + at)
        is_wrong = is_written & ~is_later & ((found != positions[:count]) | (length != sizes[:count]))
        if is_wrong.any():
            at = int(np.flatnonzero(is_wrong)[0])
            topic, queue_id = each.key
            yield Problem(
                "queue",
                replica.name,
                int(positions[at]),
                UNKNOWN,
                "unit",
                f"{topic} queue {queue_id} offset {offset + at}: the unit leads to position {found[at]} and "
                f"size {length[at]}, the message has size {sizes[at]}",
            )
        present = np.flatnonzero(is_written)
        absent = np.flatnonzero(~is_written)
        first_absent = int(absent[0]) if len(absent) else count
        missing = len(chosen) - len(present)
        yield QueueUnits(
            replica.name,
            each.key,
            len(present),
            missing,
            offset + first_absent if missing else UNKNOWN,
            offset + int(present[-1]) if len(present) else UNKNOWN,
            int(is_later.sum()),
        )


def _stands_for(log: Log, position: int, size: int, key: QueueKey, offset: int) -> bool:
    """Whether a message of that queue and offset is there."""
    try:
        record = decode_record(log.read(position, size))
    except (GoneError, CorruptRecordError):
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (*key, offset)
