"""The properties of many messages at once: NAME 0x01 VALUE 0x02 … taken apart by numpy. Pure.

Rules as in `commitlog.record`: pieces with an empty name or value are dropped, of several values of one name
the last one counts, and what is not UTF-8 becomes replacement characters.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rocketmq_spark.source.records import Bytes, Ints, Records, take
from rocketmq_spark.source.slices import as_text, slices

_NAME_END = 1
_VALUE_END = 2
_MAP_TYPE = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Properties:
    """Every property of `count` messages. Row `row[i]` has the name `text[name_at[i]:name_end[i]]`, whose
    value follows behind one byte and ends at `value_end[i]`. `row` does not fall.
    """

    count: int
    text: Bytes
    row: Ints
    name_at: Ints
    name_end: Ints
    value_end: Ints
    row_at: Ints
    """Where the text of each message begins."""


def find_properties(records: Records) -> Properties:
    """Take the properties of all records apart."""
    from pyarrow import compute as pc  # see arrow_rows

    count = len(records)
    raw = slices(records.data, records.properties_at, records.properties_end, pa.binary())
    # A last value may lack its end mark, which Java 4 cuts off: one more only makes an empty piece.
    ended = as_text(pc.binary_join_element_wise(raw, b"", pa.scalar(bytes([_VALUE_END]), pa.binary())))
    _, offset_buffer, text_buffer = ended.buffers()
    borders = np.frombuffer(offset_buffer, np.int32)[: count + 1].astype(np.int64)
    text = np.frombuffer(text_buffer or b"", np.uint8)[: borders[-1]]
    ends = np.flatnonzero(text == _VALUE_END)
    name_ends = np.flatnonzero(text == _NAME_END)
    name_ends = np.append(name_ends, len(text))  # a piece without a mark finds this one, behind it
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]
    own_name_end = name_ends[np.searchsorted(name_ends, starts)]
    row = np.repeat(np.arange(count), np.diff(np.searchsorted(ends, borders)))
    is_whole = (own_name_end > starts) & (own_name_end < ends - 1)
    return Properties(
        count,
        text,
        row[is_whole],
        starts[is_whole],
        own_name_end[is_whole],
        ends[is_whole],
        borders[:-1],
    )


def property_column(properties: Properties, name: bytes) -> pa.Array:
    """The value of one property of each message, null where it has none."""
    starts, ends = properties.row_at.copy(), properties.row_at.copy()
    hits = _named(properties, name)
    rows = properties.row[hits]
    starts[rows] = properties.name_end[hits] + 1  # of repeated names the last assignment stays
    ends[rows] = properties.value_end[hits]
    return slices(properties.text, starts, ends, pa.string(), ends > starts)


def property_maps(properties: Properties) -> pa.Array:
    """All properties of each message as a map; one without any has an empty map."""
    names = slices(properties.text, properties.name_at, properties.name_end, pa.string())
    values = slices(properties.text, properties.name_end + 1, properties.value_end, pa.string())
    row = properties.row
    kept = _last_of_each_name(row, names)
    if kept is not None:
        names, values, row = names.take(kept), values.take(kept), row[kept]
    borders = np.searchsorted(row, np.arange(properties.count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(borders), names, values, type=_MAP_TYPE)


def _named(properties: Properties, name: bytes) -> Ints:
    """Which properties have this name."""
    candidates = np.flatnonzero(properties.name_end - properties.name_at == len(name))
    found = take(properties.text, properties.name_at[candidates], len(name))
    wanted = np.frombuffer(name, np.uint8)
    hits: Ints = candidates[(found == wanted).all(axis=1)]
    return hits


def _last_of_each_name(row: Ints, names: pa.Array) -> Ints | None:
    """Which properties to keep so that no message has a name twice; None when all."""
    if not len(row):
        return None
    encoded = names.dictionary_encode()
    keys = row * len(encoded.dictionary) + np.asarray(encoded.indices, np.int64)
    order = np.argsort(keys, kind="stable")
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)
    if bool(is_last.all()):
        return None
    return np.sort(order[is_last])
