"""The commit log of a replica group: each message one entry of a DLedger log, served on its leader.

As RocketMQ's DLedgerCommitLog. A put checks, assigns queue offsets, encodes and appends in one synchronous
step, so that an offset is only assigned when the append cannot fail any more. A message's position is that
of its entry plus 48.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from commitlog.cold_reads import NoRecordError
from commitlog.dispatch import DispatchBatch, Dispatcher, stamp
from commitlog.entry import HEADER_BYTES, Buffer, entry_position, write_physical_offset
from commitlog.entry_store import EntryStore
from commitlog.errors import DamagedRecordError, PositionError
from commitlog.indexed_log import (
    STRETCH_BYTES_MAX,
    STRETCH_ENTRIES_MAX,
    IndexedLog,
    Indexer,
    MessageLogConfig,
)
from commitlog.log import PutResult, PutStatus
from commitlog.log_removal import LogRemoval
from commitlog.queue_checkpoint import Applied
from commitlog.queue_offsets import QueueOffsets
from commitlog.record import TRANSACTION_ROLLBACK, Message, MessageIllegalError, encode_record
from dledger.clock import wall_clock_ms
from dledger.core.status import NodeStatus
from dledger.core.types import DamagedEntryError, ResponseCode, Role
from dledger.fs import Fs, OsFs

if TYPE_CHECKING:
    from dledger.server import AppendResult, Observer

logger = logging.getLogger(__name__)

TERM_TOPIC: Final = "rmq_sys_LEDGERMQ_TERM"
"""The topic of the record that a leader writes at the start of its term; it is in no queue."""

PUT_STATUS: Final = {
    ResponseCode.SUCCESS: PutStatus.PUT_OK,
    ResponseCode.NOT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.INCONSISTENT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_NOT_READY: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_TRANSFERRING: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.DISK_FULL: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT: PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
}
"""How an append ended, for the broker; what is not named here is UNKNOWN_ERROR."""


class Engine(Protocol):
    """The part of dledger.server.DLedgerServer that the log uses."""

    @property
    def role(self) -> Role: ...

    @property
    def term(self) -> int: ...

    @property
    def term_start_index(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    def is_undisputed(self) -> bool: ...

    def set_observer(self, observer: "Observer") -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def status(self) -> NodeStatus: ...

    async def remove_before(self, begin_index: int) -> int: ...

    def check_append(self, count: int) -> ResponseCode: ...

    def handle_append(
        self, bodies: Sequence[bytes], on_done: Callable[[ResponseCode], None]
    ) -> "AppendResult": ...


def store_directory(store: Path, self_id: str) -> Path:
    """Where DLedger keeps the log of one member, under storePathRootDir."""
    return store / f"dledger-{self_id}"


def term_start_record(term: int, leader_id: str, store_host: bytes, now_ms: int) -> bytes:
    """The body of the entry that a leader writes first in its term: a record that no reader shows to
    anyone.
    """
    message = Message(
        topic=TERM_TOPIC,
        queue_id=0,
        body=orjson.dumps({"term": term, "leader": leader_id}),
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp_ms=now_ms,
        born_host=store_host,
        store_host=store_host,
    )
    return encode_record(message, 0, now_ms)


class _EntryRecords:
    """An entry store as a log of records."""

    def __init__(self, store: EntryStore, dispatcher: Dispatcher) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self.on_damaged: Callable[[DamagedEntryError], None] = _log_damage

    @property
    def min_position(self) -> int:
        return self._store.begin_position

    @property
    def begin_index(self) -> int:
        return self._store.begin_index

    @property
    def end_index(self) -> int:
        return self._store.end_index

    @property
    def end_position(self) -> int:
        return self._store.end_position

    def end_of(self, index: int) -> int:
        return self._store.end_of(index)

    def read(self, position: int, size_bytes: int) -> Buffer:
        return self._store.read(position, size_bytes)

    def read_records(self, units: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        try:
            return self._store.read_bodies(units)
        except NoRecordError as error:
            raise PositionError(str(error)) from error
        except DamagedEntryError as error:
            raise self._told(error) from error

    def gather_records(self, units: bytes, readable_end: int) -> bytes | None:
        return self._store.gather_bodies(units, readable_end)

    @property
    def cached_from(self) -> int:
        return self._store.cached_from

    def requests_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        index = max(index, self._store.begin_index)
        if last_index < index:
            # The log was begun anew behind all that was committed here.
            return DispatchBatch.of([]), Applied(last_index, self._store.begin_position)
        last_index = min(last_index, index + STRETCH_ENTRIES_MAX - 1)
        try:
            found = self._store.read_range(index, last_index, STRETCH_BYTES_MAX)
        except DamagedEntryError as error:
            raise self._told(error) from error
        position = entry_position(found.data)
        batch = self._dispatcher.parse_entries(found.data, found.first_index, found.last_index, position)
        return batch, Applied(found.last_index, position + len(found.data))

    def _told(self, error: DamagedEntryError) -> DamagedRecordError:
        self.on_damaged(error)
        return DamagedRecordError(str(error))


class DLedgerCommitLog(IndexedLog):
    """Keeps `commitlog.log.MessageLog` over one member of a group."""

    append_hook = staticmethod(write_physical_offset)

    def __init__(
        self,
        engine: Engine,
        entries: EntryStore,
        store: Path,
        config: MessageLogConfig,
        *,
        on_fatal: Callable[[BaseException], None],
        fs: Fs | None = None,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Loads the queues. `entries` is the engine's own store, opened with `write_physical_offset`.

        `on_fatal` is called when the node must stop. Raises OSError.
        """
        self._engine = engine
        self._on_fatal = on_fatal
        self._clock = clock
        self._writable_term: int | None = None
        self._is_held_back = False
        self._writable_callbacks: list[Callable[[bool], None]] = []
        self._records = _EntryRecords(entries, Dispatcher(config.delay_levels_ms))
        self._index = Indexer(
            fs or OsFs(), store, config, self._records, self._update_writable, self.on_fatal
        )
        self._offsets = QueueOffsets(
            self._index.queues, config.message_bytes_max, entries.config.body_bytes_max
        )
        self.removal = LogRemoval(entries, self._index, lambda: engine.commit_index, engine.remove_before)
        """Deletes the log's oldest files."""
        engine.set_observer(self)

    def set_on_damaged(self, callback: Callable[[DamagedEntryError], None]) -> None:
        """Have `callback` told of entries that a consumer or the dispatching finds damaged on the disk.

        It is told each time anew, until they are mended.
        """
        self._records.on_damaged = callback

    # -- MessageLog ----------------------------------------------------------------------------------------

    def is_writable(self) -> bool:
        """As MessageLog."""
        return self._writable_term is not None and self._writable_term == self._engine.term

    def shows_all_committed(self) -> bool:
        """As MessageLog."""
        return self._index.applied_index >= self._engine.commit_index and self._engine.is_undisputed()

    def on_writable_change(self, callback: Callable[[bool], None]) -> None:
        """As MessageLog."""
        self._writable_callbacks.append(callback)

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        """As MessageLog."""
        assert messages, "a put without a message"
        if deleted_topics:
            stamp(messages[-1], deleted_topics)
        if not self.is_writable():
            return _refused(PutStatus.SERVICE_NOT_AVAILABLE)
        code = self._engine.check_append(len(messages))
        if code is not ResponseCode.SUCCESS:
            return _refused(put_status(code))
        now_ms = self._clock()
        try:
            batch = self._offsets.encode(messages, now_ms)
        except MessageIllegalError:
            return _refused(PutStatus.MESSAGE_ILLEGAL)
        result = self.handle_append(batch.bodies, lambda code: on_done(put_status(code)))
        if result.code is not ResponseCode.SUCCESS:
            return _refused(put_status(result.code))
        self._offsets.take(batch, deleted_topics)
        positions = [position + HEADER_BYTES for position in result.positions]
        return PutResult(
            PutStatus.PUT_OK, positions, batch.queue_offsets, now_ms, result.first_index, result.term
        )

    def handle_append(
        self, bodies: Sequence[bytes], on_done: Callable[[ResponseCode], None]
    ) -> "AppendResult":
        """As DLedgerServer.handle_append."""
        return self._engine.handle_append(bodies, on_done)

    async def start(self) -> None:
        """Join the group."""
        self._index.start()
        await self._engine.start()

    async def stop(self) -> None:
        """Leave the group. Raises OSError when the queues cannot be written."""
        self._index.halt()
        await self._engine.stop()
        self._set_writable(None)
        await self._index.stop()

    def status(self) -> NodeStatus:
        """As MessageLog."""
        return self._engine.status()

    @property
    def begin_index(self) -> int:
        """As MessageLog."""
        return self._records.begin_index

    def hold_back(self, is_held_back: bool) -> None:
        """As MessageLog."""
        self._is_held_back = is_held_back
        self._update_writable()

    # -- dledger.server.Observer ---------------------------------------------------------------------------

    def on_readable(self, last_index: int) -> None:
        """Dispatch what was committed."""
        self._index.advance_to(last_index)

    def on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        """Puts are taken by a leader that has applied its own first entry, by nobody else."""
        self._update_writable()

    def on_fatal(self, error: BaseException) -> None:
        """The node must stop: take nothing more and say so."""
        self._index.halt()
        self._set_writable(None)
        self._on_fatal(error)

    def _update_writable(self) -> None:
        engine = self._engine
        is_ready = engine.role is Role.LEADER and 0 <= engine.term_start_index <= self._index.applied_index
        is_ready = is_ready and not self._is_held_back
        self._set_writable(engine.term if is_ready else None)

    def _set_writable(self, term: int | None) -> None:
        if term == self._writable_term:
            return
        self._offsets.clear()
        was_writable = self._writable_term is not None
        self._writable_term = term
        if was_writable == (term is not None):
            return
        for callback in self._writable_callbacks:
            callback(term is not None)


def put_status(code: ResponseCode) -> PutStatus:
    """How the broker names the end of an append."""
    return PUT_STATUS.get(code, PutStatus.UNKNOWN_ERROR)


def _log_damage(error: DamagedEntryError) -> None:
    logger.error("damage on the disk: %s", error)


def _refused(status: PutStatus) -> PutResult:
    return PutResult(status, [], [], 0)
