"""The fields of many records as numpy arrays. Pure. The layout is that of
`remoting.record_layout`.

`find_records` parses the answer of a pull: records back to back, each of its own length. Only the step from
one record to the next is a loop; every field is then read for all records by one numpy operation. Damage
raises.

`RecordColumns` does the same for records of store files whose places are known, and which may be damaged: it
never reads outside of its bytes and marks the records that are not whole.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from commitlog.record import CorruptRecordError, decode_record
from remoting.record_layout import (
    AT,
    BODY_AT,
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
"""A numpy check of this many records costs about as much as a walk over half of them."""


def _dtype_of(fields: Sequence[Field]) -> np.dtype[np.void]:
    return np.dtype([(field.name, f">{field.code}") for field in fields])


_BORN_HOST, _STORE_HOST = (
    next(number for number, field in enumerate(FIELDS) if field.name == name)
    for name in ("born_host", "store_host")
)
RECORD_HEAD: Final = _dtype_of(FIELDS[:_BORN_HOST])
"""The fields before the born host, whose length depends on sysFlag."""
_TAIL: Final = _dtype_of(FIELDS[_STORE_HOST + 1 :])
"""The fields after the store host, up to the body."""
_TIME = np.dtype(">i8")
_read_size = struct.Struct(">i").unpack_from


@dataclass(frozen=True, slots=True)
class Records:
    """The places of the fields of each record in `data`, and the values of those of a fixed length.

    Positions are bytes in `data`, an `_end` that after the field. `queue_offset` and `physical_offset` are
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
    """The records of a pull's answer. Raises CorruptDataError."""
    starts = _starts(data)
    raw = np.frombuffer(data, np.uint8)
    ends = np.append(starts[1:], len(data))[: len(starts)]
    head = bytes_at(raw, starts, RECORD_HEAD.itemsize).view(RECORD_HEAD).ravel()
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
    tail = bytes_at(raw, tail_at, _TAIL.itemsize).view(_TAIL).ravel()
    body_end = body_at + tail["body_bytes"].astype(np.int64)
    topic_at = body_end + 1 + is_v2
    _check((tail["body_bytes"] >= 0) & (topic_at + 2 <= ends), starts, "its body does not fit into it")
    topic_end = topic_at + _topic_bytes(raw, body_end, is_v2)
    _check(topic_end + 2 <= ends, starts, "its topic does not fit into it")
    properties_at = topic_end + 2
    properties_bytes = bytes_at(raw, topic_end, 2).view(">i2").ravel().astype(np.int64)
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
        store_ms=bytes_at(raw, store_time_at, _TIME.itemsize).view(_TIME).ravel().astype(np.int64),
        born_host_at=born_host_at,
        store_host_at=store_host_at,
        body_at=body_at,
        body_end=body_end,
        properties_at=properties_at,
        properties_end=ends,
    )


def bytes_at(raw: Bytes, positions: Ints, count: int) -> Bytes:
    """A row of `count` bytes from each position; all bytes must be inside of `raw`."""
    if not len(positions):
        return np.empty((0, count), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(raw, count)
    return np.ascontiguousarray(windows[positions])


def _starts(data: bytes) -> Ints:
    """Where each record begins.

    Many producers make records of one size, whose places need no walk. Where a check finds few of them, the
    walk continues for longer and longer before the next check.
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
    """How many records of this size follow each other from `at`; the first is known to be one."""
    count = min(count_max, (len(data) - at) // size)
    is_same = np.ndarray(count, ">i4", data, at, (size,)) == size
    return count if bool(is_same.all()) else int(np.argmin(is_same))


def _walk(data: bytes, at: int, count_max: int) -> list[int]:
    """Where records begin, at most `count_max`, and where the last of them ends."""
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


HEAD_BYTES: Final = RECORD_HEAD.itemsize
_V6_MORE_BYTES: Final = HOST_V6_BYTES - HOST_V4_BYTES
_WIDTHS: Final = {">i8": 8, ">i4": 4, ">u2": 2, "u1": 1}


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """The places of each record's variable fields in the data, and their lengths."""

    store_ms: Ints
    store_host: Ints
    reconsume: Ints
    body: Ints
    body_bytes: Ints
    topic: Ints
    topic_bytes: Ints
    properties: Ints
    properties_bytes: Ints
    is_whole: npt.NDArray[np.bool_]


class RecordColumns:
    """Records of `sizes` bytes that begin at data[starts]; `positions` are their places in the log.

    Nothing outside of `data` is read, even if the bytes are damaged.
    """

    def __init__(self, data: bytes, starts: Ints, sizes: Ints, positions: Ints) -> None:
        self.data = data
        self.starts = starts
        self.sizes = sizes
        self.positions = positions
        self._raw = np.frombuffer(data, np.uint8)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def heads(self) -> npt.NDArray[Any]:
        """The fields up to the born time, of each record."""
        return self._gather(self.starts, HEAD_BYTES).view(RECORD_HEAD)

    @cached_property
    def places(self) -> _Places:
        """The variable fields. Those of a record that is not whole mean nothing, but are inside the data."""
        heads, ends = self.heads, self.starts + self.sizes
        sys_flags = heads["sys_flag"]
        born_more = np.where(sys_flags & BORN_HOST_V6, _V6_MORE_BYTES, 0)
        more = born_more + np.where(sys_flags & STORE_HOST_V6, _V6_MORE_BYTES, 0)
        body = self.starts + BODY_AT + more
        is_v2 = heads["magic"] == MAGIC_V2
        is_whole = (heads["magic"] == MAGIC_V1) | is_v2
        is_whole &= (heads["size"] == self.sizes) & (self.sizes >= RECORD_BYTES_MIN + more + is_v2)
        body_bytes = self._number(body - 4, ">i4", is_whole)
        is_whole &= (body_bytes >= 0) & (body + body_bytes + 3 + is_v2 <= ends)
        topic = body + body_bytes + 1 + is_v2
        topic_bytes = np.where(
            is_v2,
            self._number(topic - 2, ">u2", is_whole & is_v2),
            self._number(topic - 1, "u1", is_whole & ~is_v2),
        )
        is_whole &= topic + topic_bytes + 2 <= ends
        properties = topic + topic_bytes + 2
        properties_bytes = self._number(properties - 2, ">u2", is_whole)
        is_whole &= properties + properties_bytes == ends
        return _Places(
            store_ms=self.starts + AT["store_timestamp_ms"] + born_more,
            store_host=self.starts + AT["store_host"] + born_more,
            reconsume=self.starts + AT["reconsume_times"] + more,
            body=body,
            body_bytes=body_bytes,
            topic=topic,
            topic_bytes=topic_bytes,
            properties=properties,
            properties_bytes=properties_bytes,
            is_whole=is_whole,
        )

    @property
    def is_whole(self) -> npt.NDArray[np.bool_]:
        """Whether a record's fields add up, and its own position field is right."""
        stands_there: npt.NDArray[np.bool_] = self.heads["physical_offset"] == self.positions
        return self.places.is_whole & stands_there

    def as_records(self) -> Records:
        """The same for callers that read whole records only."""
        heads, places = self.heads, self.places
        return Records(
            data=self._raw,
            queue_offset=heads["queue_offset"].astype(np.int64),
            physical_offset=heads["physical_offset"].astype(np.int64),
            flag=heads["flag"].astype(np.int32),
            sys_flag=heads["sys_flag"].astype(np.int32),
            reconsume_times=self._number(places.reconsume, ">i4", places.is_whole).astype(np.int32),
            born_ms=heads["born_timestamp_ms"].astype(np.int64),
            store_ms=self.store_ms,
            born_host_at=self.starts + HEAD_BYTES,
            store_host_at=places.store_host,
            body_at=places.body,
            body_end=places.body + places.body_bytes,
            properties_at=places.properties,
            properties_end=self.starts + self.sizes,
        )

    @property
    def store_ms(self) -> Ints:
        """Store times in milliseconds (STORETIMESTAMP)."""
        return self._number(self.places.store_ms, ">i8", self.places.is_whole)

    def wrong_body_crcs(self, numbers: Ints) -> list[int]:
        """Those of the whole records whose body does not have its CRC."""
        view = memoryview(self.data)
        crc32 = isal_zlib.crc32
        ats = self.places.body[numbers].tolist()
        lengths = self.places.body_bytes[numbers].tolist()
        crcs = self.heads["body_crc"][numbers].tolist()
        return [
            number
            for number, at, length, crc in zip(numbers.tolist(), ats, lengths, crcs, strict=True)
            if crc32(view[at : at + length]) & 0x7FFFFFFF != crc
        ]

    def fault_of(self, number: int) -> str:
        """What is wrong with a record that is not whole or does not have its CRC."""
        start = int(self.starts[number])
        data = memoryview(self.data)[start : start + int(self.sizes[number])]
        try:
            record = decode_record(data, 0, check_crc=True)
        except CorruptRecordError as error:
            return str(error)
        if record.size != len(data):
            return f"the record has size {record.size}, its entry {len(data)} bytes for it"
        return f"the record's own position is {record.physical_offset}"

    def _gather(self, at: Ints, width: int) -> npt.NDArray[np.uint8]:
        # A field too near the end is read from an earlier place: such a record is incomplete anyway.
        if len(self._raw) < width:
            return np.zeros(len(at) * width, np.uint8)
        within = np.clip(at, 0, len(self._raw) - width)
        return bytes_at(self._raw, within, width).reshape(-1)

    def _number(self, at: Ints, form: str, is_there: npt.NDArray[np.bool_]) -> Ints:
        values = self._gather(at, _WIDTHS[form]).view(form).astype(np.int64)
        return np.where(is_there, values, 0)
