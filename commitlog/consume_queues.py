"""All consume queues of a node: made from the log, kept in files, made again when those cannot be trusted.

Units gather in memory. Every flush writes and syncs them and then says in a checkpoint up to which entry the
queues are complete. At the start the units behind the checkpoint are dropped, and the log gives them again.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlog.checkpoint import SMALL_FILE_BYTES_MAX, seal, unseal
from commitlog.consume_queue import (
    PREFIX_UNIT,
    UNIT,
    UNIT_BYTES,
    ConsumeQueue,
    QueuedLog,
    UnitWrites,
)
from commitlog.dispatch_batch import DispatchBatch
from commitlog.log import DamagedQueueError, DamagedRecordError
from commitlog.record import CorruptRecordError, decode_record
from commitlog.unit_files import UnitFiles
from dledger.core.types import NO_INDEX
from dledger.fs import Fs, read_file, replace_file

logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = ".checkpoint"
CHECKPOINT_VERSION: Final = 2
NOT_QUEUED: Final = 0x4
"""The sysFlag bit that prepared and rollback records have in common: they get no unit."""


@dataclass(frozen=True, slots=True)
class ConsumeQueueConfig:
    """Sizes and limits of the consume queues."""

    file_bytes: int = 300_000 * UNIT_BYTES
    open_files_max: int = 256
    """Files kept open for reading; the least recently used is closed for a new one."""
    buffered_bytes_max: int = 16 * 1024 * 1024
    """Units kept in memory at most; dispatching waits for a flush when there are more."""
    flush_interval_ms: int = 10_000

    def __post_init__(self) -> None:
        if self.file_bytes < UNIT_BYTES or self.file_bytes % UNIT_BYTES != 0:
            raise ValueError(f"queue files hold whole units of {UNIT_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Applied:
    """Up to which entry, and up to which position, the queues are complete."""

    index: int = NO_INDEX
    position: int = 0


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """What the files must hold: so many queues, and what their begins and ends add up to."""

    applied: Applied
    queues: int
    begins: int
    ends: int


_NOTHING: Final = _Checkpoint(Applied(), 0, 0, 0)


@dataclass(frozen=True, slots=True)
class QueueWrites:
    """A flush on its way to the files."""

    deleted: Sequence[Path]
    units: Sequence[UnitWrites]
    checkpoint: _Checkpoint


class ConsumeQueues:
    """The queues under `<store>/consumequeue`, with their checkpoint in `.checkpoint` there: no topic has
    that
    name."""

    def __init__(
        self,
        fs: Fs,
        store: Path,
        config: ConsumeQueueConfig,
        log: QueuedLog,
        on_damage: Callable[[DamagedQueueError], None] = lambda error: None,
    ) -> None:
        """`on_damage` is told of units that cannot have been written so, before they are an error."""
        self.config = config
        self._on_damage = on_damage
        self._is_distrusted = False
        self._fs = fs
        self._root = store / "consumequeue"
        self._checkpoint = self._root / CHECKPOINT_NAME
        self._log = log
        self._files = UnitFiles(fs, config.file_bytes, config.open_files_max)
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._deleted: list[Path] = []
        self._buffered_bytes = 0
        self._flushed = Applied()
        self._delete_callbacks: list[Callable[[str], None]] = []

    def load(self, end_index: int, end_position: int) -> Applied:
        """Take over what the files hold of a log that ends here; returns up to where that is complete.

        When they do not agree with the log all of them are dropped, and it is nothing.
        """
        self._fs.make_directory(self._root)
        known = self._read_checkpoint()
        if known is not None and known.applied.index <= end_index and known.applied.position <= end_position:
            for topic in self._topic_names():
                for name in self._fs.list(self._root / topic):
                    if name.isdecimal():
                        self._load_queue(topic, int(name), known.applied.position)
            if self._state(known.applied) == known and all(self._agrees(queue) for queue in self):
                self._flushed = known.applied
                return known.applied
        if known is not None:
            logger.warning("%s: does not agree with the log, building all queues again", self._root)
        self._drop_all()
        return Applied()

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
        """The queue, None when no message was ever in it."""
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset behind the last message that was dispatched."""
        queue = self.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def put_all(self, batch: DispatchBatch) -> None:
        """Add the units of dispatched messages, in log order."""
        if batch.runs is not None:
            for topic, queue_id, first_offset, units in batch.runs:
                self._queue(topic, queue_id).put_run(first_offset, units)
        else:
            for request in batch:
                if not request.sys_flag & NOT_QUEUED:
                    self._queue(request.topic, request.queue_id).put(
                        request.queue_offset, request.position, request.size, request.tags_code
                    )
        self._buffered_bytes += len(batch) * UNIT_BYTES

    def delete(self, topic: str) -> None:
        """Drop the queues of a topic; their offsets begin at 0 again. The files go with the next flush."""
        for queue in self._queues.pop(topic, {}).values():
            queue.begin_at(0)
            self._deleted.append(queue.directory)
        for callback in self._delete_callbacks:
            callback(topic)

    def on_delete(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called with the name of every topic that is deleted."""
        self._delete_callbacks.append(callback)

    @property
    def is_full(self) -> bool:
        """Whether so much is buffered that a flush must come before more."""
        return self._buffered_bytes >= self.config.buffered_bytes_max

    def take_writes(self, applied: Applied) -> QueueWrites | None:
        """Loop thread: what a flush is to write; None when there is nothing new."""
        if applied == self._flushed and not self._deleted and not self._is_distrusted:
            self._count_buffered()
            return None
        units = [writes for queue in self if (writes := queue.take_writes()) is not None]
        deleted, self._deleted = self._deleted, []
        checkpoint = _NOTHING if self._is_distrusted else self._state(applied)
        return QueueWrites(deleted, units, checkpoint)

    def write(self, writes: QueueWrites) -> None:
        """Any one thread: put units and checkpoint on the disk. After an OSError the node must stop."""
        for directory in writes.deleted:
            self._files.drop(directory)
            if not self._fs.list(directory.parent) and directory.parent.name in self._fs.list(self._root):
                self._fs.delete_directory(directory.parent)
        for part in writes.units:
            self._write_queue(part)
        self._write_checkpoint(writes.checkpoint)

    def written(self, writes: QueueWrites) -> None:
        """Loop thread: the files hold this flush now."""
        for part in writes.units:
            part.queue.written(part)
        self._flushed = writes.checkpoint.applied
        self._count_buffered()

    def close(self) -> None:
        """Close the files. What was not flushed is given by the log again."""
        self._files.close()

    def distrust(self) -> None:
        """Promise nothing any more: with the next flush the checkpoint goes, and the next start builds all
        queues again.
        """
        self._is_distrusted = True

    def _count_buffered(self) -> None:
        self._buffered_bytes = sum(queue.buffered_bytes for queue in self)

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

    def _write_queue(self, writes: UnitWrites) -> None:
        directory = writes.queue.directory
        position = writes.first_offset * UNIT_BYTES
        units = writes.units
        if writes.is_new:
            self._files.drop(directory)
            into_file = position % self._files.file_bytes
            units = PREFIX_UNIT * (into_file // UNIT_BYTES) + units
            position -= into_file
        self._files.write(directory, position, units)

    def _load_queue(self, topic: str, queue_id: int, applied_position: int) -> None:
        directory = self._root / topic / str(queue_id)
        starts = self._files.starts(directory)
        if not starts:
            return
        per_file = self._files.file_bytes // UNIT_BYTES
        first = starts[0] // UNIT_BYTES
        begin = _bisect(first, first + per_file, lambda at: self._raw(directory, at) != PREFIX_UNIT)

        def is_past(at: int) -> bool:
            position, size, _ = UNIT.unpack(self._raw(directory, at))
            return bool(size <= 0 or position >= applied_position)

        end = _bisect(begin, first + per_file * len(starts), is_past)
        if end > begin:
            if end < first + per_file * len(starts) and any(self._raw(directory, end)):
                self._files.clear_from(directory, end * UNIT_BYTES)
                self._files.forget(directory)
            self._new_queue(topic, queue_id).restore(begin, end)
        else:
            # All of it is behind the checkpoint: the next flush puts new files in place of those open here.
            self._files.forget(directory)

    def _raw(self, directory: Path, offset: int) -> bytes:
        unit = self._files.read(directory, offset * UNIT_BYTES, UNIT_BYTES)
        return unit if len(unit) == UNIT_BYTES else bytes(UNIT_BYTES)  # the file ends in it

    def _agrees(self, queue: ConsumeQueue) -> bool:
        """Whether the queue's last unit points to the message it should."""
        [(position, size, _)] = queue.units(queue.max_offset - 1, 1)
        if size == 0:
            return True
        try:
            data = self._log.record_at(position)
        except DamagedRecordError:
            return False  # dispatching waits at this record until it is mended
        if data is None or len(data) != size:
            return False
        try:
            record = decode_record(data)
        except CorruptRecordError:
            return False
        is_queue = record.topic == queue.topic and record.queue_id == queue.queue_id
        return is_queue and record.queue_offset == queue.max_offset - 1

    def _state(self, applied: Applied) -> _Checkpoint:
        queues = [queue for queue in self if queue.max_offset > queue.begin_offset]
        begins = sum(queue.begin_offset for queue in queues)
        return _Checkpoint(applied, len(queues), begins, sum(queue.max_offset for queue in queues))

    def _topic_names(self) -> list[str]:
        return [name for name in self._fs.list(self._root) if not name.startswith(".")]

    def _drop_all(self) -> None:
        self._files.close()
        self._queues.clear()
        # First the promise goes, then the files.
        self._write_checkpoint(_NOTHING)
        for topic in self._topic_names():
            for name in self._fs.list(self._root / topic):
                self._files.drop(self._root / topic / name)
            self._fs.delete_directory(self._root / topic)

    def _read_checkpoint(self) -> _Checkpoint | None:
        fields = unseal(read_file(self._fs, self._checkpoint, SMALL_FILE_BYTES_MAX))
        if fields is None or fields.get("version") != CHECKPOINT_VERSION:
            return None
        try:
            applied = Applied(int(fields["appliedIndex"]), int(fields["appliedPosition"]))
            return _Checkpoint(applied, int(fields["queues"]), int(fields["begins"]), int(fields["ends"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def _write_checkpoint(self, checkpoint: _Checkpoint) -> None:
        content = seal(
            {
                "version": CHECKPOINT_VERSION,
                "appliedIndex": checkpoint.applied.index,
                "appliedPosition": checkpoint.applied.position,
                "queues": checkpoint.queues,
                "begins": checkpoint.begins,
                "ends": checkpoint.ends,
            }
        )
        replace_file(self._fs, self._checkpoint, content)


def _bisect(low: int, high: int, is_past: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which `is_past` holds, high for none."""
    while low < high:
        middle = (low + high) // 2
        if is_past(middle):
            high = middle
        else:
            low = middle + 1
    return low
