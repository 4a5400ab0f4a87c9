"""Fields of many records at once, held against the reader that takes one after the other."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.record import Message
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.records.fields import find_records
from tests.unit.spark.record_makers import messages, one_by_one, plain, stored


@given(st.lists(messages(), max_size=8))
def test_fields_are_those_of_the_slow_reader(found: list[Message]) -> None:
    data = stored(found, first_offset=7)
    records = find_records(data)
    expected = one_by_one(data)
    assert records.queue_offset.tolist() == [one.queue_offset for one in expected]
    assert records.physical_offset.tolist() == [one.physical_offset for one in expected]
    assert records.flag.tolist() == [one.flag for one in expected]
    assert records.sys_flag.tolist() == [one.sys_flag for one in expected]
    assert records.reconsume_times.tolist() == [one.reconsume_times for one in expected]
    assert records.born_ms.tolist() == [one.born_timestamp_ms for one in expected]
    assert records.store_ms.tolist() == [one.store_timestamp_ms for one in expected]
    for at, end, wanted in zip(records.body_at, records.body_end, expected, strict=True):
        assert data[at:end] == wanted.body
    for at, end, wanted in zip(records.properties_at, records.properties_end, expected, strict=True):
        assert data[at:end] == wanted.properties
    for at, wanted in zip(records.born_host_at, expected, strict=True):
        assert data[at : at + len(wanted.born_host)] == wanted.born_host
    for at, wanted in zip(records.store_host_at, expected, strict=True):
        assert data[at : at + len(wanted.store_host)] == wanted.store_host


def test_nothing_is_no_record() -> None:
    assert len(find_records(b"")) == 0


def test_some_are_chosen() -> None:
    records = find_records(plain(5, first_offset=10))
    chosen = records.choose(records.queue_offset > 12)
    assert chosen.queue_offset.tolist() == [13, 14]
    assert bytes(chosen.data[chosen.body_at[0] : chosen.body_end[0]]).rstrip(b".") == b"13"


@given(st.lists(messages(), min_size=1, max_size=3), st.data())
def test_damage_is_told_or_leaves_whole_records(found: list[Message], data: st.DataObject) -> None:
    """Whatever a byte is changed to: an error of ours, or positions that stay inside."""
    raw = bytearray(stored(found))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            records = find_records(damaged)
        except CorruptDataError:
            continue
        assert (records.body_at <= records.body_end).all()
        assert (records.body_end < records.properties_at).all()
        assert (records.properties_end <= len(damaged)).all()


def test_error_names_the_place() -> None:
    first, second = plain(1), bytearray(plain(1))
    struct.pack_into(">I", second, 4, 0xDEADBEEF)
    with pytest.raises(CorruptDataError, match=f"byte {len(first)} of the answer is damaged: its magic"):
        find_records(first + bytes(second))
    with pytest.raises(CorruptDataError, match=f"begins at byte {len(first)} of"):
        find_records(first + b"\x00" * 100)


RUNS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 60, 63, 64, 65, 130])), max_size=6)


@given(RUNS, st.data())
def test_runs_of_one_size_are_found_as_any_others(runs: list[tuple[int, int]], draw: st.DataObject) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    data = stored([Message("T", 0, bytes(size)) for size in sizes])
    records = find_records(data)
    assert records.queue_offset.tolist() == list(range(len(sizes)))
    assert (records.body_end - records.body_at).tolist() == sizes
    if sizes:
        damaged = draw.draw(st.integers(0, len(sizes) - 1))
        at = int(records.body_at[damaged]) - (int(records.body_at[0]))
        size = draw.draw(st.sampled_from([0, -1, 1, len(data) + 1]))
        broken = data[:at] + struct.pack(">i", size) + data[at + 4 :]
        with pytest.raises(CorruptDataError, match=f"no record begins at byte {at} of"):
            find_records(broken)
        with pytest.raises(CorruptDataError, match="no record begins at byte"):
            find_records(data[:-1])
