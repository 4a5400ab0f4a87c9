"""The fields of many records at once, as arrays: found and checked without a loop over the records."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from commitlog.record import CorruptRecordError, decode_record
from remoting.record_layout import (
    AT,
    BODY_AT,
    BORN_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
)
from rocketmq_spark.log.stretch import Int64s
from rocketmq_spark.source.records import RECORD_HEAD, Records, take

HEAD_BYTES: Final = RECORD_HEAD.itemsize
_V6_MORE_BYTES: Final = HOST_V6_BYTES - HOST_V4_BYTES
_WIDTHS: Final = {">i8": 8, ">i4": 4, ">u2": 2, "u1": 1}


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where in the data each record's variable fields stand, and their lengths."""

    store_ms: Int64s
    store_host: Int64s
    reconsume: Int64s
    body: Int64s
    body_bytes: Int64s
    topic: Int64s
    topic_bytes: Int64s
    properties: Int64s
    properties_bytes: Int64s
    is_whole: npt.NDArray[np.bool_]


class RecordColumns:
    """Records of `sizes` bytes that begin at data[starts]; those at data[start] of the log's `positions`.

    Whatever the bytes are, nothing is read outside of `data`.
    """

    def __init__(self, data: bytes, starts: Int64s, sizes: Int64s, positions: Int64s) -> None:
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
        """The variable fields. Those of a record that is not whole mean nothing, but stand in the data."""
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
        """Whether a record's fields add up, and it says itself that it stands where it does."""
        stands_there: npt.NDArray[np.bool_] = self.heads["physical_offset"] == self.positions
        return self.places.is_whole & stands_there

    def as_records(self) -> Records:
        """The same for those who read whole records only."""
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
    def store_ms(self) -> Int64s:
        """STORETIMESTAMP."""
        return self._number(self.places.store_ms, ">i8", self.places.is_whole)

    def wrong_body_crcs(self, numbers: Int64s) -> list[int]:
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
        return f"the record says it stands at position {record.physical_offset}"

    def _gather(self, at: Int64s, width: int) -> npt.NDArray[np.uint8]:
        # What begins too near the end is read from before: such a record is not whole anyway.
        if len(self._raw) < width:
            return np.zeros(len(at) * width, np.uint8)
        within = np.clip(at, 0, len(self._raw) - width)
        return take(self._raw, within, width).reshape(-1)

    def _number(self, at: Int64s, form: str, is_there: npt.NDArray[np.bool_]) -> Int64s:
        values = self._gather(at, _WIDTHS[form]).view(form).astype(np.int64)
        return np.where(is_there, values, 0)
