"""Finds the fields of many records at once. Pure.

A pull's answer holds records back to back, each of its own length. Only the walk from one to the next is a
loop; every field is then read for all records by one numpy operation. The layout is that of
`remoting.record_layout`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from remoting.record_layout import (
    BORN_HOST_V6,
    FIELDS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    Field,
)
from rocketmq_spark.errors import CorruptDataError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

RUN_MIN: Final = 64
"""A look at so many records at once costs about as much as a walk over the half of them."""


def _dtype_of(fields: Sequence[Field]) -> np.dtype[np.void]:
    return np.dtype([(field.name, f">{field.code}") for field in fields])


_BORN_HOST, _STORE_HOST = (
    next(number for number, field in enumerate(FIELDS) if field.name == name)
    for name in ("born_host", "store_host")
)
RECORD_HEAD: Final = _dtype_of(FIELDS[:_BORN_HOST])
"""Up to the born host, whose length depends on sysFlag."""
_TAIL: Final = _dtype_of(FIELDS[_STORE_HOST + 1 :])
"""From behind the store host to the body."""
_TIME = np.dtype(">i8")
_read_size = struct.Struct(">i").unpack_from


@dataclass(frozen=True, slots=True)
class Records:
    """Where the fields of each record stand in `data`, and the values of those of a fixed length.

    Positions are bytes in `data`; an `_end` is the position behind. `queue_offset` and `physical_offset` are
    RocketMQ's; times are milliseconds.
    """

    data: Bytes
    queue_offset: Ints
    physical_offset: Ints
    flag: npt.NDArray[np.int32]
    sys_flag: npt.NDArray[np.int32]
    reconsume_times: npt.NDArray[np.int32]
    born_ms: Ints
    store_ms: Ints
    born_host_at: Ints
    store_host_at: Ints
    body_at: Ints
    body_end: Ints
    properties_at: Ints
    properties_end: Ints

    def __len__(self) -> int:
        return len(self.queue_offset)

    def choose(self, wanted: Flags) -> "Records":
        """Those records for which `wanted` holds."""
        if bool(wanted.all()):
            return self
        chosen: dict[str, Any] = {
            name: getattr(self, name)[wanted] for name in self.__slots__ if name != "data"
        }
        return Records(self.data, **chosen)


def find_records(data: bytes) -> Records:
    """Take apart what a pull answered. Raises CorruptDataError."""
    starts = _starts(data)
    raw = np.frombuffer(data, np.uint8)
    ends = np.append(starts[1:], len(data))[: len(starts)]
    head = take(raw, starts, RECORD_HEAD.itemsize).view(RECORD_HEAD).ravel()
    magic = head["magic"]
    is_v2 = magic == MAGIC_V2
    _check(is_v2 | (magic == MAGIC_V1), starts, "its magic number is not a record's")
    sys_flag = head["sys_flag"].astype(np.int32)
    born_host_at = starts + RECORD_HEAD.itemsize
    store_time_at = born_host_at + _host_bytes(sys_flag & BORN_HOST_V6)
    store_host_at = store_time_at + _TIME.itemsize
    tail_at = store_host_at + _host_bytes(sys_flag & STORE_HOST_V6)
    body_at = tail_at + _TAIL.itemsize
    _check(body_at + 3 <= ends, starts, "it is too short for its hosts")
    tail = take(raw, tail_at, _TAIL.itemsize).view(_TAIL).ravel()
    body_end = body_at + tail["body_bytes"].astype(np.int64)
    topic_at = body_end + 1 + is_v2
    _check((tail["body_bytes"] >= 0) & (topic_at + 2 <= ends), starts, "its body does not fit into it")
    topic_end = topic_at + _topic_bytes(raw, body_end, is_v2)
    _check(topic_end + 2 <= ends, starts, "its topic does not fit into it")
    properties_at = topic_end + 2
    properties_bytes = take(raw, topic_end, 2).view(">i2").ravel().astype(np.int64)
    fits = (properties_bytes >= 0) & (properties_at + properties_bytes == ends)
    _check(fits, starts, "its properties do not end it")
    return Records(
        data=raw,
        queue_offset=head["queue_offset"].astype(np.int64),
        physical_offset=head["physical_offset"].astype(np.int64),
        flag=head["flag"].astype(np.int32),
        sys_flag=sys_flag,
        reconsume_times=tail["reconsume_times"].astype(np.int32),
        born_ms=head["born_timestamp_ms"].astype(np.int64),
        store_ms=take(raw, store_time_at, _TIME.itemsize).view(_TIME).ravel().astype(np.int64),
        born_host_at=born_host_at,
        store_host_at=store_host_at,
        body_at=body_at,
        body_end=body_end,
        properties_at=properties_at,
        properties_end=ends,
    )


def take(raw: Bytes, positions: Ints, count: int) -> Bytes:
    """A row of `count` bytes from each position; the positions must be inside."""
    if not len(positions):
        return np.empty((0, count), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(raw, count)
    return np.ascontiguousarray(windows[positions])


def _starts(data: bytes) -> Ints:
    """Where each record begins.

    Many producers make records of one size, whose places need no walk. Where a look finds few of them, the
    walk goes on for longer and longer before the next look.
    """
    pieces: list[Ints] = [np.empty(0, np.int64)]
    at, ahead, walked = 0, RUN_MIN, RUN_MIN
    while at < len(data):
        size = _size_at(data, at)
        count = _run(data, at, size, ahead)
        pieces.append(at + size * np.arange(count))
        at += size * count
        if count == ahead:
            ahead, walked = ahead * 2, RUN_MIN
            continue
        ahead = RUN_MIN
        if count < RUN_MIN:
            starts = _walk(data, at, walked)
            pieces.append(np.array(starts[:-1], np.int64))
            at, walked = starts[-1], walked * 2
    return np.concatenate(pieces)


def _run(data: bytes, at: int, size: int, count_max: int) -> int:
    """How many records of this size stand at `at` one behind the other; the first is known to."""
    count = min(count_max, (len(data) - at) // size)
    is_same = np.ndarray(count, ">i4", data, at, (size,)) == size
    return count if bool(is_same.all()) else int(np.argmin(is_same))


def _walk(data: bytes, at: int, count_max: int) -> list[int]:
    """Where so many records begin at most, and where the last of them ends."""
    starts = [at]
    note, read, end = starts.append, _read_size, len(data) - RECORD_BYTES_MIN
    while at <= end and len(starts) <= count_max:
        size = read(data, at)[0]
        at += size
        if size < RECORD_BYTES_MIN:
            break
        note(at)
    if starts[-1] > len(data):
        starts.pop()
    return starts


def _size_at(data: bytes, at: int) -> int:
    end = len(data)
    size: int = _read_size(data, at)[0] if end - at >= RECORD_BYTES_MIN else 0
    if not RECORD_BYTES_MIN <= size <= end - at:
        raise CorruptDataError(f"no record begins at byte {at} of {end}: its size would be {size}")
    return size


def _host_bytes(v6_bit: npt.NDArray[np.int32]) -> Ints:
    return np.where(v6_bit != 0, HOST_V6_BYTES, HOST_V4_BYTES)


def _topic_bytes(raw: Bytes, at: Ints, is_v2: Flags) -> Ints:
    first = raw[at].astype(np.int64)
    return np.where(is_v2, first << 8 | raw[at + 1], first)


def _check(holds: Flags, starts: Ints, problem: str) -> None:
    if not bool(holds.all()):
        at = int(starts[int(np.argmin(holds))])
        raise CorruptDataError(f"the record at byte {at} of the answer is damaged: {problem}")
