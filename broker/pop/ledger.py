"""The leader's table of messages in flight: loaded from the log, changed only by records of the log, and
written to it as snapshots.

The table is loaded when leadership begins and dropped when it ends (commitlog/log_machine.py): the last whole
snapshot in the queue of rmq_sys_LEDGERMQ_POP, and the ops after it. Within a leadership each op changes the
table at once, and is written to the log with all others of the loop turn, in one record; the request that
caused it is answered when that is committed. So the table is never behind the log, and a new leader has
everything that clients were answered.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from broker.config import BrokerConfig
from broker.consume.offset_commits import OffsetCommits
from broker.pop.ops import (
    POP_QUEUE_ID,
    POP_TOPIC,
    RECORD_BYTES_MAX,
    SNAPSHOT_TAGS_CODE,
    TAG_SNAPSHOT,
    Dropped,
    Finished,
    GroupQueueKey,
    Op,
    SnapshotPart,
    Sought,
    decode_record_body,
    encode_op,
    join_ops,
    snapshot_bodies,
)
from broker.pop.table import GroupQueue, PopTable, Restoring
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import REQUEST_RETRY_MS, Changelog, LoadedMachine, ignore
from commitlog.record import Message, Record, decode_record, format_properties

GROUP_QUEUES_MAX = 100_000
"""Group queues in the table: each queue counts once for every group that pops it."""
WAITING_OPS_MAX = 20_000
"""Ops that the log has not accepted yet. Beyond that, requests are refused."""
FLOORS_INTERVAL_MS = 500
"""How often the groups' offsets follow what was finished."""

logger = logging.getLogger(__name__)


def changelog(log: MessageLog) -> Changelog:
    return Changelog(log, POP_TOPIC, POP_QUEUE_ID, SNAPSHOT_TAGS_CODE)


async def load(log: MessageLog, deleted_at: Mapping[str, int]) -> tuple[PopTable, int]:
    """The table at the end of the log, and how many ops follow the last snapshot. Ops from before the place
    where their topic was deleted do not count. Raises PopRecordError.
    """
    ops_log = changelog(log)
    table, start = await _snapshot(ops_log)
    changes = 0
    snapshot_end = ops_log.position_at(start - 1)
    for key in [key for key in table.group_queues if deleted_at.get(key.topic, -1) > snapshot_end]:
        table.apply(Dropped(key))
    async for record in ops_log.records(start, ops_log.max_offset):
        ops = decode_record_body(bytes(record.body))
        if not isinstance(ops, SnapshotPart):  # a part of an incomplete snapshot
            changes += len(ops)
            for op in ops:
                if deleted_at.get(op.key.topic, -1) < record.physical_offset:
                    table.apply(op)
    return table, changes


def snapshot_hold(log: MessageLog) -> int | None:
    """The position of the first record that a new leader reads: the beginning of the last whole snapshot, or
    of the queue. None when nothing was ever handed out.
    """
    queue = changelog(log).queue
    if queue is None:
        return None
    for end in changelog(log).snapshot_ends():
        [(position, size, _)] = queue.units(end - 1, 1)
        body = decode_record_body(bytes(decode_record(log.read(position, size)).body))
        if isinstance(body, SnapshotPart) and body.part == body.parts - 1 <= end - 1 - queue.min_offset:
            return queue.units(end - body.parts, 1)[0][0]
    units = queue.units(queue.min_offset, 1)
    return units[0][0] if units else None


async def _snapshot(ops_log: Changelog) -> tuple[PopTable, int]:
    """The table of the last whole snapshot, and the offset after it."""
    async for start, end in ops_log.snapshots(_place_of):
        table = await _restored(ops_log, start, end)
        if table is not None:
            return table, end
    queue = ops_log.queue
    return PopTable(), 0 if queue is None else queue.min_offset


def _place_of(record: Record) -> tuple[int, int] | None:
    body = decode_record_body(bytes(record.body))
    return (body.part, body.parts) if isinstance(body, SnapshotPart) else None


async def _restored(ops_log: Changelog, start: int, end: int) -> PopTable | None:
    """The table of the snapshot with these records; None when some of them are missing."""
    restoring = Restoring()
    found = 0
    async for record in ops_log.records(start, end):
        part = decode_record_body(bytes(record.body))
        if not isinstance(part, SnapshotPart) or (part.part, part.parts) != (found, end - start):
            return None
        restoring.add(part.rows)
        found += 1
        await asyncio.sleep(0)
    return restoring.table() if found == end - start else None


OnDone = Callable[[PutStatus], None]


class PopLedger(LoadedMachine[PopTable]):
    """The table of one broker. There is none unless this node is the writable leader and has loaded it."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        commits: OffsetCommits,
        store_host: bytes,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`clock` is the wall clock, `now_ms` the monotonic one, both in ms."""
        super().__init__(log, "messages in flight")
        self._config = config
        self._state = state
        self._commits = commits
        self._store_host = store_host
        self._clock = clock
        self._now_ms = now_ms
        self._ops: list[Op] = []
        self._waiters: list[OnDone] = []
        self._retry = self.timer(self.flush)
        self._touched: dict[GroupQueueKey, None] = {}
        self._floors = self.timer(self._note_floors)
        self._sought: dict[GroupQueueKey, int] = {}
        """Offsets that groups were moved to while the table is loaded."""
        self._deleted_topics: set[str] = set()
        """Some may exist again: what is in flight of them are deleted messages."""
        state.on_topic_deleted(self._on_topic_deleted)
        commits.on_commit(self._seek)

    async def stop(self) -> None:
        if self._table is not None:
            self.flush()
        await super().stop()

    @property
    def table(self) -> PopTable | None:
        """None while this node does not lead, or loads it. Changed by `record` alone."""
        return self._table

    def group_queue(self, key: GroupQueueKey) -> GroupQueue | None:
        """The group's entry for the queue; None when it has none, or the table is not loaded."""
        return self._table.group_queues.get(key) if self._table is not None else None

    def may_record(self) -> bool:
        """Whether ops may be recorded: not while too many wait for a log that refuses them."""
        return len(self._ops) < WAITING_OPS_MAX

    def may_add(self, key: GroupQueueKey) -> bool:
        """Whether a group queue may be added, if it is a new one."""
        table = self._table
        return table is not None and (key in table.group_queues or len(table.group_queues) < GROUP_QUEUES_MAX)

    def record(self, op: Op) -> None:
        """Apply an op. `flush` must follow within the loop turn."""
        assert self._table is not None, f"{op} without a table"
        self._table.apply(op, self._now_ms())
        self._ops.append(op)
        self.touch(op.key)

    @property
    def has_recorded(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._ops)

    def when_committed(self, on_done: OnDone) -> None:
        """Call `on_done` once, when all that was recorded so far is committed or has failed."""
        assert self._ops, "nothing was recorded"
        self._waiters.append(on_done)

    def touch(self, key: GroupQueueKey) -> None:
        """The floor of the queue may have changed."""
        self._touched[key] = None
        self._floors.arm(FLOORS_INTERVAL_MS)

    def flush(self) -> None:
        """Write what was recorded to the log. What it refuses is tried again, as long as this node leads."""
        if self._retry.is_armed:
            return
        while self._ops:
            body, count = _joined(self._ops)
            # Requests wait for the last of these records: the log commits in order, so all are then. They are
            # taken out now: who waits for a later record must not be in this one's list.
            is_last = count == len(self._ops)
            waiters = tuple(self._waiters) if is_last else ()
            result = self._log.put([self._message(body)], partial(_notify, waiters))
            if result.status is not PutStatus.PUT_OK:
                if self._table is not None:
                    self._retry.arm(REQUEST_RETRY_MS)
                return
            self._changes += count
            del self._ops[:count]
            if is_last:
                self._waiters.clear()
        assert not self._waiters, f"{len(self._waiters)} requests wait for a record that was not written"
        self.snapshot_if_due()

    def move(self, messages: Sequence[Message], finished: Sequence[Finished]) -> PutStatus:
        """Write copies of messages in flight, and that these are finished, with one put, or with two where
        the log accepts only one message at a time. A log that ends between them has a message twice; none is
        lost.
        """
        self.flush()
        if self._table is None or self._ops:
            return PutStatus.OS_PAGE_CACHE_BUSY  # the ops that still wait were applied before these
        if messages and self._config.pending_appends_max <= len(messages):
            return self._move_one_by_one(messages, finished)
        body, count = _joined(finished)
        assert count == len(finished), f"{len(finished)} group_queues in one put"
        # The copies come first: when the log ends between them, the message is in flight and is copied again.
        result = self._log.put([*messages, self._message(body)], ignore)
        if result.status is PutStatus.PUT_OK:
            self._changes += count
            for op in finished:
                self._table.apply(op, self._now_ms())
                self.touch(op.key)
        return result.status

    def _move_one_by_one(self, messages: Sequence[Message], finished: Sequence[Finished]) -> PutStatus:
        assert len(messages) == 1, f"{len(messages)} messages for a log that takes one"
        status = self._log.put(messages, ignore).status
        if status is PutStatus.PUT_OK:
            for op in finished:
                self.record(op)
            self.flush()
        return status

    def rows(self, table: PopTable) -> int:
        """As LoadedMachine."""
        return table.in_flight

    def may_snapshot(self) -> bool:
        """Not while ops wait for the log: a snapshot must not be ahead of the records before it."""
        return not self._ops

    def snapshot_messages(self, table: PopTable) -> list[Message]:
        """As LoadedMachine. Idle queues are left out: the replicated offsets say the same of them."""
        assert not self._ops, "a snapshot would be ahead of the records before it"
        return [self._message(body, TAG_SNAPSHOT) for body in snapshot_bodies(table.rows(self._idle(table)))]

    def snapshot_written(self, table: PopTable) -> None:
        """As LoadedMachine."""
        for key in self._idle(table):
            table.drop_idle(key)

    def rewrite_before(self, position: int) -> None:
        """On the leader: write a snapshot if the last one is before this position of the log, so that
        retention may delete the old files.
        """
        hold = snapshot_hold(self._log)
        if self._table is not None and hold is not None and hold < position:
            self._changes = max(self._changes, 1)
            self.snapshot()

    def _idle(self, table: PopTable) -> set[GroupQueueKey]:
        return {
            group_queue.key
            for group_queue in table.group_queues.values()
            if self._is_idle_and_committed(group_queue)
        }

    def _is_idle_and_committed(self, group_queue: GroupQueue) -> bool:
        return group_queue.is_idle() and self._state.offsets.get(*group_queue.key) == group_queue.next_offset

    def _note_floors(self) -> None:
        """Advance the groups' offsets, for tools, and for consumers that pull the queue later."""
        touched, self._touched = self._touched, {}
        for key in touched:
            group_queue = self._table.group_queues.get(key) if self._table is not None else None
            if group_queue is not None:
                self._commits.note(*key, group_queue.floor)

    def _seek(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group's offset is set: the next pop begins there."""
        key = GroupQueueKey(group, topic, queue_id)
        if self.is_loading and len(self._sought) < GROUP_QUEUES_MAX:
            self._sought[key] = offset
        elif self._table is not None and key in self._table.group_queues:
            self.record(Sought(key, offset))
            self.flush()

    def _on_topic_deleted(self, topic: str) -> None:
        if self._table is None and not self.is_loading:
            return
        self._deleted_topics.add(topic)
        if self._table is not None and self._table.group_queues:
            asyncio.get_running_loop().call_soon(self.drop_lost)

    def drop_lost(self) -> None:
        """Drop the queues of deleted topics and groups."""
        if self._table is None:
            return
        deleted, self._deleted_topics = self._deleted_topics, set()
        topics, groups = self._state.topics.keys() - deleted, self._state.groups
        lost = [key for key in self._table.group_queues if key.topic not in topics or key.group not in groups]
        for key in lost:
            self.record(Dropped(key))
        self.flush()

    def _message(self, body: bytes, tag: str | None = None) -> Message:
        return Message(
            topic=POP_TOPIC,
            queue_id=POP_QUEUE_ID,
            body=body,
            properties=b"" if tag is None else format_properties({"TAGS": tag}),
            born_timestamp_ms=self._clock(),
            born_host=self._store_host,
            store_host=self._store_host,
        )

    async def load(self) -> PopTable:
        """As LoadedMachine."""
        table, self._changes = await load(self._log, self._state.deleted_at)
        return table

    def become_leader(self) -> None:
        """The table is loaded: set its deadlines and apply what happened meanwhile."""
        table = self._table
        assert table is not None, "a leader without a table"
        table.start_clock(self._clock(), self._now_ms())
        for key, group_queue in table.group_queues.items():
            committed = self._commits.current(*key)
            if committed is not None and group_queue.is_idle():
                group_queue.next_offset = max(group_queue.next_offset, committed)
        for key, offset in self._sought.items():
            if key in table.group_queues:
                self.record(Sought(key, offset))
        self._sought.clear()
        if table.in_flight:
            logger.info("%d messages are in flight, of %d queues", table.in_flight, len(table.group_queues))
        for key in table.group_queues:
            self.touch(key)
        self.drop_lost()
        self.snapshot()

    def become_follower(self) -> None:
        """Refuse the requests that wait: it is unknown whether the next leader commits their records."""
        self._touched.clear()
        self._sought.clear()
        self._deleted_topics.clear()
        self._ops.clear()
        waiters, self._waiters = self._waiters, []
        _notify(waiters, PutStatus.SERVICE_NOT_AVAILABLE)


def _joined(ops: Sequence[Op]) -> tuple[bytes, int]:
    """The body of a record with as many of the ops as it holds, and how many these are. What a queue
    finishes one after the other is written together.
    """
    encoded: list[bytes] = []
    finished: dict[GroupQueueKey, list[int]] = {}
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


def _notify(waiters: Sequence[OnDone], status: PutStatus) -> None:
    for on_done in waiters:
        on_done(status)
