"""What the leader knows of messages that are out, and the only way to change it: records of the log.

The table is read from the log when leadership begins, and thrown away when it ends. Within a leadership every
op is made in the table at once, and put in the log with all others of the turn, in one record; whoever asked
for it is answered when that is committed. So the table is never behind what the log may come to hold, and a
new leader knows everything that anybody was told.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from broker.consume.offset_commits import OffsetCommits
from broker.feature import Core
from broker.pop.group_queue import Lane
from broker.pop.loading import load, snapshot_hold
from broker.pop.ops import (
    POP_QUEUE_ID,
    POP_TOPIC,
    RECORD_BYTES_MAX,
    TAG_SNAPSHOT,
    Dropped,
    Finished,
    LaneKey,
    Op,
    PopRecordError,
    Sought,
    encode_op,
    join_ops,
    snapshot_bodies,
)
from broker.pop.table import PopTable
from commitlog.errors import DamagedQueueError
from commitlog.log import PutStatus
from commitlog.record import CorruptRecordError, Message, format_properties

LANES_MAX = 100_000
"""Queues, each once for every group that pops it, of which more is known than an offset."""
WAITING_OPS_MAX = 20_000
"""Ops that the log did not take yet. Beyond, requests are refused."""
SNAPSHOT_NEWS_MIN = 5_000
"""A snapshot is written when so much has happened, or as much as there are messages out if that is more: what
a new leader has to read.
"""
RETRY_S = 0.05
"""After a put that the log refused."""
FLOORS_INTERVAL_S = 0.5
"""How often the groups' offsets follow what was finished."""

logger = logging.getLogger(__name__)

OnDone = Callable[[PutStatus], None]


class PopLedger:
    """The table of one broker. There is none unless this node is the writable leader and has read it."""

    def __init__(self, context: Core, commits: OffsetCommits) -> None:
        self._context = context
        self._log = context.log
        self._commits = commits
        self._now_ms = context.environment.monotonic_ms
        self._table: PopTable | None = None
        self._loading: asyncio.Task[None] | None = None
        self._ops: list[Op] = []
        self._waiters: list[OnDone] = []
        self._news = 0
        self._retry: asyncio.TimerHandle | None = None
        self._touched: dict[LaneKey, None] = {}
        self._floors: asyncio.TimerHandle | None = None
        self._sought: dict[LaneKey, int] = {}
        """Offsets that groups were moved to while the table is read."""
        self._deleted_topics: set[str] = set()
        """Some may be there again: what is out of them is of messages that are gone."""
        self._ready_callbacks: list[Callable[[bool], None]] = []
        context.log.on_writable_change(self._on_writable_change)
        context.state.on_topics_changed(self._on_topics_changed)
        context.state.on_topic_deleted(self._on_topic_deleted)
        commits.on_commit(self._seek)

    async def start(self) -> None:
        if self._log.is_writable() and self._table is None and self._loading is None:
            self._lead()

    async def stop(self) -> None:
        if self._table is not None:
            self.flush()
        self._follow()

    def on_ready(self, callback: Callable[[bool], None]) -> None:
        """Have `callback` called with True when the table is there, with False when it is gone."""
        self._ready_callbacks.append(callback)

    @property
    def table(self) -> PopTable | None:
        """None while there is none. Changed by `record` alone."""
        return self._table

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    def has_room(self) -> bool:
        """Whether ops may be recorded; not while the log has taken none for long."""
        return len(self._ops) < WAITING_OPS_MAX

    def has_room_for(self, key: LaneKey) -> bool:
        """Whether a lane may be made, if it is a new one."""
        table = self._table
        return table is not None and (key in table.lanes or len(table.lanes) < LANES_MAX)

    def record(self, op: Op) -> None:
        """It has happened. `flush` must follow within the turn."""
        assert self._table is not None, f"{op} without a table"
        self._table.apply(op, self._now_ms())
        self._ops.append(op)
        self.touch(op.key)

    @property
    def has_recorded(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._ops)

    def when_committed(self, on_done: OnDone) -> None:
        """Have `on_done` told once when all that was recorded so far is committed, or how it failed."""
        assert self._ops, "nothing was recorded"
        self._waiters.append(on_done)

    def touch(self, key: LaneKey) -> None:
        """The lane's floor may be another now."""
        self._touched[key] = None
        if self._floors is None:
            loop = asyncio.get_running_loop()
            self._floors = loop.call_later(FLOORS_INTERVAL_S, self._note_floors)

    def flush(self) -> None:
        """Put what was recorded in the log. What it refuses is tried again, as long as this node leads."""
        if self._retry is not None:
            return
        while self._ops:
            body, count = _joined(self._ops)
            waiters = self._waiters if count == len(self._ops) else []
            result = self._log.put([self._message(body)], partial(_tell, waiters))
            if result.status is not PutStatus.PUT_OK:
                if self._table is not None:
                    self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._flush_again)
                return
            self._news += count
            del self._ops[:count]
            if waiters:
                self._waiters = []
        self._snapshot_if_far()

    def move(self, messages: Sequence[Message], finished: Sequence[Finished]) -> PutStatus:
        """Put messages that come from what is out in the log, and that it is finished, with one put, or with
        two where the log takes but one message at a time. A log that ends between them has the message twice,
        and none is lost.
        """
        self.flush()
        if self._table is None or self._ops:
            return PutStatus.OS_PAGE_CACHE_BUSY
        if messages and self._context.config.pending_appends_max <= len(messages):
            return self._move_one_by_one(messages, finished)
        body, count = _joined(finished)
        assert count == len(finished), f"{len(finished)} lanes in one put"
        result = self._log.put([*messages, self._message(body)], _ignore)
        if result.status is PutStatus.PUT_OK:
            self._news += count
            for op in finished:
                self._table.apply(op, self._now_ms())
                self.touch(op.key)
        return result.status

    def _move_one_by_one(self, messages: Sequence[Message], finished: Sequence[Finished]) -> PutStatus:
        assert len(messages) == 1, f"{len(messages)} messages for a log that takes one"
        status = self._log.put(messages, _ignore).status
        if status is PutStatus.PUT_OK:
            for op in finished:
                self.record(op)
            self.flush()
        return status

    def snapshot(self) -> None:
        """Write down what is out, unless nothing has happened since the last time. One that the log refuses
        is written later.
        """
        table = self._table
        if table is None or self._ops or not self._news:
            return
        idle = {lane.key for lane in table.lanes.values() if self._is_forgettable(lane)}
        messages = [self._message(body, TAG_SNAPSHOT) for body in snapshot_bodies(table.rows(idle))]
        if self._log.put(messages, _ignore).status is PutStatus.PUT_OK:
            self._news = 0
            for key in idle:
                table.forget(key)

    def write_anew(self, position: int) -> None:
        """On the leader: write down what is out if the last time was before this position of the log."""
        hold = snapshot_hold(self._log)
        if self._table is not None and hold is not None and hold < position:
            self._news = max(self._news, 1)
            self.snapshot()

    def _is_forgettable(self, lane: Lane) -> bool:
        return lane.is_idle() and self._context.state.offsets.get(*lane.key) == lane.next_offset

    def _snapshot_if_far(self) -> None:
        assert self._table is not None
        if self._news >= max(SNAPSHOT_NEWS_MIN, self._table.in_flight):
            self.snapshot()

    def _flush_again(self) -> None:
        self._retry = None
        self.flush()

    def _note_floors(self) -> None:
        """Let the groups' offsets follow, for tools, and for whoever pulls the queue later."""
        self._floors = None
        touched, self._touched = self._touched, {}
        for key in touched:
            lane = self._table.lanes.get(key) if self._table is not None else None
            if lane is not None:
                self._commits.note(*key, lane.floor)

    def _seek(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Somebody sets the group's offset: it goes on there."""
        key = LaneKey(group, topic, queue_id)
        if self.is_loading and len(self._sought) < LANES_MAX:
            self._sought[key] = offset
        elif self._table is not None and key in self._table.lanes:
            self.record(Sought(key, offset))
            self.flush()

    def _on_topics_changed(self) -> None:
        if self._table is not None and self._table.lanes:
            asyncio.get_running_loop().call_soon(self.drop_lost)

    def _on_topic_deleted(self, topic: str) -> None:
        if self._table is not None or self._loading is not None:
            self._deleted_topics.add(topic)
            self._on_topics_changed()

    def drop_lost(self) -> None:
        """Forget the queues of topics and of groups that are gone."""
        if self._table is None:
            return
        deleted, self._deleted_topics = self._deleted_topics, set()
        topics, groups = self._context.state.topics.keys() - deleted, self._context.state.groups
        lost = [key for key in self._table.lanes if key.topic not in topics or key.group not in groups]
        for key in lost:
            self.record(Dropped(key))
        self.flush()

    def _message(self, body: bytes, tag: str | None = None) -> Message:
        return Message(
            topic=POP_TOPIC,
            queue_id=POP_QUEUE_ID,
            body=body,
            properties=b"" if tag is None else format_properties({"TAGS": tag}),
            born_timestamp_ms=self._context.clock(),
            born_host=self._context.store_host,
            store_host=self._context.store_host,
        )

    def _on_writable_change(self, is_writable: bool) -> None:
        if is_writable:
            self._lead()
        else:
            self._follow()

    def _lead(self) -> None:
        self._follow()
        self._loading = asyncio.get_running_loop().create_task(self._load(), name="messages that are out")

    def _follow(self) -> None:
        for timer in (self._retry, self._floors):
            if timer is not None:
                timer.cancel()
        self._retry = self._floors = None
        self._touched.clear()
        self._sought.clear()
        self._deleted_topics.clear()
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        elif self._table is None:
            return
        self._table = None
        self._ops.clear()
        waiters, self._waiters = self._waiters, []
        _tell(waiters, PutStatus.SERVICE_NOT_AVAILABLE)
        self._tell_ready(False)

    async def _load(self) -> None:
        try:
            table, self._news = await load(self._log, self._context.state.deleted_at)
        except (PopRecordError, CorruptRecordError, DamagedQueueError) as error:
            logger.error("what is out cannot be read; nothing is popped: %s", error)
            self._loading = None
            self._tell_ready(False)
            return
        self._loading = None
        self._begin(table)

    def _begin(self, table: PopTable) -> None:
        table.start_clock(self._context.clock(), self._now_ms())
        for key, lane in table.lanes.items():
            committed = self._commits.current(*key)
            if committed is not None and lane.is_idle():
                lane.next_offset = max(lane.next_offset, committed)
        self._table = table
        for key, offset in self._sought.items():
            if key in table.lanes:
                self.record(Sought(key, offset))
        self._sought.clear()
        if table.in_flight:
            logger.info("%d messages are out, of %d queues", table.in_flight, len(table.lanes))
        for key in table.lanes:
            self.touch(key)
        self.drop_lost()
        self.snapshot()
        self._tell_ready(True)

    def _tell_ready(self, is_ready: bool) -> None:
        for callback in self._ready_callbacks:
            callback(is_ready)


def _joined(ops: Sequence[Op]) -> tuple[bytes, int]:
    """The body of a record with as many of the ops as it holds, and how many these are. What lanes finish
    one after the other is written together.
    """
    encoded: list[bytes] = []
    finished: dict[LaneKey, list[int]] = {}
    size = count = 0

    def close() -> None:
        encoded.extend(encode_op(Finished(key, tuple(sorted(rows)))) for key, rows in finished.items())
        finished.clear()

    for op in ops:
        if size >= RECORD_BYTES_MAX:
            break
        count += 1
        if isinstance(op, Finished):
            known = finished.setdefault(op.key, [])
            size += 24 * len(op.offsets) + (0 if known else len(op.key.group) + len(op.key.topic))
            known += op.offsets
        else:
            close()
            encoded.append(encode_op(op))
            size += len(encoded[-1])
    close()
    return join_ops(encoded), count


def _tell(waiters: Sequence[OnDone], status: PutStatus) -> None:
    for on_done in waiters:
        on_done(status)


def _ignore(status: PutStatus) -> None:
    """A record that fails after it was put is found missing by the next leader."""
