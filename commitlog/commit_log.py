"""The commit log of a single node, in RocketMQ's own file format.

One writer thread: what is put while it syncs goes to the disk together in the next round (group commit). A
put is answered, and its messages are dispatched, after the sync.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from commitlog.deletions import stamp
from commitlog.dispatch import Dispatcher
from commitlog.entry import BLANK_BYTES, place_entry
from commitlog.indexed_log import IndexedLog
from commitlog.indexer import Indexer, MessageLogConfig
from commitlog.log import PutResult, PutStatus
from commitlog.queue_offsets import QueueOffsets
from commitlog.record import PHYSICAL_OFFSET_AT, Message, MessageIllegalError
from commitlog.record_files import Part, RecordFiles, RecordStoreConfig
from commitlog.recovery import filler
from dledger.core.status import NodeStatus
from dledger.environment import wall_clock_ms
from dledger.fs import DiskWatch, Fs, OsFs
from dledger.writer import WriteMetrics


@dataclass(slots=True)
class _Round:
    """What goes to the disk with one sync."""

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
        self._files = RecordFiles(fs, store, self._config, Dispatcher(config.delay_levels_ms))
        self._index = Indexer(fs, store, config, self._files, lambda: None, self._fail)
        record_bytes_max = self._config.file_bytes - BLANK_BYTES
        self._offsets = QueueOffsets(self._index.queues, config.message_bytes_max, record_bytes_max)
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

    def hold_back(self, is_held_back: bool) -> None:
        """As MessageLog; nothing is ever missing here."""

    def is_writable(self) -> bool:
        """Until a write fails."""
        return not self._has_failed

    def shows_all_committed(self) -> bool:
        """No other node has shown anything."""
        return True

    def on_writable_change(self, callback: Callable[[bool], None]) -> None:
        """Nothing to tell: it ends only with the node."""

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        """As MessageLog."""
        assert messages, "a put without a message"
        if deleted_topics:
            stamp(messages[-1], deleted_topics)
        if self._has_failed or self._disk.is_full():
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, [], [], 0)
        if self._pending_messages + len(messages) > self._config.pending_messages_max:
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY, [], [], 0)
        if any(0 in message.properties for message in messages):
            # Recovery takes a zero byte there for what a torn write left out.
            return PutResult(PutStatus.MESSAGE_ILLEGAL, [], [], 0)
        now_ms = self._clock()
        try:
            batch = self._offsets.encode(messages, now_ms)
        except MessageIllegalError:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, [], [], 0)
        positions = self._lay_out(batch.bodies)
        self._offsets.take(batch, deleted_topics)
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
        self._index.start()
        self._index.advance_to(self._files.end_index)

    async def stop(self) -> None:
        """Bring everything to the disk. Raises OSError."""
        if self._writing is not None:
            await self._writing
        was_failed, self._has_failed = self._has_failed, True
        try:
            await self._index.stop()
            if not was_failed and self._last is not None:
                self._save_checkpoint(self._last)
        finally:
            self._writer.shutdown(wait=True)
            self._files.close()

    def status(self) -> NodeStatus | None:
        """A plain log has no replication engine."""
        return None

    def _lay_out(self, bodies: Sequence[bytes]) -> list[int]:
        """Give each record its position, and the bytes to the round that gathers."""
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
            self._pending_messages -= current.messages
            size_bytes = sum(len(data) for _, data in current.parts)
            self.write_metrics.written(current.took_s, current.messages, size_bytes)
            self._index.advance_to(current.end_position - 1)
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
        self._index.halt()
        self._on_fatal(error)
