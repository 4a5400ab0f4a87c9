"""Loads the table of messages in flight: the last whole snapshot in the queue of rmq_sys_LEDGERMQ_POP, and
the ops after it.
"""

import asyncio
from collections.abc import Mapping

from broker.pop.ops import (
    POP_QUEUE_ID,
    POP_TOPIC,
    SNAPSHOT_TAGS_CODE,
    Dropped,
    SnapshotPart,
    decode_record_body,
)
from broker.pop.table import PopTable, Restoring
from commitlog.log import MessageLog
from commitlog.log_machine import Changelog
from commitlog.record import Record, decode_record


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
        if not isinstance(ops, SnapshotPart):  # of a snapshot that was not written to its end
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
