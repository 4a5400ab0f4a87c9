"""Columns that compiled code makes, held against those that numpy makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from commitlog.record import Message
from native import compiled_modules
from remoting.client.routes import MessageQueue
from rocketmq_spark.client.buffer_pool import BufferPool
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.schemas import FULL_SCHEMA
from rocketmq_spark.source.rows import COLUMNS, RowFormat, compiled_columns, offsets_of
from tests.unit.spark.record_makers import VALUES, messages, plain, stored

pytestmark = pytest.mark.skipif(not compiled_modules(), reason="no compiled modules")

QUEUE = MessageQueue("T", "broker-a", 3)
SCHEMA = to_arrow_schema(FULL_SCHEMA, timezone="UTC")
FORM = RowFormat(SCHEMA)
END = 1 << 62

ordinary = st.builds(
    Message,
    topic=st.sampled_from(["T", "Orders", "t" * 127]),
    queue_id=st.just(3),
    body=st.binary(max_size=40),
    properties=st.lists(
        st.tuples(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "KEYS2", "a", ""]), VALUES).map("\x01".join),
        max_size=5,
    ).map(lambda pieces: "\x02".join(pieces).encode()),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 2, 8]),
    born_timestamp_ms=st.integers(-(2**62), 2**62),
    born_host=st.sampled_from([bytes(8), b"\xff\xff\xff\xff\x80\x00\x00\x00", b"\x7f\0\0\1\0\0\x2a\x9f"]),
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
)


def compiled(
    pieces: Sequence[bytes], names: Sequence[str] = tuple(COLUMNS), start: int = 0, stop: int = END
) -> dict[str, pa.Array] | None:
    return compiled_columns(pieces, start, stop, names, inflates=True, memory=BufferPool(1))


def by_numpy(data: bytes) -> list[dict[str, Any]]:
    return [row for batch in FORM._by_numpy(data, QUEUE, 0, END, None) for row in batch.to_pylist()]


@given(st.lists(ordinary, max_size=12), st.integers(0, 12))
def test_ordinary_records_make_the_same_rows(found: list[Message], cut: int) -> None:
    pieces = [stored(found[:cut], 5), stored(found[cut:], 5 + len(found[:cut]))]
    columns = compiled(pieces)
    assert columns is not None
    for array in columns.values():
        array.validate(full=True)
    rows = [row for batch in FORM._compiled(columns, QUEUE) for row in batch.to_pylist()]
    assert rows == by_numpy(b"".join(pieces))


@given(st.lists(messages(), max_size=6))
def test_any_records_make_the_same_rows_or_none(found: list[Message]) -> None:
    data = stored(found)
    columns = compiled([data])
    if columns is not None:
        rows = [row for batch in FORM._compiled(columns, QUEUE) for row in batch.to_pylist()]
        assert rows == by_numpy(data)


@given(st.lists(ordinary, min_size=1, max_size=4), st.integers(0, 1_000), st.integers(0, 255))
def test_any_wrong_byte_is_survived(found: list[Message], at: int, value: int) -> None:
    data = bytearray(stored(found))
    data[at % len(data)] = value
    columns = compiled([bytes(data)])
    if columns is not None:
        rows = [row for batch in FORM._compiled(columns, QUEUE) for row in batch.to_pylist()]
        assert rows == by_numpy(bytes(data))


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(data: bytes) -> None:
    assert compiled([data]) is None or not data


@given(st.sets(st.sampled_from(sorted(COLUMNS))))
def test_only_the_columns_asked_for_are_made(names: set[str]) -> None:
    columns = compiled([plain(40, tags=("A", "B"))], sorted(names))
    whole = compiled([plain(40, tags=("A", "B"))])
    assert columns is not None
    assert whole is not None
    assert set(columns) == names | {"queueOffset"}
    assert all(columns[name].equals(whole[name]) for name in columns)


def test_what_is_not_ordinary_is_left_to_python() -> None:
    assert compiled([plain(3)[:-1]]) is None
    assert compiled([plain(9, 20)], start=21) is None
    assert compiled([plain(9, 20)], stop=28) is None
    assert compiled([stored([Message("T", 0, b"x", b"TAGS\x01\xff\x02")])]) is None
    assert compiled([stored([Message("T", 0, b"x", b"TAGS\x01\xff\x02")])], ["body"]) is not None
    assert compiled([stored([Message("T", 0, b"x", sys_flag=1)])]) is None
    assert compiled([stored([Message("T", 0, b"x", sys_flag=1)])], ["sysFlag"]) is not None
    assert compiled([stored([Message("t" * 128, 0, b"x")])]) is None


def test_no_records_make_no_rows() -> None:
    columns = compiled([b"", b""])
    assert columns is not None
    assert len(offsets_of(columns)) == 0
    assert list(FORM.batches([b""], QUEUE, 0, 9)) == []


def test_a_batch_stays_as_it_is_while_others_are_made() -> None:
    memory, pieces = BufferPool(2), [plain(60, number * 60, size=500) for number in range(6)]
    batches = [batch for piece in pieces for batch in FORM.batches([piece], QUEUE, 0, END, None, memory)]
    offsets = [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]
    assert offsets == list(range(360))
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies == [row["body"] for row in by_numpy(b"".join(pieces))]


def test_damage_is_named_as_without_compiled_code() -> None:
    with pytest.raises(CorruptDataError, match="T/broker-a:3 after offset 6"):
        list(FORM.batches([plain(3, 7)[:-1]], QUEUE, 7, 20))
