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
    next_offsets,
    offset_rows,
    piece_of,
    raise_queues,
    split,
)
from broker.state.snapshot import Snapshot, decode_snapshot, encode_snapshot
from commitlog.dispatch_batch import DispatchBatch
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message, decode_record


class BaseKeeper:
    """Follows the checkpoints of one log and keeps what the newest whole one says of the queues."""

    def __init__(self, log: MessageLog) -> None:
        self.base = Base()
        self._log = log
        self._assembler = Assembler()
        self._is_raised = True
        # The last entries may be such that no listener hears of them, as that of a new leader.
        log.on_writable_change(lambda _: self._raise_due())

    def begin_with(self, base: Base) -> None:
        """What a snapshot says; queues that miss something of it get it once they are as far."""
        self.base = base
        self._is_raised = not base.offsets
        self._raise_due()

    def follow(self, batch: DispatchBatch) -> bool:
        """Whether a checkpoint was completed. Raises DamagedRecordError; to be told again then."""
        self._raise_due()
        if CHECKPOINT_TOPIC not in batch.topics:
            return False
        whole = self.take(batch)
        if whole is None or whole.covered_index <= self.base.covered_index:
            return False
        self.base = self._base_of(whole.covered_index, next_offsets(self._log.queues))
        return True

    def _base_of(self, covered_index: int, rows: tuple[OffsetRow, ...]) -> Base:
        return Base(covered_index, self._log.queued_index, rows, self._log.max_position)

    def begin_behind(self, snapshot: Snapshot) -> None:
        """The state was taken from this checkpoint; the queues have all that is behind it."""
        self.begin_with(self._base_of(snapshot.applied_index, offset_rows(snapshot.tables["queues"])))

    def find(self, batch: DispatchBatch) -> Snapshot | None:
        """What the batch completes, if the log has all behind it. Raises DamagedRecordError,
        CorruptSnapshotError.
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
        """Put the tables as of an entry, and how far every queue is, into the log; see there."""
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

    def _raise_due(self) -> None:
        if not self._is_raised and self._log.queued_index >= self.base.known_index:
            self._is_raised = True
            raise_queues(self._log.queues, self.base)


def _resolve(done: asyncio.Future[PutStatus], status: PutStatus) -> None:
    if not done.done():
        done.set_result(status)
