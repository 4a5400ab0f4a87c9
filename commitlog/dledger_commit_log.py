"""The commit log of a replica group: each message one entry of a DLedger log, served on its leader.

As RocketMQ's DLedgerCommitLog. A put checks, assigns queue offsets, encodes and appends in one synchronous
step, so that an offset is only assigned when the append has succeeded. A message's position is that of its
entry plus 48, the size of the entry's header.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from commitlog.cold_reads import ColdReader
from commitlog.consume_queue import UNIT, UNIT_BYTES
from commitlog.dispatch import Applied, DispatchBatch, Dispatcher, stamp_deletions
from commitlog.entry import HEADER_BYTES, Buffer, entry_position, write_physical_offset
from commitlog.entry_chunks import EntryCache
from commitlog.entry_store import EntryStore
from commitlog.errors import CorruptLogError, DamagedRecordError
from commitlog.indexed_log import (
    GAP_BYTES_MAX,
    RANGE_BYTES_MAX,
    RANGE_ENTRIES_MAX,
    IndexedLog,
    MessageLogConfig,
)
from commitlog.log import PutResult, PutStatus
from commitlog.log_removal import LogRemoval
from commitlog.record import TRANSACTION_ROLLBACK, Message, MessageIllegalError, encode_record
from dledger.core.status import NodeStatus
from dledger.core.types import DamagedEntryError, ResponseCode, Role
from dledger.environment import wall_clock_ms
from dledger.fs import Fs, OsFs
from dledger.server import DLedgerServer
from native import function

logger = logging.getLogger(__name__)

TERM_TOPIC: Final = "rmq_sys_LEDGERMQ_TERM"
"""The topic of the record that a leader writes at the start of its term; it is in no queue."""
MEMBERS_TOPIC: Final = "rmq_sys_LEDGERMQ_MEMBERS"
"""The topic of the records that name the group's members, likewise."""

PUT_STATUS: Final = {
    ResponseCode.SUCCESS: PutStatus.PUT_OK,
    ResponseCode.NOT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.INCONSISTENT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_NOT_READY: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_TRANSFERRING: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.CONFIGURATION_PENDING: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.DISK_FULL: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT: PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
}
"""The status of a put by the code of its append; every other code is UNKNOWN_ERROR."""


BLOCK_BYTES: Final = 256 * 1024
OVERLAP_BYTES: Final = 16 * 1024
"""How far a block reaches into the next one: every smaller record is whole in one of the two."""
BLOCKS_MAX: Final = 32
SPREAD_MAX: Final = 16
"""Blocks are used when at least one of so many bytes between the first and the last record is needed."""
RUN_BYTES_MIN: Final = 64 * 1024
"""When the requested records are in runs of at least this average length, as from producers that send
batches, the runs are read directly, without blocks.
"""

_spans_of = function("_remoting", "spans_of")
_gather_records = function("_remoting", "gather_records")

Span = tuple[int, int]
"""Where some bytes of the log begin and end."""
Part = tuple[int, Buffer]
"""Where some bytes of the log begin, and the bytes."""


class BatchReader:
    """Reads the body of a pull answer in one step: a compiled function finds, checks and joins the records of
    all its units. Without the compiled module, or when a record does not agree with its unit, the caller
    reads record by record, and its error names the wrong record.

    Consumers of a topic read its queues in parallel, so one pull skips the records that the next pulls need.
    Parts of the files that pulls read densely are cached in blocks. A block holds only bytes before the
    readable end: they are committed and never change again, so a block stays valid when the log behind it is
    truncated.
    """

    def __init__(self, cache: EntryCache, cold: ColdReader) -> None:
        self._cache = cache
        self._cold = cold
        self._blocks: dict[int, bytes] = {}
        """By number, the least recently used first."""

    def read(self, units: bytes, readable_end: int) -> bytes | None:
        """The records of a consume queue's units, which ascend, back to back; None when Python has to read
        them one by one. All of them end before `readable_end`.
        """
        if _gather_records is None:
            return None
        cached_from = self._cache.first_position
        cold_bytes = len(units) if cached_from is None else _bytes_before(cached_from, units)
        pieces = []
        for chosen, is_cold in ((units[:cold_bytes], True), (units[cold_bytes:], False)):
            if chosen:
                parts = self._cold_parts(chosen, readable_end) if is_cold else self._cached_parts(chosen)
                piece: bytes | None = None if parts is None else _gather_records(chosen, parts, is_cold)
                if piece is None:
                    return None
                pieces.append(piece)
        return b"".join(pieces)

    def _cached_parts(self, units: bytes) -> list[Part] | None:
        """The chunks that hold the units' records."""
        parts: list[Part] = []
        at = 0
        while at < len(units):
            chunk = self._cache.chunk_at(_position(units, at))
            if chunk is None:
                return None
            parts.append((chunk.position, chunk.data))
            at = _bytes_before(chunk.end_position, units, at + UNIT_BYTES)
        return parts

    def _cold_parts(self, units: bytes, readable_end: int) -> list[Part] | None:
        assert _spans_of is not None
        found: tuple[int, int, list[Span] | None] | None = _spans_of(units, GAP_BYTES_MAX)
        if found is None:
            return None
        wanted_bytes, largest, spans = found
        first = _position(units, 0) - HEADER_BYTES
        last_position = _position(units, len(units) - UNIT_BYTES)
        is_dense = last_position - first <= SPREAD_MAX * wanted_bytes
        try:
            if spans is not None and _are_runs(spans, wanted_bytes):
                return self._read(spans)
            if is_dense and largest <= OVERLAP_BYTES - HEADER_BYTES:
                last = (last_position - HEADER_BYTES) // BLOCK_BYTES
                if last * BLOCK_BYTES + BLOCK_BYTES + OVERLAP_BYTES <= readable_end:
                    return [self._block(number) for number in range(first // BLOCK_BYTES, last + 1)]
            return None if spans is None else self._read(spans)
        except (CorruptLogError, OSError):
            return None

    def _block(self, number: int) -> Part:
        block = self._blocks.pop(number, None)
        start = number * BLOCK_BYTES
        if block is None:
            block = self._cold.raw(start, BLOCK_BYTES + OVERLAP_BYTES)
            if len(self._blocks) >= BLOCKS_MAX:
                del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = block
        return start, block

    def _read(self, spans: Sequence[Span]) -> list[Part]:
        read = self._cold.raw
        return [(start, read(start, end - start)) for start, end in spans]


def _position(units: bytes, at: int) -> int:
    """The position of the record whose unit is at byte `at` of `units`."""
    position: int = UNIT.unpack_from(units, at)[0]
    return position


def _bytes_before(position: int, units: bytes, start: int = 0) -> int:
    """How many bytes of `units` belong to records before a position; the first `start` bytes do."""
    if start < len(units) and _position(units, len(units) - UNIT_BYTES) < position:
        return len(units)  # the usual answer
    numbers = range(start, len(units), UNIT_BYTES)
    return start + UNIT_BYTES * bisect_left(numbers, position, key=partial(_position, units))


def _are_runs(spans: Sequence[Span], wanted_bytes: int) -> bool:
    """Whether the spans are long and have few bytes besides the requested records."""
    read_bytes = sum(end - start for start, end in spans)
    return len(spans) * RUN_BYTES_MIN <= wanted_bytes and read_bytes * 3 <= wanted_bytes * 4


def store_directory(store: Path, self_id: str) -> Path:
    """Where DLedger keeps the log of one member, under storePathRootDir."""
    return store / f"dledger-{self_id}"


def term_start_record(term: int, leader_id: str, store_host: bytes, now_ms: int) -> bytes:
    """The body of the first entry of a term: a record that is in no consume queue, so that no client gets
    it.
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


def members_record(configuration: bytes, store_host: bytes, now_ms: int) -> bytes:
    """The body of an entry that names the group's members, which clients do not get either."""
    message = Message(
        topic=MEMBERS_TOPIC,
        queue_id=0,
        body=configuration,
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp_ms=now_ms,
        born_host=store_host,
        store_host=store_host,
    )
    return encode_record(message, 0, now_ms)


class DLedgerCommitLog(IndexedLog):
    """Keeps `commitlog.log.MessageLog` over one member of a group."""

    append_hook = staticmethod(write_physical_offset)

    def __init__(
        self,
        engine: DLedgerServer,
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
        self._entries = entries
        self._batch_reader = BatchReader(entries.cache, entries.cold)
        self._dispatcher = Dispatcher(config.delay_levels_ms)
        self._on_fatal = on_fatal
        self._on_damaged: Callable[[DamagedEntryError], None] = _log_damage
        self._clock = clock
        self._writable_term: int | None = None
        self._is_suspended = False
        self._writable_callbacks: list[Callable[[bool], None]] = []
        end = Applied(entries.end_index, entries.end_position)
        record_bytes_max = entries.config.body_bytes_max
        on_applied = self._update_writable
        super().__init__(fs or OsFs(), store, config, end, record_bytes_max, on_applied, self.on_fatal)
        entries.cache.dispatched(self.queued_index)
        self.removal = LogRemoval(entries, self, lambda: engine.commit_index, engine.remove_before)
        """Deletes the log's oldest files."""
        engine.set_observer(self)

    def set_on_damaged(self, callback: Callable[[DamagedEntryError], None]) -> None:
        """Have `callback` called with entries that a consumer or the dispatch finds damaged on the disk.

        It is called each time they are found, until they are repaired.
        """
        self._on_damaged = callback

    # -- MessageLog: putting -------------------------------------------------------------------------------

    def is_writable(self) -> bool:
        """As MessageLog."""
        return self._writable_term is not None and self._writable_term == self._engine.term

    def shows_all_committed(self) -> bool:
        """As MessageLog."""
        return self.applied_index >= self._engine.commit_index and self._engine.has_lease()

    def on_writable_change(self, callback: Callable[[bool], None]) -> None:
        """As MessageLog."""
        self._writable_callbacks.append(callback)

    def suspend_writes(self, is_suspended: bool) -> None:
        """As MessageLog."""
        self._is_suspended = is_suspended
        self._update_writable()

    def put(
        self,
        messages: Sequence[Message],
        on_done: Callable[[PutStatus], None],
        deleted_topics: Sequence[str] = (),
    ) -> PutResult:
        """As MessageLog."""
        assert messages, "a put without a message"
        if deleted_topics:
            stamp_deletions(messages[-1], deleted_topics)
        # Before this log has applied all entries of earlier leaders, it would assign their queue offsets a
        # second time. Everything else about an append is the core's decision.
        if not self.is_writable():
            return _refused(PutStatus.SERVICE_NOT_AVAILABLE)
        now_ms = self._clock()
        try:
            batch = self._offsets.encode(messages, now_ms)
        except MessageIllegalError:
            return _refused(PutStatus.MESSAGE_ILLEGAL)
        # From here to `assign` nothing else runs. The offsets in the records count as assigned only after the
        # append succeeded: a refused put uses none up, and no other put can be given the same ones.
        result = self._engine.handle_append(batch.bodies, lambda code: on_done(put_status(code)))
        if result.code is not ResponseCode.SUCCESS:
            return _refused(put_status(result.code))
        assert len(result.positions) == len(messages), (len(result.positions), len(messages))
        self._offsets.assign(batch, deleted_topics)
        positions = [position + HEADER_BYTES for position in result.positions]
        return PutResult(
            PutStatus.PUT_OK, positions, batch.queue_offsets, now_ms, result.first_index, result.term
        )

    # -- MessageLog: the rest ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group."""
        self._flusher.start()
        await self._engine.start()

    async def stop(self) -> None:
        """Leave the group. Raises OSError when the queues cannot be written."""
        # Dispatch first: the engine's last commits must not reach listeners whose services have stopped.
        self._halt_dispatch()
        await self._engine.stop()
        self._set_writable(None)
        await self._stop_dispatch()

    def status(self) -> NodeStatus:
        """As MessageLog."""
        return self._engine.status()

    @property
    def begin_index(self) -> int:
        """As MessageLog."""
        return self._entries.begin_index

    @property
    def format_level(self) -> int:
        """As MessageLog. Committed or not: a log that has a later record has the configuration, too."""
        return self._engine.members.configuration.format_level

    # -- IndexedLog: where the bytes are -------------------------------------------------------------------

    @property
    def min_position(self) -> int:
        """As MessageLog."""
        return self._entries.begin.begin_position

    def end_of(self, index: int) -> int:
        """As MessageLog."""
        try:
            return self._entries.end_of(index)
        except DamagedEntryError as error:
            raise DamagedRecordError(str(error)) from error

    def _cached_from(self) -> int:
        return self._entries.cached_from

    def _read_bytes(self, position: int, size_bytes: int) -> Buffer:
        return self._entries.read(position, size_bytes)

    def _read_records(self, units: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        try:
            return self._entries.read_bodies(units)
        except DamagedEntryError as error:
            raise self._reported(error) from error

    def _read_units(self, units: bytes, readable_end: int) -> bytes | None:
        return self._batch_reader.read(units, readable_end)

    def _after_queued(self) -> None:
        super()._after_queued()
        self._entries.cache.dispatched(self.queued_index)

    def _read_batch(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        index = max(index, self._entries.begin_index)
        if last_index < index:
            # The log was reset to a begin behind everything that was committed here.
            return DispatchBatch.of([]), Applied(last_index, self._entries.begin.begin_position)
        last_index = min(last_index, index + RANGE_ENTRIES_MAX - 1)
        try:
            found = self._entries.read_range(index, last_index, RANGE_BYTES_MAX)
        except DamagedEntryError as error:
            raise self._reported(error) from error
        position = entry_position(found.data)
        batch = self._dispatcher.parse_entries(found.data, found.first_index, found.last_index, position)
        return batch, Applied(found.last_index, position + len(found.data))

    def _reported(self, error: DamagedEntryError) -> DamagedRecordError:
        self._on_damaged(error)
        return DamagedRecordError(str(error))

    # -- dledger.server.Observer ---------------------------------------------------------------------------

    def on_readable(self, last_index: int) -> None:
        """Dispatch what was committed."""
        self._reput.advance_to(last_index)

    def on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        """Only a leader that has applied the first entry of its own term accepts puts."""
        self._update_writable()

    def on_fatal(self, error: BaseException) -> None:
        """The node must stop: refuse further puts, and report the error."""
        self._halt_dispatch()
        self._set_writable(None)
        self._on_fatal(error)

    def _update_writable(self) -> None:
        engine = self._engine
        is_ready = engine.role is Role.LEADER and 0 <= engine.term_start_index <= self.applied_index
        is_ready = is_ready and not self._is_suspended
        # By term, not as a flag: a leader that lost and won an election within one turn is in a new term,
        # whose first entry it must apply before it accepts puts.
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
    """The status of a put whose append ended with this code."""
    return PUT_STATUS.get(code, PutStatus.UNKNOWN_ERROR)


def _log_damage(error: DamagedEntryError) -> None:
    logger.error("damage on the disk: %s", error)


def _refused(status: PutStatus) -> PutResult:
    return PutResult(status, [], [], 0)
