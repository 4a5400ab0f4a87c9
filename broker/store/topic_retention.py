"""Topics with a retention time of their own, shorter than the log's: their queues show no older message,
though the log may still have it. Also removes the offsets of deleted groups.

The leader decides (TrimQueues, DropOffsets), so that the first message shown is the same on all nodes.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from broker.state.changes import DeleteTopic, DropOffsets, TrimQueues
from broker.state.state import ReplicatedState
from broker.state.topics import SYSTEM_PREFIX, SYSTEM_TOPICS, TopicConfig, topic_name_error
from commitlog.log import MessageLog, PutStatus

RETENTION_ATTRIBUTE: Final = "retention.ms"
"""A topic attribute: how long the topic shows its messages."""
LOOKED_AT_ONCE: Final = 500
CHANGES_AT_ONCE: Final = 1_000


def retention_ms(topic: TopicConfig) -> int | None:
    """The topic's own time; None when it has none, or one that cannot be read."""
    text = topic.attributes.get(RETENTION_ATTRIBUTE, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 15 else None


def is_system(topic: str) -> bool:
    """Whether the broker itself counts on the topic's offsets."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


class TopicRetention:
    """One node's."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
    ) -> None:
        self._log = log
        self._state = state
        log.on_writable_change(lambda _: self.show())

    def show(self) -> None:
        """Set the first shown offset of this node's queues from the replicated state, unless the queues are
        ahead of the state: a topic may have been deleted and created again.
        """
        log = self._log
        if log.applied_index < log.queued_index:
            return
        queues = log.queues
        for topic, offsets in self._state.first_shown.items():
            for queue_id, offset in offsets.items():
                queue = queues.get(topic, queue_id)
                if queue is not None:
                    queue.hide_before(offset)

    async def decide(self, now_ms: int) -> None:
        """On the leader: hide what is older than its topic allows."""
        state = self._state
        changes = []
        for topic in list(state.topics.values()):
            kept_ms = retention_ms(topic)
            is_certain = kept_ms is not None and not state.is_changing(topic.name)
            offsets = self._first_kept(topic.name, now_ms - (kept_ms or 0)) if is_certain else {}
            if offsets:
                changes.append(TrimQueues(topic.name, offsets))
        if changes:
            await state.propose(*changes[:CHANGES_AT_ONCE])
            self.show()

    def _first_kept(self, topic: str, oldest_kept_ms: int) -> dict[int, int]:
        """Of the topic's queues that show messages stored before: the first offset that stays."""
        queues = self._log.queues
        kept: dict[int, int] = {}
        for queue_id in queues.queue_ids(topic):
            queue = queues.get(topic, queue_id)
            if queue is not None and queue.min_offset < queue.max_offset:
                offset = queue.offset_by_time(oldest_kept_ms)
                if offset > queue.min_offset:
                    kept[queue_id] = offset
        return kept

    async def delete_strays(self) -> int:
        """On the leader: delete the remains of deleted topics: messages that arrived during the deletion, or
        that an earlier version left, and offsets of late consumers. Returns the number of topics.
        """
        log, state = self._log, self._state
        if not log.is_writable():
            return 0
        names = dict.fromkeys(log.queues.topics())
        names.update((topic, None) for topic, _ in state.offsets.pairs())
        strays = [
            name
            for name in names
            if name not in state.topics
            and not is_system(name)
            and topic_name_error(name) is None
            and not state.is_changing(name)
        ]
        deletions = [state.propose(DeleteTopic(name)) for name in strays[:CHANGES_AT_ONCE]]
        return sum(status is PutStatus.PUT_OK for status in await asyncio.gather(*deletions))

    async def drop_stale_offsets(self) -> None:
        """On the leader: drop the offsets of groups that do not exist, once the messages that they refer to
        are deleted.
        """
        log, state = self._log, self._state
        if not log.is_writable():
            return
        stale = []
        for number, (topic, group, offsets) in enumerate(list(state.offsets.items()), 1):
            if self._is_stale(group, topic, offsets):
                stale.append((group, topic))
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        # Meanwhile a group may exist again, or a consumer may have stored another offset.
        rows = [(group, topic, state.offsets.queues(group, topic)) for group, topic in stale]
        drops = [
            DropOffsets(group, topic)
            for group, topic, offsets in rows
            if self._is_stale(group, topic, offsets)
        ]
        if drops:
            await state.propose(*drops[:CHANGES_AT_ONCE])

    def _is_stale(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        return group not in self._state.groups and all(
            self._is_behind(topic, queue_id, offset) for queue_id, offset in offsets.items()
        )

    def _is_behind(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a group that starts again without this offset misses no message."""
        queue = self._log.queues.get(topic, queue_id)
        return queue is None or offset < queue.min_offset
