"""The properties of a record without the rest of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.record import CorruptRecordError, Message, decode_record, encode_record, properties_of
from remoting.record_layout import BORN_HOST_V6, STORE_HOST_V6


def record(topic: str, body: bytes, properties: bytes, sys_flag: int = 0) -> bytes:
    born = bytes(20 if sys_flag & BORN_HOST_V6 else 8)
    store = bytes(20 if sys_flag & STORE_HOST_V6 else 8)
    message = Message(topic, 0, body, properties, sys_flag=sys_flag, born_host=born, store_host=store)
    return encode_record(message, 0, 0)


@given(
    topic=st.text("tT_%", min_size=1, max_size=200),
    body=st.binary(max_size=50),
    properties=st.binary(max_size=50),
    sys_flag=st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6, 1]),
    before=st.binary(max_size=9),
)
def test_they_are_those_of_the_whole_record(
    topic: str, body: bytes, properties: bytes, sys_flag: int, before: bytes
) -> None:
    data = record(topic, body, properties, sys_flag)
    assert properties_of(before + data + b"more", len(before), len(data)) == decode_record(data).properties


@given(at=st.integers(0, 200), value=st.integers(0, 255), cut=st.integers(0, 200))
def test_a_damaged_record_is_read_within_its_bounds_or_refused(at: int, value: int, cut: int) -> None:
    data = bytearray(record("topic", b"b" * 60, b"a\x015\x02"))
    data[at % len(data)] = value
    size = max(0, len(data) - cut)
    try:
        found = properties_of(bytes(data), 0, size)
    except CorruptRecordError:
        return
    assert bytes(data[:size]).endswith(found)


@pytest.mark.parametrize("size", [0, 90, 10_000])
def test_a_size_that_is_no_records_is_refused(size: int) -> None:
    with pytest.raises(CorruptRecordError):
        properties_of(record("t", b"", b"a\x015\x02"), 0, size)
