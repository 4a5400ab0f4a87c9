"""The commit log of a single node without replication, in RocketMQ's own file format.

The files hold records back to back, as RocketMQ's CommitLog keeps them under `commitlog`. A record that does
not fit into its file with a blank behind it goes to the next file. The page `checkpoint` is RocketMQ's too;
recovery requires that the files reach the flushed position in it.

One writer thread: the messages put during a sync are written and synced together in the next round (group
commit). A put is answered, and its messages are dispatched, after the sync.
"""

import asyncio
import struct
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commitlog.dispatch import (
    Applied,
    DispatchBatch,
    Dispatcher,
    RecordRange,
    deletions_of,
    stamp_deletions,
)
from commitlog.entry import BLANK_BYTES, Buffer, place_entry
from commitlog.errors import CorruptLogError, PositionError
from commitlog.indexed_log import RANGE_BYTES_MAX, IndexedLog, MessageLogConfig
from commitlog.log import PutResult, PutStatus
from commitlog.record import (
    PHYSICAL_OFFSET_AT,
    CorruptRecordError,
    Message,
    MessageIllegalError,
    record_size,
    size_and_position,
)
from commitlog.recovery import BLANK_STOP, MORE, check_torn_tail, filler, find_record, scan_records
from commitlog.segments import Segments
from commitlog.sequences import record_runs
from dledger.core.membership import CHANGING_MEMBERS_LEVEL
from dledger.core.status import NodeStatus
from dledger.environment import wall_clock_ms
from dledger.fs import DiskWatch, Fs, OsFs, read_replaced_file, replace_file
from dledger.writer import WriteMetrics

WINDOW_BYTES: Final = 8 * 1024 * 1024
FILES_WALKED: Final = 3
CHECKPOINT_BYTES: Final = 4096
FLUSHED_AT: Final = 24
"""masterFlushedOffset in the checkpoint page. Three times are before it; only the first is kept."""

_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RecordStoreConfig:
    """Sizes and limits of a plain commit log."""

    file_bytes: int = 1024 * 1024 * 1024
    reserve_bytes: int = 16 * 1024 * 1024
    """Blocks are reserved ahead of the writing in steps of this size."""
    unsynced_bytes_max: int = 64 * 1024 * 1024
    """A sync is made before more than this is unsynced; recovery relies on it."""
    pending_messages_max: int = 10_000
    """Messages that wait for their sync at most; a further put gets OS_PAGE_CACHE_BUSY: this bounds memory
    while the disk is slow."""
    checkpoint_interval_ms: int = 3_000
    disk_full_ratio: float = 0.90
    disk_check_interval_ms: int = 1_000


Part = tuple[int, Buffer]
"""A position in the log, and the bytes to write there; never across a file's end."""


class RecordFiles:
    """The files, recovered. A record's index is the position of its last byte."""

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
        """As IndexedLog. Consumers check the CRC of the body themselves; the rest of a record has none."""
        start = units[0][0]
        last, last_size = units[-1]
        data = memoryview(self.read(start, last + last_size - start))
        records = [data[position - start : position - start + size] for position, size in units]
        for (position, size), record in zip(units, records, strict=True):
            if size_and_position(record) != (size, position):
                raise PositionError(f"no record of {size} bytes at position {position}")
        return records

    def read_batch(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As IndexedLog: the records of a range of one file."""
        position = max(index, self.min_position)
        if last_index < position:
            return DispatchBatch.of([]), Applied(last_index, position)
        room = self._config.file_bytes - position % self._config.file_bytes
        available = min(room, last_index + 1 - position)
        data = self.read(position, min(available, RANGE_BYTES_MAX))
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
        records = RecordRange(index, position + end - 1, position, memoryview(data)[:end], header_bytes=0)
        deletions = deletions_of(requests, data, position)
        batch = DispatchBatch.of(requests, record_runs(data, starts, indexes), records, deletions)
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
        """The end of the last whole record; the bytes behind it are cut off."""
        starts = self._segments.starts()
        if not starts:
            if flushed_position > 0:
                raise CorruptLogError(
                    f"{self._segments.directory}: no files, the checkpoint has {flushed_position} bytes"
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
        check_torn_tail(where, stop, end_position < flushed_position, self._find_later(position))
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


@dataclass(slots=True)
class _Round:
    """The puts that are written and synced together."""

    parts: list[Part] = field(default_factory=list)
    callbacks: list[Callable[[PutStatus], None]] = field(default_factory=list)
    messages: int = 0
    end_position: int = 0
    store_timestamp_ms: int = 0
    took_s: float = 0.0
    """Its write and sync, known at their end."""


class CommitLog(IndexedLog):
    """Keeps `commitlog.log.MessageLog` for one node."""

    def __init__(
        self,
        store: Path,
        config: MessageLogConfig,
        record_config: RecordStoreConfig | None = None,
        *,
        on_fatal: Callable[[BaseException], None],
        fs: Fs | None = None,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Opens and recovers the files in `store`. `on_fatal` is called when the node must stop.

        Raises CorruptLogError, OSError.
        """
        fs = fs or OsFs()
        fs.make_directory(store)
        self._config = record_config or RecordStoreConfig()
        self._disk = DiskWatch(
            fs, store, self._config.disk_full_ratio, self._config.disk_check_interval_ms, time.monotonic
        )
        self._on_fatal = on_fatal
        self._clock = clock
        self._files = files = RecordFiles(fs, store, self._config, Dispatcher(config.delay_levels_ms))
        end = Applied(files.end_index, files.end_position)
        record_bytes_max = self._config.file_bytes - BLANK_BYTES
        super().__init__(fs, store, config, end, record_bytes_max, lambda: None, self._fail)
        self._end_position = self._files.end_position
        self._gathering = _Round()
        self._pending_messages = 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-writer")
        self._writing: asyncio.Task[None] | None = None
        self._checkpoint_due = 0.0
        self._last: _Round | None = None
        self._has_failed = False
        self.write_metrics = WriteMetrics()

    @property
    def end_position(self) -> int:
        """First byte after the last record, durable or not."""
        return self._end_position

    @property
    def begin_index(self) -> int:
        """As MessageLog."""
        return 0

    @property
    def format_level(self) -> int:
        """As MessageLog. No other node reads this log."""
        return CHANGING_MEMBERS_LEVEL

    def suspend_writes(self, is_suspended: bool) -> None:
        """As MessageLog. Ignored: no table of a single node waits for another leader's records."""

    def is_writable(self) -> bool:
        """Until a write fails."""
        return not self._has_failed

    def shows_all_committed(self) -> bool:
        """Always: there is no other node."""
        return True

    def on_writable_change(self, callback: Callable[[bool], None]) -> None:
        """Never called: it is writable until the node stops."""

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        """As MessageLog."""
        assert messages, "a put without a message"
        if deleted_topics:
            stamp_deletions(messages[-1], deleted_topics)
        if self._has_failed or self._disk.is_full():
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, [], [], 0)
        if self._pending_messages + len(messages) > self._config.pending_messages_max:
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY, [], [], 0)
        if any(0 in message.properties for message in messages):
            # A record's CRC covers its body only: recovery recognizes a torn write by zero bytes in the
            # properties.
            return PutResult(PutStatus.MESSAGE_ILLEGAL, [], [], 0)
        now_ms = self._clock()
        try:
            batch = self._offsets.encode(messages, now_ms)
        except MessageIllegalError:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, [], [], 0)
        # No await from `encode` to here: no other put can get the same offsets or positions.
        positions = self._lay_out(batch.bodies)
        self._offsets.assign(batch, deleted_topics)
        gathering = self._gathering
        gathering.callbacks.append(on_done)
        gathering.messages += len(messages)
        gathering.end_position = self._end_position
        gathering.store_timestamp_ms = now_ms
        self._pending_messages += len(messages)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_rounds(), name="commit log writer")
        return PutResult(PutStatus.PUT_OK, positions, batch.queue_offsets, now_ms)

    async def start(self) -> None:
        """Dispatch what the queues do not have yet."""
        self._flusher.start()
        self._reput.advance_to(self._files.end_index)

    async def stop(self) -> None:
        """Write and sync everything that was put. Raises OSError."""
        if self._writing is not None:
            await self._writing
        was_failed, self._has_failed = self._has_failed, True
        try:
            await self._stop_dispatch()
            if not was_failed and self._last is not None:
                self._save_checkpoint(self._last)
        finally:
            self._writer.shutdown(wait=True)
            self._files.close()

    def status(self) -> NodeStatus | None:
        """A plain log has no replication engine."""
        return None

    # -- IndexedLog: where the bytes are -------------------------------------------------------------------

    @property
    def min_position(self) -> int:
        """As MessageLog."""
        return self._files.min_position

    def end_of(self, index: int) -> int:
        """As MessageLog."""
        return self._files.end_of(index)

    def _cached_from(self) -> int:
        return sys.maxsize  # nothing is kept in memory: all is read from the files

    def _read_bytes(self, position: int, size_bytes: int) -> Buffer:
        return self._files.read(position, size_bytes)

    def _read_records(self, units: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        return self._files.read_records(units)

    def _read_units(self, units: bytes, readable_end: int) -> bytes | None:
        return None

    def _read_batch(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        return self._files.read_batch(index, last_index)

    def _lay_out(self, bodies: Sequence[bytes]) -> list[int]:
        """Assign each record its position, and add its bytes to the next round."""
        file_bytes = self._config.file_bytes
        parts: list[Part] = []
        positions = []
        end = self._end_position
        for body in bodies:
            position = place_entry(end, len(body), file_bytes)
            if position != end:
                parts.append((end, filler(position - end)))
            own_position = position.to_bytes(8, "big")
            parts.append(
                (position, body[:PHYSICAL_OFFSET_AT] + own_position + body[PHYSICAL_OFFSET_AT + 8 :])
            )
            assert position % file_bytes + len(body) + BLANK_BYTES <= file_bytes, (position, len(body))
            positions.append(position)
            end = position + len(body)
        self._end_position = end
        self._gathering.parts += parts
        return positions

    async def _write_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while self._gathering.callbacks and not self._has_failed:
            current, self._gathering = self._gathering, _Round()
            try:
                await loop.run_in_executor(self._writer, self._write, current)
            except OSError as error:
                self._fail(error)
                for callback in current.callbacks + self._gathering.callbacks:
                    callback(PutStatus.UNKNOWN_ERROR)
                break
            # Dispatch comes before the answers: a producer that was answered finds its message in the queue.
            self._pending_messages -= current.messages
            size_bytes = sum(len(data) for _, data in current.parts)
            self.write_metrics.written(current.took_s, current.messages, size_bytes)
            self._reput.advance_to(current.end_position - 1)
            for callback in current.callbacks:
                callback(PutStatus.PUT_OK)
        self._writing = None

    def _write(self, current: _Round) -> None:
        begun_s = time.perf_counter()
        self._files.write(current.parts)
        current.took_s = time.perf_counter() - begun_s
        self._last = current
        if time.monotonic() >= self._checkpoint_due:
            self._save_checkpoint(current)

    def _save_checkpoint(self, written: _Round) -> None:
        self._files.save_checkpoint(written.end_position, written.store_timestamp_ms)
        self._checkpoint_due = time.monotonic() + self._config.checkpoint_interval_ms / 1000

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._halt_dispatch()
        self._on_fatal(error)
