"""The records of RMQ_SYS_TRANS_OP_HALF_TOPIC: what has become of half messages, by their offsets. Pure.

    tag d  body "12,"          the transaction has ended, as the property LMQ_ENDING says; of a committed or
                               discarded one the message that comes of it is the next record of the log
    tag c  body "12,13,14,"    these are checked once more
    tag s  body JSON           all that is open (a part of it): a reader needs nothing from before

Tag d and its body are RocketMQ's; the other two are our own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import index

import orjson

from broker.state.topics import OP_HALF_TOPIC
from broker.transactions.window import Ending, TransactionWindow
from commitlog.record import Message, Record, format_properties, get_property, tags_code

OP_QUEUE_ID = 0
PROPERTY_ENDING = "LMQ_ENDING"
TAG_END = "d"
TAG_CHECKED = "c"
TAG_SNAPSHOT = "s"
SNAPSHOT_TAGS_CODE = tags_code(TAG_SNAPSHOT)
SNAPSHOT_VERSION = 1
PART_ROWS_MAX = 10_000


class OpRecordError(ValueError):
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
    rows: tuple[tuple[int, int], ...]
    """Offset and checks of open ones."""


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
        """Everything that is open, in as many records as it takes."""
        rows = window.open_halves()
        pieces = list(iter(lambda: list(islice(rows, PART_ROWS_MAX)), [])) or [[]]
        return [
            self._message(
                TAG_SNAPSHOT,
                orjson.dumps(
                    {
                        "version": SNAPSHOT_VERSION,
                        "part": part,
                        "parts": len(pieces),
                        "end": window.end,
                        "open": piece,
                    }
                ),
                now_ms,
            )
            for part, piece in enumerate(pieces)
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
    except (ValueError, KeyError, TypeError) as error:
        raise OpRecordError(
            f"the transaction record {record.queue_offset} cannot be read: {error!r}"
        ) from error
    raise OpRecordError(f"the transaction record {record.queue_offset} has the tag {tag!r}")


def join_parts(parts: Sequence[Op]) -> TransactionWindow | None:
    """The table of a whole snapshot; None when these are not its parts, all of them in order."""
    found = [part for part in parts if isinstance(part, SnapshotPart)]
    if not found or len(found) != len(parts) or len(parts) != found[0].parts:
        return None
    if any((part.part, part.end) != (number, found[0].end) for number, part in enumerate(found)):
        return None
    return TransactionWindow.restored(found[0].end, _rows(found))


def _rows(parts: Iterable[SnapshotPart]) -> Iterator[tuple[int, int]]:
    for part in parts:
        yield from part.rows


def _offsets(body: bytes) -> tuple[int, ...]:
    return tuple(int(text) for text in body.split(b",") if text)


def _snapshot_part(body: bytes) -> SnapshotPart:
    data = orjson.loads(body)
    if data["version"] != SNAPSHOT_VERSION:
        raise ValueError(f"snapshot of version {data['version']}; this node knows {SNAPSHOT_VERSION}")
    rows = tuple((index(offset), index(checks)) for offset, checks in data["open"])
    return SnapshotPart(index(data["part"]), index(data["parts"]), index(data["end"]), rows)
