"""What a node does with the checkpoints that it finds in the log (broker/state/checkpoints.py)."""

import logging

from broker.state.checkpoints import (
    CHECKPOINT_TOPIC,
    Assembler,
    Base,
    WholeCheckpoint,
    next_offsets,
    piece_of,
    raise_queues,
)
from broker.state.snapshot import Snapshot, decode_snapshot
from commitlog.dispatch_batch import DispatchBatch
from commitlog.log import MessageLog
from commitlog.record import decode_record

logger = logging.getLogger(__name__)


class BaseKeeper:
    """Follows the checkpoints of one log and keeps what the newest whole one says of the queues."""

    def __init__(self, log: MessageLog) -> None:
        self.base = Base()
        self._log = log
        self._assembler = Assembler()
        self._is_raised = True

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
        self.base = Base(whole.covered_index, self._log.queued_index, next_offsets(self._log.queues))
        return True

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
            raise_queues(self._log.queues, self.base.offsets)
