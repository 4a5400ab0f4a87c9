"""Offset resets that running consumers are still to hear of (ConsumerOffsetManager's reset offsets).

The reset itself is a change of the replicated state. A consumer that runs would go on where it is and commit
its own offset again; its next pull of the queue is therefore answered 21 PULL_OFFSET_MOVED with the new
offset, which every client takes over. Until it pulls there, what it commits is from before the reset and does
not count: Java clients go on ten seconds after that answer, and commit what they had every five.

The marks are the leader's own: a consumer whose leader dies between the reset and its next pull has to be
reset again, as with RocketMQ.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    """`until_ms` is when a mark that is SENT ends."""

    offset: int
    stage: _Stage
    until_ms: int = 0


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
        self._put(group, topic, offsets, _Stage.STORING)

    def abandon(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """They could not be stored, or nobody is left who is to hear of them."""
        for queue_id in queue_ids:
            mark = self._marks.get((group, topic, queue_id))
            if mark is not None and mark.stage is _Stage.STORING:
                del self._marks[group, topic, queue_id]

    def mark(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The group's running consumers are to go on at these offsets, which are stored."""
        self._put(group, topic, offsets, _Stage.SET)
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
        if mark.stage is _Stage.SET and mark.offset != offset:
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
        if mark.stage is _Stage.SENT and now_ms >= mark.until_ms:
            del self._marks[key]
            return False
        return True

    def clear(self) -> None:
        """Another node leads: whatever was committed there counts."""
        self._marks.clear()

    def _put(self, group: str, topic: str, offsets: Mapping[int, int], stage: _Stage) -> None:
        marks = {(group, topic, queue_id): _Mark(offset, stage) for queue_id, offset in offsets.items()}
        if len(self._marks) + len(marks.keys() - self._marks.keys()) > self._marks_max:
            self._make_room()  # once for all of them: it looks at every mark there is
        for key, mark in marks.items():
            if key in self._marks or len(self._marks) < self._marks_max:
                self._marks[key] = mark

    def _make_room(self) -> None:
        """Whoever was sent already goes there anyway."""
        self._marks = {key: mark for key, mark in self._marks.items() if mark.stage is not _Stage.SENT}
