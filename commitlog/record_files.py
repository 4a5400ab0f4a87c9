"""The files of a plain commit log: records back to back, as RocketMQ's CommitLog keeps them under
`commitlog`.

A record that does not fit into its file with a blank behind it goes to the next one. What RocketMQ keeps in
its `checkpoint` page is kept there too; the flushed position in it is what recovery holds the files to.
"""

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlog.dispatch import Dispatcher, deletions_of
from commitlog.dispatch_batch import DispatchBatch
from commitlog.entry import Buffer
from commitlog.errors import PositionError
from commitlog.queue_checkpoint import Applied
from commitlog.record import CorruptRecordError, own_words, record_size
from commitlog.record_keys import RecordStretch
from commitlog.recovery import BLANK_STOP, MORE, CorruptLogError, find_record, judge_stop, scan_records
from commitlog.reput import STRETCH_BYTES_MAX
from commitlog.segments import Segments
from commitlog.sequences import record_runs
from dledger.fs import Fs, read_replaced_file, replace_file

WINDOW_BYTES: Final = 8 * 1024 * 1024
FILES_WALKED: Final = 3
CHECKPOINT_BYTES: Final = 4096
FLUSHED_AT: Final = 24
"""masterFlushedOffset in the checkpoint page; before it stand three times of which the first is kept."""

_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RecordStoreConfig:
    """Sizes and limits of a plain commit log."""

    file_bytes: int = 1024 * 1024 * 1024
    reserve_bytes: int = 16 * 1024 * 1024
    """Blocks are reserved ahead of the writing in steps of this size."""
    unsynced_bytes_max: int = 64 * 1024 * 1024
    """A sync is made before more than this would stand unsynced; recovery relies on it."""
    pending_messages_max: int = 10_000
    """Messages that wait for their sync at most; then OS_PAGE_CACHE_BUSY."""
    checkpoint_interval_ms: int = 3_000
    disk_full_ratio: float = 0.90
    disk_check_interval_ms: int = 1_000


Part = tuple[int, Buffer]
"""Bytes and where in the log they go; never across a file's end."""


class RecordFiles:
    """The files, recovered. Also a `RecordLog`; a record's index is the position of its last byte."""

    def __init__(self, fs: Fs, store: Path, config: RecordStoreConfig, dispatcher: Dispatcher) -> None:
        """Opens and recovers. Raises CorruptLogError, OSError."""
        self._fs = fs
        self._checkpoint = store / "checkpoint"
        self._config = config
        self._dispatcher = dispatcher
        self._segments = Segments(fs, store / "commitlog", config.file_bytes, config.reserve_bytes)
        self._segments.load()
        self.end_position = self._recover(self._flushed_position())

    @property
    def min_position(self) -> int:
        """Where the first file starts."""
        starts = self._segments.starts()
        return starts[0] if starts else 0

    @property
    def end_index(self) -> int:
        """The last record recovered, by the position of its last byte."""
        return self.end_position - 1

    def end_of(self, index: int) -> int:
        """First byte after a record."""
        return max(index + 1, self.min_position)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Bytes that are in the files."""
        return self._segments.read(position, size_bytes)

    def read_records(self, units: Sequence[tuple[int, int]]) -> list[memoryview]:
        """As ByteSource. Consumers check the CRC of the body themselves; the rest of a record has none."""
        start = units[0][0]
        last, last_size = units[-1]
        data = memoryview(self.read(start, last + last_size - start))
        records = [data[position - start : position - start + size] for position, size in units]
        for (position, size), record in zip(units, records, strict=True):
            if own_words(record) != (size, position):
                raise PositionError(f"no record of {size} bytes at position {position}")
        return records

    def gather_records(self, units: bytes, readable_end: int) -> bytes | None:
        """As ByteSource."""
        return None

    @property
    def cached_from(self) -> int:
        """Nothing is kept in memory: all is read from the files."""
        return sys.maxsize

    def requests_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As DispatchSource: the records of one stretch of one file."""
        position = max(index, self.min_position)
        if last_index < position:
            return DispatchBatch.of([]), Applied(last_index, position)
        room = self._config.file_bytes - position % self._config.file_bytes
        available = min(room, last_index + 1 - position)
        data = self.read(position, min(available, STRETCH_BYTES_MAX))
        starts, end = _record_starts(data)
        if not starts:
            try:
                size = record_size(data)
            except CorruptRecordError:
                # A blank: recovery and writing leave nothing else between records.
                return DispatchBatch.of([]), Applied(position + room - 1, position + room)
            data = self.read(position, min(available, size))
            starts, end = [0], len(data)
        ends = [*starts[1:], end]
        indexes = [position + at - 1 for at in ends]
        requests = self._dispatcher.parse(data, starts, position, indexes)
        stretch = RecordStretch(index, position + end - 1, position, memoryview(data)[:end], header_bytes=0)
        deletions = deletions_of(requests, data, position)
        batch = DispatchBatch.of(requests, record_runs(data, starts, indexes), stretch, deletions)
        return batch, Applied(position + end - 1, position + end)

    def write(self, parts: Sequence[Part]) -> None:
        """Writer thread: write and sync. Raises OSError."""
        run: list[Buffer] = []
        run_start = run_end = parts[0][0]
        for position, data in parts:
            is_file_start = position % self._config.file_bytes == 0
            is_too_long = position + len(data) - run_start > self._config.unsynced_bytes_max
            if position != run_end or is_file_start or is_too_long:
                self._write_run(run_start, run)
                run, run_start = [], position
            run.append(data)
            run_end = position + len(data)
        self._write_run(run_start, run)

    def save_checkpoint(self, flushed_position: int, store_timestamp_ms: int) -> None:
        """Writer thread: remember what was synced. Raises OSError."""
        page = bytearray(CHECKPOINT_BYTES)
        _INT64.pack_into(page, 0, store_timestamp_ms)
        _INT64.pack_into(page, FLUSHED_AT, flushed_position)
        replace_file(self._fs, self._checkpoint, bytes(page))

    def close(self) -> None:
        """Close the files."""
        self._segments.close()

    def _write_run(self, position: int, run: Sequence[Buffer]) -> None:
        if run:
            self._segments.write(position, run)
            self._segments.sync()

    def _flushed_position(self) -> int:
        page = read_replaced_file(self._fs, self._checkpoint, CHECKPOINT_BYTES) or b""
        return int(_INT64.unpack_from(page, FLUSHED_AT)[0]) if len(page) >= FLUSHED_AT + 8 else 0

    def _recover(self, flushed_position: int) -> int:
        """The end of the whole records; what stood behind it is cut off."""
        starts = self._segments.starts()
        if not starts:
            if flushed_position > 0:
                raise CorruptLogError(
                    f"{self._segments.directory}: no files, the checkpoint says {flushed_position} bytes"
                )
            return 0
        position = end_position = self._walk_start(starts)
        window_bytes = WINDOW_BYTES
        while True:
            if not self._segments.has(position):
                stop = "the next file is missing"
                break
            room = self._config.file_bytes - position % self._config.file_bytes
            data = self.read(position, min(room, window_bytes))
            scan = scan_records(data, position, room, flushed_position)
            position += scan.size_bytes
            if scan.size_bytes > 0:
                end_position = position
            if scan.stop == MORE:
                window_bytes = max(WINDOW_BYTES, scan.bytes_needed)
            elif scan.stop == BLANK_STOP:
                position += room - scan.size_bytes
            else:
                stop = scan.stop
                break
        where = f"{self._segments.path_of(position)}: position {position}"
        judge_stop(where, stop, end_position < flushed_position, self._find_later(position))
        self._segments.truncate(end_position)
        return end_position

    def _walk_start(self, starts: Sequence[int]) -> int:
        for start in starts[-FILES_WALKED::-1]:
            if find_record(self.read(start, min(self._config.file_bytes, WINDOW_BYTES)), start) == start:
                return start
        return starts[0]

    def _find_later(self, position: int) -> int | None:
        position += self._config.unsynced_bytes_max
        size_bytes = min(WINDOW_BYTES, self._segments.starts()[-1] + self._config.file_bytes - position)
        return find_record(self.read(position, size_bytes), position) if size_bytes > 0 else None


def _record_starts(data: bytes) -> tuple[list[int], int]:
    """Where the whole records in `data` begin, and where the last of them ends."""
    starts = []
    at = 0
    while at < len(data):
        try:
            size = record_size(data, at)
        except CorruptRecordError:
            break
        if at + size > len(data):
            break
        starts.append(at)
        at += size
    return starts, at
