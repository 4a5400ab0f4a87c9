"""Loads the table of open transactions: the last whole snapshot in the op queue, and the records after it."""

from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.state.topics import HALF_TOPIC, OP_HALF_TOPIC
from broker.transactions.half import HALF_QUEUE_ID
from broker.transactions.ops import (
    OP_QUEUE_ID,
    SNAPSHOT_TAGS_CODE,
    Checked,
    Ended,
    SnapshotPart,
    decode_op,
    join_parts,
)
from broker.transactions.window import TransactionWindow
from commitlog.consume_queue import ConsumeQueue
from commitlog.entry import HEADER_BYTES
from commitlog.log import MessageLog
from commitlog.log_machine import Changelog
from commitlog.record import Record, decode_record


@dataclass(slots=True)
class Loaded:
    """The table, and how many changes it has that are not in the last snapshot. `unfinished` is a transaction
    that the last leader committed or discarded, where the log has only the first of the two records: it is
    open in the table.
    """

    window: TransactionWindow
    news: int
    unfinished: Ended | None = None


class Loader:
    """Reads one log. Only a leader may trust the result: no other node writes at the same time."""

    def __init__(self, log: MessageLog, config: BrokerConfig) -> None:
        self._log = log
        self._ops = Changelog(log, OP_HALF_TOPIC, OP_QUEUE_ID, SNAPSHOT_TAGS_CODE)
        self._file_bytes = config.data_file_bytes
        self._header_bytes = HEADER_BYTES if config.enable_dledger else 0

    async def load(self) -> Loaded:
        """The table at the end of the log. Raises OpRecordError, CorruptRecordError, DamagedRecordError."""
        halves = self._log.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        window, start = await self._snapshot()
        if window is None:
            window = TransactionWindow(halves.min_offset if halves is not None else 0)
        loaded = Loaded(window, 0)
        if halves is not None:
            loaded.news = halves.max_offset - window.end
            window.extend(halves.max_offset)
        await self._replay(start, halves, loaded)
        return loaded

    async def _replay(self, start: int, halves: ConsumeQueue | None, loaded: Loaded) -> None:
        window = loaded.window
        last: tuple[Record, Ended] | None = None
        async for record in self._ops.records(start, self._ops.max_offset):
            op = decode_op(record)
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

    async def _snapshot(self) -> tuple[TransactionWindow | None, int]:
        """The last whole snapshot, and the offset after it in the op queue."""
        async for start, end in self._ops.snapshots(_place_of):
            window = join_parts([decode_op(part) async for part in self._ops.records(start, end)])
            if window is not None:
                return window, end
        return None, 0

    def _is_complete(self, record: Record, ended: Ended, halves: ConsumeQueue | None) -> bool:
        """Whether the message made from the half message follows the record of the end. Both were written
        with one put, but after a leader's crash the log may hold only the first.
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


def _place_of(record: Record) -> tuple[int, int] | None:
    op = decode_op(record)
    return (op.part, op.parts) if isinstance(op, SnapshotPart) else None
