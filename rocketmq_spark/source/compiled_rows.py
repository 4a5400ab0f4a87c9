"""Columns of ordinary records, made by a compiled function in one pass over the bytes of the answers.

What it does not do, `arrow_rows` does for all records: older or newer layouts, IPv6 hosts, bodies to inflate,
text that is not UTF-8, damage. Rules and results are the same.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.entry import Buffer
from native import function
from rocketmq_spark.client.slabs import Slabs
from rocketmq_spark.source.records import Ints

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
"""In the order of their bits in what is asked of the compiled function."""
_BITS: Final = {name: 1 << place for place, name in enumerate(COLUMNS)}
_INFLATED: Final = 1 << len(COLUMNS)
"""That compressed bodies are not ordinary."""

_record_columns = function("_log", "record_columns")


def compiled_columns(
    pieces: Sequence[Buffer], start: int, stop: int, names: Sequence[str], *, inflates: bool, memory: Slabs
) -> dict[str, pa.Array] | None:
    """Those of the columns that records have, and queueOffset, of all records in the pieces, in their order.

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
    block = memory.take(sum(map(len, given)))
    found = _record_columns(given, start, stop, bits, block)
    if isinstance(found, int):
        block.release()
        block = memory.take(found)
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
