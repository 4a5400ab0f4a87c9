"""Arrow batches of the entries of a block, whole columns at a time. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.entry import HEADER_BYTES
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_spark.client.cluster import is_system_topic
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.log.entries import UNKNOWN, Damage, EntryBlock, Int64s, entry_heads
from rocketmq_spark.records.columns import (
    COMPRESSED,
    Properties,
    as_text,
    born_hosts,
    find_properties,
    inflate,
    offset_ids,
    property_column,
    property_maps,
    slices,
)
from rocketmq_spark.records.fields import RecordColumns, Records

IN_NO_QUEUE: Final = 0x4
"""Of sysFlag: a prepared or rolled back message, which no consumer ever sees."""
INFLATED_BATCH_BYTES: Final = 8 << 20
"""A batch ends where its inflated bodies exceed this."""
_TIME_MS_MIN: Final = -62_135_596_800_000
_TIME_MS_MAX: Final = 253_402_300_799_999
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowContext:
    """The values that all rows of a task share."""

    store: str
    broker_name: str | None = None
    include_headers: bool = False
    decompress: bool = True


class Rows:
    """Some entries of a block as columns; each column is built when it is used."""

    def __init__(self, context: RowContext, block: EntryBlock, chosen: Int64s | None = None) -> None:
        """chosen: which entries of the block; all when None."""
        self._context = context
        self._block = block
        self._chosen = np.arange(len(block)) if chosen is None else chosen
        starts = block.starts[self._chosen] + block.record_at
        sizes = block.sizes[self._chosen] - block.record_at
        self.records = RecordColumns(block.data, starts, sizes, block.position + starts)

    def __len__(self) -> int:
        return len(self._chosen)

    def choose(self, wanted: Mask) -> "Rows":
        """Those rows for which `wanted` holds."""
        return self if wanted.all() else Rows(self._context, self._block, self._chosen[wanted])

    @cached_property
    def fields(self) -> Records:
        """The records' fields, as those of a pull's answer."""
        return self.records.as_records()

    @cached_property
    def topics(self) -> pa.DictionaryArray:
        """Each record's topic."""
        places = self.records.places
        raw = slices(self.fields.data, places.topic, places.topic + places.topic_bytes, pa.binary())
        encoded = raw.dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, as_text(encoded.dictionary))

    @cached_property
    def is_system(self) -> Mask:
        """Whether a record is no user's message: it is of a system topic, or in no queue."""
        in_no_queue: Mask = (self.fields.sys_flag & IN_NO_QUEUE) != 0
        if not len(self):
            return in_no_queue
        names = self.topics.dictionary.to_pylist()
        is_own = np.array([_is_system_name(name) for name in names], np.bool_)
        is_system: Mask = in_no_queue | is_own[self.topics.indices.to_numpy()]
        return is_system

    @cached_property
    def properties(self) -> Properties:
        """The records' properties."""
        return find_properties(self.fields)

    def index(self) -> pa.Array:
        if self._block.first_index == UNKNOWN:
            return pa.nulls(len(self), pa.int64())
        return pa.array(self._block.first_index + self._chosen)

    def term(self) -> pa.Array:
        terms = self._block.terms
        return pa.array(terms[self._chosen]) if len(terms) else pa.nulls(len(self), pa.int64())

    def position(self) -> pa.Array:
        return pa.array(self._block.position + self._block.starts[self._chosen])

    def size(self) -> pa.Array:
        return pa.array(self._block.sizes[self._chosen])

    def crc_ok(self) -> pa.Array:
        """True for the whole entries that are here, null for those without a CRC."""
        if self._block.record_at != HEADER_BYTES:
            return pa.nulls(len(self), pa.bool_())
        heads = entry_heads(self._block.data, self._block.starts[self._chosen])
        has_none = (heads["header_crc"] == 0) & (heads["body_crc"] == 0)
        return pa.array(np.ones(len(self), np.bool_), mask=has_none)

    def body_crc_ok(self) -> pa.Array:
        """Whether the body has the CRC that its record holds; false for an incomplete record."""
        is_right = self.records.is_whole.copy()
        is_right[self.records.wrong_body_crcs(np.flatnonzero(is_right))] = False
        return pa.array(is_right)

    def constant(self, name: str) -> pa.Array:
        return pa.repeat(pa.scalar(getattr(self._context, name), pa.string()), len(self))

    def property_maps(self) -> pa.Array:
        if self._context.include_headers:
            return property_maps(self.properties)
        return pa.nulls(len(self), pa.map_(pa.string(), pa.string()))

    def message_ids(self) -> pa.Array:
        """The id that the client chose, else the broker's."""
        chosen = property_column(self.properties, b"UNIQ_KEY")
        return pc.coalesce(chosen, offset_ids(self.fields)) if chosen.null_count else chosen

    def stored_bodies(self) -> pa.Array:
        return slices(self.fields.data, self.fields.body_at, self.fields.body_end, pa.binary())

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch | Damage]:
        """The columns that the schema names, in one batch, or in several where bodies become large by
        inflating; and the damage of compressed bodies that cannot be inflated, whose rows are left out.
        """
        if not len(self):
            return
        is_compressed = (self.fields.sys_flag & COMPRESSED) != 0
        if "body" not in schema.names or not self._context.decompress or not is_compressed.any():
            arrays = [COLUMNS[field.name](self).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            return
        yield from self._inflated(schema, np.flatnonzero(is_compressed).tolist())

    def _inflated(self, schema: pa.Schema, compressed: list[int]) -> Iterator[pa.RecordBatch | Damage]:
        columns = {field.name: COLUMNS[field.name](self).cast(field.type) for field in schema}
        bodies: dict[int, bytes] = {}
        is_kept = np.ones(len(self), np.bool_)
        start = size_bytes = 0
        for row in compressed:
            body = self._inflate(row)
            if isinstance(body, Damage):
                is_kept[row] = False
                yield body
                continue
            bodies[row] = body
            size_bytes += len(body)
            if size_bytes >= INFLATED_BATCH_BYTES:
                yield _part(schema, columns, start, row + 1, bodies, is_kept)
                start, size_bytes, bodies = row + 1, 0, {}
        if start < len(self):
            yield _part(schema, columns, start, len(self), bodies, is_kept)

    def _inflate(self, row: int) -> bytes | Damage:
        at, end = int(self.fields.body_at[row]), int(self.fields.body_end[row])
        try:
            return inflate(self._block.data[at:end], int(self.fields.sys_flag[row]))
        except CorruptDataError as error:
            return entry_damage(self._block, int(self._chosen[row]), str(error))


def _part(
    schema: pa.Schema,
    columns: Mapping[str, pa.Array],
    start: int,
    end: int,
    bodies: dict[int, bytes],
    is_kept: Mask,
) -> pa.RecordBatch:
    """The rows from `start` to before `end` that are kept, with these bodies in the place of theirs."""
    parts = {name: column.slice(start, end - start) for name, column in columns.items()}
    if bodies:
        mask = np.zeros(end - start, np.bool_)
        mask[[row - start for row in bodies]] = True
        values = pa.array(bodies.values(), pa.binary())
        parts["body"] = pc.replace_with_mask(parts["body"], mask, values)
    batch = pa.RecordBatch.from_arrays([parts[name] for name in schema.names], schema=schema)
    return batch.filter(pa.array(is_kept[start:end]))


def _timestamps(times_ms: Int64s) -> pa.Array:
    times_us = np.clip(times_ms, _TIME_MS_MIN, _TIME_MS_MAX) * 1000
    return pa.array(times_us).view(_TIMESTAMP)


def _is_system_name(name: str) -> bool:
    # Retry and dead-letter topics contain users' messages.
    return is_system_topic(name) and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _head(name: str) -> Callable[[Rows], pa.Array]:
    return lambda rows: pa.array(rows.records.heads[name].astype(np.int64))


COLUMNS: Final[Mapping[str, Callable[[Rows], pa.Array]]] = {
    "topic": lambda rows: rows.topics.dictionary_decode(),
    "brokerName": lambda rows: rows.constant("broker_name"),
    "queueId": _head("queue_id"),
    "queueOffset": _head("queue_offset"),
    "physicalOffset": _head("physical_offset"),
    "msgId": Rows.message_ids,
    "keys": lambda rows: property_column(rows.properties, b"KEYS"),
    "tags": lambda rows: property_column(rows.properties, b"TAGS"),
    "properties": Rows.property_maps,
    "body": Rows.stored_bodies,
    "bornTimestamp": lambda rows: _timestamps(rows.fields.born_ms),
    "storeTimestamp": lambda rows: _timestamps(rows.fields.store_ms),
    "bornHost": lambda rows: born_hosts(rows.fields),
    "reconsumeTimes": lambda rows: pa.array(rows.fields.reconsume_times),
    "flag": _head("flag"),
    "sysFlag": _head("sys_flag"),
    "store": lambda rows: rows.constant("store"),
    "index": Rows.index,
    "term": Rows.term,
    "position": Rows.position,
    "size": Rows.size,
    "length": Rows.size,
    "crcOk": Rows.crc_ok,
    "bodyCrcOk": Rows.body_crc_ok,
    "isSystem": lambda rows: pa.array(rows.is_system),
    "status": lambda rows: pa.repeat(pa.scalar("ok"), len(rows)),
    "error": lambda rows: pa.nulls(len(rows), pa.string()),
}


def entry_damage(block: EntryBlock, number: int, error: str) -> Damage:
    """Damage of one entry of a block."""
    index = UNKNOWN if block.first_index == UNKNOWN else block.first_index + number
    position = block.position + int(block.starts[number])
    return Damage("corrupt", position, int(block.sizes[number]), error, index, index)


def record_faults(rows: Rows, block: EntryBlock) -> dict[int, Damage]:
    """By number in the block: entries whose record is incomplete, or whose body has a wrong CRC where
    no other CRC protects it.
    """
    records = rows.records
    is_whole = records.is_whole
    wrong = np.flatnonzero(~is_whole).tolist()
    if block.record_at == HEADER_BYTES:
        heads = entry_heads(block.data, block.starts)
        has_no_crc = (heads["header_crc"] == 0) & (heads["body_crc"] == 0)
        wrong += records.wrong_body_crcs(np.flatnonzero(has_no_crc & is_whole))
    return {number: entry_damage(block, number, records.fault_of(number)) for number in sorted(wrong)}


def damage_batch(context: RowContext, damages: list[Damage], schema: pa.Schema) -> pa.RecordBatch:
    """One row for each damage; columns without a value are null."""
    values: dict[str, list[object]] = {
        "store": [context.store] * len(damages),
        "brokerName": [context.broker_name] * len(damages),
        "index": [None if each.first_index == UNKNOWN else each.first_index for each in damages],
        "position": [each.position for each in damages],
        "length": [each.length for each in damages],
        "status": [each.status for each in damages],
        "error": [each.error for each in damages],
    }
    nothing: list[object] = [None] * len(damages)
    arrays = [pa.array(values.get(field.name, nothing), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
