"""The keys of records and their sorting, compiled and in Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.entry import HEADER_BYTES, encode_entries, entry_starts, write_physical_offset
from commitlog.key_segment import UNIT_BYTES, sort_in_python, units_of
from commitlog.record import Message, encode_record
from native import _log

words = st.sampled_from(
    [b"KEYS", b"UNIQ_KEY", b"TAGS", b"\x01", b"\x02", b" ", b"key", b"0A1B" * 8, b"\xff", b""]
)
properties = st.lists(words, max_size=14).map(b"".join)
positions = st.sampled_from([0, 4000, 2**32 - 100, 2**40 + 7])


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Records of ordinary and of odd kinds."""
    records = []
    for _ in range(draw(st.integers(1, 6))):
        message = Message(
            draw(st.sampled_from(["T", "Other", "T", "Ünders"])), 0, b"b" * draw(st.integers(0, 3))
        )
        message.properties = draw(properties)
        message.sys_flag = draw(st.sampled_from([0, 0, 0, 4, 8, 0xC]))
        if draw(st.integers(0, 9)) == 0:
            message.sys_flag, message.born_host = 0x10, bytes(20)
        records.append(encode_record(message, 5, draw(st.integers(-1, 2**40))))
    return records


@given(batches(), positions)
def test_compiled_keys_are_those_of_python(records: list[bytes], position: int) -> None:
    data, _, _ = encode_entries(records, 40, 2, position, write_physical_offset)
    starts = [start + HEADER_BYTES for start in entry_starts(data)]
    compiled = _log.key_units(data, HEADER_BYTES, position)
    assert compiled is None or compiled == units_of(data, starts, position)


@given(batches(), positions)
def test_so_are_those_of_records_back_to_back(records: list[bytes], position: int) -> None:
    data = b"".join(records)
    starts = [sum(map(len, records[:number])) for number in range(len(records))]
    compiled = _log.key_units(data, 0, position)
    assert compiled is None or compiled == units_of(data, starts, position)


def test_ordinary_records_are_not_left_to_python() -> None:
    keyed = b"KEYS\x01a b\x02UNIQ_KEY\x01" + b"0A1B" * 8 + b"\x02WAIT\x01true\x02"
    for sys_flag in (0, 1, 4, 8, 0xC):
        record = encode_record(Message("Topic", 0, b"body", keyed, sys_flag=sys_flag), 5, 9)
        data, _, _ = encode_entries([record] * 3, 40, 2, 0, write_physical_offset)
        assert _log.key_units(data, HEADER_BYTES, 0) is not None


@given(st.binary(max_size=400), st.sampled_from([0, HEADER_BYTES]))
def test_any_bytes_are_survived(data: bytes, header_bytes: int) -> None:
    _log.key_units(data, header_bytes, 0)


@given(batches(), st.integers(0, 2000), st.integers(0, 255))
def test_any_wrong_byte_is_survived(records: list[bytes], at: int, value: int) -> None:
    data = bytearray(encode_entries(records, 40, 2, 0, write_physical_offset)[0])
    data[at % len(data)] = value
    _log.key_units(bytes(data), HEADER_BYTES, 0)


def test_wrong_arguments_are_handed_back() -> None:
    assert _log.key_units(b"", 47, 0) is None
    assert _log.key_units(b"", HEADER_BYTES, -1) is None
    assert _log.sort_keys([b""], 3) is None
    assert _log.sort_keys((b"1234567",), 3) is None
    assert _log.sort_keys((bytearray(8),), 3) is None
    assert _log.sort_keys((), 17) is None


@given(
    st.lists(
        st.lists(st.binary(min_size=UNIT_BYTES, max_size=UNIT_BYTES), max_size=30).map(b"".join), max_size=4
    ),
    st.integers(0, 9),
)
def test_compiled_sorting_is_that_of_python(pieces: list[bytes], bits: int) -> None:
    assert _log.sort_keys(tuple(pieces), bits) == sort_in_python(pieces, bits)
