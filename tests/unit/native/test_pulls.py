"""What a pull takes of a queue's units, and the records it gathers, compiled and in Python."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consume.queue_reader import _Batch
from commitlog.consume_queue import HOLE_SIZE, UNIT
from commitlog.entry import HEADER_BYTES, encode_entries, write_physical_offset
from commitlog.record import Message, encode_record
from native import _remoting
from remoting.tag_filters import TagFilter

Unit = tuple[int, int, int]

units_of_queues = st.lists(
    st.tuples(st.integers(0, 2**62), st.integers(1, 500), st.sampled_from([0, 5, -7, 2**62])), max_size=12
)
codes_or_all = st.none() | st.frozensets(st.sampled_from([0, 5, -7, 2**62]))


class Queue:
    def __init__(self, units: list[Unit]) -> None:
        self._units = units

    def units(self, start: int, count: int) -> list[Unit]:
        return self._units[start : start + count]

    def packed_units(self, start: int, count: int) -> bytes:
        return b"".join(UNIT.pack(*unit) for unit in self.units(start, count))


@given(units_of_queues, codes_or_all, st.integers(1, 8), st.integers(0, 1500), st.integers(0, 6))
def test_the_same_units_are_taken(
    units: list[Unit], codes: frozenset[int] | None, most: int, room: int, cut: int
) -> None:
    wanted = TagFilter("", codes=codes)
    log: Any = None  # adding units reads no record
    compiled, plain = _Batch(log, wanted, most, room), _Batch(log, wanted, most, room)
    for start, count in ((0, cut), (cut, 99)):
        for batch in (compiled, plain):
            batch.examined = 0
            batch.is_full = False
        assert compiled.add_from(Queue(units), start, count) == bool(units[start : start + count])
        plain.add(units[start : start + count])
        assert (compiled.taken, compiled.count) == (plain.taken, plain.count)
        assert (compiled.examined, len(compiled.taken)) == (plain.examined, UNIT.size * plain.count)
        assert (compiled.is_full, compiled._room) == (plain.is_full, plain._room)


@pytest.mark.parametrize("size", [0, -1, -(2**31), HOLE_SIZE])
def test_holes_and_damage_are_left_to_python(size: int) -> None:
    units = UNIT.pack(1, 100, 0) + UNIT.pack(2, size, 0)
    assert _remoting.take_units(units, None, 9, 999, 0) is None


def test_wrong_units_are_refused() -> None:
    for wrong in (b"short", bytearray(20), "text"):
        with pytest.raises(TypeError):
            _remoting.take_units(wrong, None, 1, 1, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _remoting.take_units(bytes(20), [1], 1, 1, 0)  # type: ignore[arg-type]


POSITION = 4096
BODIES = [bytes([number]) * size for number, size in enumerate((0, 1, 100, 3000, 7))]


def entries() -> tuple[bytes, list[tuple[int, int]]]:
    """Entries with a record each, and the units of these."""
    records = [encode_record(Message("t", 0, body), at, 1) for at, body in enumerate(BODIES)]
    data, _, positions = encode_entries(records, 7, 3, POSITION, write_physical_offset)
    units = [(at + HEADER_BYTES, len(record)) for at, record in zip(positions, records, strict=True)]
    return data, units


def packed(units: list[tuple[int, int]]) -> bytes:
    return b"".join(UNIT.pack(position, size, 0) for position, size in units)


def records_of(data: bytes, units: list[tuple[int, int]]) -> bytes:
    return b"".join(data[at - POSITION : at - POSITION + size] for at, size in units)


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("chosen", [slice(0, 5), slice(0, 5, 2), slice(1, 2), slice(0, 0)])
def test_records_come_back_to_back(chosen: slice, is_cold: bool) -> None:
    data, units = entries()
    expected = records_of(data, units[chosen])
    got = _remoting.gather_records(packed(units[chosen]), [(POSITION, memoryview(data))], is_cold)
    assert got == expected


@pytest.mark.parametrize("is_cold", [False, True])
def test_records_come_from_several_parts(is_cold: bool) -> None:
    data, units = entries()
    for cut in range(len(data)):
        halves = [(POSITION, data[: cut + 3200]), (POSITION + cut, data[cut:])]
        assert _remoting.gather_records(packed(units), halves, is_cold) == records_of(data, units)
    halves = [(POSITION, data[:200]), (POSITION + 201, data[201:])]
    assert _remoting.gather_records(packed(units), halves, is_cold) is None


@given(st.integers(0, 8 * 3600), st.booleans())
def test_a_flipped_bit_is_found_where_a_crc_covers_it(bit: int, is_cold: bool) -> None:
    data, units = entries()
    at = bit // 8 % len(data)
    flipped = bytearray(data)
    flipped[at] ^= 1 << bit % 8
    got = _remoting.gather_records(packed(units), [(POSITION, bytes(flipped))], is_cold)
    if is_cold:
        assert got is None
    elif got is not None:
        assert got == records_of(bytes(flipped), units)


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)), max_size=3),
    st.booleans(),
)
def test_units_that_lead_anywhere_are_no_record(units: list[tuple[int, int]], is_cold: bool) -> None:
    data, right = entries()
    for found in (units, [*right[:2], *units]):
        got = _remoting.gather_records(packed(found), [(POSITION, data)], is_cold)
        assert got is None or set(found) <= set(right)


@given(st.integers(-1, 60), st.integers(-60, 60))
def test_units_next_to_the_right_ones_are_no_record(shift: int, more: int) -> None:
    data, units = entries()
    position, size = units[2]
    found = packed([(position + shift, max(0, size + more))])
    got = _remoting.gather_records(found, [(POSITION, data)], True)
    assert (got is not None) == (shift == more == 0)


def test_an_entry_without_crcs_is_taken_as_it_is() -> None:
    data, units = entries()
    at = units[1][0] - POSITION - HEADER_BYTES
    for crcs, is_right in (
        (b"\0" * 8, True),
        (b"\0\0\0\0\0\0\0\1", False),
        (struct.pack(">II", 1, 0), False),
    ):
        changed = data[: at + 36] + crcs + data[at + 44 :]
        got = _remoting.gather_records(packed(units), [(POSITION, changed)], True)
        assert (got is not None) == is_right


def test_wrong_arguments_are_refused() -> None:
    for units, parts in (([], []), (b"", [1]), (bytes(19), []), (b"", [(-1, b"")]), (bytearray(20), [])):
        with pytest.raises(TypeError):
            _remoting.gather_records(units, parts, True)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            _remoting.spans_of(units, parts)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _remoting.gather_records(b"", [(1, "text")], True)  # type: ignore[list-item]
    for gap in (-1, 2**31):
        with pytest.raises(TypeError):
            _remoting.spans_of(b"", gap)


@given(st.lists(st.tuples(st.integers(48, 5000), st.integers(1, 900)), max_size=12), st.integers(0, 600))
def test_entries_close_together_are_read_in_one_go(units: list[tuple[int, int]], gap: int) -> None:
    """Each span begins with an entry and ends with one; entries of one have no more than the gap between."""
    found = _remoting.spans_of(packed(units), gap)
    assert found is not None
    sizes = [size for _, size in units]
    assert found[:2] == (sum(sizes), max(sizes, default=0))
    ends = [position + size for position, size in units]
    steps = [position - end for end, (position, _) in zip(ends, units[1:], strict=False)]
    if any(step < 0 for step in steps):
        assert found[2] is None
        return
    firsts = [number for number in range(len(units)) if number == 0 or steps[number - 1] > gap]
    lasts = [number - 1 for number in firsts[1:]] + [len(units) - 1]
    expected = [(units[a][0] - HEADER_BYTES, ends[b]) for a, b in zip(firsts, lasts, strict=bool(firsts))]
    assert found[2] == expected


@pytest.mark.parametrize("unit", [(47, 100), (-1, 100), (100, 0), (100, -5), (2**63 - 5, 6)])
def test_no_span_leads_to_where_no_entry_can_be(unit: tuple[int, int]) -> None:
    assert _remoting.spans_of(packed([(100, 50), unit]), 9) is None
