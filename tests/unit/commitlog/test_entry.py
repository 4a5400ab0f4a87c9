import dataclasses
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.entry import (
    HEADER_BYTES,
    blank,
    encode_entries,
    encode_units,
    entry_position,
    entry_starts,
    has_right_crcs,
    place_entry,
    verify_entries,
    write_physical_offset,
)
from commitlog.record import decode_record
from dledger.core.types import CorruptRangeError, EntryRange
from tests.unit.commitlog.test_record import VECTOR

ENTRY_VECTOR = (
    bytes.fromhex(
        "00000001 0000009b 00000000 00000007 00000000 00000002 00000000 000003e8"
        "00000000 00000000 00000000 0000006b"
    )
    + VECTOR
)
UNIT_VECTOR = bytes.fromhex("00000001 00000000 000003e8 0000009b 00000000 00000007 00000000 00000002")


def test_encode_entries_vector_is_exact_but_for_the_crcs() -> None:
    body = VECTOR[:28] + bytes(8) + VECTOR[36:]
    data, units, positions = encode_entries([body], 7, 2, 1000, write_physical_offset)
    assert data[:36] == ENTRY_VECTOR[:36]
    assert data[44:] == ENTRY_VECTOR[44:]
    assert units == UNIT_VECTOR == encode_units(data)
    assert positions == [1000]
    assert decode_record(data, HEADER_BYTES).physical_offset == 1048


def test_encode_entries_stores_the_crcs_of_the_header_and_of_the_patched_body() -> None:
    data, _, _ = encode_entries([VECTOR], 7, 2, 4000, write_physical_offset)
    assert int.from_bytes(data[36:40], "big") == zlib.crc32(data[:36])
    assert int.from_bytes(data[40:44], "big") == zlib.crc32(data[48:])


def test_verify_accepts_an_entry_of_java_without_crcs() -> None:
    verify_entries(EntryRange(7, 7, 2, ENTRY_VECTOR))


def test_verify_accepts_an_entry_with_the_body_crc_alone() -> None:
    entry = bytearray(ENTRY_VECTOR)
    entry[40:44] = zlib.crc32(VECTOR).to_bytes(4, "big")
    verify_entries(EntryRange(7, 7, 2, bytes(entry)))
    entry[-1] ^= 1
    with pytest.raises(CorruptRangeError, match="body"):
        verify_entries(EntryRange(7, 7, 2, bytes(entry)))


def test_a_body_crc_of_zero_beside_a_header_crc_is_one() -> None:
    data = bytearray(encode_entries([b"body"], 7, 2, 1000, None)[0])
    data[40:44] = bytes(4)
    with pytest.raises(CorruptRangeError, match="body"):
        verify_entries(EntryRange(7, 7, 2, bytes(data)))


bodies_strategy = st.lists(st.binary(max_size=100), min_size=1, max_size=8)


@given(bodies_strategy, st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_entries_round_trip(bodies: list[bytes], first_index: int, term: int, position: int) -> None:
    data, units, positions = encode_entries(bodies, first_index, term, position, None)
    found = EntryRange(first_index, first_index + len(bodies) - 1, term, memoryview(data))
    verify_entries(found)
    assert encode_units(found.data) == units
    assert entry_position(data) == position == positions[0]
    starts = entry_starts(data)
    assert [position + start for start in starts] == positions
    ends = [*starts[1:], len(data)]
    assert [data[a + HEADER_BYTES : b] for a, b in zip(starts, ends, strict=True)] == bodies


def three_entries() -> EntryRange:
    data, _, _ = encode_entries([b"aa", b"bbb", b"cccc"], 10, 3, 500, None)
    return EntryRange(10, 12, 3, data)


@pytest.mark.parametrize("bit", range(153 * 8))
def test_verify_finds_every_flipped_bit(bit: int) -> None:
    damaged = bytearray(three_entries().data)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRangeError):
        verify_entries(dataclasses.replace(three_entries(), data=bytes(damaged)))


@pytest.mark.parametrize("length", range(153))
def test_verify_cut_range_is_corrupt(length: int) -> None:
    found = three_entries()
    with pytest.raises(CorruptRangeError):
        verify_entries(dataclasses.replace(found, data=found.data[:length]))


@pytest.mark.parametrize("change", [{"first_index": 11}, {"last_index": 11}, {"last_index": 13}, {"term": 4}])
def test_verify_range_that_claims_something_else_is_corrupt(change: dict[str, int]) -> None:
    with pytest.raises(CorruptRangeError):
        verify_entries(dataclasses.replace(three_entries(), **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, HEADER_BYTES - 1, -1])
def test_a_size_below_a_header_gives_no_units(size: int) -> None:
    data = bytearray(three_entries().data)
    data[4:8] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRangeError, match=f"entry 10: size {size}"):
        encode_units(bytes(data))


def test_bytes_behind_the_last_entry_are_corrupt() -> None:
    found = three_entries()
    data = bytes(found.data) + bytes(HEADER_BYTES - 1)
    with pytest.raises(CorruptRangeError, match="entry 13: 47 bytes are no header"):
        verify_entries(dataclasses.replace(found, data=data))


@pytest.mark.parametrize(
    ("at", "is_right"), [(None, True), (8, False), (36, False), (40, False), (HEADER_BYTES, False)]
)
def test_crcs_are_right_until_a_byte_changes(at: int | None, is_right: bool) -> None:
    data = bytearray(encode_entries([b"body"], 7, 2, 1000, None)[0])
    if at is not None:
        data[at] ^= 1
    assert has_right_crcs(bytes(data), 0, len(data)) is is_right


def test_an_entry_of_java_holds_no_crc_that_could_be_wrong() -> None:
    assert has_right_crcs(ENTRY_VECTOR, 0, len(ENTRY_VECTOR))


@pytest.mark.parametrize(
    ("end", "size", "position"), [(0, 92, 0), (0, 93, 100), (150, 42, 150), (150, 43, 200), (92, 49, 100)]
)
def test_place_entry_leaves_room_for_a_blank(end: int, size: int, position: int) -> None:
    assert place_entry(end, size, 100) == position


def test_blank_has_magic_before_size() -> None:
    assert blank(100) == bytes.fromhex("ffffffff 00000064")
