"""What every message log has beside its bytes: consume queues, their upkeep, the listeners, the reading."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch_batch import DispatchBatch
from commitlog.errors import DamagedQueueError, DamagedRecordError
from commitlog.log import DispatchListener
from commitlog.queue_checkpoint import Applied
from commitlog.queue_flusher import QueueFlusher
from commitlog.record_reader import ByteSource, RecordReader
from commitlog.reput import DispatchSource, Reput
from dledger.core.types import DamagedEntryError
from dledger.fs import Fs
from telemetry.histogram import Histogram


@dataclass(frozen=True, slots=True)
class MessageLogConfig:
    """What message logs of both kinds need to know."""

    queues: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    message_bytes_max: int = 4 * 1024 * 1024
    """The largest body; a larger one is MESSAGE_ILLEGAL."""
    delay_levels_ms: Sequence[int] = ()
    """The delay of each level from 1 on, for the tags code of SCHEDULE_TOPIC_XXXX."""


class RecordLog(ByteSource, DispatchSource, Protocol):
    """A log's bytes and committed records, as the indexer needs them."""

    @property
    def min_position(self) -> int: ...

    @property
    def end_index(self) -> int:
        """Last entry recovered."""

    @property
    def end_position(self) -> int:
        """First byte after it."""

    def end_of(self, index: int) -> int:
        """First byte after an entry; the log's begin for what comes before the first."""


class Indexer:
    """Keeps the queues of one log, which is open and recovered; made once for each log."""

    def __init__(
        self,
        fs: Fs,
        store: Path,
        config: MessageLogConfig,
        log: RecordLog,
        on_applied: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._readable_end = log.end_position
        self._on_error = on_error
        self.reader = RecordReader(
            log, lambda: log.min_position, lambda: self._readable_end, self._on_wrong_unit
        )
        self.queues = ConsumeQueues(fs, store, config.queues, self, self._on_wrong_unit)
        applied = self.queues.load(log.end_index, log.end_position)
        self._readable_end = max(applied.position, log.min_position)
        self._reput = Reput(log, self.queues, applied, self._after_queued, on_applied, on_error)
        self._flusher = QueueFlusher(self.queues, lambda: self._reput.queued, self._reput.resume, on_error)

    @property
    def min_position(self) -> int:
        """The first position that can be read."""
        return self._log.min_position

    @property
    def max_position(self) -> int:
        """The end of what can be read."""
        return self._readable_end

    @property
    def applied_index(self) -> int:
        """Every entry up to here is in the queues and was given to the listeners."""
        return self._reput.told_index

    @property
    def queued_index(self) -> int:
        """Every entry up to here is in the queues."""
        return self._reput.queued.index

    @property
    def dispatch_seconds(self) -> Histogram:
        """How long each stretch took to come into the queues and to the listeners."""
        return self._reput.seconds

    def record_at(self, position: int) -> bytes | None:
        """For the queues' self-check."""
        return self.reader.record_at(position)

    def store_timestamp_at(self, position: int) -> int | None:
        """For the queues' search by time."""
        return self.reader.store_timestamp_at(position)

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None) -> None:
        """As MessageLog.add_listener."""
        self._reput.add_listener(listener, topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """As MessageLog.remove_listener."""
        self._reput.remove_listener(listener)

    def replay_from(self, index: int) -> None:
        """As MessageLog.replay_from."""
        self._reput.replay_from(index, self._log.end_of(index - 1))

    def give_again(self, listener: DispatchListener, index: int) -> None:
        """As MessageLog.give_again."""
        self._reput.give_again(listener, index, self.end_of(index - 1))

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As MessageLog.batch_from."""
        assert last_index <= self.applied_index, (last_index, self.applied_index)
        return self._log.requests_from(index, last_index)

    def end_of(self, index: int) -> int:
        """As MessageLog.end_of."""
        try:
            return self._log.end_of(index)
        except DamagedEntryError as error:
            raise DamagedRecordError(str(error)) from error

    def advance_to(self, index: int) -> None:
        """Everything up to `index` is committed and can be read: dispatch it."""
        self._reput.advance_to(index)

    def start(self) -> None:
        """Begin to flush the queues at their interval."""
        self._flusher.start()

    def halt(self) -> None:
        """Dispatch nothing more."""
        self._reput.stop()

    async def stop(self) -> None:
        """Dispatch nothing more and bring the queues to the disk. Raises OSError."""
        self.halt()
        await self._flusher.stop()
        self.queues.close()

    def _after_queued(self) -> None:
        # Before the listeners hear of the messages: they may read them.
        self._readable_end = max(self._readable_end, self._reput.applied.position)
        if self.queues.wants_flush or self.queues.is_full:
            self._flusher.flush_soon()

    def _on_wrong_unit(self, error: DamagedQueueError) -> None:
        """The queues' files are damaged. The node stops, so that others serve; its next start builds them
        again.
        """
        self.queues.distrust()
        self._on_error(error)
