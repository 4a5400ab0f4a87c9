"""Which messages a replay sends in which batch and task: the same plan for the same input. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from rocketmq_spark.jobs.archive.manifest import DataFile, QueueName, runs_of

NO_FILE: Final = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Store times in milliseconds, from `start_ms` to before `end_ms`. None is no bound."""

    start_ms: int | None = None
    end_ms: int | None = None

    def may_hold(self, first_ms: int, last_ms: int) -> bool:
        """Whether a message stored between these times, both included, may be in the window."""
        if self.start_ms is not None and last_ms < self.start_ms:
            return False
        return self.end_ms is None or first_ms < self.end_ms


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets `first` to `last` of a queue, in a file of an archive or, with NO_FILE, in the topic itself.

    `message_bytes` is about the mean size of a body there; 0 if unknown.
    """

    topic: str
    broker_name: str
    queue_id: int
    first: int
    last: int
    file: str = NO_FILE
    message_bytes: float = 0.0

    @property
    def queue(self) -> QueueName:
        return QueueName(self.topic, self.broker_name, self.queue_id)

    @property
    def messages(self) -> int:
        return self.last - self.first + 1

    @property
    def body_bytes(self) -> float:
        return self.messages * self.message_bytes


Waiting = Mapping[QueueName, Sequence[Slice]]
"""The slices to send by queue, in the order of the queue's offsets."""


def archive_slices(
    files: Iterable[DataFile], topics: Sequence[str], window: Window
) -> dict[QueueName, list[Slice]]:
    """The archive's slices of these topics (all, if none is named) that may be in the window."""
    found: dict[QueueName, list[Slice]] = {}
    for file in files:
        for run in file.runs:
            if topics and run.topic not in topics:
                continue
            if window.may_hold(run.first_store_ms, run.last_store_ms):
                mean_bytes = run.body_bytes / run.messages
                one = Slice(*run.queue, run.first_offset, run.last_offset, file.name, mean_bytes)
                found.setdefault(run.queue, []).append(one)
    for slices in found.values():
        slices.sort(key=lambda one: one.first)
    return found


def topics_of(files: Iterable[DataFile]) -> list[str]:
    """The topics in an archive."""
    return sorted({queue.topic for queue in runs_of(files)})


class Left:
    """The slices not yet sent, batch by batch."""

    def __init__(self, waiting: Waiting, positions: Mapping[QueueName, int]) -> None:
        self._queues: dict[QueueName, deque[Slice]] = {}
        self.messages = 0
        for queue, slices in waiting.items():
            position = positions.get(queue, 0)
            rest = deque(
                replace(one, first=max(one.first, position)) for one in slices if one.last >= position
            )
            if rest:
                self._queues[queue] = rest
                self.messages += messages_in(rest)

    @property
    def message_bytes(self) -> float:
        """About the mean size of a body; 0 if unknown."""
        total = sum(one.body_bytes for rest in self._queues.values() for one in rest)
        return total / self.messages if self.messages else 0.0

    def next_batch(self, messages_max: int, parts_max: int) -> list[list[Slice]]:
        """The slices of each task of the next batch: about as many messages of each queue, one of some
        if there are more queues than messages.

        All messages of a queue are sent by one task, in order. There are `parts_max` tasks at most and none
        without a message.
        """
        share = max(1, messages_max // max(1, len(self._queues)))
        queues = islice(self._queues.items(), messages_max)
        chosen = {queue: _first_messages(slices, share) for queue, slices in queues}
        parts: list[list[Slice]] = [[] for _ in range(min(parts_max, len(chosen)))]
        sizes = [0] * len(parts)
        for queue in sorted(chosen, key=lambda queue: (-messages_in(chosen[queue]), queue)):
            lightest = sizes.index(min(sizes))
            parts[lightest] += chosen[queue]
            sizes[lightest] += messages_in(chosen[queue])
        return parts

    def done(self, parts: Iterable[Sequence[Slice]]) -> None:
        """Mark these parts of `next_batch` as sent; queues that were not in them come first next time."""
        for one in (one for part in parts for one in part):
            rest = self._queues.pop(one.queue)
            first = rest.popleft()
            assert (first.first, first.file) == (one.first, one.file), (first, one)
            if first.last > one.last:
                rest.appendleft(replace(first, first=one.last + 1))
            self.messages -= one.messages
            if rest:
                self._queues[one.queue] = rest


def positions_after(
    parts: Iterable[Sequence[Slice]], positions: Mapping[QueueName, int]
) -> dict[QueueName, int]:
    """The next offset to send of each queue after these slices."""
    found = dict(positions)
    for part in parts:
        for one in part:
            found[one.queue] = max(found.get(one.queue, 0), one.last + 1)
    return found


def messages_in(slices: Iterable[Slice]) -> int:
    """How many messages these slices have."""
    return sum(one.messages for one in slices)


def bytes_in(slices: Iterable[Slice]) -> float:
    """About how many bytes of bodies these slices have, at least one per message."""
    return sum(max(one.body_bytes, one.messages) for one in slices)


def _first_messages(slices: Iterable[Slice], most: int) -> list[Slice]:
    found: list[Slice] = []
    for one in slices:
        if most <= 0:
            break
        found.append(replace(one, last=min(one.last, one.first + most - 1)))
        most -= found[-1].messages
    return found
