"""The log as the broker uses it: put messages, read committed ones, listen to them in order.

Two logs keep this contract: `CommitLog` (one node, RocketMQ's own files) and `DLedgerCommitLog` (a replicated
group). All methods are called on the event loop's thread.
"""

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from commitlog.consume_queues import ConsumeQueues
from commitlog.dispatch import Applied, DispatchBatch
from commitlog.record import Message
from dledger.core.status import NodeStatus


class PutStatus(enum.Enum):
    """RocketMQ's PutMessageStatus, without the values that do not occur here."""

    PUT_OK = "PUT_OK"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    """Not the leader, not ready yet, handing leadership over, or the disk is full: try another broker."""
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    """Too many puts wait for their acknowledgement: try again later."""
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    """No majority acknowledged in time; the message may still be committed later."""
    FORMAT_LEVEL_TOO_LOW = "FORMAT_LEVEL_TOO_LOW"
    """Members of an older release could not read the record: not before the group's format level allows it
    (docs/upgrading.md)."""
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    """The term changed, or another error after which the message may or may not be committed."""


@dataclass(slots=True)
class PutResult:
    """The answer to a put, one position and queue offset per message; both empty unless PUT_OK."""

    status: PutStatus
    positions: list[int]
    """RocketMQ's physical offsets: where each record begins in the log."""
    queue_offsets: list[int]
    store_timestamp_ms: int
    first_index: int = -1
    """Index of the put's first entry in a group's log; -1 in a plain log."""
    term: int = 0


DispatchListener = Callable[[DispatchBatch], None]
"""Called on the loop, in log order, after the consume queues hold the messages; committed ones only.

The batch is never empty. After `replay_from` a listener gets messages again that it got before the process
restarted; it recognizes them by their index.
"""


class MessageLog(Protocol):
    """A log of messages with its consume queues."""

    @property
    def queues(self) -> ConsumeQueues:
        """The consume queues, which hold all messages up to `applied_index`."""

    @property
    def min_position(self) -> int:
        """The first position that can be read."""

    @property
    def max_position(self) -> int:
        """The end of what can be read: the first byte after the last applied record."""

    @property
    def applied_index(self) -> int:
        """Every entry up to here is in the queues and was delivered to the listeners; -1: none."""

    @property
    def queued_index(self) -> int:
        """Every entry up to here is in the queues; during a replay it is ahead of `applied_index`."""

    @property
    def dispatched_most(self) -> int:
        """The most messages that were dispatched at once since the start."""

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        """Append all messages or none, without waiting.

        `on_done` is called once, later, when the last message is as durable as the log guarantees or has
        failed. It is never called when the result's status is not PUT_OK. The last message, one of the
        replicated state, empties the queues of `deleted_topics`: see commitlog/dispatch.py.
        """

    def is_writable(self) -> bool:
        """Whether a put may succeed now: this node leads and has applied all that earlier leaders wrote."""

    def shows_all_committed(self) -> bool:
        """Whether every message that a client may know to be committed is in the queues. This may be false on
        a leader with a slow disk: entries are committed by its followers' disks before its own queues have
        them. It is false on a leader that transfers leadership or gets no answers from a majority: another
        node may be leader already.
        """

    def on_writable_change(self, callback: Callable[[bool], None]) -> None:
        """Have `callback` called with the new value whenever `is_writable` changes."""

    def read(self, position: int, size: int) -> bytes:
        """The bytes of a committed record. Raises PositionError, DamagedRecordError."""

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        """Several records, given as (position, size), back to back.

        Raises PositionError, DamagedRecordError.
        """

    def read_units(self, units: bytes) -> bytes:
        """The same of units as a consume queue stores them, no holes: the body of a pull answer."""

    def record_at(self, position: int) -> bytes | None:
        """The whole record that begins at `position`, or None when no committed record begins there."""

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """Call `listener` with every committed batch from now on (before start(): from the first one), or
        only with the batches that hold a message of these topics.
        """

    def remove_listener(self, listener: DispatchListener) -> None:
        """Undo `add_listener`. A batch that is being dispatched may still be delivered to it."""

    @property
    def begin_index(self) -> int:
        """The first entry; 0 in a plain log, which keeps everything."""

    @property
    def format_level(self) -> int:
        """Records may be written in the formats of this level and of those below, which every member reads
        (dledger/core/membership.py).
        """

    def suspend_writes(self, is_suspended: bool) -> None:
        """While suspended, the log is not writable: a listener still lacks messages that puts depend on."""

    def redeliver_from(self, listener: DispatchListener, index: int) -> None:
        """From within a call of `listener`: it alone gets the messages from entry `index` on again, before
        any new ones, and until then the log is not writable. Raises DamagedRecordError.
        """

    def replay_from(self, index: int) -> None:
        """Before start(): deliver the messages from `index` on to the listeners, dispatched before or not."""

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """Messages that were dispatched already, from entry `index` to at most `last_index`, to build derived
        data again: a bounded number, and where they end. Raises DamagedRecordError.
        """

    def end_of(self, index: int) -> int:
        """First byte after an entry that the log has. Raises DamagedRecordError."""

    async def start(self) -> None:
        """Begin to serve. What is on disk was recovered when the log was opened."""

    async def stop(self) -> None:
        """Stop serving, with the queues on disk and a checkpoint that a quick start needs."""

    def status(self) -> NodeStatus | None:
        """The replication engine's view of itself; None for a log without one."""
