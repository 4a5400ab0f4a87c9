"""The rows of `rocketmq-log`, without Spark: options, columns, damage, filters, other file systems."""

from __future__ import annotations

import json
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from commitlog.record import Message, encode_record
from rocketmq_spark.errors import DataLossError, OptionError
from rocketmq_spark.log.options import parse_log_options
from rocketmq_spark.log.reader import RocketmqLogPushdownReader, RocketmqLogReader, make_reader
from rocketmq_spark.schemas import ENTRIES, MESSAGES, schema_of
from tests.unit.spark.log.stores import (
    DATA_FILE_BYTES,
    Put,
    flip,
    numbered,
    write_bodies,
    write_entries,
    write_records,
)

Rows = list[dict[str, Any]]


def read(path: object, reader_class: type[RocketmqLogReader] = RocketmqLogReader, **options: object) -> Rows:
    texts = {"path": str(path)} | {name: str(value) for name, value in options.items()}
    reader = reader_class(texts, schema_of(texts.get("view", "messages")))
    return read_with(reader)


def read_with(reader: RocketmqLogReader) -> Rows:
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_messages_have_the_columns_of_rocketmq_and_their_place(tmp_path: Path) -> None:
    write_entries(tmp_path, numbered(30))
    rows = read(tmp_path, includeHeaders="true", brokerName="b", splitBytes=2000)
    assert [row["index"] for row in rows] == list(range(30))
    row = rows[17]
    assert list(row) == MESSAGES.fieldNames()
    assert row["body"].startswith(b"000017")
    assert (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) == ("T", "b", 1, 8)
    assert (row["tags"], row["keys"], row["status"], row["error"]) == ("Tag1", "key-17", "ok", None)
    assert dict(row["properties"]) == {"TAGS": "Tag1", "KEYS": "key-17"}
    assert row["physicalOffset"] == row["position"] + 48
    assert row["msgId"] == f"{0:016X}{row['physicalOffset']:016X}"
    assert row["store"] == str(tmp_path / "dledger-n0")
    assert read(tmp_path)[17]["properties"] is None


def test_system_messages_come_when_asked_for(tmp_path: Path) -> None:
    puts = [
        Put(b"term", topic="rmq_sys_LEDGERMQ_TERM", sys_flag=0xC),
        Put(b"half", topic="RMQ_SYS_TRANS_HALF_TOPIC"),
        Put(b"prepared", topic="Orders", sys_flag=0x4),
        Put(b"committed", topic="Orders", sys_flag=0x8),
        Put(b"again", topic="%RETRY%G"),
        Put(b"dead", topic="%DLQ%G"),
    ]
    write_entries(tmp_path, puts)
    assert [row["body"] for row in read(tmp_path)] == [b"committed", b"again", b"dead"]
    assert len(read(tmp_path, includeSystem="true")) == 6
    entries = read(tmp_path, view="entries")
    assert [row["isSystem"] for row in entries] == [True, True, True, False, False, False]
    assert list(entries[0]) == ENTRIES.fieldNames()
    assert {(row["crcOk"], row["bodyCrcOk"]) for row in entries} == {(True, True)}


def test_compressed_bodies_are_inflated_and_damaged_ones_are_told(tmp_path: Path) -> None:
    puts = [
        Put(zlib.compress(b"a" * 500), sys_flag=1),
        Put(b"plain"),
        Put(b"not zlib's", sys_flag=1),
        Put(zlib.compress(b"b" * 700), sys_flag=1),
    ]
    write_entries(tmp_path, puts)
    rows = read(tmp_path)
    assert [row["body"] for row in rows if row["status"] == "ok"] == [b"a" * 500, b"plain", b"b" * 700]
    [damage] = [row for row in rows if row["status"] != "ok"]
    assert (damage["status"], damage["index"]) == ("corrupt", 2)
    assert "not zlib" in damage["error"]
    assert [row["body"] for row in read(tmp_path, decompress="false")] == [put.body for put in puts]


def test_large_inflated_bodies_come_in_several_batches(tmp_path: Path) -> None:
    puts = [Put(zlib.compress(bytes(3 << 20)), sys_flag=1) for _ in range(9)]
    write_entries(tmp_path, puts, data_file_bytes=1 << 20)
    reader = RocketmqLogReader({"path": str(tmp_path)}, MESSAGES)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 9
    assert max(batch.num_rows for batch in batches) <= 3


def test_hosts_of_ipv6_and_long_topics(tmp_path: Path) -> None:
    host = bytes(15) + b"\x01" + (10911).to_bytes(4, "big")
    v6 = Message("T", 3, b"v6", b"TAGS\x01A\x02", sys_flag=0x30, born_host=host, store_host=host)
    long_topic = "L" * 200
    v2 = Message(long_topic, 1, b"v2")
    messages = (v6, v2, Message("T", 0, b""))
    write_bodies(tmp_path, [(1, encode_record(message, 0, 1)) for message in messages])
    first, second, third = read(tmp_path)
    assert (first["bornHost"], first["queueId"], first["tags"]) == ("[::1]:10911", 3, "A")
    assert first["msgId"].startswith("00000000000000000000000000000001")
    assert (second["topic"], second["body"]) == (long_topic, b"v2")
    assert (third["body"], third["tags"], third["bornHost"]) == (b"", None, "0.0.0.0:0")


def test_a_record_that_is_none_inside_a_good_entry_is_told(tmp_path: Path) -> None:
    good = encode_record(Message("T", 0, b"x"), 0, 1)
    write_bodies(tmp_path, [(1, good), (1, b"no record at all, but an entry with right CRCs"), (1, good)])
    for view in ("messages", "entries"):
        rows = read(tmp_path, view=view)
        assert sorted((row["status"], row["index"]) for row in rows) == [("corrupt", 1), ("ok", 0), ("ok", 2)]


def test_damage_fails_or_is_skipped_as_asked(tmp_path: Path) -> None:
    folder = write_entries(tmp_path, numbered(40))
    flip(folder / "data" / f"{DATA_FILE_BYTES:020d}", 90)
    [damage] = [row for row in read(tmp_path) if row["status"] != "ok"]
    assert (damage["position"], damage["topic"]) == (DATA_FILE_BYTES, None)
    assert len(read(tmp_path, corrupt="skip")) == 39
    with pytest.raises(DataLossError, match=f"corrupt from position {DATA_FILE_BYTES} on.*corrupt=skip"):
        read(tmp_path, corrupt="fail")


def test_a_root_with_both_logs_gives_both_or_the_one_asked_for(tmp_path: Path) -> None:
    write_records(tmp_path, numbered(10))
    write_entries(tmp_path, numbered(20))
    assert len(read(tmp_path)) == 30
    assert len(read(tmp_path, format="commitlog")) == 10
    assert {row["index"] for row in read(tmp_path, format="dledger")} == set(range(20))
    assert read(tmp_path, format="commitlog")[0]["index"] is None


def test_every_way_to_name_a_store(tmp_path: Path) -> None:
    for name in ("n0", "n1"):
        write_entries(tmp_path / name / "store", numbered(6), node=f"dledger-{name}")
    one = tmp_path / "n0" / "store"
    for path in (one, one / "dledger-n0", one / "dledger-n0" / "data"):
        assert len(read(path)) == 6
    for paths in (f"{tmp_path}/n*/store", f"{tmp_path}/n0/store, {tmp_path}/n1/store"):
        assert len(read(paths)) == 12
    assert len(read(json.dumps([str(one), str(tmp_path / "n1" / "store")]))) == 12
    write_records(tmp_path / "plain", numbered(7))
    assert len(read(tmp_path / "plain" / "commitlog")) == 7
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(OptionError, match="there is no"):
            read(path)


@pytest.mark.parametrize("kind", ["dledger", "commitlog"])
def test_a_store_on_another_file_system(tmp_path: Path, kind: str) -> None:
    (write_entries if kind == "dledger" else write_records)(tmp_path, numbered(60))
    memory = fsspec.filesystem("memory")
    root = f"/log-tests-{kind}"
    memory.put(str(tmp_path), root, recursive=True)
    try:
        rows = read(f"memory:/{root}", splitBytes=1500)
        assert sorted(row["body"] for row in rows) == sorted(put.body for put in numbered(60))
        assert {row["status"] for row in rows} == {"ok"}
    finally:
        memory.rm(root, recursive=True)


def test_a_file_removed_after_the_planning_is_missing_rows(tmp_path: Path) -> None:
    folder = write_entries(tmp_path, numbered(60))
    reader = RocketmqLogReader({"path": str(tmp_path), "splitBytes": "2000"}, MESSAGES)
    parts = reader.partitions()
    (folder / "data" / f"{0:020d}").unlink()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    missing = [row for row in rows if row["status"] == "missing"]
    assert missing
    assert sum(row["length"] for row in missing) <= DATA_FILE_BYTES
    assert min(row["position"] for row in rows if row["status"] == "ok") == DATA_FILE_BYTES


def test_entries_that_come_after_the_planning_do_not_matter(tmp_path: Path) -> None:
    write_entries(tmp_path / "long", numbered(60, terms=1))
    write_entries(tmp_path / "short", numbered(60, terms=1)[:30])
    reader = RocketmqLogReader({"path": str(tmp_path / "short")}, MESSAGES)
    parts = reader.partitions()
    shutil.rmtree(tmp_path / "short")
    shutil.copytree(tmp_path / "long", tmp_path / "short")
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["index"] for row in rows] == list(range(30))


FILTERS: list[tuple[Filter, Callable[[dict[str, Any]], bool]]] = [
    (EqualTo(("topic",), "T1"), lambda row: row["topic"] == "T1"),
    (In(("topic",), ("T1", "T2")), lambda row: row["topic"] in ("T1", "T2")),
    (GreaterThan(("index",), 40), lambda row: row["index"] > 40),
    (GreaterThanOrEqual(("index",), 40), lambda row: row["index"] >= 40),
    (LessThan(("position",), 900), lambda row: row["position"] < 900),
    (LessThanOrEqual(("position",), 900), lambda row: row["position"] <= 900),
    (EqualTo(("position",), 0), lambda row: row["position"] == 0),
]


@pytest.mark.parametrize(("pushed", "keeps"), FILTERS)
def test_filters_leave_out_ranges_and_topics(
    tmp_path: Path, pushed: Filter, keeps: Callable[[dict[str, Any]], bool]
) -> None:
    write_entries(tmp_path, [Put(b"x" * 90, topic=f"T{number % 3}") for number in range(60)])
    everything = read(tmp_path, splitBytes=1024)
    reader = RocketmqLogPushdownReader({"path": str(tmp_path), "splitBytes": "1024"}, MESSAGES)
    assert list(reader.pushFilters([pushed])) == [pushed]
    found = read_with(reader)
    assert [row for row in found if keeps(row)] == [row for row in everything if keeps(row)]
    assert len(found) < len(everything)


def test_wrong_options_are_named() -> None:
    for options, words in (
        ({}, "needs the option path"),
        ({"path": "x", "veiw": "entries"}, "nearest: view"),
        ({"path": "x", "format": "avro"}, "must be one of auto, dledger, commitlog"),
        ({"path": "x", "splitBytes": "1"}, "at least 1024"),
        ({"path": " , "}, "names no path"),
        ({"path": '["x"'}, "JSON list"),
        ({"path": "x", "storageOptions": "[]"}, "JSON object"),
        ({"path": "x", "storageOptions": "{"}, "JSON object"),
    ):
        with pytest.raises(OptionError, match=words):
            parse_log_options(options)
    found = parse_log_options({"path": "a,b", "storageOptions": '{"key": "k"}'})
    assert (found.paths, found.storage_options) == (("a", "b"), {"key": "k"})


def test_unknown_columns_and_types_are_named(tmp_path: Path) -> None:
    for field, words in (
        (StructField("bdoy", StringType()), "no column bdoy"),
        (StructField("body", LongType()), "column body is binary, not bigint"),
    ):
        with pytest.raises(OptionError, match=words):
            RocketmqLogReader({"path": str(tmp_path)}, StructType([field]))


@pytest.mark.parametrize(
    ("inside", "url"),
    [
        ("store", "zip://store::file://{zip}"),
        ("store", "zip://store::{zip}"),
        (".", "zip://::{zip}"),
        ("data", "zip://data::{zip}"),
    ],
)
def test_a_zip_file_is_read_wherever_the_store_is_in_it(tmp_path: Path, inside: str, url: str) -> None:
    """Also where it is all that the file has: nothing in a zip file begins with a slash."""
    store = tmp_path / "store"
    write_entries(store, numbered(30))
    log = next(store.glob("**/data")).parent
    root = {"store": tmp_path, ".": store, "data": log}[inside]
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", root)
    rows = read(url.format(zip=packed), splitBytes=2000)
    assert [row["index"] for row in rows] == list(range(30))


def test_a_log_whose_files_are_all_gone_is_no_empty_log(tmp_path: Path) -> None:
    write_entries(tmp_path, numbered(30))
    for file in tmp_path.glob("**/data/*"):
        file.unlink()
    with pytest.raises(OptionError, match=r"has no data files; by its checkpoint it has entries up to 29"):
        read(tmp_path)


def test_filters_are_taken_where_the_option_asks_for_it(tmp_path: Path) -> None:
    write_entries(tmp_path, numbered(3))
    options = {"path": str(tmp_path)}
    assert type(make_reader(options, MESSAGES)) is RocketmqLogReader
    assert type(make_reader(options | {"pushFilters": "true"}, MESSAGES)) is RocketmqLogPushdownReader
