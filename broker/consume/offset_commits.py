"""Commits consumer offsets to the replicated state.

An offset a client commits by request 15 is proposed at once and acknowledged when it is committed and
applied. An offset in a pull request needs no acknowledgement, and every pull may have one: these are
collected and proposed together, once a second. Both count as the group's offset from the moment they arrive:
the new owner of a queue need not read again what the old owner has consumed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from broker.consume.offset_resets import NOT_PUT
from broker.state.changes import CommitOffsets
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog, PutStatus

FLUSH_INTERVAL_MS = 1_000
NOTED_MAX = 100_000
"""Most offsets from pulls that wait for the next flush; further ones are ignored until the client's next
commit.
"""
OFFSETS_PER_CHANGE_MAX = 10_000
OFFSET_MAX = 2**53 - 1
"""No queue gets there, and every client and page can still compute with it."""

Key = tuple[str, str, int]
"""Group, topic and queue id."""


class OffsetCommits:
    """Every change of this broker's consumer offsets is made here. Only the writable leader may use it."""

    def __init__(self, state: ReplicatedState, log: MessageLog) -> None:
        self._state = state
        self._log = log
        self._in_flight: dict[Key, tuple[int, asyncio.Future[PutStatus]]] = {}
        self._noted: dict[Key, int] = {}
        self._in_doubt: set[Key] = set()
        """Offsets that were answered as failed but may still be applied, so the stored offset may be out of
        date. Until a later offset is applied, or the leadership ends.
        """
        self._timer: asyncio.TimerHandle | None = None
        self._commit_callbacks: list[Callable[[str, str, int, int], None]] = []
        log.on_writable_change(self._on_writable_change)
        state.on_topic_deleted(self._drop_topic)

    def on_commit(self, callback: Callable[[str, str, int, int], None]) -> None:
        """Have `callback` called with the group, topic, queue id and offset of each `commit` and `reset`,
        before it is proposed.
        """
        self._commit_callbacks.append(callback)

    def current(self, group: str, topic: str, queue_id: int) -> int | None:
        """The newest offset known here, committed or proposed; None when the group never had one."""
        key = (group, topic, queue_id)
        noted = self._noted.get(key)
        return self._proposed(key) if noted is None else noted

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> asyncio.Future[PutStatus] | None:
        """Store the offset, higher or lower than before; resolves when it is committed. None when it is
        stored already: idle consumers commit the same offset every 5 s. None too when it is of a deleted
        topic that was made again: it is not stored.

        The future may be another request's too: wait for it behind asyncio.shield.
        """
        if self._is_of_deleted(topic, queue_id, offset):
            return None
        self._notify(group, topic, {queue_id: offset})
        key = (group, topic, queue_id)
        self._noted.pop(key, None)
        in_flight = self._in_flight.get(key)
        if in_flight is not None and in_flight[0] == offset:
            return in_flight[1]
        is_known = in_flight is None and key not in self._in_doubt
        if is_known and self._state.offsets.get(group, topic, queue_id) == offset:
            return None
        return self._propose(group, topic, {queue_id: offset})

    def reset(
        self, group: str, topic: str, offsets: dict[int, int], has_consumers: bool
    ) -> asyncio.Future[PutStatus]:
        """Store the offsets of several queues in one change, whatever was known; at most
        OFFSETS_PER_CHANGE_MAX. `has_consumers`: some may run, and every node is to send them there.
        """
        self._notify(group, topic, offsets)
        for queue_id in offsets:
            self._noted.pop((group, topic, queue_id), None)
        return self._propose(group, topic, offsets, has_consumers)

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the offset with the next flush if it is beyond the newest known one. One that no queue can
        have is ignored.
        """
        if not 0 <= offset <= OFFSET_MAX or not self.is_queue(topic, queue_id):
            return
        known = self.current(group, topic, queue_id)
        if known is not None and known >= offset:
            return
        if self._is_of_deleted(topic, queue_id, offset):
            return
        key = (group, topic, queue_id)
        if key not in self._noted and len(self._noted) >= NOTED_MAX:
            return
        self._noted[key] = offset
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_INTERVAL_MS / 1000, self.flush)

    def is_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the topic has such a queue, or had one whose messages are still there: offsets of others
        would only fill the table.
        """
        config = self._state.topics.get(topic)
        if config is not None and 0 <= queue_id < config.queue_nums:
            return True
        return self._log.queues.get(topic, queue_id) is not None

    def flush(self) -> None:
        """Propose all noted offsets."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        noted, self._noted = self._noted, {}
        by_topic: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for (group, topic, queue_id), offset in noted.items():
            by_topic[group, topic].append((queue_id, offset))
        for (group, topic), rows in by_topic.items():
            for start in range(0, len(rows), OFFSETS_PER_CHANGE_MAX):
                self._propose(group, topic, dict(rows[start : start + OFFSETS_PER_CHANGE_MAX]))

    async def start(self) -> None:
        """Nothing to begin: the first noted offset arms the timer."""

    async def stop(self) -> None:
        """Put what is noted into the log; what does not get there in time is left to the clients."""
        self.flush()
        pending = [future for _, future in self._in_flight.values()]
        if pending:
            await asyncio.wait(pending, timeout=FLUSH_INTERVAL_MS / 1000)

    def _notify(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        for callback in self._commit_callbacks:
            for queue_id, offset in offsets.items():
                callback(group, topic, queue_id, offset)

    def _proposed(self, key: Key) -> int | None:
        in_flight = self._in_flight.get(key)
        return self._state.offsets.get(*key) if in_flight is None else in_flight[0]

    def _propose(
        self, group: str, topic: str, offsets: dict[int, int], is_reset: bool = False
    ) -> asyncio.Future[PutStatus]:
        future = self._state.propose(CommitOffsets(group, topic, offsets, is_reset))
        for queue_id, offset in offsets.items():
            self._in_flight[group, topic, queue_id] = (offset, future)
        future.add_done_callback(lambda done: self._settle(group, topic, offsets, done))
        return future

    def _settle(
        self, group: str, topic: str, offsets: Iterable[int], future: asyncio.Future[PutStatus]
    ) -> None:
        keys = [(group, topic, queue_id) for queue_id in offsets]
        for key in keys:
            in_flight = self._in_flight.get(key)
            if in_flight is not None and in_flight[1] is future:
                del self._in_flight[key]
        status = future.result()
        if status is PutStatus.PUT_OK:
            self._in_doubt.difference_update(keys)
        elif status not in NOT_PUT:
            self._in_doubt.update(keys)

    def _is_of_deleted(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether no message of the topic can have led there: its queue was farther before it was deleted,
        and a consumer of that time still runs.
        """
        if topic not in self._state.deleted_at or not self._log.shows_all_committed():
            return False
        return offset > self._log.queues.next_offset(topic, queue_id)

    def _drop_topic(self, topic: str) -> None:
        """Drop the offsets of a deleted topic: they must not apply to a topic that is created again by the
        same name.
        """
        self._noted = {key: offset for key, offset in self._noted.items() if key[1] != topic}

    def _on_writable_change(self, is_writable: bool) -> None:
        """Offsets noted under one leadership are not the next one's to propose."""
        if not is_writable:
            self._noted.clear()
            self._in_doubt.clear()
