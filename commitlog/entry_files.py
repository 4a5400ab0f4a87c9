"""The data and index files of an entry store, and how they are written.

The writer thread writes, in the order of the operations; the event loop reads. Only the data is synced with
each write. The index can be rebuilt from the data, so it is synced only with a checkpoint and when a data
file is full.
"""

import logging
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from commitlog.checkpoint import (
    FORMAT_VERSION,
    SMALL_FILE_BYTES_MAX,
    Checkpoint,
    LogBegin,
    check_format,
    decode_checkpoint,
    encode_format,
)
from commitlog.entry import BLANK_BYTES, HEADER_BYTES, UNIT, UNIT_BYTES, Buffer, blank
from commitlog.errors import CorruptLogError
from commitlog.segments import Segments
from dledger.core.types import NO_INDEX
from dledger.fs import Fs, OsFs, read_file, read_replaced_file, replace_file

logger = logging.getLogger(__name__)

REBUILDING: Final = "index.rebuilding"
"""Exists while the index is being rebuilt."""
SLOT: Final = struct.Struct(">qqI")
SLOT_SPACING_BYTES: Final = 512
"""One sector: a torn write of one slot never damages the other."""
MARK_BYTES: Final = 2 * SLOT_SPACING_BYTES
_NUMBERS: Final = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class EntryStoreConfig:
    """Sizes and limits of an entry store. The file sizes must be the same on all replicas."""

    data_file_bytes: int = 1024 * 1024 * 1024
    index_file_bytes: int = 32 * 5 * 1024 * 1024
    cache_bytes_max: int = 16 * 1024 * 1024
    """Recent entries kept in memory, or four times as much that is not in the consume queues yet; those not
    yet written stay whatever their size.
    """
    chunk_bytes_max: int = 16 * 1024 * 1024
    """Bytes of the bodies laid out in one buffer at most; a larger entry has a buffer of its own. Batches of
    large bodies that need several buffers are copied once more."""
    reserve_bytes: int = 64 * 1024 * 1024
    """Blocks are reserved ahead of the writing in steps of this size."""
    direct_bytes_min: int = 256 * 1024
    """From this size on a follower's write bypasses the page cache: clients read from the leader."""
    unsynced_bytes_max: int = 64 * 1024 * 1024
    """A sync is made before more than this is unsynced; recovery relies on it. Larger than anything that is
    appended in one piece: a chunk of new entries, a push."""
    recheck_bytes: int = 64 * 1024 * 1024
    """Bytes before the checkpoint's end that are read and checked again when the store is opened."""
    disk_full_ratio: float = 0.90
    disk_check_interval_ms: int = 1000

    @property
    def body_bytes_max(self) -> int:
        """The largest body whose entry, with a blank behind it, fits into a data file."""
        return self.data_file_bytes - HEADER_BYTES - BLANK_BYTES

    def __post_init__(self) -> None:
        if self.data_file_bytes < 1024 or self.index_file_bytes < UNIT_BYTES:
            raise ValueError("an entry store's files are too small")
        if self.index_file_bytes % UNIT_BYTES != 0:
            raise ValueError(f"index files hold whole units of {UNIT_BYTES} bytes")
        if self.unsynced_bytes_max < self.chunk_bytes_max:
            raise ValueError("a chunk may be larger than what may be unsynced")


@dataclass(frozen=True, slots=True)
class AppendOp:
    """Write entries and their units; without units, a blank, whose indexes are NO_INDEX."""

    position: int
    data: Buffer
    first_index: int
    last_index: int
    units: Buffer
    is_replica: bool = False
    """They came from the leader: clients read them there, so this node's page cache does not need them.
    """


@dataclass(frozen=True, slots=True)
class TruncateOp:
    """Drop the entries from `index` on; the one before it ends at `position`."""

    index: int
    position: int


@dataclass(frozen=True, slots=True)
class ResetOp:
    """Drop everything; the log begins at another place, empty."""

    begin_index: int
    begin_position: int


@dataclass(frozen=True, slots=True)
class FormatOp:
    """The entries behind this are of a later version of the format. Durable before they are written, so that
    no release finds entries that it misreads in a store of a version that it knows.
    """

    version: int


Op = AppendOp | TruncateOp | ResetOp | FormatOp


class SyncMark:
    """The file `synced` in a store's directory: up to which entry the data files are known to be on the disk.

        slot: sequence 8 | end index 8 | CRC-32 of both 4         two slots, 512 bytes apart, written in turn

    It is written after every sync of the data but not synced itself, so that no write waits for it. It is
    exact after the process was killed; after a power failure it is at worst the one of the last checkpoint,
    with which it is synced. It never exceeds what was synced. Before entries are dropped it is lowered
    durably, in both slots.
    """

    def __init__(self, fs: Fs, path: Path) -> None:
        self.end_index = NO_INDEX
        """Entries up to here were synced, as far as the mark knows."""
        self._fs = fs
        self._path = path
        self._fd: int | None = None
        self._sequence = 0
        self._is_name_synced = False
        self._is_synced = True

    def load(self) -> None:
        """Open and read the file, made if missing. Damaged slots are ignored."""
        self._is_name_synced = self._path.name in self._fs.list(self._path.parent)
        self._fd = self._fs.open(self._path)
        content = read_file(self._fs, self._path, MARK_BYTES) or b""
        slots = [decode_slot(content[at : at + SLOT.size]) for at in (0, SLOT_SPACING_BYTES)]
        self._sequence, self.end_index = max(slot or (0, NO_INDEX) for slot in slots)
        if self._fs.size(self._fd) != MARK_BYTES:
            self._fs.set_size(self._fd, MARK_BYTES)

    def raise_to(self, end_index: int) -> None:
        """Entries up to `end_index` have been synced. Left to the page cache."""
        if end_index > self.end_index:
            self.end_index = end_index
            self._write_next()

    def step_to(self, end_index: int) -> tuple[int, int, list[bytes]] | None:
        """As `raise_to`, but as (descriptor, place, bytes), for the caller to write; None when it need not be
        raised.
        """
        if end_index <= self.end_index or self._fd is None:
            return None
        self.end_index = end_index
        return self._fd, *self._next()

    def lower_to(self, end_index: int) -> None:
        """Entries behind `end_index` will be dropped: lower the mark durably first."""
        if end_index < self.end_index:
            self.end_index = end_index
            # Both slots: after a power failure the older one may be the only whole one, and it must not name
            # entries that are gone.
            self._write_next()
            self._write_next()
            self.sync()

    def sync(self) -> None:
        """Sync the file and, once, its name."""
        if self._fd is not None and not self._is_synced:
            self._fs.fdatasync(self._fd)
            self._is_synced = True
        if not self._is_name_synced:
            self._fs.fsync_directory(self._path.parent)
            self._is_name_synced = True

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None

    def _write_next(self) -> None:
        assert self._fd is not None, "load comes first"
        place, buffers = self._next()
        self._fs.pwrite(self._fd, buffers, place)

    def _next(self) -> tuple[int, list[bytes]]:
        self._sequence += 1
        self._is_synced = False
        slot = encode_slot(self._sequence, self.end_index)
        return self._sequence % 2 * SLOT_SPACING_BYTES, [slot]


def encode_slot(sequence: int, end_index: int) -> bytes:
    """A slot's bytes."""
    numbers = _NUMBERS.pack(sequence, end_index)
    return SLOT.pack(sequence, end_index, zlib.crc32(numbers))


def decode_slot(slot: bytes) -> tuple[int, int] | None:
    """(sequence, end index); None when the slot was never written or is damaged."""
    if len(slot) < SLOT.size:
        return None
    sequence, end_index, crc = SLOT.unpack(slot)
    if sequence <= 0 or zlib.crc32(slot[: _NUMBERS.size]) != crc:
        return None
    return sequence, end_index


class EntryFiles:
    """The files of one entry store in `directory`."""

    def __init__(self, fs: Fs, directory: Path, config: EntryStoreConfig) -> None:
        self._fs = fs
        self._has_system_files = type(fs) is OsFs
        self._directory = directory
        self._config = config
        self.data = Segments(fs, directory / "data", config.data_file_bytes, config.reserve_bytes)
        self.index = Segments(fs, directory / "index", config.index_file_bytes, config.reserve_bytes)
        self.checkpoint = Checkpoint()
        self.format_version: int | None = None
        """Of the file `format`; None: it is to be written."""
        self.mark = SyncMark(fs, directory / "synced")
        self.written_end_index = NO_INDEX
        self._data_end_index = NO_INDEX
        self._unsynced_bytes = 0

    def load_format(self) -> None:
        """Read `format_version`: None when the file is missing, or damaged while the data files have the
        expected sizes.

        Raises CorruptLogError when it is damaged and the sizes are others, or when it has other values.
        """
        path = self._directory / "format"
        found = self.read_small("format")
        version = None if found is None else check_format(path, found, self._format(FORMAT_VERSION))
        if found is not None and version is None and not self.data.has_expected_sizes():
            raise CorruptLogError(f"{path}: damaged, and the files are not of the sizes that are expected")
        self.format_version = version

    def save_format(self, version: int) -> None:
        """Durable when it returns."""
        replace_file(self._fs, self._directory / "format", self._format(version))
        self.format_version = version

    def _format(self, version: int) -> bytes:
        config = self._config
        return encode_format("dledger-entries", config.data_file_bytes, config.index_file_bytes, version)

    def load(self, begin_position: int, on_damage: Callable[[str], None] | None) -> None:
        """Open the files of a log that begins in the file of `begin_position` or behind it.

        Raises CorruptLogError for data files that do not follow each other; with `on_damage` that is called
        instead. Index files that do not follow each other are dropped, and recovery writes them again; so are
        those of an interrupted rebuild, which may have holes. Until `end_recovery`, unreadable sectors count
        as damage too.
        """
        if on_damage is not None:
            self.data.on_unreadable = on_damage
            self.index.on_unreadable = lambda reason: logger.warning("%s", reason)
        self.data.load(on_damage, begin_position - begin_position % self.data.file_bytes)
        self.checkpoint = decode_checkpoint(self.read_small("checkpoint"))
        self.mark.load()
        if REBUILDING in self._fs.list(self._directory):
            logger.warning("%s: an earlier rebuild was interrupted", self.index.directory)
            self.drop_index()
        try:
            self.index.load()
        except CorruptLogError as error:
            logger.warning("dropping the index files: %s", error)
            self.drop_index()
            self.index.load()

    @property
    def synced_index(self) -> int:
        """Entries up to here are known to have been synced."""
        return max(self.checkpoint.end_index, self.mark.end_index)

    def drop_index(self) -> None:
        """Delete the index files, the last first."""
        self.index.close()
        for name in reversed(self._fs.list(self.index.directory)):
            self._fs.delete(self.index.directory / name)
        self._fs.fsync_directory(self.index.directory)

    def begin_rebuild(self) -> None:
        """Record durably, once, that units are written again which the next start might not check: if a
        crash interrupts this, that start drops the index.
        """
        if REBUILDING not in self._fs.list(self._directory):
            self._fs.close(self._fs.open(self._directory / REBUILDING))
            self._fs.fsync_directory(self._directory)

    def end_rebuild(self) -> None:
        """The index is whole and synced."""
        if REBUILDING in self._fs.list(self._directory):
            self._fs.delete(self._directory / REBUILDING)

    def recovered(self, end_index: int) -> None:
        """The files hold entries up to here, on the disk, and nothing else."""
        self.written_end_index = self._data_end_index = end_index
        self.mark.raise_to(end_index)

    def end_recovery(self) -> None:
        """From now on a read of an unreadable sector raises its OSError."""
        self.data.on_unreadable = self.index.on_unreadable = None

    def read_small(self, name: str) -> bytes | None:
        """The content of a small file beside data and index; None when there is none."""
        return read_replaced_file(self._fs, self._directory / name, SMALL_FILE_BYTES_MAX)

    def read_units(self, first_index: int, count: int) -> bytes:
        """The index units of entries that are in the files."""
        return self.index.read(first_index * UNIT_BYTES, count * UNIT_BYTES)

    def locate(self, index: int) -> tuple[int, int, int]:
        """(position, size, term) of an entry that is in the files."""
        _, position, size, _, term = UNIT.unpack(self.read_units(index, 1))
        return position, size, term

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        """Carry the operations out. Raises OSError."""
        run: list[AppendOp] = []
        run_end = -1
        for op in ops:
            if isinstance(op, AppendOp):
                # One pwrite for all that follow each other within one file.
                if run and (op.position != run_end or op.position % self.data.file_bytes == 0):
                    self._append(run)
                    run = []
                run.append(op)
                run_end = op.position + len(op.data)
                continue
            if run:
                self._append(run)
                run = []
            if isinstance(op, FormatOp):
                self.save_format(op.version)
            else:
                self._cut(op)
        if run:
            self._append(run)
        if sync:
            self.sync_data()

    def steps_of(self, ops: Sequence[Op], sync: bool) -> list[Any] | None:
        """As `write`, but as steps that `native._log.Writer` carries out; then `steps_done` must be called.

        None when more than an append to open files is needed, or the files are not the operating system's.
        """
        run = [op for op in ops if isinstance(op, AppendOp) and op.units]
        if not self._has_system_files or not run or len(run) < len(ops):
            return None
        position, data_bytes = run[0].position, sum(len(op.data) for op in run)
        follows_on = position + data_bytes == run[-1].position + len(run[-1].data)
        is_bounded = self._unsynced_bytes + data_bytes <= self._config.unsynced_bytes_max
        # A new file, a gap or a sync in between is more than one write and one sync.
        if position % self.data.file_bytes == 0 or not follows_on or not is_bounded:
            return None
        unit_position, unit_bytes = run[0].first_index * UNIT_BYTES, sum(len(op.units) for op in run)
        data_fd = self.data.descriptor_for(position, data_bytes)
        index_fd = self.index.descriptor_for(unit_position, unit_bytes)
        if data_fd is None or index_fd is None or not self.data.needs_sync_at_most_of(position):
            return None
        data_step = (data_fd, position % self.data.file_bytes, [op.data for op in run])
        is_large = data_bytes >= self._config.direct_bytes_min
        is_direct = sync and is_large and all(op.is_replica for op in run)
        direct_fd = self.data.direct_descriptor_for(position) if is_direct else None
        steps: list[Any] = [
            data_step if direct_fd is None else (*data_step, direct_fd),
            (index_fd, unit_position % self.index.file_bytes, [op.units for op in run]),
        ]
        mark = None
        # The mark after the sync: it states that the data was synced.
        if sync:
            steps.append(data_fd)
            mark = self.mark.step_to(run[-1].last_index)
        if mark is not None:
            steps.append(mark)
        return steps

    def steps_done(self, ops: Sequence[Op], sync: bool) -> None:
        """The steps of these operations are done."""
        first, last = ops[0], ops[-1]
        assert isinstance(first, AppendOp), first
        assert isinstance(last, AppendOp), last
        data_bytes = last.position + len(last.data) - first.position
        assert first.first_index == self.written_end_index + 1, (first.first_index, self.written_end_index)
        self._unsynced_bytes = 0 if sync else self._unsynced_bytes + data_bytes
        self.data.was_written(first.position, sync)
        self.index.was_written(first.first_index * UNIT_BYTES, False)
        self._data_end_index = max(self._data_end_index, last.last_index)
        self.written_end_index = last.last_index

    def save_checkpoint(self, end_index: int, committed_index: int) -> None:
        """Sync data, index and mark, then record that in `checkpoint`: it must count only synced entries."""
        self.sync_data()
        self.index.sync()
        self.mark.sync()
        end_index = min(end_index, self.written_end_index)
        self._replace_checkpoint(Checkpoint(end_index, min(committed_index, end_index)))

    def overwrite(self, position: int, data: Buffer, first_index: int, units: Buffer) -> None:
        """Write repaired bytes over damaged ones, and sync."""
        self.data.write(position, [data])
        self.index.write(first_index * UNIT_BYTES, [units])
        self.sync_data()
        self.index.sync()

    def save_epochs(self, begin: LogBegin, is_durable: bool) -> None:
        """Write the `epochs` file."""
        replace_file(self._fs, self._directory / "epochs", begin.encode(), is_durable)

    def remove_before(self, begin: LogBegin) -> int:
        """Make the log's new begin durable, then delete the files before it. Returns how many data files."""
        self.save_epochs(begin, is_durable=True)
        self.index.drop_before(begin.begin_index * UNIT_BYTES)
        return self.data.drop_before(begin.begin_position)

    def close_removed(self) -> None:
        """The reading thread: close what `remove_before` deleted."""
        self.data.close_removed()
        self.index.close_removed()

    def write_leading_blank(self, begin_position: int) -> None:
        """Begin the first data file of an empty log that begins inside that file."""
        into_file = begin_position % self.data.file_bytes
        if into_file >= BLANK_BYTES:
            self.data.write(begin_position - into_file, [blank(into_file)])
            self.sync_data()

    def close(self) -> None:
        """Close all descriptors."""
        self.data.close()
        self.index.close()
        self.mark.close()

    def _append(self, run: Sequence[AppendOp]) -> None:
        position = run[0].position
        if position % self.data.file_bytes == 0:
            # The file before is full. Recovery may begin with the new one, so everything before it must be on
            # the disk before anything of it is.
            self.sync_data()
            self.index.sync()
        limit = self._config.unsynced_bytes_max
        part: list[AppendOp] = []
        part_bytes = 0
        for op in run:
            # One entry may be larger: recovery searches for no other entry inside it.
            assert len(op.data) <= limit or len(op.units) <= UNIT_BYTES, (len(op.data), limit)
            unsynced_bytes = self._unsynced_bytes + part_bytes
            if unsynced_bytes > 0 and unsynced_bytes + len(op.data) > limit:
                self._write_data(part, part_bytes)
                self.sync_data()
                part, part_bytes = [], 0
            part.append(op)
            part_bytes += len(op.data)
        self._write_data(part, part_bytes)
        units = [op.units for op in run if op.units]
        if units:
            first_index = next(op.first_index for op in run if op.units)
            assert first_index == self.written_end_index + 1, (first_index, self.written_end_index)
            self.index.write(first_index * UNIT_BYTES, units)
            self.written_end_index = first_index + sum(map(len, units)) // UNIT_BYTES - 1

    def _write_data(self, part: Sequence[AppendOp], part_bytes: int) -> None:
        if part:
            self.data.write(part[0].position, [op.data for op in part])
            self._data_end_index = max(self._data_end_index, *(op.last_index for op in part))
        self._unsynced_bytes += part_bytes

    def sync_data(self) -> None:
        """Sync all data, and raise the mark."""
        self.data.sync()
        self._unsynced_bytes = 0
        self.mark.raise_to(self._data_end_index)

    def _cut(self, op: TruncateOp | ResetOp) -> None:
        if isinstance(op, ResetOp):
            self._reset(op)
            return
        self.lower_synced_to(op.index - 1)
        self.data.truncate(op.position)
        self.index.truncate(op.index * UNIT_BYTES)
        self.written_end_index = min(self.written_end_index, op.index - 1)
        self._data_end_index = min(self._data_end_index, op.index - 1)

    def lower_synced_to(self, end_index: int) -> None:
        """Lower mark and checkpoint durably, before entries are dropped. Otherwise a crash in between leaves
        a checkpoint that counts missing entries, and the next start takes them for damage.
        """
        self.mark.lower_to(end_index)
        if end_index < self.checkpoint.end_index:
            self._replace_checkpoint(Checkpoint(end_index, min(self.checkpoint.committed_index, end_index)))

    def restart_at(self, begin: LogBegin) -> None:
        """Drop everything, durably; the log is empty and begins there."""
        self._reset(ResetOp(begin.begin_index, begin.begin_position))

    def _reset(self, op: ResetOp) -> None:
        # First nothing counts as synced, last the new begin: a crash in between leaves a log that recovery
        # reads from its old begin, or an empty one.
        self.mark.lower_to(NO_INDEX)
        self._data_end_index = NO_INDEX
        self._replace_checkpoint(Checkpoint())
        self.data.truncate(0)
        self.index.truncate(0)
        self.save_epochs(LogBegin(op.begin_index, op.begin_position), is_durable=True)
        self.write_leading_blank(op.begin_position)
        self.written_end_index = op.begin_index - 1

    def _replace_checkpoint(self, checkpoint: Checkpoint) -> None:
        replace_file(self._fs, self._directory / "checkpoint", checkpoint.encode())
        self.checkpoint = checkpoint
