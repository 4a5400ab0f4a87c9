"""What the leader knows of open transactions, and the only way to change it: records of the op topic.

The table is read from the log when leadership begins, and thrown away when it ends. Within a leadership every
change is put in the log and made in the table in one step, so that the table is never behind what the log may
come to hold, and no transaction ends twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.feature import Core
from broker.state.changes import CommitOffsets
from broker.state.topics import HALF_TOPIC
from broker.timer.rules import TimerRules
from broker.transactions.half import HALF_QUEUE_ID, committed, discarded
from broker.transactions.loading import Loaded, Loader
from broker.transactions.ops import OpRecordError, OpWriter
from broker.transactions.window import Ending, TransactionWindow
from commitlog.errors import DamagedQueueError, DamagedRecordError, PositionError
from commitlog.log import PutStatus
from commitlog.record import CorruptRecordError, Message, Record, decode_record

GROUP = "CID_RMQ_SYS_TRANS"
"""The group that tools show the progress of transactions under."""
WINDOW_BYTES_MAX = 16 * 1024 * 1024
"""What the table may take before half messages are refused."""
SNAPSHOT_NEWS_MIN = 5_000
"""A snapshot is written when so much has happened, or as much as there are open transactions if that is
more: what a new leader has to read.
"""
MESSAGES_PER_END_MAX = 2
"""What the log must take at once."""
RETRY_S = 0.2
"""After a put that the log refused."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """A transaction ends; `message` is what comes of it, if anything does."""

    offset: int
    ending: Ending
    message: Message | None = None


def _ignore(status: PutStatus) -> None:
    """A record that fails after it was put is found missing by the next leader."""


class TransactionLedger:
    """The table of one broker. There is none unless this node is the writable leader and has read it."""

    def __init__(self, context: Core, window_bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self._context = context
        self._log = context.log
        self._writer = OpWriter(context.store_host)
        self._loader = Loader(context.log, context.config)
        self._levels = len(context.config.delay_levels_ms)
        self._timers = TimerRules(context.config, lambda: context.clock())
        self._window_bytes_max = window_bytes_max
        self._window: TransactionWindow | None = None
        self._news = 0
        self._loading: asyncio.Task[None] | None = None
        self._ready_callbacks: list[Callable[[bool], None]] = []
        self._was_full = False
        context.log.on_writable_change(self._on_writable_change)

    async def start(self) -> None:
        if self._log.is_writable() and self._window is None and self._loading is None:
            self._lead()

    async def stop(self) -> None:
        self._follow()

    def on_ready(self, callback: Callable[[bool], None]) -> None:
        """Have `callback` called with True when the table is there, with False when it is gone."""
        self._ready_callbacks.append(callback)

    @property
    def window(self) -> TransactionWindow | None:
        """The table as of the last message that is committed; None while there is none. Read only."""
        queue = self._log.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        if self._window is not None and queue is not None and queue.max_offset > self._window.end:
            self._news += queue.max_offset - self._window.end
            self._window.extend(queue.max_offset)
        return self._window

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    def has_room(self) -> bool:
        """Whether half messages may be taken."""
        window = self.window
        is_full = window is not None and window.held_bytes >= self._window_bytes_max
        is_full = is_full or self._context.config.pending_appends_max < MESSAGES_PER_END_MAX
        if is_full and not self._was_full:
            logger.warning("too many transactions are open: half messages are refused")
        self._was_full = is_full
        return not is_full

    def half(self, offset: int) -> Record | None:
        """A half message by its offset; None when it cannot be read any more. Raises DamagedRecordError."""
        queue = self._log.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        units = queue.units(offset, 1) if queue is not None and offset >= queue.min_offset else []
        try:
            return decode_record(self._log.read(*units[0][:2])) if units and units[0][1] else None
        except (PositionError, CorruptRecordError):
            return None

    def decision(self, record: Record, ending: Ending) -> Decision:
        """How a transaction ends, with the message that comes of its half message. Raises ValueError."""
        host = self._context.store_host
        if ending is Ending.COMMIT:
            message = committed(record, host, self._levels, self._timers)
            return Decision(record.queue_offset, ending, message)
        if ending is Ending.DISCARD:
            return Decision(record.queue_offset, ending, discarded(record, host))
        return Decision(record.queue_offset, ending)

    def end(self, decisions: Sequence[Decision], on_done: Callable[[PutStatus], None] = _ignore) -> PutStatus:
        """End open transactions, all or none. When this is PUT_OK they have ended as far as this node goes,
        and `on_done` is called once with how the put ended.
        """
        window = self.window
        if window is None:
            return PutStatus.SERVICE_NOT_AVAILABLE
        assert all(window.is_open(each.offset) for each in decisions), f"one has ended: {decisions}"
        messages = [message for decision in decisions for message in self._messages(decision)]
        result = self._log.put(messages, on_done)
        if result.status is PutStatus.PUT_OK:
            self._news += len(decisions)
            for decision in decisions:
                window.finish(decision.offset, decision.ending)
            self._snapshot_if_far()
        return result.status

    def check(self, offsets: Sequence[int]) -> PutStatus:
        """Count one more check of open transactions."""
        window = self._window
        if window is None:
            return PutStatus.SERVICE_NOT_AVAILABLE
        result = self._log.put([self._writer.checked(offsets, self._context.clock())], _ignore)
        if result.status is PutStatus.PUT_OK:
            self._news += len(offsets)
            for offset in offsets:
                window.check(offset)
            self._snapshot_if_far()
        return result.status

    def snapshot(self) -> None:
        """Write down what is open, unless nothing has happened since the last time. One that the log refuses
        is written later.
        """
        window = self.window
        if window is None or not self._news:
            return
        result = self._log.put(self._writer.snapshot(window, self._context.clock()), _ignore)
        if result.status is PutStatus.PUT_OK:
            self._news = 0
            self._tell_progress(window)

    def _tell_progress(self, window: TransactionWindow) -> None:
        """Tools show it, and no file from there on is deleted from the log."""
        state = self._context.state
        if state.offsets.get(GROUP, HALF_TOPIC, HALF_QUEUE_ID) != window.begin and window.end:
            state.propose(CommitOffsets(GROUP, HALF_TOPIC, {HALF_QUEUE_ID: window.begin}))

    def _snapshot_if_far(self) -> None:
        assert self._window is not None
        if self._news >= max(SNAPSHOT_NEWS_MIN, self._window.open_count):
            self.snapshot()

    def _messages(self, decision: Decision) -> list[Message]:
        """The record that says so stands before the message: a log that ends between them shows that the
        message is missing.
        """
        ended = self._writer.ended(decision.offset, decision.ending, self._context.clock())
        return [ended] if decision.message is None else [ended, decision.message]

    def _on_writable_change(self, is_writable: bool) -> None:
        if is_writable:
            self._lead()
        else:
            self._follow()

    def _lead(self) -> None:
        self._follow()
        self._loading = asyncio.get_running_loop().create_task(self._load(), name="open transactions")

    def _follow(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        elif self._window is None:
            return
        self._window = None
        self._tell(False)

    async def _load(self) -> None:
        try:
            loaded = await self._loader.load()
            while not (self._begin(loaded) and self._finish_unfinished(loaded)):
                await asyncio.sleep(RETRY_S)
        except (OpRecordError, CorruptRecordError, DamagedQueueError) as error:
            logger.error("open transactions cannot be read; none is ended or checked: %s", error)
            return
        finally:
            if self._loading is asyncio.current_task():
                self._loading = None
        self._window = loaded.window
        self._news = 0
        self._tell_progress(loaded.window)
        if loaded.window.open_count:
            logger.info("%d transactions are open", loaded.window.open_count)
        self._tell(True)

    def _begin(self, loaded: Loaded) -> bool:
        """Put a snapshot into the log before anything else, so that whatever comes behind it is by this
        leader alone. Whether the log took it.
        """
        if loaded.news:
            messages = self._writer.snapshot(loaded.window, self._context.clock())
            if self._log.put(messages, _ignore).status is not PutStatus.PUT_OK:
                return False
            loaded.news = 0
        return True

    def _finish_unfinished(self, loaded: Loaded) -> bool:
        """Put into the log, as a whole, what the last leader had begun to. Whether the log took it."""
        unfinished = loaded.unfinished
        if unfinished is None:
            return True
        try:
            record = self.half(unfinished.offset)
        except DamagedRecordError:
            return False
        if record is not None:
            decision = self.decision(record, unfinished.ending)
            status = self._log.put(self._messages(decision), _ignore).status
            if status is PutStatus.PUT_OK:
                loaded.window.finish(decision.offset, decision.ending)
            elif status is not PutStatus.MESSAGE_ILLEGAL:
                return False
            else:
                logger.error("the transaction %d cannot be finished: it is open again", decision.offset)
        loaded.unfinished = None
        return True

    def _tell(self, is_ready: bool) -> None:
        for callback in self._ready_callbacks:
            callback(is_ready)
