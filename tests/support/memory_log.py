"""A LogStore in memory whose disk can be crashed, for simulations, golden traces and unit tests.

Three images of one log are kept: what the node sees (every append at once), what is in the page cache
(`write`), and what is on the disk (`write` with sync). `crash` throws the first two away, or lets a part of
the page cache reach the disk, as a power loss does. Operations reach the disk in the order they were made.

Entry layout (big-endian): magic u32 | size u32 | index u64 | term u64 | position u64 | body crc u32 | body.
"""

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dledger.core.membership import ConfigurationEntry, ConfigurationError, decode_configuration
from dledger.core.types import CorruptRangeError, DamagedEntryError, EntryRange, Epoch, LogState, Scrubbed

HEADER = struct.Struct(">IIQQQI")
MAGIC = 0x4D454D31
MEMBERS = b"members "
"""How the body of a configuration begins."""
PADDING_BYTES_MIN = 8


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry as it lies in the log: `data` is header and body."""

    index: int
    term: int
    position: int
    data: bytes

    @property
    def end_position(self) -> int:
        return self.position + len(self.data)

    @property
    def body(self) -> bytes:
        return self.data[HEADER.size :]


@dataclass(frozen=True, slots=True)
class AppendOp:
    entries: tuple[StoredEntry, ...]


@dataclass(frozen=True, slots=True)
class TruncateOp:
    index: int


@dataclass(frozen=True, slots=True)
class ResetOp:
    begin_index: int
    begin_position: int


@dataclass(frozen=True, slots=True)
class DeleteBeforeOp:
    index: int


Op = AppendOp | TruncateOp | ResetOp | DeleteBeforeOp


@dataclass(frozen=True, slots=True)
class MemoryWrites:
    """What `take_writes` hands to `write`, in order."""

    ops: tuple[Op, ...]


@dataclass(slots=True)
class LogImage:
    """One state of the log: entries begin_index.. in order."""

    begin_index: int = 0
    begin_position: int = 0
    entries: list[StoredEntry] = field(default_factory=list)

    @property
    def end_index(self) -> int:
        return self.begin_index + len(self.entries) - 1

    @property
    def end_position(self) -> int:
        return self.entries[-1].end_position if self.entries else self.begin_position

    def get(self, index: int) -> StoredEntry | None:
        """The entry of this index, None outside the log."""
        slot = index - self.begin_index
        return self.entries[slot] if 0 <= slot < len(self.entries) else None

    def apply(self, op: Op) -> None:
        match op:
            case AppendOp(entries):
                assert entries[0].index == self.end_index + 1, (entries[0].index, self.end_index)
                self.entries.extend(entries)
            case TruncateOp(index):
                assert self.begin_index <= index <= self.end_index, (index, self.begin_index, self.end_index)
                del self.entries[index - self.begin_index :]
            case ResetOp(begin_index, begin_position):
                self.begin_index, self.begin_position, self.entries = begin_index, begin_position, []
            case DeleteBeforeOp(index):
                del self.entries[: index - self.begin_index]
                self.begin_index, self.begin_position = index, self.entries[0].position

    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the entries, read off one by one."""
        found: list[Epoch] = []
        for entry in self.entries:
            if not found or found[-1].term != entry.term:
                found.append(Epoch(entry.term, entry.index))
        return tuple(found)

    def copy(self) -> "LogImage":
        return replace(self, entries=list(self.entries))


class MemoryLog:
    """LogStore whose files are three lists. `file_bytes` is the size of a simulated data file."""

    def __init__(self, file_bytes: int = 1 << 20) -> None:
        self.file_bytes = file_bytes
        self.checkpoint = (-1, -1)
        self.disk = LogImage()
        self._seen = LogImage()
        self._cached: list[Op] = []
        self._untaken: list[Op] = []
        self.is_full = False
        self.damaged: set[int] = set()
        """Entries whose bytes on the disk can't be read any more, until `replace_range` mends them."""
        self._scrub_index = 0

    # ---- what the node reads

    @property
    def begin_index(self) -> int:
        return self._seen.begin_index

    @property
    def end_index(self) -> int:
        return self._seen.end_index

    @property
    def end_position(self) -> int:
        return self._seen.end_position

    def entry(self, index: int) -> StoredEntry | None:
        """The entry as the node sees it, None outside the log."""
        return self._seen.get(index)

    def entries(self) -> Sequence[StoredEntry]:
        """All entries as the node sees them."""
        return self._seen.entries

    def log_state(self) -> LogState:
        commit_index = min(self.checkpoint[1], self.end_index)
        return LogState(self.begin_index, self.end_index, self._seen.epochs(), commit_index)

    def position_of(self, index: int) -> int:
        entry = self._seen.get(index)
        if entry is None:
            raise IndexError(f"entry {index} is not in {self.begin_index}..{self.end_index}")
        return entry.position

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        first = self._seen.get(first_index)
        if first is None or last_index < first_index:
            raise IndexError(f"{first_index}..{last_index} is not in {self.begin_index}..{self.end_index}")
        if first_index in self.damaged:
            raise DamagedEntryError(first_index, first_index, "bad sector")
        taken = [first]
        size_bytes = len(first.data)
        for index in range(first_index + 1, last_index + 1):
            entry = self._seen.get(index)
            if (
                index in self.damaged
                or entry is None
                or entry.term != first.term
                or entry.position != taken[-1].end_position
            ):
                break
            size_bytes += len(entry.data)
            if size_bytes > bytes_max or self._file_of(entry) != self._file_of(first):
                break
            taken.append(entry)
        return EntryRange(first_index, taken[-1].index, first.term, b"".join(e.data for e in taken))

    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the entries the node sees."""
        return self._seen.epochs()

    # ---- what the node writes

    def steps_of(self, writes: object, sync: bool) -> None:
        """There are no descriptors."""

    def steps_done(self, writes: object, sync: bool, error: OSError | None) -> None:
        raise AssertionError("steps_of returned no steps")

    def append_bodies(self, first_index: int, term: int, bodies: Sequence[bytes]) -> list[int]:
        assert first_index == self.end_index + 1, (first_index, self.end_index)
        position = self.end_position
        laid_out: list[StoredEntry] = []
        for index, body in enumerate(bodies, first_index):
            size_bytes = HEADER.size + len(body)
            position = self._next_position(position, size_bytes)
            header = HEADER.pack(MAGIC, size_bytes, index, term, position, zlib.crc32(body))
            laid_out.append(StoredEntry(index, term, position, header + body))
            position += size_bytes
        self._do(AppendOp(tuple(laid_out)))
        return [entry.position for entry in laid_out]

    def append_configuration(self, index: int, term: int, body: bytes) -> int:
        return self.append_bodies(index, term, [MEMBERS + body])[0]

    def configurations_in(self, entries: EntryRange) -> Sequence[ConfigurationEntry]:
        if MEMBERS not in bytes(entries.data):
            return ()
        return configurations_of(split_range(entries))

    def find_configurations(self) -> Sequence[ConfigurationEntry]:
        return configurations_of(self._seen.entries)

    def verify_range(self, entries: EntryRange) -> None:
        try:
            configurations_of(split_range(entries))
        except ConfigurationError as error:
            raise CorruptRangeError(str(error)) from None

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        """Bytes that are no entries, as tests of the core alone use them, could stand anywhere."""
        try:
            end = self.end_position if after is None else split_range(after)[-1].end_position
            return self._misplaced(split_range(entries), end) is None
        except CorruptRangeError:
            return True

    def append_range(self, entries: EntryRange) -> None:
        found = split_range(entries)
        if entries.first_index != self.end_index + 1:
            raise CorruptRangeError(f"range begins at {entries.first_index}, log ends at {self.end_index}")
        misplaced = self._misplaced(found, self.end_position)
        if misplaced is not None:
            raise CorruptRangeError(f"entry {misplaced.index} says position {misplaced.position}")
        self._do(AppendOp(tuple(found)))

    def _misplaced(self, entries: Sequence[StoredEntry], position: int) -> StoredEntry | None:
        """The first that does not stand where it would in a log that ends there."""
        for entry in entries:
            if entry.position != self._next_position(position, len(entry.data)):
                return entry
            position = entry.end_position
        return None

    def truncate_from(self, index: int) -> None:
        self._do(TruncateOp(index))

    def reset(self, begin_index: int, begin_position: int) -> None:
        self._do(ResetOp(begin_index, begin_position))

    def delete_before(self, index: int) -> None:
        """Retention: entries below `index` go; at least the last entry stays."""
        assert self.begin_index < index <= self.end_index, (self.begin_index, index, self.end_index)
        self._do(DeleteBeforeOp(index))

    def begin_at(self, begin_index: int) -> None:
        self.delete_before(begin_index)

    def remove_files(self) -> int:
        return 0

    # ---- the disk

    def take_writes(self) -> MemoryWrites | None:
        if not self._untaken:
            return None
        ops, self._untaken = tuple(self._untaken), []
        return MemoryWrites(ops)

    def write(self, writes: MemoryWrites, sync: bool) -> None:
        self._cached.extend(writes.ops)
        if sync:
            self._flush()

    def written(self, writes: MemoryWrites) -> None:
        """Nothing to release here: the node reads from its own image."""

    def replace_range(self, entries: EntryRange) -> None:
        for entry in split_range(entries):
            known = self.disk.get(entry.index)
            if known is None or (known.term, known.position, len(known.data)) != (
                entry.term,
                entry.position,
                len(entry.data),
            ):
                raise CorruptRangeError(f"entry {entry.index} is not the one that stands here")
            self.damaged.discard(entry.index)

    def scrub(self, bytes_max: int) -> Scrubbed:
        """Looks at what the checkpoint says is committed; at least one entry a step."""
        read_bytes, found = 0, []
        entry = self.disk.get(max(self._scrub_index, self.disk.begin_index))
        while entry is not None and entry.index <= self.checkpoint[1] and read_bytes < bytes_max:
            read_bytes += len(entry.data)
            if entry.index in self.damaged:
                found.append(DamagedEntryError(entry.index, entry.index, "bad sector"))
            self._scrub_index = entry.index + 1
            entry = self.disk.get(self._scrub_index)
        is_round_done = entry is None or entry.index > self.checkpoint[1]
        if is_round_done:
            self._scrub_index = 0
        return Scrubbed(read_bytes, tuple(found), is_round_done)

    def save_checkpoint(self, end_index: int, committed_index: int) -> None:
        self.checkpoint = (end_index, committed_index)

    def is_disk_full(self) -> bool:
        return self.is_full

    def close(self) -> None:
        """Nothing to close."""

    def crash(self, rng: random.Random | None = None) -> None:
        """Lose what was not synced; with `rng`, a part of what was written survives, cut at any entry."""
        operations = self._cached if rng else []
        survivors = rng.randint(0, len(operations)) if rng else 0
        for number, op in enumerate(operations[: survivors + 1]):
            torn = op if number < survivors else _torn(op, rng)
            if torn is not None:
                self.disk.apply(torn)
        self._restart()

    def kill(self) -> None:
        """The process ends, the machine goes on: what was written survives."""
        self._flush()
        self._restart()

    def wipe(self) -> None:
        """An empty disk put in place of the old one."""
        self.disk, self.checkpoint = LogImage(), (-1, -1)
        self.damaged.clear()
        self._restart()

    def shorten(self, end_index: int) -> None:
        """Recovery found damage behind end_index and cut the log there."""
        del self.disk.entries[max(0, end_index + 1 - self.disk.begin_index) :]
        self.damaged = {index for index in self.damaged if index <= end_index}
        self._restart()

    def _restart(self) -> None:
        self._cached, self._untaken = [], []
        self._seen = self.disk.copy()

    def _flush(self) -> None:
        for op in self._cached:
            self.disk.apply(op)
        self._cached = []

    def _do(self, op: Op) -> None:
        self._seen.apply(op)
        self._untaken.append(op)

    def _next_position(self, end_position: int, size_bytes: int) -> int:
        room_bytes = self.file_bytes - end_position % self.file_bytes
        return end_position if size_bytes + PADDING_BYTES_MIN <= room_bytes else end_position + room_bytes

    def _file_of(self, entry: StoredEntry) -> int:
        return entry.position // self.file_bytes


def _torn(op: Op, rng: random.Random | None) -> Op | None:
    """The part of the operation that was under way which reached the disk."""
    if rng is None or not isinstance(op, AppendOp):
        return None
    kept = op.entries[: rng.randint(0, len(op.entries))]
    return AppendOp(kept) if kept else None


def configurations_of(entries: Sequence[StoredEntry]) -> list[ConfigurationEntry]:
    """Raises ConfigurationError."""
    return [
        ConfigurationEntry(entry.index, entry.term, decode_configuration(entry.body.removeprefix(MEMBERS)))
        for entry in entries
        if entry.body.startswith(MEMBERS)
    ]


def split_range(entries: EntryRange) -> list[StoredEntry]:
    """The entries of a range; CorruptRangeError where its bytes do not bear out its numbers."""
    data = bytes(entries.data)
    found: list[StoredEntry] = []
    start = 0
    for expected_index in range(entries.first_index, entries.last_index + 1):
        if start + HEADER.size > len(data):
            raise CorruptRangeError(f"range ends inside the header of entry {expected_index}")
        magic, size_bytes, index, term, position, crc = HEADER.unpack_from(data, start)
        entry = StoredEntry(index, term, position, data[start : start + size_bytes])
        if magic != MAGIC or len(entry.data) != size_bytes or size_bytes < HEADER.size:
            raise CorruptRangeError(f"entry {expected_index}: magic {magic:#x}, size {size_bytes}")
        if (index, term) != (expected_index, entries.term):
            raise CorruptRangeError(f"entry {expected_index} of term {entries.term} says {index} of {term}")
        if zlib.crc32(entry.body) != crc:
            raise CorruptRangeError(f"entry {expected_index}: body does not match its CRC")
        found.append(entry)
        start += size_bytes
    if start != len(data):
        raise CorruptRangeError(f"{len(data) - start} bytes follow entry {entries.last_index}")
    return found
