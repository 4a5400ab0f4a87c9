"""The records of RMQ_SYS_TRANS_OP_HALF_TOPIC: how transactions ended, which were checked, and snapshots of
the open ones; all by the offsets of their half messages. Pure.

    tag d  body "12,"          the transaction has ended, as the property LMQ_ENDING says; of a committed or
                               discarded one the message that comes of it is the next record of the log
    tag c  body "12,13,14,"    these are checked once more
    tag s  body binary         all that is open (a part of it): a reader needs nothing from before

    version 1 byte | part 4 | parts 4 | half messages so far 8 | zlib: rows of TransactionWindow      (tag s)

Tag d and its body are RocketMQ's; the other two are our own.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from broker.state.topics import OP_HALF_TOPIC
from broker.transactions.window import ROW_BYTES, Ending, TransactionWindow
from commitlog.log_machine import ChangelogError
from commitlog.record import Message, Record, format_properties, get_property, tags_code

OP_QUEUE_ID = 0
PROPERTY_ENDING = "LMQ_ENDING"
TAG_END = "d"
TAG_CHECKED = "c"
TAG_SNAPSHOT = "s"
SNAPSHOT_TAGS_CODE = tags_code(TAG_SNAPSHOT)
SNAPSHOT_VERSION = 1
PART_ROWS_MAX = 512

_PART = struct.Struct(">BIIq")


class OpRecordError(ChangelogError):
    """A record of the op topic cannot be read: it was not written by a broker of this version or earlier."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction has ended."""

    offset: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Checked:
    """The producers of these were asked."""

    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """One of `parts` records that hold the open transactions below the half offset `end`."""

    part: int
    parts: int
    end: int
    rows: bytes


Op = Ended | Checked | SnapshotPart


class OpWriter:
    """Makes the records of one broker."""

    def __init__(self, store_host: bytes) -> None:
        self._host = store_host

    def ended(self, offset: int, ending: Ending, now_ms: int) -> Message:
        return self._message(TAG_END, b"%d," % offset, now_ms, {PROPERTY_ENDING: ending.name})

    def checked(self, offsets: Iterable[int], now_ms: int) -> Message:
        return self._message(TAG_CHECKED, b"".join(b"%d," % offset for offset in offsets), now_ms)

    def snapshot(self, window: TransactionWindow, now_ms: int) -> list[Message]:
        """All open transactions, in as many records as needed."""
        rows = window.rows()
        joined = list(iter(lambda: b"".join(islice(rows, PART_ROWS_MAX)), b"")) or [b""]
        heads = (_PART.pack(SNAPSHOT_VERSION, part, len(joined), window.end) for part in range(len(joined)))
        return [
            self._message(TAG_SNAPSHOT, head + zlib.compress(data, 1), now_ms)
            for head, data in zip(heads, joined, strict=True)
        ]

    def _message(
        self, tag: str, body: bytes, now_ms: int, properties: dict[str, str] | None = None
    ) -> Message:
        return Message(
            topic=OP_HALF_TOPIC,
            queue_id=OP_QUEUE_ID,
            body=body,
            properties=format_properties({"TAGS": tag, **(properties or {})}),
            born_timestamp_ms=now_ms,
            born_host=self._host,
            store_host=self._host,
        )


def decode_op(record: Record) -> Op:
    """Raises OpRecordError."""
    tag = (get_property(record.properties, b"TAGS") or b"").decode(errors="replace")
    try:
        if tag == TAG_END:
            (offset,) = _offsets(record.body)
            name = get_property(record.properties, PROPERTY_ENDING.encode()) or b""
            return Ended(offset, Ending[name.decode()])
        if tag == TAG_CHECKED:
            return Checked(_offsets(record.body))
        if tag == TAG_SNAPSHOT:
            return _snapshot_part(record.body)
    except (ValueError, KeyError, struct.error, zlib.error) as error:
        raise OpRecordError(
            f"the transaction record {record.queue_offset} cannot be read: {error!r}"
        ) from error
    raise OpRecordError(f"the transaction record {record.queue_offset} has the tag {tag!r}")


def join_parts(parts: Sequence[Op]) -> TransactionWindow | None:
    """The table of a complete snapshot; None when these are not its parts, all of them in order.

    Raises OpRecordError.
    """
    found = [part for part in parts if isinstance(part, SnapshotPart)]
    if not found or len(found) != len(parts) or len(parts) != found[0].parts:
        return None
    if any((part.part, part.end) != (number, found[0].end) for number, part in enumerate(found)):
        return None
    try:
        return TransactionWindow.restored(found[0].end, _rows(found))
    except ValueError as error:
        raise OpRecordError(f"a snapshot of open transactions cannot be read: {error}") from error


def _rows(parts: Iterable[SnapshotPart]) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, len(part.rows), ROW_BYTES):
            yield part.rows[start : start + ROW_BYTES]


def _offsets(body: bytes) -> tuple[int, ...]:
    return tuple(int(text) for text in body.split(b",") if text)


def _snapshot_part(body: bytes) -> SnapshotPart:
    version, part, parts, end = _PART.unpack_from(body)
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"snapshot of version {version}; this node knows {SNAPSHOT_VERSION}")
    rows_reader = zlib.decompressobj()
    rows = rows_reader.decompress(body[_PART.size :], PART_ROWS_MAX * ROW_BYTES + 1)
    if not rows_reader.eof:
        raise ValueError("the rows have no end")
    return SnapshotPart(part, parts, end, rows)
