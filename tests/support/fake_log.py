"""A MessageLog in memory for unit tests of the broker: records, consume queues and listeners, with the commit
in the test's hand.

`auto_commit=True` (default) commits what was put on the next turn of the loop; with False nothing is
committed until `commit()`, or `fail(status)` which answers the waiting puts without storing them.
`next_status` refuses the next puts.
"""

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from commitlog.consume_queue import UNIT, Boundary
from commitlog.dispatch import (
    STATE_TOPIC,
    Applied,
    DispatchBatch,
    DispatchRequest,
    RecordRange,
    stamp_deletions,
    topics_deleted_by,
)
from commitlog.errors import PositionError
from commitlog.log import DispatchListener, MessageLog, PutResult, PutStatus
from commitlog.record import (
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    Message,
    decode_record,
    encode_record,
    get_property,
    tags_code,
)
from commitlog.sequences import SequenceRun, record_runs
from dledger.core.membership import CHANGING_MEMBERS_LEVEL

if TYPE_CHECKING:
    from commitlog.consume_queues import ConsumeQueues
    from dledger.core.status import NodeStatus

ENTRY_HEADER_BYTES = 48
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class FakeQueue:
    """One consume queue: units (position, size, tags code) from `min_offset` on."""

    def __init__(self) -> None:
        self.min_offset = 0
        self.rows: list[tuple[int, int, int]] = []
        self.store_times: list[int] = []

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.rows)

    def units(self, start: int, count: int) -> list[tuple[int, int, int]]:
        first = max(start - self.min_offset, 0)
        return self.rows[first : first + count]

    def packed_units(self, start: int, count: int) -> bytes:
        return b"".join(UNIT.pack(*unit) for unit in self.units(start, count))

    def drop_before(self, offset: int) -> None:
        """As if the messages before `offset` had been deleted with their files."""
        del self.rows[: offset - self.min_offset]
        del self.store_times[: offset - self.min_offset]
        self.min_offset = offset

    def offset_by_time(self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """As ConsumeQueue's; the store times never go back here."""
        if boundary is Boundary.LOWER:
            return self.min_offset + bisect.bisect_left(self.store_times, timestamp_ms)
        found = bisect.bisect_right(self.store_times, timestamp_ms) - 1
        return self.min_offset + max(found, 0)


class FakeQueues:
    """The consume queues of a FakeLog."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, int], FakeQueue] = {}

    def get(self, topic: str, queue_id: int) -> FakeQueue | None:
        return self.by_key.get((topic, queue_id))

    def next_offset(self, topic: str, queue_id: int) -> int:
        queue = self.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def position_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self.by_key.get((topic, queue_id))
        units = queue.units(max(offset, queue.min_offset), 1) if queue is not None else []
        return units[0][0] if units else None

    def __iter__(self) -> Iterator[FakeQueue]:
        """Those with files: none has any."""
        return iter(())

    def delete(self, topic: str) -> None:
        for key in [key for key in self.by_key if key[0] == topic]:
            del self.by_key[key]

    def topics(self) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self.by_key))

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(queue_id for name, queue_id in self.by_key if name == topic)

    def raise_to(self, topic: str, queue_id: int, next_offset: int, position: int) -> None:
        queue = self.by_key.setdefault((topic, queue_id), FakeQueue())
        if queue.max_offset < next_offset and (not queue.rows or queue.rows[-1][0] < position):
            queue.rows.clear()
            queue.min_offset = next_offset

    def append(self, request: DispatchRequest) -> None:
        queue = self.by_key.setdefault((request.topic, request.queue_id), FakeQueue())
        assert queue.max_offset == request.queue_offset, (queue.max_offset, request)
        queue.rows.append((request.position, request.size, request.tags_code))
        queue.store_times.append(request.store_timestamp_ms)


@dataclass(slots=True)
class _Put:
    requests: list[DispatchRequest]
    on_done: Callable[[PutStatus], None]


class FakeLog:
    """Implements MessageLog."""

    def __init__(
        self, *, auto_commit: bool = True, is_writable: bool = True, now_ms: int = 1_700_000_000_000
    ) -> None:
        self.auto_commit = auto_commit
        self.now_ms = now_ms
        self.next_status = PutStatus.PUT_OK
        self.fake_queues = FakeQueues()
        self.put_calls: list[list[Message]] = []
        self.replayed_from: int | None = None
        self.node_status: NodeStatus | None = None
        self._is_writable = is_writable
        self.is_behind = False
        """Whether more is committed than the queues show."""
        self._records: dict[int, bytes] = {}
        self._committed: list[DispatchRequest] = []
        self._end_position = 0
        self._end_index = -1
        self._readable_end = 0
        self._applied_index = -1
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._waiting: deque[_Put] = deque()
        self.dispatched_most = 0
        self.format_level = CHANGING_MEMBERS_LEVEL
        self._listeners: dict[DispatchListener, frozenset[str] | None] = {}
        self._writable_callbacks: list[Callable[[bool], None]] = []

    @property
    def queues(self) -> "ConsumeQueues":
        return cast("ConsumeQueues", self.fake_queues)

    @property
    def min_position(self) -> int:
        return 0

    @property
    def max_position(self) -> int:
        return self._readable_end

    @property
    def applied_index(self) -> int:
        return self._applied_index

    @property
    def queued_index(self) -> int:
        return self._applied_index

    @property
    def messages(self) -> list[Message]:
        """Every message that was put, in order."""
        return [message for call in self.put_calls for message in call]

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        if deleted_topics:
            stamp_deletions(messages[-1], deleted_topics)
        status = self.next_status if self._is_writable else PutStatus.SERVICE_NOT_AVAILABLE
        if status is not PutStatus.PUT_OK:
            return PutResult(status, [], [], 0)
        self.put_calls.append(list(messages))
        requests = [self._lay_out(message) for message in messages]
        for key in [key for key in self._next_offsets if key[0] in deleted_topics]:
            del self._next_offsets[key]
        self._waiting.append(_Put(requests, on_done))
        if self.auto_commit:
            asyncio.get_running_loop().call_soon(self.commit)
        return PutResult(
            PutStatus.PUT_OK, [r.position for r in requests], [r.queue_offset for r in requests], self.now_ms
        )

    def _lay_out(self, message: Message) -> DispatchRequest:
        key = (message.topic, message.queue_id)
        queue_offset = self._next_offsets.get(key, 0)
        self._next_offsets[key] = queue_offset + 1
        data = bytearray(encode_record(message, queue_offset, self.now_ms))
        position = self._end_position + ENTRY_HEADER_BYTES
        data[28:36] = position.to_bytes(8, "big")
        self._records[position] = bytes(data)
        self._end_position = position + len(data)
        self._end_index += 1
        tag = get_property(message.properties, PROPERTY_TAGS)
        code = 0 if tag is None else tags_code(tag.decode(errors="replace"))
        assert message.topic != SCHEDULE_TOPIC or get_property(message.properties, PROPERTY_DELAY)
        return DispatchRequest(
            self._end_index,
            message.topic,
            message.queue_id,
            queue_offset,
            position,
            len(data),
            code,
            self.now_ms,
            message.sys_flag,
        )

    def commit(self, count: int | None = None) -> None:
        """Commit all that waits, or so many puts of it: queues, then listeners, then the puts' callbacks."""
        waiting = list(self._waiting)
        puts, self._waiting = waiting[:count], deque([] if count is None else waiting[count:])
        requests = [request for put in puts for request in put.requests]
        if not requests:
            return
        self._queue(requests)
        self._committed += requests
        self._applied_index = requests[-1].index
        self._readable_end = requests[-1].position + requests[-1].size
        self._dispatch(self._batch(requests))
        for put in puts:
            put.on_done(PutStatus.PUT_OK)

    def _queue(self, requests: Sequence[DispatchRequest]) -> None:
        for request in requests:
            if request.topic == STATE_TOPIC:
                properties = decode_record(self._records[request.position]).properties
                for topic in topics_deleted_by(properties):
                    self.fake_queues.delete(topic)
            self.fake_queues.append(request)

    def time_out(self) -> None:
        """Answer all that waits that no majority has it in time; it stays in the log and can be committed."""
        waiting = list(self._waiting)
        on_done = [put.on_done for put in waiting]
        for put in waiting:
            put.on_done = lambda _: None
        for answer in on_done:
            answer(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)

    def fail(self, status: PutStatus) -> None:
        """Answer all that waits with `status`, and take it out of the log again."""
        puts, self._waiting = list(self._waiting), deque()
        for put in puts:
            for request in put.requests:
                del self._records[request.position]
                key = (request.topic, request.queue_id)
                self._next_offsets[key] = min(self._next_offsets[key], request.queue_offset)
            self._end_index -= len(put.requests)
        for put in puts:
            put.on_done(status)

    def is_writable(self) -> bool:
        return self._is_writable

    def shows_all_committed(self) -> bool:
        return not self.is_behind

    def set_writable(self, is_writable: bool) -> None:
        self._is_writable = is_writable
        for callback in self._writable_callbacks:
            callback(is_writable)

    def on_writable_change(self, callback: Callable[[bool], None]) -> None:
        self._writable_callbacks.append(callback)

    def read(self, position: int, size: int) -> bytes:
        data = self.record_at(position)
        if data is None or len(data) != size:
            raise PositionError(f"no record of {size} bytes at {position}")
        return data

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        return b"".join(self.read(position, size) for position, size in units)

    def read_units(self, units: bytes) -> bytes:
        return self.read_many([(position, size) for position, size, _ in UNIT.iter_unpack(units)])

    def record_at(self, position: int) -> bytes | None:
        return self._records.get(position) if position < self._readable_end else None

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        self._listeners[listener] = None if topics is None else frozenset(topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        self._listeners.pop(listener, None)

    def _dispatch(self, batch: DispatchBatch) -> None:
        self.dispatched_most = max(self.dispatched_most, len(batch))
        for listener, wanted in list(self._listeners.items()):
            if wanted is None or not wanted.isdisjoint(batch.topics):
                listener(batch)

    @property
    def begin_index(self) -> int:
        return 0

    def suspend_writes(self, is_suspended: bool) -> None:
        raise AssertionError("this log keeps its first entry")

    def redeliver_from(self, listener: DispatchListener, index: int) -> None:
        raise AssertionError("this log keeps its first entry")

    def replay_from(self, index: int) -> None:
        self.replayed_from = index

    def reopened(self) -> "FakeLog":
        """The same committed messages as another process (or node) finds them; nothing else is shared."""
        log = FakeLog(auto_commit=self.auto_commit, is_writable=self._is_writable, now_ms=self.now_ms)
        log._records = dict(self._records)
        log._committed = list(self._committed)
        log._queue(log._committed)
        log._end_position, log._end_index = self._end_position, self._end_index
        log._readable_end, log._applied_index = self._readable_end, self._applied_index
        log._next_offsets = dict(self._next_offsets)
        return log

    async def start(self) -> None:
        """Give the listeners what `replay_from` asked for."""
        if self.replayed_from is None:
            return
        requests = [request for request in self._committed if request.index >= self.replayed_from]
        if requests:
            self._dispatch(self._batch(requests))

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        requests = [request for request in self._committed if index <= request.index <= last_index]
        return self._batch(requests), Applied(last_index, self.end_of(last_index))

    def end_of(self, index: int) -> int:
        found = [request for request in self._committed if request.index <= index]
        return found[-1].position + found[-1].size if found else 0

    def _batch(self, requests: Sequence[DispatchRequest]) -> DispatchBatch:
        records = self._range_of(requests) if requests else None
        return DispatchBatch.of(requests, self._sequences(requests), records)

    def _range_of(self, requests: Sequence[DispatchRequest]) -> RecordRange:
        """The records in entries, each as long as up to the next."""
        entries = []
        ends = [request.position - ENTRY_HEADER_BYTES for request in requests[1:]]
        for request, end in zip(requests, [*ends, requests[-1].position + requests[-1].size], strict=True):
            size = ENTRY_HEADER_BYTES + end - request.position
            head = size.to_bytes(4, "big").rjust(8, b"\0").ljust(ENTRY_HEADER_BYTES, b"\0")
            entries.append((head + self._records[request.position]).ljust(size, b"\0"))
        first = requests[0]
        position = first.position - ENTRY_HEADER_BYTES
        return RecordRange(first.index, requests[-1].index, position, b"".join(entries))

    def _sequences(self, requests: Sequence[DispatchRequest]) -> list[SequenceRun]:
        """A run for each record alone."""
        records = ((request.index, self._records[request.position]) for request in requests)
        return [run for index, data in records for run in record_runs(data, [0], [index])]

    async def stop(self) -> None:
        """Nothing to do: there is no file."""

    def status(self) -> "NodeStatus | None":
        return self.node_status


def as_message_log(log: FakeLog) -> MessageLog:
    """Says to the type checker that the fake keeps the whole contract."""
    return log
