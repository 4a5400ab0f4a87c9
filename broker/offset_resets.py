"""Offset resets that running consumers are still to hear of (ConsumerOffsetManager's reset offsets).

The reset itself is a change of the replicated state. A consumer that runs would go on where it is and commit
its own offset again; its next pull of the queue is therefore answered 21 PULL_OFFSET_MOVED with the new
offset, which every client takes over. The marks are the leader's own: a consumer whose leader dies between
the reset and its next pull has to be reset again, as with RocketMQ.
"""

from collections.abc import Callable, Mapping
from typing import Final

MARKS_MAX: Final = 100_000
"""Queues of groups that wait for their consumer; a reset beyond them reaches running consumers only when they
are started anew.
"""


class OffsetResets:
    """Marks by group, topic and queue, each taken once."""

    def __init__(self, marks_max: int = MARKS_MAX) -> None:
        self._marks_max = marks_max
        self._marks: dict[tuple[str, str, int], int] = {}
        self._callbacks: list[Callable[[str, int], None]] = []

    def __len__(self) -> int:
        return len(self._marks)

    def on_mark(self, callback: Callable[[str, int], None]) -> None:
        """Have `callback` told of each (topic, queue id) with a new mark, once all of a reset are set."""
        self._callbacks.append(callback)

    def mark(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The group's running consumers are to go on at these offsets."""
        for queue_id, offset in offsets.items():
            key = (group, topic, queue_id)
            if key in self._marks or len(self._marks) < self._marks_max:
                self._marks[key] = offset
        for callback in self._callbacks:
            for queue_id in offsets:
                callback(topic, queue_id)

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset a pull of this queue has to be sent to, if any."""
        return self._marks.pop((group, topic, queue_id), None) if self._marks else None

    def clear(self) -> None:
        """Another node leads: whatever was committed there counts."""
        self._marks.clear()
