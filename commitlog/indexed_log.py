"""The half that both message logs share: everything that reads, by way of their Indexer."""

from collections.abc import Collection, Sequence

from commitlog.consume_queues import ConsumeQueues
from commitlog.dispatch_batch import DispatchBatch
from commitlog.indexer import Indexer
from commitlog.log import DispatchListener
from commitlog.queue_checkpoint import Applied
from telemetry.histogram import Histogram


class IndexedLog:
    """The reading side of `commitlog.log.MessageLog`. A log adds how it puts and when it dispatches."""

    _index: Indexer

    @property
    def queues(self) -> ConsumeQueues:
        """As MessageLog."""
        return self._index.queues

    @property
    def min_position(self) -> int:
        """As MessageLog."""
        return self._index.min_position

    @property
    def max_position(self) -> int:
        """As MessageLog."""
        return self._index.max_position

    @property
    def applied_index(self) -> int:
        """As MessageLog."""
        return self._index.applied_index

    @property
    def queued_index(self) -> int:
        """As MessageLog."""
        return self._index.queued_index

    @property
    def dispatch_seconds(self) -> Histogram:
        """How long stretches took to be dispatched."""
        return self._index.dispatch_seconds

    def read(self, position: int, size: int) -> bytes:
        """As MessageLog."""
        return self._index.reader.read(position, size)

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        """As MessageLog."""
        return self._index.reader.read_many(units)

    def read_units(self, units: bytes) -> bytes:
        """As MessageLog."""
        return self._index.reader.read_units(units)

    def record_at(self, position: int) -> bytes | None:
        """As MessageLog."""
        return self._index.reader.record_at(position)

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """As MessageLog."""
        self._index.add_listener(listener, topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """As MessageLog."""
        self._index.remove_listener(listener)

    def give_again(self, listener: DispatchListener, index: int) -> None:
        """As MessageLog."""
        self._index.give_again(listener, index)

    def replay_from(self, index: int) -> None:
        """As MessageLog."""
        self._index.replay_from(index)

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """As MessageLog."""
        return self._index.batch_from(index, last_index)

    def end_of(self, index: int) -> int:
        """As MessageLog."""
        return self._index.end_of(index)
