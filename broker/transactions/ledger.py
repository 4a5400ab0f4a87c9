"""The leader's table of open transactions: loaded from the log, changed only by records of the op topic, and
written to it as snapshots.

The table is loaded when leadership begins and dropped when it ends (commitlog/log_machine.py): the last full
snapshot in the op queue, and the records after it. During a leadership every change is written to the log and
applied to the table in one step. So the table is never behind the log, and no transaction ends twice.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.state.changes import CommitOffsets
from broker.state.state import ReplicatedState
from broker.state.topics import HALF_TOPIC, OP_HALF_TOPIC
from broker.store.redelivery import LogTail, stored_message
from broker.timer.admission import TimerRules
from broker.transactions.half import HALF_QUEUE_ID, committed, discarded
from broker.transactions.ops import (
    OP_QUEUE_ID,
    SNAPSHOT_TAGS_CODE,
    Checked,
    Ended,
    OpWriter,
    SnapshotPart,
    decode_op,
    join_parts,
)
from broker.transactions.window import Ending, TransactionWindow
from commitlog.consume_queue import ConsumeQueue
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import Changelog, LoadedMachine, ignore
from commitlog.record import Message, Record

GROUP = "CID_RMQ_SYS_TRANS"
"""The group that tools show the progress of transactions under."""
WINDOW_BYTES_MAX = 16 * 1024 * 1024
"""Memory of the table beyond which half messages are refused."""
MESSAGES_PER_END_MAX = 2
"""Of one put: the record of the end, and the message."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """The table, and how many changes it has that are not in the last snapshot. `unfinished` is a transaction
    that the last leader committed or discarded, where the log has only the first of the two records: it is
    open in the table.
    """

    window: TransactionWindow
    unsaved_changes: int
    unfinished: Ended | None = None


class Loader:
    """Reads one log. Only a leader may trust the result: no other node writes at the same time."""

    def __init__(self, log: MessageLog, config: BrokerConfig) -> None:
        self._log = log
        self._ops = Changelog(log, OP_HALF_TOPIC, OP_QUEUE_ID, SNAPSHOT_TAGS_CODE)
        self._tail = LogTail(log, config)

    async def load(self) -> Loaded:
        """The table at the end of the log. Raises OpRecordError, CorruptRecordError, DamagedRecordError."""
        halves = self._log.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        window, start = await self._snapshot()
        if window is None:
            window = TransactionWindow(halves.min_offset if halves is not None else 0)
        loaded = Loaded(window, 0)
        if halves is not None:
            loaded.unsaved_changes = halves.max_offset - window.end
            window.extend(halves.max_offset)
        await self._replay(start, halves, loaded)
        return loaded

    async def _replay(self, start: int, halves: ConsumeQueue | None, loaded: Loaded) -> None:
        window = loaded.window
        last: tuple[Record, Ended] | None = None
        async for record in self._ops.records(start, self._ops.max_offset):
            op = decode_op(record)
            loaded.unsaved_changes += 1
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
        """The last complete snapshot, and the offset after it in the op queue."""
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
        return self._tail.messages_behind(record, [units[0][0]]) == 1


def _place_of(record: Record) -> tuple[int, int] | None:
    op = decode_op(record)
    return (op.part, op.parts) if isinstance(op, SnapshotPart) else None


@dataclass(frozen=True, slots=True)
class Decision:
    """How one transaction ends; `message` is the message that its half message becomes, None for a
    rollback.
    """

    offset: int
    ending: Ending
    message: Message | None = None


class TransactionLedger(LoadedMachine[TransactionWindow]):
    """The table of one broker. There is none unless this node is the writable leader and has loaded it."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        store_host: bytes,
        clock: Callable[[], int],
        window_bytes_max: int = WINDOW_BYTES_MAX,
    ) -> None:
        """`clock` is the wall clock in ms."""
        super().__init__(log, "open transactions")
        self._config = config
        self._state = state
        self._store_host = store_host
        self._clock = clock
        self._writer = OpWriter(store_host)
        self._loader = Loader(log, config)
        self._loaded: Loaded | None = None
        self._levels = len(config.delay_levels_ms)
        self._rules = TimerRules(config, clock)
        self._window_bytes_max = window_bytes_max
        self._was_full = False

    @property
    def window(self) -> TransactionWindow | None:
        """The table with all half messages that are committed; None while this node does not lead, or loads
        it. Read only.
        """
        window = self._table
        queue = self._log.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        if window is not None and queue is not None and queue.max_offset > window.end:
            self._changes += queue.max_offset - window.end
            window.extend(queue.max_offset)
        return window

    def has_room(self) -> bool:
        """Whether half messages may be accepted."""
        window = self.window
        is_full = window is not None and window.held_bytes >= self._window_bytes_max
        is_full = is_full or self._config.pending_appends_max < MESSAGES_PER_END_MAX
        if is_full and not self._was_full:
            logger.warning("too many transactions are open: half messages are refused")
        self._was_full = is_full
        return not is_full

    def half(self, offset: int) -> Record | None:
        """A half message by its offset; None when it cannot be read any more. Raises DamagedRecordError."""
        return stored_message(self._log, HALF_TOPIC, HALF_QUEUE_ID, offset)

    def decision(self, record: Record, ending: Ending) -> Decision:
        """The decision to end a transaction so, with the message made from its half message. Raises
        ValueError.
        """
        host = self._store_host
        if ending is Ending.COMMIT:
            message = committed(record, host, self._levels, self._rules)
            return Decision(record.queue_offset, ending, message)
        if ending is Ending.DISCARD:
            return Decision(record.queue_offset, ending, discarded(record, host))
        return Decision(record.queue_offset, ending)

    def end(self, decisions: Sequence[Decision], on_done: Callable[[PutStatus], None] = ignore) -> PutStatus:
        """End open transactions, all or none. With PUT_OK they have ended in this node's table, and `on_done`
        is called once with the final status of the put.
        """
        window = self.window
        if window is None:
            return PutStatus.SERVICE_NOT_AVAILABLE
        assert all(window.is_open(each.offset) for each in decisions), f"one has ended: {decisions}"
        messages = [message for decision in decisions for message in self._messages(decision)]
        result = self._log.put(messages, on_done)
        if result.status is PutStatus.PUT_OK:
            self._changes += len(decisions)
            for decision in decisions:
                window.finish(decision.offset, decision.ending)
            self.snapshot_if_due()
        return result.status

    def check(self, offsets: Sequence[int]) -> PutStatus:
        """Count one more check of open transactions."""
        window = self._table
        if window is None:
            return PutStatus.SERVICE_NOT_AVAILABLE
        result = self._log.put([self._writer.checked(offsets, self._clock())], ignore)
        if result.status is PutStatus.PUT_OK:
            self._changes += len(offsets)
            for offset in offsets:
                window.check(offset)
            self.snapshot_if_due()
        return result.status

    def snapshot(self) -> None:
        """As LoadedMachine, with the half messages that were committed since."""
        if self.window is not None:
            super().snapshot()

    def rows(self, table: TransactionWindow) -> int:
        """As LoadedMachine."""
        return table.open_count

    def snapshot_messages(self, table: TransactionWindow) -> list[Message]:
        """As LoadedMachine."""
        return self._writer.snapshot(table, self._clock())

    def snapshot_written(self, table: TransactionWindow) -> None:
        """The first open half message becomes the progress of GROUP: tools show it, and retention deletes no
        file of the log from there on.
        """
        assert table.begin <= table.end, f"the first open half message {table.begin} is behind {table.end}"
        if self._state.offsets.get(GROUP, HALF_TOPIC, HALF_QUEUE_ID) != table.begin and table.end:
            self._state.propose(CommitOffsets(GROUP, HALF_TOPIC, {HALF_QUEUE_ID: table.begin}))

    def _messages(self, decision: Decision) -> list[Message]:
        """The record of the end is written before the message: when the log ends between them, a new leader
        finds that the message is missing.
        """
        ended = self._writer.ended(decision.offset, decision.ending, self._clock())
        return [ended] if decision.message is None else [ended, decision.message]

    async def load(self) -> TransactionWindow:
        """As LoadedMachine."""
        self._loaded = await self._loader.load()
        return self._loaded.window

    def take_over(self, table: TransactionWindow) -> bool:
        """Write a snapshot before anything else, so that the records after it are this leader's alone, and
        then what the last leader had begun to write.
        """
        loaded = self._loaded
        assert loaded is not None, "take_over comes after load"
        return self._write_first_snapshot(loaded) and self._finish_unfinished(loaded)

    def become_leader(self) -> None:
        """The first snapshot is written."""
        window = self._table
        assert window is not None, "a leader without a table"
        self._changes = 0
        self._loaded = None
        self.snapshot_written(window)
        if window.open_count:
            logger.info("%d transactions are open", window.open_count)

    def _write_first_snapshot(self, loaded: Loaded) -> bool:
        if loaded.unsaved_changes:
            messages = self._writer.snapshot(loaded.window, self._clock())
            if self._log.put(messages, ignore).status is not PutStatus.PUT_OK:
                return False
            loaded.unsaved_changes = 0
        return True

    def _finish_unfinished(self, loaded: Loaded) -> bool:
        """Put a decision that the last leader wrote only in part. Returns whether the log accepted it."""
        unfinished = loaded.unfinished
        if unfinished is None:
            return True
        try:
            record = self.half(unfinished.offset)
        except DamagedRecordError:
            return False
        if record is not None:
            decision = self.decision(record, unfinished.ending)
            status = self._log.put(self._messages(decision), ignore).status
            if status is PutStatus.PUT_OK:
                loaded.window.finish(decision.offset, decision.ending)
            elif status is not PutStatus.MESSAGE_ILLEGAL:
                return False
            else:
                logger.error("the transaction %d cannot be finished: it is open again", decision.offset)
        loaded.unfinished = None
        return True
