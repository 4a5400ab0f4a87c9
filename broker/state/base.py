"""What a node does with the checkpoints that it finds in the log (broker/state/checkpoints.py)."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker.state.checkpoints import (
    CHECKPOINT_TOPIC,
    Assembler,
    Base,
    OffsetRow,
    WholeCheckpoint,
    kept_offsets,
    merged_offsets,
    next_offsets,
    offset_rows,
    piece_of,
    raise_queues,
    split,
)
from broker.state.snapshot import Snapshot, decode_snapshot, encode_snapshot
from commitlog.dispatch import DispatchBatch
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message, decode_record


class BaseKeeper:
    """Reads the checkpoints of one log and keeps the queue offsets of the newest complete one (`base`)."""

    def __init__(self, log: MessageLog, deleted_at: Callable[[], Mapping[str, int]]) -> None:
        """`deleted_at` gives the state's table of deleted topics."""
        self.base = Base()
        self._log = log
        self._deleted_at = deleted_at
        self._assembler = Assembler()
        self.is_waiting = False
        """Whether queues are to be raised that are not as far as the base yet."""

    def begin_with(self, base: Base, applied_index: int) -> None:
        """Start with the base of a snapshot that covers the log up to `applied_index`. Queues whose next
        offset is lower than in `base` are raised as soon as the queues and the state have both applied the
        base's entry.
        """
        self.base = base
        self.is_waiting = bool(base.offsets)
        if applied_index >= self._log.queued_index:
            self.raise_due()

    def follow(self, batch: DispatchBatch) -> bool:
        """Read the parts of a checkpoint in `batch`; return whether a newer checkpoint is complete now.
        Raises DamagedRecordError; the caller then passes the same batch again.
        """
        self.raise_due()
        if CHECKPOINT_TOPIC not in batch.topics:
            return False
        whole = self.take(batch)
        if whole is None or whole.covered_index <= self.base.covered_index:
            return False
        end_position = batch[-1].position + batch[-1].size
        self.base = Base(whole.covered_index, batch.last_index, self._known_offsets(), end_position)
        return True

    def _known_offsets(self) -> tuple[OffsetRow, ...]:
        """Of the queues, and of the base, where they have not got it yet."""
        rows = next_offsets(self._log.queues)
        if not self.is_waiting:
            return rows
        return merged_offsets(rows, kept_offsets(self.base, self._deleted_at()))

    def begin_behind(self, snapshot: Snapshot) -> None:
        """The state was loaded from this checkpoint; the entries after it are applied to the state again. The
        queues hold them already. Raises DamagedRecordError.
        """
        covered_index = snapshot.applied_index
        rows = offset_rows(snapshot.tables["queues"])
        self.base = Base(covered_index, covered_index, rows, self._log.end_of(covered_index))
        self.is_waiting = True
        self.raise_due()

    def find(self, batch: DispatchBatch) -> Snapshot | None:
        """The checkpoint that the batch completes, if the log still has every entry after it; else None.
        Raises DamagedRecordError, CorruptSnapshotError.
        """
        whole = self.take(batch)
        if whole is None or whole.covered_index + 1 < self._log.begin_index:
            return None
        return self.read(whole)

    async def write(
        self,
        applied_index: int,
        rows: Mapping[str, Any],
        part_bytes: int,
        make_message: Callable[[bytes, str], Message],
    ) -> PutStatus:
        """Write the tables as of entry `applied_index`, and the next offset of every queue, to the log as one
        checkpoint of parts of `part_bytes`. Returns the status of the first put that failed, or PUT_OK.
        """
        snapshot = Snapshot(applied_index, {**rows, "queues": iter(next_offsets(self._log.queues))})
        data = await asyncio.to_thread(encode_snapshot, snapshot)
        for body in split(applied_index, data, part_bytes):
            done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
            result = self._log.put([make_message(body, CHECKPOINT_TOPIC)], partial(_resolve, done))
            status = await done if result.status is PutStatus.PUT_OK else result.status
            if status is not PutStatus.PUT_OK:
                return status
        return PutStatus.PUT_OK

    def take(self, batch: DispatchBatch) -> WholeCheckpoint | None:
        """The last checkpoint that the batch completes. Raises DamagedRecordError."""
        found = None
        for request in batch if CHECKPOINT_TOPIC in batch.topics else ():
            if request.topic == CHECKPOINT_TOPIC:
                place = request.position, request.size
                body = bytes(decode_record(self._log.read(*place)).body)
                found = self._assembler.take(body, place) or found
        return found

    def read(self, whole: WholeCheckpoint) -> Snapshot:
        """The state that a checkpoint holds. Raises DamagedRecordError, CorruptSnapshotError."""
        pieces = [piece_of(bytes(decode_record(self._log.read(*place)).body)) for place in whole.places]
        return decode_snapshot(b"".join(pieces))

    def raise_due(self) -> None:
        """Raise the queues to the base's offsets once the queues and the state have both applied the base's
        entry. A state that is behind the queues does not yet know which topics were deleted in between.
        """
        log = self._log
        if self.is_waiting and log.applied_index >= log.queued_index >= self.base.known_index:
            self.is_waiting = False
            raise_queues(log.queues, self.base, self._deleted_at())


def _resolve(done: asyncio.Future[PutStatus], status: PutStatus) -> None:
    if not done.done():
        done.set_result(status)
