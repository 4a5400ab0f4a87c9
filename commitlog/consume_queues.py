"""All consume queues of a node: built from the log, stored in files, built again when the files are damaged.

Units are buffered in memory. Every few seconds a flush, in a thread beside the event loop, writes and syncs
them and then records in a checkpoint up to which entry the queues are complete, and where each queue's files
end. A start drops the units behind the checkpoint and dispatches the log again from there.

The checkpoint `.checkpoint` has two lines, JSON and its CRC-32. It is written after everything it counts was
synced. Version 2 has sums only; each queue's ends are then searched in its files.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import index
from pathlib import Path
from typing import Any, Final

from commitlog.checkpoint import seal, unseal
from commitlog.consume_queue import (
    HOLE_SIZE,
    PREFIX_UNIT,
    UNIT,
    UNIT_BYTES,
    ConsumeQueue,
    QueuedLog,
    UnitFiles,
    UnitWrites,
)
from commitlog.dispatch import Applied, DispatchBatch
from commitlog.errors import DamagedQueueError, DamagedRecordError
from commitlog.record import CorruptRecordError, decode_record
from dledger.fs import Fs, read_replaced_file, replace_file

logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = ".checkpoint"
CHECKPOINT_BYTES_MAX: Final = 1 << 30
NOT_QUEUED: Final = 0x4
"""The sysFlag bit that prepared and rollback records have in common: they get no unit."""
CHECKED_QUEUES_MAX: Final = 64
"""A start compares the last unit of so many queues, those with the latest messages, with the log."""
SYNCED_EACH_MAX: Final = 32
"""A flush of more queues than this syncs the file system once instead of each of their files."""
TAKEN_PER_TURN: Final = 1_000
"""Queues whose units a flush collects in one turn of the event loop."""


CHECKPOINT_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """The range of offsets that the files of one queue have; never empty."""

    topic: str
    queue_id: int
    begin_offset: int
    end_offset: int
    last_unit: tuple[int, int, int]
    """Position, size and tags code."""


@dataclass(frozen=True, slots=True)
class QueueCheckpoint:
    """The content of the checkpoint. The queues may also have messages behind `applied`."""

    applied: Applied
    extents: tuple[QueueExtent, ...] = ()


NOTHING: Final = QueueCheckpoint(Applied())


def encode_queue_checkpoint(applied: Applied, extents: Iterable[QueueExtent]) -> bytes:
    """The file's content."""
    rows = [
        [each.topic, each.queue_id, each.begin_offset, each.end_offset, *each.last_unit] for each in extents
    ]
    return seal(
        {
            "version": CHECKPOINT_VERSION,
            "appliedIndex": applied.index,
            "appliedPosition": applied.position,
            "queues": rows,
        }
    )


def decode_queue_checkpoint(content: bytes | None) -> QueueCheckpoint | None:
    """None when it is missing, damaged, or of a version that is not known."""
    fields = unseal(content)
    if fields is None or fields.get("version") != CHECKPOINT_VERSION:
        return None
    try:
        applied = Applied(index(fields["appliedIndex"]), index(fields["appliedPosition"]))
        return QueueCheckpoint(applied, tuple(map(_extent, fields["queues"])))
    except (KeyError, TypeError, ValueError):
        return None


def _extent(row: list[Any]) -> QueueExtent:
    topic, *numbers = row
    queue_id, begin, end, position, size, tags_code = map(index, numbers)
    if not isinstance(topic, str) or not 0 <= begin < end or queue_id < 0:
        raise ValueError(f"{row} is no queue")
    return QueueExtent(topic, queue_id, begin, end, (position, size, tags_code))


_VERSION_2 = 2


def read_version_2(fs: Fs, root: Path, files: UnitFiles, content: bytes | None) -> QueueCheckpoint | None:
    """None when it is of another version, damaged, or does not agree with the files. Raises OSError."""
    fields = unseal(content)
    if fields is None or fields.get("version") != _VERSION_2:
        return None
    try:
        applied = Applied(index(fields["appliedIndex"]), index(fields["appliedPosition"]))
        sums = [index(fields[name]) for name in ("queues", "begins", "ends")]
    except (KeyError, TypeError):
        return None
    extents = [
        extent
        for topic in fs.list(root)
        if not topic.startswith(".")
        for name in fs.list(root / topic)
        if name.isdecimal() and (extent := _find(root, files, topic, int(name), applied)) is not None
    ]
    files.close()
    # The sums show whether files of any queue were lost or cut since the checkpoint.
    begins, ends = sum(each.begin_offset for each in extents), sum(each.end_offset for each in extents)
    return QueueCheckpoint(applied, tuple(extents)) if sums == [len(extents), begins, ends] else None


def _find(root: Path, files: UnitFiles, topic: str, queue_id: int, applied: Applied) -> QueueExtent | None:
    directory = root / topic / str(queue_id)
    starts = files.starts(directory)
    if not starts:
        return None

    def raw(offset: int) -> bytes:
        unit = files.read(directory, offset * UNIT_BYTES, UNIT_BYTES)
        return unit if len(unit) == UNIT_BYTES else bytes(UNIT_BYTES)  # the file ends in it

    def is_past(offset: int) -> bool:
        position, size, _ = UNIT.unpack(raw(offset))
        return bool(size <= 0 or position >= applied.position)

    per_file = files.file_bytes // UNIT_BYTES
    first = starts[0] // UNIT_BYTES
    begin = _bisect(first, first + per_file, lambda offset: raw(offset) != PREFIX_UNIT)
    end = _bisect(begin, first + per_file * len(starts), is_past)
    if begin >= end:
        return None
    position, size, tags_code = UNIT.unpack(raw(end - 1))
    return QueueExtent(topic, queue_id, begin, end, (position, size, tags_code))


def _bisect(low: int, high: int, is_past: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which `is_past` holds, high for none."""
    while low < high:
        middle = (low + high) // 2
        if is_past(middle):
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True)
class ConsumeQueueConfig:
    """Sizes and limits of the consume queues."""

    file_bytes: int = 300_000 * UNIT_BYTES
    open_files_max: int = 256
    """Files kept open for reading; the least recently used is closed for a new one."""
    buffered_bytes_max: int = 16 * 1024 * 1024
    """Bytes of the units buffered in memory at most; beyond it dispatch waits for a flush."""
    flush_bytes: int = 2 * 1024 * 1024
    """A flush begins before its interval ends when so many bytes are buffered, or `flush_bytes_per_queue` of
    each queue if that is more: unflushed units are dispatched again by the start after a crash."""
    flush_bytes_per_queue: int = 40 * UNIT_BYTES
    flush_interval_ms: int = 10_000

    def __post_init__(self) -> None:
        if self.file_bytes < UNIT_BYTES or self.file_bytes % UNIT_BYTES != 0:
            raise ValueError(f"queue files hold whole units of {UNIT_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class QueueWrites:
    """The content of one flush. `applied` is None when the files are damaged and must be built again."""

    deleted: Sequence[Path]
    units: Sequence[UnitWrites]
    applied: Applied | None
    cut: Sequence[tuple[Path, int]] = ()
    """Queues whose files before an offset are deleted."""


class ConsumeQueues:
    """The queues under `<store>/consumequeue`, with their checkpoint in the file `.checkpoint` there: a topic
    cannot have that name.
    """

    def __init__(
        self,
        fs: Fs,
        store: Path,
        config: ConsumeQueueConfig,
        log: QueuedLog,
        on_damage: Callable[[DamagedQueueError], None] = lambda error: None,
    ) -> None:
        """`on_damage` is called with the error of a damaged unit before it is raised."""
        self.config = config
        self._on_damage = on_damage
        self._is_invalid = False
        self._fs = fs
        self._root = store / "consumequeue"
        self._checkpoint = self._root / CHECKPOINT_NAME
        self._log = log
        self._files = UnitFiles(fs, config.file_bytes, config.open_files_max)
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._deleted: list[Path] = []
        self._cut: dict[Path, int] = {}
        self._buffered: dict[ConsumeQueue, None] = {}
        """The queues that hold units which are not in the files."""
        self._buffered_bytes = 0
        self._flushed = Applied()
        self._extents: dict[Path, QueueExtent] = {}
        """What the files hold, for the next checkpoint; belongs to the thread that writes."""
        self._is_swept = False
        self._delete_callbacks: list[Callable[[str], None]] = []

    def load(self, end_index: int, end_position: int) -> Applied:
        """Load the queues of a log that ends here from their files; returns up to where they are complete.

        When they do not agree with the log, all files are deleted and the result is an empty Applied.
        """
        self._fs.make_directory(self._root)
        content = read_replaced_file(self._fs, self._checkpoint, CHECKPOINT_BYTES_MAX)
        known = decode_queue_checkpoint(content) or read_version_2(self._fs, self._root, self._files, content)
        if known is not None and self._take_over(known, end_index, end_position):
            self._flushed = known.applied
            return known.applied
        if content is not None and known != NOTHING:
            logger.warning("%s: does not agree with the log, building all queues again", self._root)
        self._drop_all()
        return Applied()

    def _take_over(self, known: QueueCheckpoint, end_index: int, end_position: int) -> bool:
        """Load the checkpoint's queues; False when files, checkpoint and log do not agree."""
        applied = known.applied
        if applied.index > end_index or applied.position > end_position:
            return False
        return all(map(self._load_queue, known.extents)) and self._agree()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self._queues.values():
            yield from queues.values()

    def topics(self) -> list[str]:
        """The topics that have a queue."""
        return list(self._queues)

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that hold or held a message."""
        return sorted(self._queues.get(topic, ()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue; None when it never had a message."""
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset behind the last message that was dispatched."""
        queue = self.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def position_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Position of the queue's first message at `offset` or after it; None when there is none."""
        queue = self.get(topic, queue_id)
        units = queue.units(max(offset, queue.min_offset), 1) if queue is not None else []
        return units[0][0] if units else None

    def put_all(self, batch: DispatchBatch) -> None:
        """Add the units of dispatched messages, in log order, and drop the queues of the topics that are
        deleted between them.
        """
        buffered = self._buffered
        deletions = deque(batch.deletions)
        if batch.runs is not None and not deletions:
            for topic, queue_id, first_offset, units in batch.runs:
                queue = self._queue(topic, queue_id)
                buffered[queue] = None
                queue.put_run(first_offset, units)
        else:
            for request in batch:
                # Exactly where the deletion stands in the log: every node then has the same offsets.
                while deletions and deletions[0][0] <= request.position:
                    self.delete(deletions.popleft()[1])
                if not request.sys_flag & NOT_QUEUED:
                    queue = self._queue(request.topic, request.queue_id)
                    buffered[queue] = None
                    queue.put(request.queue_offset, request.position, request.size, request.tags_code)
            assert not deletions, deletions  # each is in a record of the batch
        self._buffered_bytes += batch.message_count * UNIT_BYTES

    def delete(self, topic: str) -> None:
        """Drop the queues of a topic; their offsets begin at 0 again. The next flush deletes the files."""
        for queue in self._queues.pop(topic, {}).values():
            queue.begin_at(0)
            self._buffered.pop(queue, None)
            self._deleted.append(queue.directory)
        for callback in self._delete_callbacks:
            callback(topic)

    def on_delete(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called with the name of every topic that is deleted."""
        self._delete_callbacks.append(callback)

    def raise_to(self, topic: str, queue_id: int, next_offset: int, position: int) -> None:
        """The log no longer has the messages before this offset: the queue begins there, unless it has later
        ones.
        """
        queue = self._queue(topic, queue_id)
        if queue.max_offset < next_offset and queue.last_position < position:
            queue.begin_at(next_offset)

    def cut_files(self, queue: ConsumeQueue) -> bool:
        """Whether the next flush deletes files of the queue, because the messages of their units are gone."""
        begin = queue.cut_files()
        if begin is not None:
            self._cut[queue.directory] = begin
        return begin is not None

    @property
    def flushed_index(self) -> int:
        """The files are complete up to this entry."""
        return self._flushed.index

    @property
    def is_full(self) -> bool:
        """Whether so much is buffered that dispatch must wait for a flush."""
        return self._buffered_bytes >= self.config.buffered_bytes_max

    @property
    def wants_flush(self) -> bool:
        """Whether so much is buffered that a flush should not wait for its interval."""
        config = self.config
        least = max(config.flush_bytes, len(self._buffered) * config.flush_bytes_per_queue)
        return self._buffered_bytes >= min(least, config.buffered_bytes_max)

    def take_writes(self, applied: Applied) -> QueueWrites | None:
        """Event loop: the content of a flush; None when there is nothing new."""
        *_, writes = self.take_writes_in_parts(applied)
        return writes

    def take_writes_in_parts(self, applied: Applied) -> Generator[QueueWrites | None]:
        """As `take_writes`, in several turns of the loop if there are many queues: the last value counts.

        Between the turns messages are dispatched, so queues collected later may hold messages behind
        `applied`. That is harmless: the next start skips them. A queue that is deleted or restarted meanwhile
        is left to the next flush.
        """
        if applied == self._flushed and not (self._deleted or self._cut or self._is_invalid):
            self._count_buffered()
            yield None
            return
        # Copied before the first yield: deletions during the collection belong to the next flush.
        deleted = list(self._deleted)
        units: list[UnitWrites] = []
        for number, queue in enumerate(list(self._buffered), 1):
            if (writes := queue.take_writes()) is not None:
                units.append(writes)
            if number % TAKEN_PER_TURN == 0:
                yield None
        units = [writes for writes in units if writes.queue.is_current(writes)]
        del self._deleted[: len(deleted)]
        cut, self._cut = list(self._cut.items()), {}
        yield QueueWrites(deleted, units, None if self._is_invalid else applied, cut)

    def write(self, writes: QueueWrites) -> None:
        """One thread at a time: write and sync units and checkpoint. After an OSError the node must stop.

        Units are synced before the checkpoint that counts them is written, and files are deleted only after a
        checkpoint that no longer counts them: a start after a crash finds all files that its checkpoint
        counts.
        """
        self._drop_deleted(writes)
        is_synced_each = len(writes.units) <= SYNCED_EACH_MAX
        for part in writes.units:
            self._write_queue(part, is_synced_each)
        if not is_synced_each:
            self._fs.sync_all(self._root)
        cut = [(directory, begin) for directory, begin in writes.cut if self._cut_extent(directory, begin)]
        self._write_checkpoint(writes.applied)
        for directory, begin in cut:
            self._files.drop_before(directory, begin * UNIT_BYTES)
        if not self._is_swept:
            self._is_swept = True
            self._sweep()

    def _drop_deleted(self, writes: QueueWrites) -> None:
        """First the checkpoint drops these queues, then their files are deleted. After a crash in between,
        the next start deletes them: the record that deletes the topic is behind the flushed index, so it is
        dispatched again.
        """
        known = [self._extents.pop(directory, None) for directory in writes.deleted]
        if any(known):
            self._write_checkpoint(None if writes.applied is None else self._flushed)
        for directory in writes.deleted:
            self._files.drop(directory)
        self._drop_empty({directory.parent for directory in writes.deleted})

    def _drop_empty(self, topics: Iterable[Path]) -> None:
        there = set(self._fs.list(self._root))
        for directory in topics:
            if directory.name in there and not self._fs.list(directory):
                self._fs.delete_directory(directory)

    def _sweep(self) -> None:
        """Delete the files of queues that are not in the checkpoint: left over by a crash, or brought back by
        a power failure, since deletions are not synced.
        """
        topics = [self._root / name for name in self._topic_names()]
        for topic in topics:
            for name in self._fs.list(topic):
                if topic / name not in self._extents:
                    self._files.drop(topic / name)
        self._drop_empty(topics)

    def _cut_extent(self, directory: Path, begin: int) -> bool:
        """Whether the queue has files before this offset, and continues there."""
        extent = self._extents.get(directory)
        if extent is None or not extent.begin_offset < begin < extent.end_offset:
            return False
        self._extents[directory] = replace(extent, begin_offset=begin)
        return True

    def written(self, writes: QueueWrites) -> None:
        """Event loop: the flush has ended."""
        for part in writes.units:
            part.queue.written(part)
        if writes.applied is not None:
            self._flushed = writes.applied
        self._count_buffered()

    def close(self) -> None:
        """Close the files. The next start dispatches the unflushed messages again."""
        self._files.close()

    def invalidate(self) -> None:
        """The files are damaged: the next flush empties the checkpoint, so that the next start builds all
        queues again.
        """
        self._is_invalid = True

    def _count_buffered(self) -> None:
        for queue in [queue for queue in self._buffered if not queue.buffered_bytes]:
            del self._buffered[queue]
        self._buffered_bytes = sum(queue.buffered_bytes for queue in self._buffered)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        try:
            return self._queues[topic][queue_id]
        except KeyError:
            return self._new_queue(topic, queue_id)

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._root / topic / str(queue_id)
        queue = ConsumeQueue(topic, queue_id, directory, self._files, self._log, self._on_damage)
        self._queues.setdefault(topic, {})[queue_id] = queue
        return queue

    def _write_queue(self, writes: UnitWrites, is_synced: bool) -> None:
        directory = writes.queue.directory
        position = writes.first_offset * UNIT_BYTES
        units = writes.units
        known = self._extents.get(directory)
        begin = writes.first_offset if writes.is_new or known is None else known.begin_offset
        if writes.is_new:
            self._extents.pop(directory, None)
            self._files.drop(directory)
            into_file = position % self._files.file_bytes
            units = PREFIX_UNIT * (into_file // UNIT_BYTES) + units
            position -= into_file
        self._files.write(directory, position, units, is_synced)
        self._extents[directory] = QueueExtent(
            writes.queue.topic,
            writes.queue.queue_id,
            begin,
            writes.first_offset + len(writes.units) // UNIT_BYTES,
            UNIT.unpack_from(writes.units, len(writes.units) - UNIT_BYTES),
        )

    def _load_queue(self, extent: QueueExtent) -> bool:
        """Load a queue from its files; False when they are not as in the checkpoint."""
        directory = self._root / extent.topic / str(extent.queue_id)
        last = extent.end_offset - 1
        per_file = self._files.file_bytes // UNIT_BYTES
        is_one_file = extent.begin_offset // per_file == last // per_file
        if not is_one_file and not self._files.has_range(
            directory, extent.begin_offset * UNIT_BYTES, extent.end_offset * UNIT_BYTES
        ):
            return False
        try:
            found = self._files.read_once(directory, last * UNIT_BYTES, 2 * UNIT_BYTES)
        except FileNotFoundError:
            return False
        if found[:UNIT_BYTES] != UNIT.pack(*extent.last_unit):
            return False
        if any(found[UNIT_BYTES:]):
            self._files.clear_from(directory, extent.end_offset * UNIT_BYTES)
        queue = self._new_queue(extent.topic, extent.queue_id)
        queue.restore(extent.begin_offset, extent.end_offset, extent.last_unit[0])
        self._extents[directory] = extent
        return True

    def _agree(self) -> bool:
        """Whether the queues belong to this log: the latest queues' last units point to their records."""
        latest = nlargest(CHECKED_QUEUES_MAX, self._extents.values(), key=lambda extent: extent.last_unit[0])
        return all(map(self._agrees, latest))

    def _agrees(self, extent: QueueExtent) -> bool:
        """Whether the queue's last unit points to a record of this queue with this offset."""
        position, size, _ = extent.last_unit
        if size == HOLE_SIZE or position < self._log.min_position:
            return True
        try:
            data = self._log.record_at(position)
        except DamagedRecordError:
            return False  # dispatch waits at this record until it is repaired
        if data is None or len(data) != size:
            return False
        try:
            record = decode_record(data)
        except CorruptRecordError:
            return False
        is_queue = record.topic == extent.topic and record.queue_id == extent.queue_id
        return is_queue and record.queue_offset == extent.end_offset - 1

    def _topic_names(self) -> list[str]:
        return [name for name in self._fs.list(self._root) if not name.startswith(".")]

    def _drop_all(self) -> None:
        self._files.close()
        self._queues.clear()
        self._extents.clear()
        # First the checkpoint, then the files: it must never count files that are deleted.
        self._write_checkpoint(None)
        for topic in self._topic_names():
            for name in self._fs.list(self._root / topic):
                self._files.drop(self._root / topic / name)
            self._fs.delete_directory(self._root / topic)

    def _write_checkpoint(self, applied: Applied | None) -> None:
        extents = () if applied is None else self._extents.values()
        replace_file(self._fs, self._checkpoint, encode_queue_checkpoint(applied or Applied(), extents))


class QueueFlusher:
    """One flush at a time: at the interval, when the queues are full, and at the end."""

    def __init__(
        self,
        queues: ConsumeQueues,
        queued: Callable[[], Applied],
        on_flushed: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._queues = queues
        self._queued = queued
        self._on_flushed = on_flushed
        self._on_error = on_error
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to flush at the interval."""
        self._task = asyncio.create_task(self._run(), name="consume queue flush")

    def flush_soon(self) -> None:
        """Flush without waiting for the interval."""
        self._wanted.set()

    async def stop(self) -> None:
        """Flush a last time. Raises OSError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._flush()

    async def _run(self) -> None:
        interval_s = self._queues.config.flush_interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._flush()
            except Exception as error:  # noqa: BLE001 (a top loop: a queue that cannot be written stops the node)
                self._on_error(error)
                return
            self._on_flushed()

    async def _flush(self) -> None:
        writes = None
        for writes in self._queues.take_writes_in_parts(self._queued()):
            if writes is None:
                await asyncio.sleep(0)
        if writes is None:
            return
        # A cancelled task does not stop its thread: wait for it, so that the last flush, in `stop`, does not
        # write the same files at the same time.
        work = asyncio.ensure_future(asyncio.to_thread(self._queues.write, writes))
        try:
            await asyncio.shield(work)
        finally:
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                self._queues.written(writes)
