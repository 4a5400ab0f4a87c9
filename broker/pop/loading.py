"""Reads what is out from the log: the last whole snapshot in the queue of rmq_sys_LEDGERMQ_POP, and what was
written after it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from broker.op_queue import read_records, snapshot_ends
from broker.pop.ops import (
    POP_QUEUE_ID,
    POP_TOPIC,
    SNAPSHOT_TAGS_CODE,
    Dropped,
    Op,
    SnapshotPart,
    decode_record_body,
)
from broker.pop.table import PopTable, Restoring
from commitlog.consume_queue import ConsumeQueue
from commitlog.log import MessageLog
from commitlog.record import decode_record


async def load(log: MessageLog, deleted_at: Mapping[str, int]) -> tuple[PopTable, int]:
    """The table as it stands at the end of the log, and how many ops the last snapshot does not have. What
    was written before the place where a topic was deleted does not count for it. Only the leader may trust
    it: it knows that nobody writes beside it. Raises PopRecordError.
    """
    queue = log.queues.get(POP_TOPIC, POP_QUEUE_ID)
    if queue is None:
        return PopTable(), 0
    table, start = await _snapshot(log, queue)
    news = 0
    end = queue.max_offset
    snapshot_end = _position_of(queue, start - 1)
    for key in [key for key in table.lanes if deleted_at.get(key.topic, -1) > snapshot_end]:
        table.apply(Dropped(key))
    async for record in read_records(log, queue, start, end):
        ops = decode_record_body(bytes(record.body))
        if not isinstance(ops, SnapshotPart):  # one that was not written to its end
            news += len(ops)
            for op in ops:
                if deleted_at.get(op.key.topic, -1) < record.physical_offset:
                    table.apply(op)
    return table, news


def _position_of(queue: ConsumeQueue, offset: int) -> int:
    """-1 for what is before the queue."""
    units = queue.units(offset, 1) if offset >= 0 else []
    return units[0][0] if units else -1


def snapshot_hold(log: MessageLog) -> int | None:
    """The position of what a new leader reads first: the begin of the last snapshot that is whole, or of the
    queue. None when nothing was ever handed out.
    """
    queue = log.queues.get(POP_TOPIC, POP_QUEUE_ID)
    if queue is None:
        return None
    for end in snapshot_ends(queue, SNAPSHOT_TAGS_CODE):
        [(position, size, _)] = queue.units(end - 1, 1)
        body = decode_record_body(bytes(decode_record(log.read(position, size)).body))
        if isinstance(body, SnapshotPart) and body.part == body.parts - 1 <= end - 1 - queue.min_offset:
            return queue.units(end - body.parts, 1)[0][0]
    units = queue.units(queue.min_offset, 1)
    return units[0][0] if units else None


async def _snapshot(log: MessageLog, queue: ConsumeQueue) -> tuple[PopTable, int]:
    """The table of the last snapshot that is whole, and where the queue goes on behind it."""
    for end in snapshot_ends(queue, SNAPSHOT_TAGS_CODE):
        last = await _last_part(log, queue, end)
        if last is None:
            continue
        table = await _restored(log, queue, end - last.parts, end)
        if table is not None:
            return table, end
    return PopTable(), queue.min_offset


async def _restored(log: MessageLog, queue: ConsumeQueue, start: int, end: int) -> PopTable | None:
    """The table of the snapshot whose parts lie there; None when that is not all of it."""
    restoring = Restoring()
    found = 0
    async for part in _bodies(log, queue, start, end):
        if not isinstance(part, SnapshotPart) or (part.part, part.parts) != (found, end - start):
            return None
        restoring.add(part.rows)
        found += 1
        await asyncio.sleep(0)
    return restoring.table() if found == end - start else None


async def _last_part(log: MessageLog, queue: ConsumeQueue, end: int) -> SnapshotPart | None:
    """The part before `end`, if it is the last one of its snapshot."""
    async for body in _bodies(log, queue, end - 1, end):
        if isinstance(body, SnapshotPart) and body.part == body.parts - 1:
            return body
    return None


async def _bodies(
    log: MessageLog, queue: ConsumeQueue, start: int, end: int
) -> AsyncIterator[list[Op] | SnapshotPart]:
    async for record in read_records(log, queue, start, end):
        yield decode_record_body(bytes(record.body))
