"""Assigns queue offsets to new messages, on the leader."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from commitlog.consume_queues import NOT_QUEUED, ConsumeQueues
from commitlog.dispatch import is_topic_name
from commitlog.record import Message, MessageIllegalError, OffsetKey, encode_ordinary, encode_record


@dataclass(slots=True)
class EncodedBatch:
    """Records with their queue offsets, which count as assigned only after `QueueOffsets.assign`."""

    bodies: Sequence[bytes]
    queue_offsets: list[int]
    next_offsets: dict[OffsetKey, int]


class QueueOffsets:
    """The next offset of each queue, counting messages that are appended but not yet committed.

    A queue that is not in the table has no such message: its next offset is the consume queue's.
    """

    def __init__(self, queues: ConsumeQueues, body_bytes_max: int, record_bytes_max: int) -> None:
        """`record_bytes_max` is what a file of the log can hold."""
        self._queues = queues
        self._body_bytes_max = body_bytes_max
        self._record_bytes_max = record_bytes_max
        self._next: dict[OffsetKey, int] = {}
        self._deleted: Counter[str] = Counter()
        """By topic, how many records that delete it are appended but not dispatched. Until the last one is
        dispatched, the consume queue still has the offsets of the deleted topic, and is not asked."""
        queues.on_delete(self._queues_emptied)

    def encode(self, messages: Sequence[Message], store_timestamp_ms: int) -> EncodedBatch:
        """Lay out the records with the offsets they would get. Raises MessageIllegalError."""
        found = encode_ordinary(
            messages, self._next, store_timestamp_ms, self._body_bytes_max, self._record_bytes_max
        )
        if found is not None:
            return EncodedBatch(*found)
        return self._encode_any(messages, store_timestamp_ms)

    def _encode_any(self, messages: Sequence[Message], store_timestamp_ms: int) -> EncodedBatch:
        next_offsets: dict[OffsetKey, int] = {}
        bodies = []
        queue_offsets = []
        for message in messages:
            if len(message.body) > self._body_bytes_max:
                raise MessageIllegalError(
                    f"body of {len(message.body)} bytes, at most {self._body_bytes_max}"
                )
            offset = 0
            if not message.sys_flag & NOT_QUEUED:
                key = (message.topic, message.queue_id)
                known = next_offsets.get(key)
                offset = self._next_of(key) if known is None else known
                next_offsets[key] = offset + 1
            body = encode_record(message, offset, store_timestamp_ms)
            if len(body) > self._record_bytes_max:
                raise MessageIllegalError(
                    f"record of {len(body)} bytes, at most {self._record_bytes_max} fit into a file"
                )
            bodies.append(body)
            queue_offsets.append(offset)
        return EncodedBatch(bodies, queue_offsets, next_offsets)

    def assign(self, batch: EncodedBatch, deleted_topics: Sequence[str] = ()) -> None:
        """The batch was appended, so its offsets are used. After it the queues of `deleted_topics` begin at
        0.
        """
        self._next.update(batch.next_offsets)
        if deleted_topics:
            self._deleted.update(deleted_topics)
            gone = frozenset(deleted_topics)
            for key in [key for key in self._next if key[0] in gone]:
                del self._next[key]

    def clear(self) -> None:
        """Drop the table: leadership was lost or won, so messages that are not in the queues may be gone."""
        self._next.clear()
        self._deleted.clear()

    def _next_of(self, key: OffsetKey) -> int:
        offset = self._next.get(key)
        if offset is not None:
            return offset
        topic, queue_id = key
        if not is_topic_name(topic) or queue_id < 0:
            raise MessageIllegalError(f"topic {topic!r}, queue {queue_id}")
        return 0 if topic in self._deleted else self._queues.next_offset(topic, queue_id)

    def _queues_emptied(self, topic: str) -> None:
        """A record that deletes the topic was dispatched. Messages appended behind it keep their offsets."""
        if self._deleted[topic] > 1:
            self._deleted[topic] -= 1
        else:
            del self._deleted[topic]
