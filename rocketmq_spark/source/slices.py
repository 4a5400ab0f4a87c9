"""Arrow columns of variable-length values that are stretches of one buffer, made without a loop. Pure."""

import numpy as np
import pyarrow as pa

from rocketmq_spark.source.records import Bytes, Flags, Ints


def slices(
    raw: Bytes, starts: Ints, ends: Ints, type_: pa.DataType, present: Flags | None = None
) -> pa.Array:
    """The array whose value i is `raw[starts[i]:ends[i]]`, null where `present` says no.

    The stretches must follow each other without overlap: their borders, and what lies between them, are read
    as an array of twice the length, of which every second value is copied by Arrow.

    type_: binary or string; whether text is UTF-8 is not looked at.
    """
    count = len(starts)
    if not count:
        return pa.array([], type_)
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    whole = pa.Array.from_buffers(type_, 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(raw)])
    wanted = np.arange(0, 2 * count, 2)
    return whole.take(pa.array(wanted, mask=None if present is None else ~present))


def as_text(values: pa.Array) -> pa.Array:
    """Binary values as strings; bytes that are not UTF-8 become replacement characters."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
