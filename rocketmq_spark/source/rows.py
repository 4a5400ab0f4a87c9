"""Arrow batches of the wanted columns from the bytes of pull answers, a whole batch at a time. Pure.

Columns of ordinary records are made by a compiled function in one pass. All other records (another layout,
IPv6 hosts, bodies to decompress, text that is not UTF-8, damage) are handled by numpy, with the same result.

`pyarrow.compute` is imported where it is used: Spark starts a Python process to plan each query, waits for
its imports, and that process does not need it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.entry import Buffer
from native import function
from remoting.client.routes import MessageQueue
from rocketmq_spark.client.buffer_pool import BufferPool
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.records.columns import (
    COMPRESSED,
    Properties,
    born_hosts,
    find_properties,
    inflate,
    offset_ids,
    property_column,
    property_maps,
    slices,
)
from rocketmq_spark.records.fields import Ints, Records, find_records

COLUMNS: Final = {
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "msgId": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "bornTimestamp": pa.timestamp("us", tz="UTC"),
    "storeTimestamp": pa.timestamp("us", tz="UTC"),
    "bornHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
}
"""In the order of their bits in the request to the compiled function."""
_BITS: Final = {name: 1 << place for place, name in enumerate(COLUMNS)}
_INFLATED: Final = 1 << len(COLUMNS)
"""Bit of the request: compressed bodies are not ordinary."""

_record_columns = function("_log", "record_columns")


def compiled_columns(
    pieces: Sequence[Buffer],
    start: int,
    stop: int,
    names: Sequence[str],
    *,
    inflates: bool,
    memory: BufferPool,
) -> dict[str, pa.Array] | None:
    """The columns of `names` that records have, and queueOffset, of all records in the pieces, in order.

    The arrays are in a block of `memory`. None when a record is not ordinary, or has an offset that is not
    from `start` to before `stop`.
    """
    if _record_columns is None:
        return None
    wanted = [name for name in COLUMNS if name in names or name == "queueOffset"]
    bits = sum(_BITS[name] for name in wanted)
    if inflates and "body" in wanted:
        bits |= _INFLATED
    given = list(pieces)
    block = memory.acquire(sum(map(len, given)))
    found = _record_columns(given, start, stop, bits, block)
    if isinstance(found, int):
        block.release()
        block = memory.acquire(found)
        found = _record_columns(given, start, stop, bits, block)
    if found is None:
        return None
    count, places = found
    whole = pa.py_buffer(block)
    return {
        name: _array(COLUMNS[name], count, whole, *place) for name, place in zip(wanted, places, strict=True)
    }


def _array(
    type_: pa.DataType,
    count: int,
    whole: pa.Buffer,
    nulls: int,
    validity_at: int,
    ends_at: int,
    values_at: int,
    value_bytes: int,
) -> pa.Array:
    values = whole.slice(values_at, value_bytes)
    if type_ not in (pa.string(), pa.binary()):
        return pa.Array.from_buffers(type_, count, [None, values], 0)
    validity = whole.slice(validity_at, (count + 7) // 8) if nulls else None
    ends = whole.slice(ends_at, 4 * (count + 1))
    return pa.Array.from_buffers(type_, count, [validity, ends, values], nulls)


def offsets_of(columns: dict[str, pa.Array]) -> Ints:
    """The queue offsets among compiled columns."""
    return np.asarray(columns["queueOffset"])


INFLATED_BATCH_BYTES: Final = 8 << 20
"""A batch ends where its inflated bodies exceed this: a small compressed answer may become large."""
_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999
"""A timestamp can hold the years 1 to 9999 only; producers may send any number."""
_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The rows that a query reads.

    schema: its columns as Spark expects them, a choice of those of the format `rocketmq`.
    include_headers: whether `properties` is filled. decompress: whether bodies come as their producer made
    them. tags: only messages with one of these, all when None.
    """

    schema: pa.Schema
    include_headers: bool = False
    decompress: bool = True
    tags: frozenset[str] | None = None

    def batches(
        self,
        pieces: Sequence[Buffer],
        queue: MessageQueue,
        start: int,
        stop: int,
        check: Callable[[Ints], None] | None = None,
        memory: BufferPool | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the messages from `start` to before `stop` in `pieces`, in their order.

        pieces: each of whole records. check: called with the queue offsets of all records in them. memory:
        where batches are put.

        Raises:
            CorruptDataError: naming the queue, and the offset where it is known.
        """
        if self._is_plain:
            names = self.schema.names
            columns = compiled_columns(
                pieces, start, stop, names, inflates=self.decompress, memory=memory or BufferPool(0)
            )
            if columns is not None:
                if check is not None:
                    check(offsets_of(columns))
                return self._compiled(columns, queue)
        return self._by_numpy(b"".join(pieces), queue, start, stop, check)

    @property
    def _is_plain(self) -> bool:
        """Whether the compiled function has all the columns, and every record is a row."""
        return self.tags is None and not (self.include_headers and "properties" in self.schema.names)

    def _compiled(self, columns: dict[str, pa.Array], queue: MessageQueue) -> Iterator[pa.RecordBatch]:
        count = len(columns["queueOffset"])
        if count:
            makers = _constants(queue, count, self.schema)
            arrays = [columns[name] if name in columns else makers[name]() for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_numpy(
        self, data: bytes, queue: MessageQueue, start: int, stop: int, check: Callable[[Ints], None] | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            records = find_records(data)
        except CorruptDataError as error:
            raise CorruptDataError(f"{queue} after offset {start - 1}: {error}") from None
        if check is not None:
            check(records.queue_offset)
        records = records.choose((records.queue_offset >= start) & (records.queue_offset < stop))
        rows = _Rows(self, queue, records)
        if self.tags is not None:
            from pyarrow import compute as pc

            wanted = pc.is_in(rows.tags, pa.array(sorted(self.tags), pa.string()))
            rows = _Rows(self, queue, records.choose(np.asarray(wanted, bool)))
        return rows.batches()


@dataclass
class _Rows:
    """The columns of some records. Each column is made at its first use."""

    format: RowFormat
    queue: MessageQueue
    records: Records
    _makers: dict[str, Callable[[], pa.Array]] = field(init=False)

    def __post_init__(self) -> None:
        records = self.records
        constants = _constants(self.queue, len(records), self.format.schema)
        self._makers = constants | {
            "queueOffset": lambda: pa.array(records.queue_offset),
            "physicalOffset": lambda: pa.array(records.physical_offset),
            "msgId": self._message_ids,
            "keys": lambda: property_column(self.properties, b"KEYS"),
            "tags": lambda: self.tags,
            "properties": self._property_maps if self.format.include_headers else constants["properties"],
            "bornTimestamp": lambda: _timestamps(records.born_ms),
            "storeTimestamp": lambda: _timestamps(records.store_ms),
            "bornHost": lambda: born_hosts(records),
            "reconsumeTimes": lambda: pa.array(records.reconsume_times),
            "flag": lambda: pa.array(records.flag),
            "sysFlag": lambda: pa.array(records.sys_flag),
        }

    @cached_property
    def properties(self) -> Properties:
        return find_properties(self.records)

    @cached_property
    def tags(self) -> pa.Array:
        return property_column(self.properties, b"TAGS")

    def batches(self) -> Iterator[pa.RecordBatch]:
        if not len(self.records):
            return
        schema = self.format.schema
        others = {name: self._makers[name]() for name in schema.names if name != "body"}
        if "body" not in schema.names:
            yield pa.RecordBatch.from_arrays([others[name] for name in schema.names], schema=schema)
            return
        at = 0
        for bodies in self._bodies():
            columns = {name: column.slice(at, len(bodies)) for name, column in others.items()}
            columns["body"] = bodies
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
            at += len(bodies)

    def _bodies(self) -> Iterator[pa.Array]:
        """The bodies in one array, or in several when they become large by inflating."""
        records = self.records
        bodies = slices(records.data, records.body_at, records.body_end, pa.binary())
        compressed: list[int] = np.flatnonzero(records.sys_flag & COMPRESSED).tolist()
        if self.format.decompress and compressed:
            yield from self._inflated(bodies, compressed)
        else:
            yield bodies

    def _inflated(self, bodies: pa.Array, compressed: Sequence[int]) -> Iterator[pa.Array]:
        start, gathered_bytes = 0, 0
        inflated: dict[int, bytes] = {}
        for row in compressed:
            inflated[row] = self._inflate(bodies[row].as_py(), row)
            gathered_bytes += len(inflated[row])
            if gathered_bytes >= INFLATED_BATCH_BYTES:
                yield _replaced(bodies.slice(start, row + 1 - start), inflated, start)
                start, gathered_bytes = row + 1, 0
                inflated.clear()
        if start < len(bodies):
            yield _replaced(bodies.slice(start), inflated, start)

    def _inflate(self, body: bytes, row: int) -> bytes:
        try:
            return inflate(body, int(self.records.sys_flag[row]))
        except CorruptDataError as error:
            offset = int(self.records.queue_offset[row])
            raise CorruptDataError(
                f"{self.queue} offset {offset}: {error}. With decompress=false bodies come as stored."
            ) from None

    def _message_ids(self) -> pa.Array:
        """The id that the client chose, else the broker's."""
        chosen = property_column(self.properties, b"UNIQ_KEY")
        from pyarrow import compute as pc

        return pc.coalesce(chosen, offset_ids(self.records)) if chosen.null_count else chosen

    def _property_maps(self) -> pa.Array:
        return property_maps(self.properties).cast(self.format.schema.field("properties").type)


def _constants(queue: MessageQueue, count: int, schema: pa.Schema) -> dict[str, Callable[[], pa.Array]]:
    """The columns that are the same in all rows of a queue; properties that are not requested are null."""
    return {
        "topic": lambda: pa.repeat(pa.scalar(queue.topic), count),
        "brokerName": lambda: pa.repeat(pa.scalar(queue.broker_name), count),
        "queueId": lambda: pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
        "properties": lambda: pa.nulls(count, schema.field("properties").type),
    }


def _replaced(bodies: pa.Array, inflated: dict[int, bytes], start: int) -> pa.Array:
    """The bodies from row `start` on, those of the rows in `inflated` replaced."""
    if not inflated:
        return bodies
    mask = np.zeros(len(bodies), bool)
    mask[[row - start for row in inflated]] = True
    from pyarrow import compute as pc

    return pc.replace_with_mask(bodies, mask, pa.array(inflated.values(), pa.binary()))


def _timestamps(times_ms: Ints) -> pa.Array:
    times_us = np.clip(times_ms, _TIME_MS_MIN, _TIME_MS_MAX) * 1000
    return pa.Array.from_buffers(_TIMESTAMP, len(times_us), [None, pa.py_buffer(times_us)])
