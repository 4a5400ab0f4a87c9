"""Offset resets that running consumers are still to hear of (ConsumerOffsetManager's reset offsets).

The reset itself is a change of the replicated state. A consumer that runs would go on where it is and commit
its own offset again; its next pull of the queue is therefore answered 21 PULL_OFFSET_MOVED with the new
offset, which every client takes over. Until it pulls there, what it commits is from before the reset and does
not count: Java clients go on ten seconds after that answer, and commit what they had every five.

Every node that applies a reset has its marks: a consumer may read from a follower, and the leader may die
before the consumer has heard. A leader stores no other offset of the group in between, so the next one that
is stored says to all nodes that the consumer is there; theirs end with it. Where the consumer is there and
stores nothing, the next leader may send it there once more.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

MARKS_MAX: Final = 100_000
"""Queues of groups that wait for their consumer; a reset beyond them reaches running consumers only when they
are started anew.
"""
SENT_MS: Final = 30_000
"""How long a consumer that was sent to its new offset is waited for there."""

_Key = tuple[str, str, int]


class _Stage(Enum):
    """STORING: the reset is not committed yet. SET: the next pull is to be sent there. SENT: one was."""

    STORING = 0
    SET = 1
    SENT = 2


@dataclass(frozen=True, slots=True)
class _Mark:
    """`until_ms` is when a mark ends that nobody takes; None: it waits."""

    offset: int
    stage: _Stage
    until_ms: int | None = None
    before: "_Mark | None" = None
    """While the reset is being stored: the mark of an earlier one, which holds if this comes to nothing."""

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms


class OffsetResets:
    """Marks by group, topic and queue. Times are a monotonic clock's."""

    def __init__(self, marks_max: int = MARKS_MAX) -> None:
        self._marks_max = marks_max
        self._marks: dict[_Key, _Mark] = {}
        self._callbacks: list[Callable[[str, int], None]] = []

    def __len__(self) -> int:
        return len(self._marks)

    def on_mark(self, callback: Callable[[str, int], None]) -> None:
        """Have `callback` told of each (topic, queue id) with a new mark, once all of a reset are set."""
        self._callbacks.append(callback)

    def begin(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """These offsets are being stored: the group's own commits must not overtake them."""
        earlier = {queue_id: self._marks.get((group, topic, queue_id)) for queue_id in offsets}
        self._put(group, topic, offsets, _Stage.STORING)
        for queue_id, mark in earlier.items():
            key = (group, topic, queue_id)
            if mark is not None and key in self._marks:
                before = mark.before if mark.stage is _Stage.STORING else mark
                self._marks[key] = replace(self._marks[key], before=before)

    def abandon(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """They are not in the log and will not be. Where that is not known they are kept: they will be
        applied here, or this node leads no more.
        """
        for queue_id in queue_ids:
            key = (group, topic, queue_id)
            mark = self._marks.get(key)
            if mark is not None and mark.stage is _Stage.STORING:
                del self._marks[key]
                if mark.before is not None:
                    self._marks[key] = mark.before

    def drop(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """Nobody is left who is to hear of them."""
        for queue_id in queue_ids:
            self._marks.pop((group, topic, queue_id), None)

    def forget(self, group: str | None = None, topic: str | None = None) -> None:
        """The offsets of the group in the topic are gone; None: of every group, in every topic. A topic that
        is created anew begins at 0: who was sent to where the old one was would pass its messages over.
        """
        if self._marks:
            self._marks = {
                key: mark
                for key, mark in self._marks.items()
                if group not in (None, key[0]) or topic not in (None, key[1])
            }

    def end(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """These offsets were stored after the reset: whoever stored them is there, or set them anew."""
        for queue_id, offset in offsets.items():
            key = (group, topic, queue_id)
            mark = self._marks.get(key)
            if mark is not None and mark.stage is _Stage.SET and mark.offset != offset:
                del self._marks[key]

    def mark(self, group: str, topic: str, offsets: Mapping[int, int], until_ms: int | None = None) -> None:
        """The group's running consumers are to go on at these offsets, which are stored. A node that does not
        lead may never hear that they did, and says till when that matters.
        """
        self._put(group, topic, offsets, _Stage.SET, until_ms)
        for callback in self._callbacks:
            for queue_id in offsets:
                callback(topic, queue_id)

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset a consumer of this queue has to be sent to, if any. Nobody waits for it there."""
        mark = self._marks.get((group, topic, queue_id))
        if mark is None or mark.stage is _Stage.STORING:
            return None
        del self._marks[group, topic, queue_id]
        return mark.offset if mark.stage is _Stage.SET else None

    def send(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        """Where a pull at this offset has to be sent, if anywhere else. The next pull after that says that
        the consumer goes on from there.
        """
        key = (group, topic, queue_id)
        mark = self._marks.get(key)
        if mark is None or mark.stage is _Stage.STORING:
            return None
        if mark.stage is _Stage.SET and mark.offset != offset and not mark.is_over(now_ms):
            self._marks[key] = _Mark(mark.offset, _Stage.SENT, now_ms + SENT_MS)
            return mark.offset
        del self._marks[key]
        return None

    def keeps_out(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Whether an offset that the group commits is from before its reset."""
        key = (group, topic, queue_id)
        mark = self._marks.get(key)
        if mark is None or offset == mark.offset:
            return False
        if mark.is_over(now_ms):
            del self._marks[key]
            return False
        return True

    def lose_leadership(self, until_ms: int) -> None:
        """What this node was storing it may hear of from the log, or never; what waits does so no longer than
        this.
        """
        stored = {
            key: mark.before if mark.stage is _Stage.STORING else mark for key, mark in self._marks.items()
        }
        self._marks = {
            key: replace(mark, until_ms=until_ms if mark.until_ms is None else mark.until_ms)
            for key, mark in stored.items()
            if mark is not None
        }

    def take_leadership(self, now_ms: int) -> None:
        """Those that are over send nobody anywhere."""
        self._marks = {key: mark for key, mark in self._marks.items() if not mark.is_over(now_ms)}

    def _put(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        stage: _Stage,
        until_ms: int | None = None,
    ) -> None:
        marks = {(group, topic, number): _Mark(offset, stage, until_ms) for number, offset in offsets.items()}
        if len(self._marks) + len(marks.keys() - self._marks.keys()) > self._marks_max:
            self._make_room()  # once for all of them: it looks at every mark there is
        for key, mark in marks.items():
            if key in self._marks or len(self._marks) < self._marks_max:
                self._marks[key] = mark

    def _make_room(self) -> None:
        """Whoever was sent already goes there anyway; what another leader made is for few."""
        self._marks = {key: mark for key, mark in self._marks.items() if mark.until_ms is None}
