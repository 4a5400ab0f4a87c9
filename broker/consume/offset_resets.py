"""Offset resets that running consumers have not followed yet (ConsumerOffsetManager's reset offsets).

The reset itself is a change of the replicated state. A running consumer would continue at its own offset and
commit that again. Its next pull of the queue is therefore answered 21 PULL_OFFSET_MOVED with the new offset,
which every client adopts. Offsets that it commits before it pulls there are from before the reset and are
ignored: Java clients continue ten seconds after that answer, and commit their old offset every five seconds.

Every node that applies a reset keeps marks of it: a consumer may read from a follower, and the leader may
crash before the consumer has received the new offset. The leader stores no other offset of the group in
between. So the next stored offset shows to all nodes that the consumer has followed the reset, and they drop
their marks. A consumer that has followed but stores no offset may be sent there once more by the next leader.

A leader may be storing several resets of a queue at once. The last one counts from the moment it is proposed:
no consumer is sent to an earlier one's offset, and only its own offset is stored, until it is applied too or
is known to have failed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final

from broker.consume.clients import HEARD_WITHIN_MS, RunningGroups
from broker.state.changes import Change, CommitOffsets, DeleteGroup, DeleteTopic, DropOffsets
from broker.state.state import ReplicatedState
from broker.state.tables import HEARD_OF_MS
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import LogMachine

SENT_MS: Final = 30_000
"""How long a consumer that was sent to its new offset is waited for there."""
NOT_PUT: Final = frozenset(
    {PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY, PutStatus.MESSAGE_ILLEGAL}
)
"""What was answered so is not in the log, and never will be; of all other failures that is not known."""

logger = logging.getLogger(__name__)

_Key = tuple[str, str, int]


class _Stage(Enum):
    """SET: the next pull is to be sent there. SENT: one was."""

    SET = 1
    SENT = 2


@dataclass(frozen=True, slots=True)
class _Mark:
    """Of a reset that is stored. `until_ms` is when an unused mark ends; None: never."""

    offset: int
    stage: _Stage
    until_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms


@dataclass(frozen=True, slots=True)
class _Storing:
    """A reset that is proposed and not yet applied."""

    offset: int
    future: asyncio.Future[PutStatus]

    def is_void(self) -> bool:
        return self.future.done() and not self.future.cancelled() and self.future.result() in NOT_PUT


class OffsetResets:
    """Marks by group, topic and queue, at most `marks_max()` of them. Times are a monotonic clock's."""

    def __init__(self, marks_max: Callable[[], int]) -> None:
        self._marks_max = marks_max
        self._marks: dict[_Key, _Mark] = {}
        self._storing: dict[_Key, list[_Storing]] = {}
        """In the order in which they were proposed, which is that of the log."""
        self._callbacks: list[Callable[[str, int], None]] = []

    def __len__(self) -> int:
        """Queues of groups that wait for their consumer."""
        return len(self._marks.keys() | self._storing.keys())

    def __bool__(self) -> bool:
        return bool(self._marks or self._storing)

    def on_mark(self, callback: Callable[[str, int], None]) -> None:
        """Call `callback` with each (topic, queue id) that has a new mark, once all of a reset are set."""
        self._callbacks.append(callback)

    def has_room(
        self,
        group: str,
        topic: str,
        queue_ids: Collection[int],
        now_ms: int,
        runs: Callable[[str], bool],
    ) -> bool:
        """Whether there is room for the marks of a reset of these queues. At the bound, expired marks and
        those of groups without running consumers are dropped first.
        """
        if not self._has_room(group, topic, queue_ids):
            groups = {key[0]: runs(key[0]) for key in self._marks}
            self._marks = {
                key: mark for key, mark in self._marks.items() if groups[key[0]] and not mark.is_over(now_ms)
            }
        return self._has_room(group, topic, queue_ids)

    def _has_room(self, group: str, topic: str, queue_ids: Collection[int]) -> bool:
        keys = ((group, topic, queue_id) for queue_id in queue_ids)
        new = sum(key not in self._marks and key not in self._storing for key in keys)
        return len(self) + new <= self._marks_max()

    def begin(
        self, group: str, topic: str, offsets: Mapping[int, int], future: asyncio.Future[PutStatus]
    ) -> None:
        """These offsets were proposed just now: the group's own commits must not overtake them. `future`
        resolves with the status of the proposal. While that status is unknown they are kept, until they are
        applied here or this node loses the leadership.
        """
        for queue_id, offset in offsets.items():
            self._storing.setdefault((group, topic, queue_id), []).append(_Storing(offset, future))
        future.add_done_callback(partial(self._settle, group, topic, tuple(offsets)))

    def _settle(
        self, group: str, topic: str, queue_ids: Iterable[int], future: asyncio.Future[PutStatus]
    ) -> None:
        if future.cancelled() or not (future.result() is PutStatus.PUT_OK or future.result() in NOT_PUT):
            return
        bared = []
        for queue_id in queue_ids:
            key = (group, topic, queue_id)
            rows = self._storing.get(key, [])
            left = [storing for storing in rows if storing.future is not future]
            self._keep_storing(key, left)
            if rows and not left and key in self._marks:
                bared.append(queue_id)
        self._tell(topic, bared)

    def _keep_storing(self, key: _Key, rows: list[_Storing]) -> None:
        if rows:
            self._storing[key] = rows
        else:
            self._storing.pop(key, None)

    def _tell(self, topic: str, queue_ids: Iterable[int]) -> None:
        for callback in self._callbacks:
            for queue_id in queue_ids:
                callback(topic, queue_id)

    def drop(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Drop this reset's marks: no consumer is left that must follow it. Marks of another reset of these
        queues (with another offset) stay.
        """
        for queue_id, offset in offsets.items():
            mark = self._marks.get((group, topic, queue_id))
            if mark is not None and mark.offset == offset:
                del self._marks[group, topic, queue_id]

    def forget(self, group: str | None = None, topic: str | None = None) -> None:
        """Drop the marks of this group in this topic, since its offsets there were removed; None: of every
        group, in every topic. A topic that is created again begins at 0: a consumer that is sent to the old
        offset would skip its messages.
        """
        if self._marks:
            self._marks = {
                key: mark
                for key, mark in self._marks.items()
                if group not in (None, key[0]) or topic not in (None, key[1])
            }

    def end(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """These offsets were stored after the reset: by a consumer that followed it, or by another reset."""
        for queue_id, offset in offsets.items():
            key = (group, topic, queue_id)
            mark = self._marks.get(key)
            if mark is not None and mark.stage is _Stage.SET and mark.offset != offset:
                del self._marks[key]

    def mark(self, group: str, topic: str, offsets: Mapping[int, int], until_ms: int | None = None) -> None:
        """Mark that the group's running consumers must continue at these offsets, which are stored.
        `until_ms`: when the mark expires, on a node that may never see that the consumers have followed;
        None: never.
        """
        for queue_id, offset in offsets.items():
            key = (group, topic, queue_id)
            self._marks.pop(key, None)
            self._marks[key] = _Mark(offset, _Stage.SET, until_ms)  # behind all older ones
            self._pass_over_stored(key, offset)
        if until_ms is not None:
            self._drop_oldest()
        self._tell(topic, [q for q in offsets if (group, topic, q) not in self._storing])

    def _pass_over_stored(self, key: _Key, offset: int) -> None:
        """Remove the first pending proposal if it has this offset: then it is the one that was just
        applied.
        """
        rows = [storing for storing in self._storing.get(key, ()) if not storing.is_void()]
        if rows and rows[0].offset == offset:
            del rows[0]
        self._keep_storing(key, rows)

    def _drop_oldest(self) -> None:
        """Drop the oldest marks beyond the bound: a reset that another node has accepted cannot be refused
        here.
        """
        beyond = len(self._marks) - self._marks_max()
        if beyond > 0:
            logger.warning("the marks of %d offset resets are dropped: there are offsetResetMarksMax", beyond)
            for key in list(self._marks)[:beyond]:
                del self._marks[key]

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove the queue's mark; return the offset that a consumer must continue at, or None. Later commits
        are not compared with it.
        """
        key = (group, topic, queue_id)
        mark = self._marks.get(key)
        if mark is None or key in self._storing:
            return None
        del self._marks[key]
        return mark.offset if mark.stage is _Stage.SET else None

    def send(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        """The offset to which a pull at `offset` must be sent, or None. The next pull after that shows that
        the consumer continues there.
        """
        key = (group, topic, queue_id)
        mark = self._marks.get(key)
        if mark is None or key in self._storing:
            return None
        if mark.stage is _Stage.SET and mark.offset != offset and not mark.is_over(now_ms):
            self._marks[key] = _Mark(mark.offset, _Stage.SENT, now_ms + SENT_MS)
            return mark.offset
        del self._marks[key]
        return None

    def keeps_out(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Whether an offset that the group commits is from before its reset."""
        key = (group, topic, queue_id)
        storing = self._storing.get(key)
        if storing is not None:
            return offset != storing[-1].offset
        mark = self._marks.get(key)
        if mark is None or offset == mark.offset:
            return False
        if mark.is_over(now_ms):
            del self._marks[key]
            return False
        return True

    def become_follower(self, until_ms: int) -> None:
        """Resets that this node was storing may still be applied, or never; marks end at this time."""
        self._storing.clear()
        self._marks = {
            key: replace(mark, until_ms=until_ms if mark.until_ms is None else mark.until_ms)
            for key, mark in self._marks.items()
        }

    def become_leader(self, now_ms: int) -> None:
        """Drop expired marks, so that they send no consumer to an old offset."""
        self._marks = {key: mark for key, mark in self._marks.items() if not mark.is_over(now_ms)}


class AppliedResets(LogMachine):
    """Updates the marks of one node from the log, on every node. Its input are the changes of the replicated
    state, applied one by one, instead of batches of the log.
    """

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        resets: OffsetResets,
        groups: RunningGroups,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`clock` is the wall clock, `now_ms` a monotonic one, both in ms."""
        super().__init__(log)
        self._state = state
        self._resets = resets
        self._groups = groups
        self._clock = clock
        self._now_ms = now_ms
        state.on_applied(self.apply_change, CommitOffsets, DeleteTopic, DeleteGroup, DropOffsets)
        state.on_replaced = self.load_pending
        self.load_pending()

    def load_pending(self) -> None:
        """The state was loaded from a snapshot, not made of records that were applied here."""
        self._resets.forget()
        for (group, topic, queue_id), reset in self._state.resets.items():
            self._mark_for_a_while(group, topic, {queue_id: reset.offset}, reset.stored_ms)

    def apply_change(self, change: Change, stored_ms: int) -> None:
        """A change of the state, on any node. Where offsets are deleted, their marks are too."""
        resets = self._resets
        match change:
            case CommitOffsets():
                self._apply_offsets(change, stored_ms)
            case DeleteTopic(topic):
                resets.forget(topic=topic)
            case DeleteGroup(group, True):
                resets.forget(group=group)
            case DropOffsets(group, topic):
                resets.forget(group, topic)
            case _:
                pass

    def become_leader(self) -> None:
        """Clients of the last leader connect to this node from now on."""
        self._groups.begin()
        self._resets.become_leader(self._now_ms())

    def become_follower(self) -> None:
        """The next leader redirects the consumers; this node may not learn that it did."""
        self._resets.become_follower(self._now_ms() + HEARD_OF_MS)

    def _apply_offsets(self, change: CommitOffsets, stored_ms: int) -> None:
        resets = self._resets
        if not change.is_reset:
            if resets:
                resets.end(change.group, change.topic, change.offsets)
        elif self._log.is_writable():
            until_ms = None if self._groups.is_known(change.group) else self._now_ms() + HEARD_WITHIN_MS
            resets.mark(change.group, change.topic, change.offsets, until_ms)
        else:
            self._mark_for_a_while(change.group, change.topic, change.offsets, stored_ms)

    def _mark_for_a_while(self, group: str, topic: str, offsets: Mapping[int, int], stored_ms: int) -> None:
        left_ms = HEARD_OF_MS - (self._clock() - stored_ms)
        if left_ms > 0:
            until_ms = self._now_ms() + min(left_ms, HEARD_OF_MS)
            self._resets.mark(group, topic, offsets, until_ms)
