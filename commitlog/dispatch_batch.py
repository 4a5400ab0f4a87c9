"""The committed messages of one stretch of the log, as the derived indexes are told of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from commitlog.deletions import Deletion
from commitlog.record_keys import RecordStretch
from commitlog.sequences import SequenceRun


@dataclass(slots=True)
class DispatchRequest:
    """One committed message, as the derived indexes and waiting pulls need it."""

    index: int
    """The entry's number in the replicated log; in a plain log, which has none, the position of the
    record's last byte."""
    topic: str
    queue_id: int
    queue_offset: int
    position: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    sys_flag: int


QueueRun = tuple[str, int, int, bytes]
"""Messages of one queue with offsets that follow each other: topic, queue id, the first one's offset, and the
units of its consume queue. A plain tuple: with thousands of queues there is one for nearly each message."""


class DispatchBatch(Sequence[DispatchRequest]):
    """Messages in log order. Where they came as runs, each one is made only for whoever looks at it."""

    def __init__(
        self,
        count: int,
        last_index: int,
        runs: Sequence[QueueRun] | None,
        make: Callable[[], Sequence[DispatchRequest]],
        sequences: Sequence[SequenceRun] = (),
        stretch: RecordStretch | None = None,
    ) -> None:
        self.last_index = last_index
        """Of the last message."""
        self.runs = runs
        """All messages by queue; None when they are of any kind and in no such order."""
        self.sequences = sequences
        """What writers numbered, in log order."""
        self.stretch = stretch
        """The records themselves; None where they are not at hand."""
        self.deletions: Sequence[Deletion] = ()
        """Topics that records of the stretch delete, in log order."""
        self._count = count
        self._make = make
        self._made: Sequence[DispatchRequest] | None = None
        self._topics: frozenset[str] | None = None

    @staticmethod
    def of(
        requests: Sequence[DispatchRequest],
        sequences: Sequence[SequenceRun] = (),
        stretch: RecordStretch | None = None,
        deletions: Sequence[Deletion] = (),
    ) -> "DispatchBatch":
        """A batch of messages of any kind."""
        last_index = requests[-1].index if requests else -1
        batch = DispatchBatch(len(requests), last_index, None, lambda: requests, sequences, stretch)
        batch.deletions = deletions
        return batch

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the messages."""
        if self._topics is None:
            if self.runs is not None:
                self._topics = frozenset([run[0] for run in self.runs])
            else:
                self._topics = frozenset([one.topic for one in self._all()])
        return self._topics

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[DispatchRequest]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> DispatchRequest: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[DispatchRequest]: ...

    def __getitem__(self, at: int | slice) -> DispatchRequest | Sequence[DispatchRequest]:
        return self._all()[at]

    def _all(self) -> Sequence[DispatchRequest]:
        if self._made is None:
            self._made = self._make()
        return self._made
