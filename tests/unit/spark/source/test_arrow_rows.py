"""Rows of Arrow batches, held against records read one by one."""

from __future__ import annotations

import ipaddress
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from commitlog.record import Message, Record, offset_msg_id, parse_properties
from remoting.client.routes import MessageQueue
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.schemas import FULL_SCHEMA
from rocketmq_spark.source import rows as arrow_rows
from rocketmq_spark.source.rows import RowFormat
from tests.unit.spark.record_makers import messages, one_by_one, plain, stored

QUEUE = MessageQueue("T", "broker-a", 3)
SCHEMA = to_arrow_schema(FULL_SCHEMA, timezone="UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns(*names: str) -> pa.Schema:
    return to_arrow_schema(StructType([FULL_SCHEMA[name] for name in names]), timezone="UTC")


def rows(form: RowFormat, data: bytes, start: int = 0, stop: int = 1 << 40) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in form.batches([data], QUEUE, start, stop):
        assert batch.schema.equals(form.schema)
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def host_text(host: bytes) -> str:
    address, port = ipaddress.ip_address(host[:-4]), int.from_bytes(host[-4:], "big", signed=True)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def expected_row(record: Record) -> dict[str, Any]:
    properties = parse_properties(record.properties)
    return {
        "topic": "T",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "msgId": properties.get("UNIQ_KEY") or offset_msg_id(record.store_host, record.physical_offset),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "properties": list(properties.items()),
        "body": record.body,
        "bornTimestamp": EPOCH + timedelta(milliseconds=record.born_timestamp_ms),
        "storeTimestamp": EPOCH + timedelta(milliseconds=record.store_timestamp_ms),
        "bornHost": host_text(record.born_host),
        "reconsumeTimes": record.reconsume_times,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
    }


@given(st.lists(messages(), max_size=8))
def test_rows_are_those_of_the_slow_reader(found: list[Message]) -> None:
    data = stored(found)
    got = rows(RowFormat(SCHEMA, include_headers=True), data)
    for row in got:
        row["properties"] = sorted(row["properties"])
    expected = [expected_row(record) for record in one_by_one(data)]
    for row in expected:
        row["properties"] = sorted(row["properties"])
    assert got == expected


def test_only_the_wanted_offsets_come() -> None:
    got = rows(RowFormat(columns("queueOffset")), plain(10, first_offset=20), 23, 26)
    assert [row["queueOffset"] for row in got] == [23, 24, 25]
    assert rows(RowFormat(SCHEMA), plain(3), 5, 9) == []


def test_only_messages_of_the_wanted_tags_come() -> None:
    data = plain(6, tags=("A", "B", "C"))
    form = RowFormat(columns("body", "tags"), tags=frozenset({"C", "A"}))
    assert [row["tags"] for row in rows(form, data)] == ["A", "C", "A", "C"]
    assert rows(RowFormat(SCHEMA, tags=frozenset({"A"})), plain(4)) == []


def test_columns_come_in_the_order_asked_for() -> None:
    got = rows(RowFormat(columns("tags", "body", "queueId")), plain(1, tags=("A",)))
    assert [list(row) for row in got] == [["tags", "body", "queueId"]]


def test_properties_are_null_unless_headers_are_included() -> None:
    assert rows(RowFormat(columns("properties")), plain(2, tags=("A",))) == [{"properties": None}] * 2


def test_times_beyond_the_calendar_are_brought_to_its_ends() -> None:
    data = stored([Message("T", 0, b"", born_timestamp_ms=ms) for ms in (2**63 - 1, -(2**63))])
    years = [row["bornTimestamp"].year for row in rows(RowFormat(columns("bornTimestamp")), data)]
    assert years == [9999, 1]


def test_compressed_bodies_are_inflated_or_left() -> None:
    text = b"word " * 500
    data = stored(
        [
            Message("T", 0, b"plain"),
            Message("T", 0, zlib.compress(text), sys_flag=1),
            Message("T", 0, zlib.compress(b"5"), sys_flag=0x301),
            Message("T", 0, pa.compress(text, "zstd", asbytes=True), sys_flag=0x201),
            Message("T", 0, lz4_frame(text), sys_flag=0x101),
            Message("T", 0, b""),
        ]
    )
    bodies = [row["body"] for row in rows(RowFormat(columns("body")), data)]
    assert bodies == [b"plain", text, b"5", text, text, b""]
    left = [row["body"] for row in rows(RowFormat(columns("body"), decompress=False), data)]
    assert left == [record.body for record in one_by_one(data)]


def lz4_frame(text: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(text)
    return bytes(sink.getvalue())


def test_what_inflates_to_much_comes_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "INFLATED_BATCH_BYTES", 2_000)
    found = [Message("T", 0, zlib.compress(b"%d" % number * 1_000), sys_flag=1) for number in range(5)]
    found.insert(1, Message("T", 0, b"plain"))
    batches = list(RowFormat(columns("queueOffset", "body")).batches([stored(found)], QUEUE, 0, 100))
    assert [batch.num_rows for batch in batches] == [3, 2, 1]
    whole = [row for batch in batches for row in batch.to_pylist()]
    assert [row["queueOffset"] for row in whole] == list(range(6))
    bodies = [b"0" * 1_000, b"plain", *(b"%d" % number * 1_000 for number in range(1, 5))]
    assert [row["body"] for row in whole] == bodies


def test_damage_names_queue_and_offset() -> None:
    data = stored([Message("T", 0, b"not zlib", sys_flag=1)], first_offset=8)
    with pytest.raises(CorruptDataError, match=r"T/broker-a:3 offset 8: .* decompress=false"):
        rows(RowFormat(SCHEMA), data)
    with pytest.raises(CorruptDataError, match="T/broker-a:3 after offset 6"):
        rows(RowFormat(SCHEMA), data[:-1], start=7)
