"""Reads the table of open transactions out of the log: the last whole snapshot in the op queue, and what was
written after it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.op_queue import read_records, snapshot_ends
from broker.state.topics import HALF_TOPIC, OP_HALF_TOPIC
from broker.transactions.half import HALF_QUEUE_ID
from broker.transactions.ops import (
    OP_QUEUE_ID,
    SNAPSHOT_TAGS_CODE,
    Checked,
    Ended,
    Op,
    SnapshotPart,
    decode_op,
    join_parts,
)
from broker.transactions.window import TransactionWindow
from commitlog.consume_queue import ConsumeQueue
from commitlog.entry import HEADER_BYTES
from commitlog.log import MessageLog
from commitlog.record import Record, decode_record


@dataclass(slots=True)
class Loaded:
    """The table, and how many half messages it takes note of since the snapshot. `unfinished` was to be
    committed or discarded by a leader of which the log has only the first of its two records: it is open in
    the table.
    """

    window: TransactionWindow
    news: int
    unfinished: Ended | None = None


class Loader:
    """Reads one log. Only the leader may trust what it finds: it knows that nobody writes beside it."""

    def __init__(self, log: MessageLog, config: BrokerConfig) -> None:
        self._log = log
        self._file_bytes = config.data_file_bytes
        self._header_bytes = HEADER_BYTES if config.enable_dledger else 0

    async def load(self) -> Loaded:
        """The table as it stands at the end of the log. Raises OpRecordError."""
        queue = self._log.queues.get(OP_HALF_TOPIC, OP_QUEUE_ID)
        halves = self._log.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        window, start = await self._snapshot(queue) if queue is not None else (None, 0)
        if window is None:
            window = TransactionWindow(halves.min_offset if halves is not None else 0)
        loaded = Loaded(window, 0)
        if halves is not None:
            loaded.news = halves.max_offset - window.end
            window.extend(halves.max_offset)
        if queue is not None:
            await self._replay(queue, start, halves, loaded)
        return loaded

    async def _replay(
        self, queue: ConsumeQueue, start: int, halves: ConsumeQueue | None, loaded: Loaded
    ) -> None:
        window = loaded.window
        last: tuple[Record, Ended] | None = None
        async for record, op in self._ops(queue, start, queue.max_offset):
            loaded.news += 1
            if isinstance(op, Checked):
                for offset in op.offsets:
                    window.check(offset)
            elif isinstance(op, Ended):
                if last is not None:
                    window.finish(last[1].offset, last[1].ending)
                last = record, op
        if last is None:
            return
        record, ended = last
        if ended.ending.makes_message and not self._is_complete(record, ended, halves):
            loaded.unfinished = ended
        else:
            window.finish(ended.offset, ended.ending)

    async def _snapshot(self, queue: ConsumeQueue) -> tuple[TransactionWindow | None, int]:
        """The last snapshot that is whole, and where the op queue goes on behind it."""
        for end in snapshot_ends(queue, SNAPSHOT_TAGS_CODE):
            found = [op async for _, op in self._ops(queue, end - 1, end)]
            last = found[0] if found else None
            if isinstance(last, SnapshotPart) and last.part == last.parts - 1:
                parts = [op async for _, op in self._ops(queue, end - last.parts, end)]
                window = join_parts(parts)
                if window is not None:
                    return window, end
        return None, 0

    async def _ops(self, queue: ConsumeQueue, start: int, end: int) -> AsyncIterator[tuple[Record, Op]]:
        async for record in read_records(self._log, queue, start, end):
            yield record, decode_op(record)

    def _is_complete(self, record: Record, ended: Ended, halves: ConsumeQueue | None) -> bool:
        """Whether the message that comes of the half message follows the record which says so: they were put
        together, but a leader that dies may leave the first alone.
        """
        units = halves.units(ended.offset, 1) if halves is not None else []
        if not units:
            return True
        end = record.physical_offset + record.size
        next_file = -(-end // self._file_bytes) * self._file_bytes
        for position in (end, next_file):
            data = self._log.record_at(position + self._header_bytes)
            if data is not None and decode_record(data).prepared_transaction_offset == units[0][0]:
                return True
        return False
