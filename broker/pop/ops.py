"""Format of the records of rmq_sys_LEDGERMQ_POP: the changes of messages in flight. Pure.

A body is JSON: {"version": 1, "ops": [["p", group, topic, queue, …], …]}, in the order in which it happened:

    p  handed out: next, pop time, invisible time, runs      o  in order: the same, an attempt before the runs
    f  finished, acknowledged or revived: runs               c  invisible for longer: offset, pop time, time
    s  the group was moved to an offset: next                d  dropped with its topic or group

Runs are [first, count, first, count, …]. Records with the tag s are parts of a snapshot instead: {"version":
1, "part": 0, "parts": 2, "rows": [...]}, rows as of `PopTable.rows`; a reader needs no earlier records. A
record is committed before the clients that caused it are answered.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import index
from typing import Any, NamedTuple

import orjson

from broker.state.topics import LEDGERMQ_PREFIX
from commitlog.log_machine import ChangelogError
from commitlog.record import tags_code

POP_TOPIC = LEDGERMQ_PREFIX + "POP"
POP_QUEUE_ID = 0
TAG_SNAPSHOT = "s"
SNAPSHOT_TAGS_CODE = tags_code(TAG_SNAPSHOT)
OPS_VERSION = 1
RECORD_BYTES_MAX = 256 * 1024
"""A record is closed when its ops reach this."""
PART_ROWS_MAX = 1_000
"""Of a part of a snapshot; a row has at most the 32 messages of a pop."""
_LONG_MAX = 2**63 - 1
_RUN_MAX = 1 << 20


class PopRecordError(ChangelogError):
    """A record cannot be read: it was not written by a broker of this version or earlier."""


class GroupQueueKey(NamedTuple):
    """One queue as one group consumes it."""

    group: str
    topic: str
    queue_id: int


class Popped(NamedTuple):
    """These messages are invisible from `pop_time_ms` on for `invisible_ms`; the next pop begins at
    `next_offset`.
    """

    key: GroupQueueKey
    offsets: tuple[int, ...]
    next_offset: int
    pop_time_ms: int
    invisible_ms: int


class PoppedInOrder(NamedTuple):
    """Messages in order: the group gets no others of the queue until these are finished."""

    key: GroupQueueKey
    offsets: tuple[int, ...]
    next_offset: int
    pop_time_ms: int
    invisible_ms: int
    attempt_id: str | None


class Finished(NamedTuple):
    """Acknowledged, or copied to another topic: these are not handed out again."""

    key: GroupQueueKey
    offsets: tuple[int, ...]


class Changed(NamedTuple):
    """An in-flight message stays invisible from this time on for this long (ms)."""

    key: GroupQueueKey
    offset: int
    pop_time_ms: int
    invisible_ms: int


class Sought(NamedTuple):
    """The group continues at this offset, and its in-flight messages are dropped."""

    key: GroupQueueKey
    next_offset: int


class Dropped(NamedTuple):
    """The queue is removed from the table: its topic or its group was deleted."""

    key: GroupQueueKey


Op = Popped | PoppedInOrder | Finished | Changed | Sought | Dropped


class SnapshotPart(NamedTuple):
    part: int
    parts: int
    rows: list[Any]


def encode_op(op: Op) -> bytes:
    """One op encoded as an element of a record's list (JSON)."""
    head = op.key
    match op:
        case Popped(_, offsets, next_offset, pop_time_ms, invisible_ms):
            return orjson.dumps(["p", *head, next_offset, pop_time_ms, invisible_ms, to_runs(offsets)])
        case PoppedInOrder(_, offsets, next_offset, pop_time_ms, invisible_ms, attempt_id):
            runs = to_runs(offsets)
            return orjson.dumps(["o", *head, next_offset, pop_time_ms, invisible_ms, attempt_id, runs])
        case Finished(_, offsets):
            return orjson.dumps(["f", *head, to_runs(offsets)])
        case Changed(_, offset, pop_time_ms, invisible_ms):
            return orjson.dumps(["c", *head, offset, pop_time_ms, invisible_ms])
        case Sought(_, next_offset):
            return orjson.dumps(["s", *head, next_offset])
        case Dropped():
            return orjson.dumps(["d", *head])


def join_ops(encoded: Iterable[bytes]) -> bytes:
    """The body of a record with these ops."""
    return b'{"version":%d,"ops":[%s]}' % (OPS_VERSION, b",".join(encoded))


def snapshot_bodies(rows: Iterable[list[Any]]) -> list[bytes]:
    """The bodies of the records of a snapshot, in order; at least one."""
    each = iter(rows)
    parts = list(iter(lambda: list(islice(each, PART_ROWS_MAX)), [])) or [[]]
    head = b'{"version":%d,"part":%d,"parts":%d,"rows":%s}'
    return [head % (OPS_VERSION, at, len(parts), orjson.dumps(part)) for at, part in enumerate(parts)]


def decode_record_body(body: bytes) -> list[Op] | SnapshotPart:
    """Read the body of a record. Raises PopRecordError."""
    try:
        data = orjson.loads(body)
        if data["version"] != OPS_VERSION:
            raise PopRecordError(f"version {data['version']}; this node knows {OPS_VERSION}")
        if "ops" in data:
            return [_READERS[row[0]](row) for row in data["ops"]]
        return SnapshotPart(index(data["part"]), index(data["parts"]), list(data["rows"]))
    except PopRecordError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PopRecordError(f"a record of {POP_TOPIC} cannot be read: {error!r}") from error


def to_runs(offsets: Sequence[int]) -> list[int]:
    """Offsets in rising order as [first, count, …]."""
    runs: list[int] = []
    following = -1
    for offset in offsets:
        if offset == following:
            runs[-1] += 1
        else:
            runs += (offset, 1)
        following = offset + 1
    return runs


def from_runs(runs: Sequence[int]) -> tuple[int, ...]:
    """The inverse of `to_runs`. Raises ValueError."""
    offsets: list[int] = []
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        if not 0 < count <= _RUN_MAX:
            raise ValueError(f"a run of {count} offsets")
        offsets += range(whole(first), first + count)
    return tuple(offsets)


def whole(value: object) -> int:
    """A number that may be an offset or a time. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LONG_MAX:
        raise ValueError(f"{value!r} is no offset and no time")
    return value


def read_key(row: Sequence[Any]) -> GroupQueueKey:
    """The key, from the row's second element on. Raises ValueError."""
    return GroupQueueKey(str(row[1]), str(row[2]), whole(row[3]))


def read_attempt(value: object) -> str | None:
    return None if value is None else str(value)


_READERS: Mapping[str, Callable[[list[Any]], Op]] = {
    "p": lambda row: Popped(read_key(row), from_runs(row[7]), whole(row[4]), whole(row[5]), whole(row[6])),
    "o": lambda row: PoppedInOrder(
        read_key(row), from_runs(row[8]), whole(row[4]), whole(row[5]), whole(row[6]), read_attempt(row[7])
    ),
    "f": lambda row: Finished(read_key(row), from_runs(row[4])),
    "c": lambda row: Changed(read_key(row), whole(row[4]), whole(row[5]), whole(row[6])),
    "s": lambda row: Sought(read_key(row), whole(row[4])),
    "d": lambda row: Dropped(read_key(row)),
}
