"""Checking entries, compiled and in Python, on whole and on damaged bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.entry import (
    configuration_bodies,
    encode_each_unit,
    encode_entries,
    encode_on_channel,
    find_channel_of_each,
    verify_each,
)
from dledger.core.types import CorruptRangeError, EntryRange
from native import _log

bodies_of_any_size = st.lists(st.binary(max_size=90), min_size=1, max_size=5)


def entries(bodies: list[bytes], first_index: int, term: int, position: int) -> EntryRange:
    data, _, _ = encode_entries(bodies, first_index, term, position, None)
    return EntryRange(first_index, first_index + len(bodies) - 1, term, data)


def is_right_in_python(found: EntryRange) -> bool:
    try:
        verify_each(found)
    except CorruptRangeError:
        return False
    return True


def is_right(found: EntryRange) -> bool:
    return _log.verify_entries(found.data, found.first_index, found.last_index, found.term)


def units_in_python(data: bytes) -> bytes | None:
    try:
        return encode_each_unit(data)
    except CorruptRangeError:
        return None


@given(bodies_of_any_size, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**60))
def test_whole_entries_are_right(bodies: list[bytes], first_index: int, term: int, position: int) -> None:
    found = entries(bodies, first_index, term, position)
    assert is_right(found)
    assert _log.encode_units(found.data) == encode_each_unit(found.data)
    assert _log.encode_units(memoryview(found.data)) == encode_each_unit(found.data)


@given(bodies_of_any_size, st.data())
def test_any_change_is_judged_as_python_does(bodies: list[bytes], data: st.DataObject) -> None:
    whole = entries(bodies, 7, 3, 5000)
    raw = bytearray(whole.data)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        # Java writes no CRCs.
        raw[36:44] = bytes(8)
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    first_index = data.draw(st.sampled_from([7, 6, 0]))
    last_index = first_index + data.draw(st.sampled_from([len(bodies) - 1, len(bodies), 0]))
    found = EntryRange(first_index, last_index, data.draw(st.sampled_from([3, 3, 2])), bytes(raw))
    assert is_right(found) == is_right_in_python(found)


@given(bodies_of_any_size, st.data())
def test_units_of_damaged_bytes_are_those_of_python_or_none(bodies: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(entries(bodies, 7, 3, 5000).data)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    found = _log.encode_units(bytes(raw))
    assert found is None or found == units_in_python(bytes(raw))


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 47, 2**31 - 1])
def test_sizes_that_can_be_none_are_no_entries(size: int) -> None:
    raw = bytearray(entries([b"abc"], 0, 1, 0).data)
    raw[4:8] = size.to_bytes(4, "big", signed=True)
    raw[44:48] = (max(size - 48, -(2**31))).to_bytes(4, "big", signed=True)
    assert not _log.verify_entries(bytes(raw), 0, 0, 1)
    assert _log.encode_units(bytes(raw)) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_judged_as_python_does(data: bytes) -> None:
    found = EntryRange(0, 0, 0, data)
    assert is_right(found) == is_right_in_python(found)
    assert _log.encode_units(data) in (None, b"") or _log.encode_units(data) == units_in_python(data)


def test_numbers_out_of_range_are_not_right() -> None:
    data = entries([b"abc"], 0, 1, 0).data
    assert _log.verify_entries(data, 0, 0, 1)
    for numbers in (
        (2**64, 0, 1),
        (0, -1, 1),
        (1, 0, 1),
        (0, 2**64, 1),
        (0, 0, -1),
        (0, 0, None),
        ("0", 0, 1),
    ):
        assert not _log.verify_entries(data, *numbers)
    with pytest.raises(TypeError):
        _log.verify_entries("text", 0, 0, 1)
    with pytest.raises(TypeError):
        _log.encode_units(None)


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.booleans()), min_size=1, max_size=6), st.integers(0, 400)
)
def test_entries_that_name_members_are_found(bodies: list[tuple[bytes, bool]], start: int) -> None:
    data = b"".join(
        encode_on_channel(body, 0, 1, 0, None)[0] if is_marked else encode_entries([body], 0, 1, 0, None)[0]
        for body, is_marked in bodies
    )
    assert _log.find_channel(data, 0) == find_channel_of_each(data, 0)
    assert _log.find_channel(data, start) == find_channel_of_each(data, start)
    assert [bytes(body) for _, _, body in configuration_bodies(data)] == [
        each for each, is_in in bodies if is_in
    ]


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_searched_alike(data: bytes, start: int) -> None:
    assert _log.find_channel(data, start) == find_channel_of_each(data, start)
