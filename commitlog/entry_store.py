"""The replicated log of one node on its disk: DLedger's data and index files behind
`dledger.core.ports.LogStore`.

Appending happens in memory, on the event loop: entries are laid out once, and the same bytes go to the cache,
to the peers and to the files. `take_writes` returns the changes since the last call; the writer thread
carries them out in `write`; then the event loop calls `written`. Entries that are not written yet are read
from the cache. After a failed write nothing more is written: the content of the disk is then unknown, and the
node must stop.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitlog.checkpoint import FORMAT_VERSION, MEMBERS_FORMAT_VERSION, LogBegin, decode_log_begin
from commitlog.cold_reads import ColdReader
from commitlog.entry import (
    BLANK_BYTES,
    HEADER,
    HEADER_BYTES,
    UNIT_BYTES,
    AppendHook,
    Buffer,
    blank,
    configuration_bodies,
    encode_on_channel,
    encode_units,
    entry_position,
    find_channel,
    place_entry,
    verify_entries,
)
from commitlog.entry_chunks import Chunk, EntryCache, EntryLayout
from commitlog.entry_files import (
    AppendOp,
    EntryFiles,
    EntryStoreConfig,
    FormatOp,
    Op,
    ResetOp,
    TruncateOp,
)
from commitlog.entry_recovery import RecoveredLog, recover
from commitlog.record import CorruptRecordError, decode_record
from commitlog.scrubber import Scrubber
from dledger.core.membership import ConfigurationEntry, ConfigurationError, decode_configuration
from dledger.core.types import (
    NO_INDEX,
    CorruptRangeError,
    DamagedEntryError,
    EntryRange,
    Epoch,
    LogState,
    Scrubbed,
)
from dledger.fs import DiskWatch, Fs, OsFs

_SEARCH_BYTES = 4 * 1024 * 1024
"""Read at once while the whole log is searched for configurations."""


class StoreFailedError(OSError):
    """An earlier write failed; this store accepts no more."""


@dataclass(frozen=True, slots=True)
class Writes:
    """Changes of the log in their order, to be written to the files."""

    ops: Sequence[Op]
    chunks: Sequence[Chunk]
    begin: LogBegin | None
    """The new epochs, when they changed."""


def open_entry_store(
    directory: Path,
    config: EntryStoreConfig | None = None,
    append_hook: AppendHook | None = None,
    fs: Fs | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_damage: Callable[[str], None] | None = None,
) -> "EntryStore":
    """Open the store in `directory`, created if missing, and recover it.

    When bytes that had been synced are damaged, missing or unreadable, `on_damage` is called with the reason
    before anything is changed; then the log is cut at the damage. It may be called more than once. Without
    it, such damage raises CorruptLogError, or the OSError of the read. A store with other file sizes or
    another version always raises CorruptLogError. Raises OSError.
    """
    config = config or EntryStoreConfig()
    fs = fs or OsFs()
    fs.make_directory(directory)
    files = EntryFiles(fs, directory, config)
    try:
        files.load_format()
        known = decode_log_begin(files.read_small("epochs"))
        files.load(known.begin_position if known is not None else 0, on_damage)
        log = recover(files, known, config, on_damage)
        files.end_recovery()
        if known != log.begin:
            files.save_epochs(log.begin, is_durable=True)
        if files.format_version is None:
            files.save_format(FORMAT_VERSION)
    except BaseException:
        files.close()
        raise
    disk = DiskWatch(fs, directory, config.disk_full_ratio, config.disk_check_interval_ms, clock)
    return EntryStore(directory, config, files, log, append_hook, disk)


class EntryStore:
    """The log of one node; made by `open_entry_store`. Keeps `LogStore`."""

    def __init__(
        self,
        directory: Path,
        config: EntryStoreConfig,
        files: EntryFiles,
        log: RecoveredLog,
        append_hook: AppendHook | None,
        disk: DiskWatch,
    ) -> None:
        self.directory = directory
        self.config = config
        self._files = files
        self._disk = disk
        self._layout = EntryLayout(config, append_hook)
        self._append_hook = append_hook
        self.cache = EntryCache(config.cache_bytes_max)
        self.cold = ColdReader(files)
        self._scrubber = Scrubber(files)
        self.begin = log.begin
        """Where the log begins: read only. Immutable and replaced as a whole, since the writer thread reads
        it too.
        """
        self.end_index = log.end_index
        """Read only: the last entry, written or not; begin_index - 1 when there is none."""
        self.end_position = log.end_position
        """Read only: first byte after the last entry."""
        self._recovered_commit_index = min(files.checkpoint.committed_index, log.end_index)
        self._has_old_format = files.format_version != MEMBERS_FORMAT_VERSION
        self._ops: list[Op] = []
        self._new_chunks: list[Chunk] = []
        self._has_new_epochs = False
        self._has_failed = False
        self._removal: LogBegin | None = None
        """What `remove_files` makes durable."""

    @property
    def begin_index(self) -> int:
        """The first entry."""
        return self.begin.begin_index

    def log_state(self) -> LogState:
        """What recovery found, with what was appended since."""
        commit_index = max(self.begin_index - 1, min(self._recovered_commit_index, self.end_index))
        return LogState(self.begin_index, self.end_index, self.begin.epochs, commit_index)

    def append_bodies(self, first_index: int, term: int, bodies: Sequence[bytes]) -> list[int]:
        """Lay out new entries in memory; returns their positions.

        Raises ValueError, with nothing appended, for a body that no data file can hold.
        """
        assert first_index == self.end_index + 1, (first_index, self.end_index)
        chunks, positions = self._layout.lay_out(first_index, term, self.end_position, bodies)
        for chunk in chunks:
            self._append(chunk)
        return positions

    def append_configuration(self, index: int, term: int, body: bytes) -> int:
        """As LogStore. The body is a record whose message is the configuration."""
        assert index == self.end_index + 1, (index, self.end_index)
        file_bytes = self.config.data_file_bytes
        position = place_entry(self.end_position, HEADER_BYTES + len(body), file_bytes)
        data, units = encode_on_channel(body, index, term, position, self._append_hook)
        self._raise_format()
        self._append(Chunk(index, index, term, position, data, units))
        return position

    def configurations_in(self, entries: EntryRange) -> list[ConfigurationEntry]:
        """As LogReader."""
        return [
            ConfigurationEntry(index, term, decode_configuration(decode_record(body).body))
            for index, term, body in configuration_bodies(entries.data)
        ]

    def find_configurations(self) -> list[ConfigurationEntry]:
        """All in the log, which is read from its begin on; what is damaged is passed by."""
        found: list[ConfigurationEntry] = []
        index = self.begin_index
        while index <= self.end_index:
            try:
                entries = self.read_range(index, self.end_index, _SEARCH_BYTES)
            except DamagedEntryError as error:
                index = error.last_index + 1
                continue
            found += self.configurations_in(entries)
            index = entries.last_index + 1
        return found

    def verify_range(self, entries: EntryRange) -> None:
        """Check the entries' headers and CRCs against each other, and that configurations can be read.

        Raises CorruptRangeError.
        """
        verify_entries(entries)
        try:
            self.configurations_in(entries)
        except (ConfigurationError, CorruptRecordError) as error:
            raise CorruptRangeError(f"in entries from {entries.first_index} on: {error}") from None

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        """Whether `append_range` accepts these verified entries, by their position, after it accepted
        `after`.
        """
        end = self.end_position if after is None else entry_position(after.data) + len(after.data)
        file_bytes, data = self.config.data_file_bytes, entries.data
        position = place_entry(end, HEADER.unpack_from(data)[1], file_bytes)
        room = file_bytes - position % file_bytes
        return entry_position(data) == position and len(data) + BLANK_BYTES <= room

    def append_range(self, entries: EntryRange) -> None:
        """Append verified bytes as they came. Raises CorruptRangeError if they do not continue this log."""
        data = entries.data
        first_size = HEADER.unpack_from(data)[1] if len(data) >= HEADER_BYTES else 0
        position = place_entry(self.end_position, first_size, self.config.data_file_bytes)
        if entries.first_index != self.end_index + 1 or entry_position(data) != position:
            raise CorruptRangeError(
                f"entry {entries.first_index} at position {entry_position(data)} does not continue a log "
                f"that goes on with entry {self.end_index + 1} at position {position}"
            )
        if self.begin.epochs and entries.term < self.begin.epochs[-1].term:
            raise CorruptRangeError(f"term {entries.term} follows term {self.begin.epochs[-1].term}")
        room = self.config.data_file_bytes - position % self.config.data_file_bytes
        if len(data) + BLANK_BYTES > room:
            raise CorruptRangeError(f"{len(data)} bytes at position {position}, {room} bytes of file left")
        units = encode_units(data)
        count = entries.last_index - entries.first_index + 1
        if len(units) != count * UNIT_BYTES:
            raise CorruptRangeError(f"{len(units) // UNIT_BYTES} entries in a range of {count}")
        if self._has_old_format and find_channel(data, 0) >= 0:
            self._raise_format()
        chunk = Chunk(entries.first_index, entries.last_index, entries.term, position, data, units)
        self._append(chunk, is_replica=True)

    def _raise_format(self) -> None:
        """Before the first entry that names members: there is no way back to a release that misreads it."""
        if self._has_old_format:
            self._has_old_format = False
            self._ops.append(FormatOp(MEMBERS_FORMAT_VERSION))

    def truncate_from(self, index: int) -> None:
        """Drop the entries >= index."""
        assert self.begin_index <= index, (self.begin_index, index)
        if index > self.end_index:
            return
        end_position = self.begin.begin_position if index == self.begin_index else self._end_of(index - 1)
        self.cache.truncate_from(index)
        self.end_index = index - 1
        self.end_position = end_position
        self._set_epochs(tuple(epoch for epoch in self.begin.epochs if epoch.first_index < index))
        self._ops.append(TruncateOp(index, end_position))

    def reset(self, begin_index: int, begin_position: int) -> None:
        """Drop everything; the next entry is begin_index, at begin_position."""
        assert min(begin_index, begin_position) >= 0, (begin_index, begin_position)
        self.cache.clear()
        self.begin = LogBegin(begin_index, begin_position)
        self.end_index = begin_index - 1
        self.end_position = begin_position
        self._has_new_epochs = True
        self._removal = None
        self._recovered_commit_index = begin_index - 1
        self._ops.append(ResetOp(begin_index, begin_position))

    def begin_at(self, begin_index: int) -> None:
        """The log begins with this entry, which is in the files; those before it are no longer part of it."""
        assert self.begin_index <= begin_index <= self.end_index, (begin_index, self.end_index)
        self.begin = self._removal = self.begin.moved_to(begin_index, self.position_of(begin_index))

    def remove_files(self) -> int:
        """Writer thread: make the log's begin durable and delete the files before it; how many."""
        removal, self._removal = self._removal, None
        with self._failing():
            return 0 if removal is None else self._files.remove_before(removal)

    def close_removed(self) -> None:
        """Event loop: close the files that `remove_files` deleted, which frees their disk space."""
        self._files.close_removed()

    def old_files(self) -> Iterator[tuple[int, int | None]]:
        """The end of each data file but the last, and the first entry behind it, if it can be read."""
        for end in self._files.data.starts()[1:]:
            head = self.cold.head_at(end)
            yield end, None if head is None else head.index

    def used_ratio(self) -> float:
        """How full the file system is."""
        return self._disk.used_ratio()

    def take_writes(self) -> Writes | None:
        """All changes since the last call; None when there are none."""
        if not self._ops:
            return None
        begin = self.begin if self._has_new_epochs else None
        # The lists themselves go to the writer thread; the event loop continues with new ones.
        writes = Writes(self._ops, self._new_chunks, begin)
        self._ops, self._new_chunks = [], []
        self._has_new_epochs = False
        return writes

    def write(self, writes: Writes, sync: bool) -> None:
        """Writer thread: carry the changes out. After an OSError every further call raises
        StoreFailedError.
        """
        with self._failing():
            self._files.write(writes.ops, sync)
            if writes.begin is not None:
                # Not durable: the next start compares it with the log.
                self._files.save_epochs(writes.begin, is_durable=False)

    def steps_of(self, writes: Writes, sync: bool) -> list[Any] | None:
        """As LogStore."""
        if self._has_failed or writes.begin is not None:
            return None  # new epochs need a file to be replaced, which is more than steps
        return self._files.steps_of(writes.ops, sync)

    def steps_done(self, writes: Writes, sync: bool, error: OSError | None) -> None:
        """As LogStore."""
        if error is None:
            self._files.steps_done(writes.ops, sync)
        else:
            self._has_failed = True

    def written(self, writes: Writes) -> None:
        """Loop thread: the files hold these changes now."""
        # Only now: a chunk that is not in the files must stay in the cache, whatever its size. A retired
        # descriptor is closed here, on the thread that reads, so that no read can be using it.
        for chunk in writes.chunks:
            chunk.is_written = True
        self.cache.evict()
        for row in (self._files.data, self._files.index):
            if row.retired_fds:
                row.close_retired()

    def save_checkpoint(self, end_index: int, committed_index: int) -> None:
        """Writer thread: sync data and index, then remember both numbers, as far as they are written."""
        with self._failing():
            self._files.save_checkpoint(end_index, committed_index)

    def replace_range(self, entries: EntryRange) -> None:
        """Writer thread: put entries over damaged ones, synced; CorruptRangeError if they do not fit."""
        with self._failing():
            self._scrubber.replace(self.begin, entries)

    def scrub(self, bytes_max: int) -> Scrubbed:
        """Writer thread: read and check the next committed entries; after the last, the first again."""
        with self._failing():
            return self._scrubber.scrub(self.begin, bytes_max)

    def position_of(self, index: int) -> int:
        """Start position of an entry."""
        assert self.begin_index <= index <= self.end_index, (self.begin_index, index, self.end_index)
        chunk = self.cache.chunk_of(index)
        if chunk is not None:
            return chunk.position_of(index)
        return self.cold.position_of(index, self.begin_index, self.begin.begin_position)

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        """As LogReader. Cached entries are the bytes that were appended; those of the files are checked."""
        begin_index, end_index = self.begin.begin_index, self.end_index
        assert begin_index <= first_index <= last_index <= end_index, (
            begin_index,
            first_index,
            last_index,
            end_index,
        )
        found = self.cache.read_range(first_index, last_index, bytes_max, self.config.data_file_bytes)
        if found is not None:
            return found
        cached_from = self.cache.first_index
        if cached_from is not None:
            last_index = min(last_index, cached_from - 1)
        return self.cold.read_range(first_index, last_index, bytes_max)

    def read_bodies(self, units: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bodies at (position, size) before `cached_from`, close together, read at once and checked.

        Raises DamagedEntryError; PositionError when the log is whole there, but no body is at one of them.
        """
        cached_from = self.cache.first_index
        end_index = self.end_index if cached_from is None else cached_from - 1
        return self.cold.read_bodies(units, self.begin_index, end_index)

    def read(self, position: int, size_bytes: int) -> Buffer:
        """Bytes within one chunk of entries, or unchecked ones of the files, known to be there."""
        chunk = self.cache.chunk_at(position)
        if chunk is not None:
            start = position - chunk.position
            return chunk.data[start : start + size_bytes]
        return self._files.data.read(position, size_bytes)

    @property
    def cached_from(self) -> int:
        """The position from which on `read` needs no file."""
        position = self.cache.first_position
        return self.end_position if position is None else position

    def end_of(self, index: int) -> int:
        """First byte after an entry; the log's begin for the entry before the first."""
        return self.begin.begin_position if index < self.begin_index else self._end_of(index)

    def is_disk_full(self) -> bool:
        """Whether the file system is fuller than the configured ratio; checked once a second at most."""
        return self._disk.is_full()

    def close(self) -> None:
        """Close the files. The writer thread must have ended."""
        self._files.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """After a failed write nothing more is written: what the disk holds is not known."""
        if self._has_failed:
            raise StoreFailedError(f"{self.directory}: an earlier write failed")
        try:
            yield
        except CorruptRangeError:
            raise  # raised before anything was written
        except BaseException:
            self._has_failed = True
            raise

    def _set_epochs(self, epochs: tuple[Epoch, ...]) -> None:
        if epochs != self.begin.epochs:
            self.begin = dataclasses.replace(self.begin, epochs=epochs)
            self._has_new_epochs = True

    def _append(self, chunk: Chunk, is_replica: bool = False) -> None:
        if chunk.position != self.end_position:
            gap = blank(chunk.position - self.end_position)
            self._ops.append(AppendOp(self.end_position, gap, NO_INDEX, NO_INDEX, b""))
        first_index, last_index = chunk.first_index, chunk.last_index
        assert first_index == self.end_index + 1, (first_index, self.end_index)
        self._ops.append(
            AppendOp(chunk.position, chunk.data, first_index, last_index, chunk.units, is_replica)
        )
        self._new_chunks.append(chunk)
        self.cache.append(chunk)
        self.end_index = chunk.last_index
        self.end_position = chunk.end_position
        epochs = self.begin.epochs
        if not epochs or epochs[-1].term != chunk.term:
            assert not epochs or epochs[-1].term < chunk.term, (epochs[-1], chunk.term)
            self._set_epochs((*epochs, Epoch(chunk.term, chunk.first_index)))

    def _end_of(self, index: int) -> int:
        chunk = self.cache.chunk_of(index)
        if chunk is not None:
            return chunk.end_of(index)
        return self.cold.end_of(index)
