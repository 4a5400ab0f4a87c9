"""Reads a system queue whose records say what became of a table, with snapshots of it among them: a new
leader begins with the last snapshot that is whole.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

from commitlog.consume_queue import ConsumeQueue
from commitlog.errors import DamagedRecordError, PositionError
from commitlog.log import MessageLog
from commitlog.record import Record, decode_record

READ_AT_ONCE = 64
"""Records between two looks at what else the loop has to do."""
DAMAGE_WAIT_S = 0.2
"""A damaged record is being mended from the peers; then it is tried again."""
UNITS_AT_ONCE = 4_096

logger = logging.getLogger(__name__)


async def read_records(log: MessageLog, queue: ConsumeQueue, start: int, end: int) -> AsyncIterator[Record]:
    """The records at these offsets of the queue, without its holes and what retention took."""
    start = max(start, queue.min_offset)
    while start < end and (units := queue.units(start, min(READ_AT_ONCE, end - start))):
        for position, size, _ in units:
            record = await _read(log, position, size)
            if record is not None:
                yield record
        start += len(units)
        await asyncio.sleep(0)


async def _read(log: MessageLog, position: int, size: int) -> Record | None:
    while size:
        try:
            return decode_record(log.read(position, size))
        except PositionError:
            return None
        except DamagedRecordError as error:
            logger.warning("a system queue cannot be read yet: %s", error)
            await asyncio.sleep(DAMAGE_WAIT_S)
    return None


def snapshot_ends(queue: ConsumeQueue, snapshot_tags_code: int) -> Iterator[int]:
    """Behind each record that is part of a snapshot, from the queue's end backwards: their units tell."""
    end = queue.max_offset
    while end > queue.min_offset:
        start = max(queue.min_offset, end - UNITS_AT_ONCE)
        units = queue.units(start, end - start)
        for at in range(len(units) - 1, -1, -1):
            if units[at][2] == snapshot_tags_code:
                yield start + at + 1
        end = start
