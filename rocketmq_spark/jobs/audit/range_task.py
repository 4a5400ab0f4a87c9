"""One task of an audit: one range of the log, in all replicas.

One replica's bytes are checked and hashed: every entry is read once, every CRC checked. The others are
compared with them byte by byte, which is cheaper than to check them again and proves the same: equal bytes
have equal CRCs. Only a replica that differs, or is compared with damage, is read by itself. A difference is
reported with the field of the entry that the byte belongs to. Consume queues are compared with the messages.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.entry import BLANK, BLANK_MAGIC, HEADER_BYTES, UNIT_BYTES
from commitlog.record import CorruptRecordError, decode_record
from commitlog.recovery import FILLER_MAGIC
from remoting.record_layout import BORN_HOST_V6, STORE_HOST_V6
from rocketmq_spark.jobs.audit.model import Problem, QueueKey, QueueRun, QueueUnits, RangeResult, Replica
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.entries import UNKNOWN, Damage, EntryBlock, Int64s, LogRange
from rocketmq_spark.log.index_files import PREFILL_SIZE, UNIT_TYPE, queue_row, read_units
from rocketmq_spark.log.reader import walk_of
from rocketmq_spark.log.rows import IN_NO_QUEUE, RowContext, Rows, entry_damage
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.records.columns import property_column
from rocketmq_spark.records.fields import RecordColumns

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
        """The first position after the block."""
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
    """What a walk over one range of one replica found."""

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
    """Walk a range; `on_block` gets each block while its bytes are in memory. Raises OSError."""
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
    if block.record_at == HEADER_BYTES:  # in a plain log the walk has checked them
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


LATER_CHECKED_MAX: Final = 64
"""Of the units of a run that point to later messages only this many are checked, the others taken as equal.
"""


def check_queues(
    replica: Replica, wanted: Sequence[QueueUnitsWanted], begin: int, end: int
) -> Iterator[Problem | QueueUnits]:
    """The first wrong unit of each run, and how many are present; for messages from position `begin` to
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
        for at in np.flatnonzero(is_later)[:LATER_CHECKED_MAX].tolist():
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
    """Whether `position` holds a message of that queue and offset."""
    try:
        record = decode_record(log.read(position, size))
    except (GoneError, CorruptRecordError):
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (*key, offset)


_HEADER: Final = (
    (0, "magic"),
    (4, "size"),
    (8, "index"),
    (16, "term"),
    (24, "position"),
    (32, "channel"),
    (36, "headerCrc"),
    (40, "bodyCrc"),
    (44, "bodyLength"),
)


def field_at(entry: bytes, at: int, record_at: int) -> str:
    """The field that byte `at` of an entry belongs to; `entry` without a header in a plain log."""
    if record_at == HEADER_BYTES and at < HEADER_BYTES:
        return "entry." + next(name for start, name in reversed(_HEADER) if start <= at)
    record = entry[record_at:]
    start = np.array([0], np.int64)
    columns = RecordColumns(record, start, np.array([len(record)], np.int64), start)
    places = columns.places
    if not len(record) or not places.is_whole[0]:
        return "record"
    flags = int(columns.heads["sys_flag"][0])
    store = 56 + (12 if flags & BORN_HOST_V6 else 0)
    tail = store + 16 + (12 if flags & STORE_HOST_V6 else 0)
    body, topic = int(places.body[0]), int(places.topic[0])
    fields = [(0, "size"), (4, "magic"), (8, "bodyCrc"), (12, "queueId"), (16, "flag"), (20, "queueOffset")]
    fields += [(28, "physicalOffset"), (36, "sysFlag"), (40, "bornTimestamp"), (48, "bornHost")]
    fields += [(store, "storeTimestamp"), (store + 8, "storeHost"), (tail, "reconsumeTimes")]
    fields += [(tail + 4, "preparedTransactionOffset"), (body - 4, "bodyLength"), (body, "body")]
    fields += [(body + int(places.body_bytes[0]), "topicLength"), (topic, "topic")]
    fields += [(int(places.properties[0]) - 2, "propertiesLength"), (int(places.properties[0]), "properties")]
    return "record." + next(name for start, name in reversed(fields) if start <= at - record_at)


_UNIT_FIELDS: Final = ("magic", "position", "size", "index", "term")


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of the range that one replica must hold."""

    replica: Replica
    wanted: LogRange

    @property
    def span(self) -> tuple[int, int]:
        return self.wanted.first_position, self.wanted.end_position


def audit_range(cell: LogRange, replicas: Sequence[Replica], wants_queues: bool) -> RangeResult:
    """Compare all replicas of a range. Raises OSError."""
    try:
        return _RangeAudit(cell, replicas, wants_queues).result()
    finally:
        for replica in replicas:
            replica.log.storage.close()


class _RangeAudit:
    def __init__(self, cell: LogRange, replicas: Sequence[Replica], wants_queues: bool) -> None:
        self._cell = cell
        self._replicas = replicas
        self._wants_queues = wants_queues
        parts = [(replica, replica.part_of(cell)) for replica in replicas]
        self._parts = {replica.name: _Part(replica, part) for replica, part in parts if part is not None}
        self._contents: dict[str, Content] = {}
        self._differs: set[str] = set()
        self._found = RangeResult(cell)

    def result(self) -> RangeResult:
        found = self._found
        found.states = {replica.name: "absent" for replica in self._replicas}
        if not self._parts:
            return found
        lead = max(self._parts.values(), key=lambda part: part.span[1] - part.span[0])
        self._examine_lead(lead)
        same = [name for name in self._parts if name not in self._differs and name != lead.replica.name]
        for name in self._differs:
            self._examine(name)
        best = self._best(lead.replica.name, same)
        content = self._contents[best]
        found.entries, found.size_bytes, found.sha256 = content.entries, content.size_bytes, content.sha256
        found.epochs, found.runs = content.epochs(), content.runs
        for name in self._parts:
            own = self._contents.get(name) or self._contents[lead.replica.name]
            self._judge(name, own, best, name in same)
        return found

    def _examine_lead(self, lead: _Part) -> None:
        others = [part for part in self._parts.values() if part is not lead]
        begin, end = lead.span
        for part in others:
            if part.span[0] < begin or part.span[1] > end:
                self._differs.add(part.replica.name)

        def compare(block: EntryBlock) -> None:
            for part in others:
                if part.replica.name not in self._differs and not _holds(part, block):
                    self._differs.add(part.replica.name)

        self._contents[lead.replica.name] = content = examine(
            lead.replica.log, lead.wanted, compare, self._wants_queues
        )
        if not content.is_whole:
            self._differs.update(part.replica.name for part in others)

    def _examine(self, name: str) -> None:
        part = self._parts[name]
        self._contents[name] = examine(part.replica.log, part.wanted, None, self._wants_queues)

    def _best(self, lead: str, same: Sequence[str]) -> str:
        """The replica whose bytes most replicas with the whole range have; an undamaged one if possible."""
        whole = self._parts[lead].span
        votes = Counter(
            content.sha256 for name, content in self._contents.items() if self._parts[name].span == whole
        )
        votes[self._contents[lead].sha256] += sum(self._parts[name].span == whole for name in same)

        def rank(name: str) -> tuple[bool, bool, int, bool]:
            content = self._contents[name]
            holds_all = self._parts[name].span == whole
            return holds_all, content.is_whole, votes[content.sha256], name == lead

        return max(self._contents, key=rank)

    def _judge(self, name: str, own: Content, best: str, is_same_as_lead: bool) -> None:
        """Compare a replica with the best one, and check its index, blanks and consume queues."""
        part, content = self._parts[name], self._contents[best]
        for damage in own.damages if name in self._contents else ():
            self._found.add(_damage_problem(name, damage))
        is_partial = part.span != self._parts[best].span
        is_same = name == best or own.sha256 == content.sha256 or (is_same_as_lead and own is content)
        if not is_same:
            difference = _first_difference(content, self._parts[best].replica.log, part)
            if difference is not None:
                self._found.add(difference)
            is_same = difference is None and own.is_whole
        self._found.states[name] = ("partial" if is_partial else "same") if is_same else "different"
        if is_same and content.is_whole:
            self._check_beside(part, content)

    def _check_beside(self, part: _Part, content: Content) -> None:
        """Index, blanks and consume queues of a replica that holds the entries of `content`."""
        name, log = part.replica.name, part.replica.log
        begin, end = part.span
        for position, length in content.gaps():
            if begin <= position and position + length <= end and not _is_blank(log, position, length):
                self._found.add(
                    Problem("blank", name, position, UNKNOWN, "blank", f"no blank of {length} bytes here")
                )
        if log.kind == "dledger":
            for extent in content.extents:
                problem = _index_problem(part, extent)
                if problem is not None:
                    self._found.add(problem)
        if self._wants_queues and log.queues is not None:
            for found in check_queues(part.replica, content.units, begin, end):
                if isinstance(found, Problem):
                    self._found.add(found)
                else:
                    self._found.queue_units.append(found)


def _holds(part: _Part, block: EntryBlock) -> bool:
    """Whether the replica has the bytes of a block, as far as it must hold them."""
    begin = max(block.position, part.wanted.first_position)
    end = min(block.position + block.size_bytes, part.wanted.end_position)
    if begin >= end:
        return True
    found = read_whole(part.replica.log, begin, end - begin)
    # The fastest way to compare bytes with a part of others: neither is copied.
    return found is not None and block.data.startswith(found, begin - block.position)


def read_whole(log: Log, position: int, size_bytes: int) -> bytes | None:
    """Bytes of one file; None when they are not all there."""
    try:
        data = log.read(position, size_bytes)
    except GoneError:
        return None
    return data if len(data) == size_bytes else None


def _first_difference(content: Content, log: Log, part: _Part) -> Problem | None:
    """Where the replica first differs from what `content` found in `log`; None when nowhere."""
    name, own = part.replica.name, part.replica.log
    begin, end = part.span
    for extent in content.extents:
        first, last = max(extent.position, begin), min(extent.end, end)
        if first >= last:
            continue
        expected = read_whole(log, first, last - first)
        found = read_whole(own, first, last - first)
        if found == expected or expected is None:
            continue
        if found is None:
            start, _, index = extent.entry_at(first)
            found = _what_is_there(own, first, last - first)
            at = min(_differs_at(expected, found), last - first - 1)
        else:
            at = _differs_at(expected, found)
        start, size, index = extent.entry_at(first + at)
        entry = expected[start - first : start - first + size] if start >= first else b""
        place = first + at - start
        field = field_at(entry, place, extent.record_at)
        seen = f"{found[at]:#04x}" if at < len(found) else "nothing"
        detail = f"byte {place} of the entry is {seen}, in most replicas {expected[at]:#04x}"
        return Problem("divergence", name, start, index, field, detail)
    return None


def _what_is_there(log: Log, position: int, size_bytes: int) -> bytes:
    try:
        return log.read(position, size_bytes)
    except GoneError:
        return b""


def _differs_at(expected: bytes, found: bytes) -> int:
    length = min(len(expected), len(found))
    one, other = np.frombuffer(expected, np.uint8, length), np.frombuffer(found, np.uint8, length)
    differs = np.flatnonzero(one != other)
    return int(differs[0]) if len(differs) else length


def _damage_problem(name: str, damage: Damage) -> Problem:
    kind = "missing" if damage.status == "missing" else "corrupt"
    count = damage.last_index - damage.first_index + 1
    many = f"{count} entries: " if damage.first_index != UNKNOWN and count > 1 else ""
    return Problem(kind, name, damage.position, damage.first_index, "entry", many + damage.error)


def _is_blank(log: Log, position: int, length: int) -> bool:
    if length < BLANK.size:
        return log.kind == "commitlog"
    head = read_whole(log, position, BLANK.size)
    if log.kind == "dledger":
        return head == BLANK.pack(BLANK_MAGIC, length)
    return head == length.to_bytes(4, "big") + FILLER_MAGIC.to_bytes(4, "big")


def _index_problem(part: _Part, extent: Extent) -> Problem | None:
    """The first of the replica's index units that differs from its entry."""
    name, row = part.replica.name, part.replica.log.index
    begin, end = part.span
    places = extent.position + extent.starts
    chosen = np.flatnonzero((places >= begin) & (places < end))
    if row is None or not len(chosen):
        return None
    expected = np.empty(len(chosen), UNIT_TYPE)
    expected["magic"], expected["index"] = 1, extent.first_index + chosen
    expected["position"], expected["size"] = places[chosen], extent.sizes[chosen]
    expected["term"] = extent.terms[chosen]
    first = extent.first_index + int(chosen[0])
    data = b""
    while len(data) < len(chosen) * UNIT_BYTES:
        at = first * UNIT_BYTES + len(data)
        try:
            more = row.read(part.replica.log.storage, at, len(chosen) * UNIT_BYTES - len(data))
        except GoneError:
            break
        data += more
    if data == expected.tobytes():
        return None
    units = np.frombuffer(data, UNIT_TYPE, len(data) // UNIT_BYTES)
    differs = np.flatnonzero(units != expected[: len(units)])
    number = int(differs[0]) if len(differs) else len(units)
    if number >= len(units):
        field, detail = "unit", "the index has no unit for the entry"
    else:
        field = next(each for each in _UNIT_FIELDS if units[number][each] != expected[number][each])
        detail = f"the index says {field} {units[number][field]}, the entry {expected[number][field]}"
    return Problem("index", name, int(places[chosen[number]]), first + number, field, detail)
