"""Checkpoints: all of the replicated state as records of the log, so that the log before them can be deleted.

A node must start at a later entry than its state covers when its disk is new, or when it was offline for so
long that the next entry is already deleted. It loads the first checkpoint that it finds in the log and
continues after the last entry that this checkpoint covers. See
docs/decisions/storage.md#retention-and-checkpoints-of-state.

    part of a checkpoint, the body of a record of rmq_sys_LEDGERMQ_CHECKPOINT:
        u8 version | u64 covered index | u32 number of the part | u32 parts | bytes

The bytes of all parts are a snapshot (broker/state/snapshot.py), with the next offset of every queue.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any, Final

from broker.state.snapshot import Snapshot, decode_snapshot, encode_snapshot
from broker.state.topics import LEDGERMQ_PREFIX
from commitlog.consume_queues import ConsumeQueues
from commitlog.dispatch import DispatchBatch
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message, decode_record
from dledger.core.types import NO_INDEX

CHECKPOINT_TOPIC: Final = LEDGERMQ_PREFIX + "CHECKPOINT"
PART_VERSION: Final = 1
PART_BYTES_MAX: Final = 512 * 1024
PARTS_MAX: Final = 1 << 16
POSITION_MAX: Final = (1 << 63) - 1
_HEAD: Final = struct.Struct(">BQII")

OffsetRow = list[Any]
"""[topic, [[queue id, next offset], …]]"""


class CheckpointRecordError(Exception):
    """A committed record of the checkpoint topic is none this node knows. The node must stop."""


@dataclass(frozen=True, slots=True)
class Base:
    """What this node knows of the newest complete checkpoint. Needed once the log before that checkpoint is
    deleted.
    """

    covered_index: int = NO_INDEX
    """The state after this entry is in it; the log may begin with the next."""
    known_index: int = NO_INDEX
    """Queues that were dispatched up to here, at least, and miss offsets below those in `offsets` have lost
    them with the log's begin."""
    offsets: tuple[OffsetRow, ...] = ()
    known_position: int = NO_INDEX
    """Position (bytes) at which that entry ends. A queue with a message behind this position uses that
    message's offset instead: its topic may have been deleted and created again since.
    """

    def rows(self) -> dict[str, Any]:
        """For a snapshot file."""
        base = [self.covered_index, self.known_index, self.known_position]
        return {"base": base, "queues": iter(self.offsets)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Base":
        """Raises ValueError, KeyError or TypeError when it is none."""
        if "base" not in data:
            return cls()
        covered_index, known_index, *more = map(index, data["base"])
        known_position = more[0] if more else POSITION_MAX  # older snapshots do not have it
        return cls(covered_index, known_index, offset_rows(data["queues"]), known_position)


def offset_rows(rows: Iterable[Any]) -> tuple[OffsetRow, ...]:
    """Rows from outside. Raises ValueError, TypeError."""
    return tuple([str(topic), [[index(q), index(offset)] for q, offset in queues]] for topic, queues in rows)


def next_offsets(queues: ConsumeQueues) -> tuple[OffsetRow, ...]:
    """Of every queue that there is."""
    return tuple(
        [topic, [[number, queues.next_offset(topic, number)] for number in queues.queue_ids(topic)]]
        for topic in queues.topics()
    )


def kept_offsets(base: Base, deleted_at: Mapping[str, int]) -> Iterator[OffsetRow]:
    """The base's rows, but for those of topics that were deleted since."""
    for row in base.offsets:
        at = deleted_at.get(row[0], NO_INDEX)
        if at < base.known_position and not (at >= 0 and base.known_position == POSITION_MAX):
            yield row


def merged_offsets(*tables: Iterable[OffsetRow]) -> tuple[OffsetRow, ...]:
    """Of each queue the farthest offset."""
    merged: dict[str, dict[int, int]] = {}
    for rows in tables:
        for topic, offsets in rows:
            known = merged.setdefault(topic, {})
            for number, offset in offsets:
                known[number] = max(offset, known.get(number, 0))
    return tuple([topic, [list(pair) for pair in sorted(known.items())]] for topic, known in merged.items())


def raise_queues(queues: ConsumeQueues, base: Base, deleted_at: Mapping[str, int]) -> None:
    """Raise queues whose messages were deleted to the next offsets that the checkpoint holds for them."""
    for topic, offsets in kept_offsets(base, deleted_at):
        for number, offset in offsets:
            queues.raise_to(topic, number, offset, base.known_position)


def split(covered_index: int, data: bytes, part_bytes: int) -> Iterator[bytes]:
    """The bodies of a checkpoint's records. Raises ValueError when there would be too many."""
    parts = max(1, -(-len(data) // part_bytes))
    if parts > PARTS_MAX:
        raise ValueError(f"{len(data)} bytes make {parts} parts of a checkpoint, at most {PARTS_MAX}")
    for number in range(parts):
        piece = data[number * part_bytes : (number + 1) * part_bytes]
        yield _HEAD.pack(PART_VERSION, covered_index, number, parts) + piece


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """A complete checkpoint (all its parts are committed), and the (position, size) in bytes of the parts'
    records.
    """

    covered_index: int
    places: tuple[tuple[int, int], ...]


class Assembler:
    """Collects the parts of the checkpoint that is being written. A part that is read twice changes
    nothing.
    """

    def __init__(self) -> None:
        self._covered_index = NO_INDEX
        self._parts = 0
        self._places: list[tuple[int, int]] = []

    def add(self, body: bytes, place: tuple[int, int]) -> CompleteCheckpoint | None:
        """The next record in log order; what it completes. Raises CheckpointRecordError."""
        covered_index, number, parts = _head_of(body)
        if number == 0:
            self._covered_index, self._parts, self._places = covered_index, parts, []
        if (covered_index, parts) != (self._covered_index, self._parts) or number > len(self._places):
            return None  # its begin is not in the log any more
        if number == len(self._places):
            self._places.append(place)
        if number + 1 < parts:
            return None
        return CompleteCheckpoint(covered_index, tuple(self._places))


def _head_of(body: bytes) -> tuple[int, int, int]:
    if len(body) < _HEAD.size:
        raise CheckpointRecordError(f"{len(body)} bytes are no part of a checkpoint")
    version, covered_index, number, parts = _HEAD.unpack_from(body)
    if version != PART_VERSION or not 0 <= number < parts <= PARTS_MAX:
        raise CheckpointRecordError(f"part {number} of {parts}, version {version}, of a checkpoint")
    return covered_index, number, parts


def piece_of(body: bytes) -> bytes:
    """A part's share of the snapshot."""
    return body[_HEAD.size :]


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
        """Read the parts of a checkpoint in `batch`; return whether a newer checkpoint is complete now."""
        self.raise_due()
        if CHECKPOINT_TOPIC not in batch.topics:
            return False
        whole = self._complete_in(batch)
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
        whole = self._complete_in(batch)
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

    def _complete_in(self, batch: DispatchBatch) -> CompleteCheckpoint | None:
        """The last checkpoint that the batch completes."""
        found = None
        for request in batch if CHECKPOINT_TOPIC in batch.topics else ():
            if request.topic == CHECKPOINT_TOPIC:
                body = bytes(decode_record(batch.record(request)).body)
                found = self._assembler.add(body, (request.position, request.size)) or found
        return found

    def read(self, whole: CompleteCheckpoint) -> Snapshot:
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
