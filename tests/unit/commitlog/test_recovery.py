"""The pure scans, on bytes made for each case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.entry import blank, encode_entries
from commitlog.errors import CorruptLogError
from commitlog.record import Message, encode_record
from commitlog.recovery import (
    BLANK_STOP,
    MORE,
    EntryHead,
    check_torn_tail,
    entry_head,
    filler,
    find_entry,
    find_epochs,
    find_record,
    leading_blank,
    scan_entries,
    scan_records,
)

POSITION = 4096


def entries(*bodies: bytes, first_index: int = 10, term: int = 3) -> bytes:
    return encode_entries(bodies, first_index, term, POSITION, None)[0]


def test_scan_stops_at_a_blank_and_gives_the_units() -> None:
    data, units, _ = encode_entries([b"aa", b"bbb"], 10, 3, POSITION, None)
    room = len(data) + 60
    scan = scan_entries(data + blank(60) + bytes(52), POSITION, 10, 2, room)
    assert (scan.stop, scan.units, scan.size_bytes) == (BLANK_STOP, units, len(data))
    assert (scan.next_index, scan.last_term) == (12, 3)


@pytest.mark.parametrize("room_left", range(8, 48))
def test_scan_knows_a_blank_too_small_for_a_header(room_left: int) -> None:
    data = entries(b"aa")
    scan = scan_entries(
        data + blank(room_left) + bytes(room_left - 8), POSITION, 10, 3, len(data) + room_left
    )
    assert scan.stop == BLANK_STOP
    other = scan_entries(data + bytes(room_left), POSITION, 10, 3, len(data) + room_left)
    assert other.stop == f"expected entry 11 or a blank of {room_left} bytes"


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.data())
def test_scan_in_windows_gives_what_one_scan_gives(bodies: list[bytes], data: st.DataObject) -> None:
    raw = entries(*bodies)
    room = len(raw) + 100
    whole = scan_entries(raw + blank(100) + bytes(92), POSITION, 10, 3, room)
    at, index, units, window = 0, 10, b"", 1
    while True:
        window = data.draw(st.integers(window, window + 40))
        part = (raw + blank(100) + bytes(92))[at : at + window]
        scan = scan_entries(part, POSITION + at, index, 3, room - at)
        at += scan.size_bytes
        index = scan.next_index
        units += scan.units
        if scan.stop != MORE:
            break
        window = max(1, scan.bytes_needed)
    assert (scan.stop, index, units) == (BLANK_STOP, whole.next_index, whole.units)


def test_scan_refuses_an_entry_that_leaves_no_room_for_a_blank() -> None:
    data = entries(b"aa")
    assert "bytes of file left" in scan_entries(data + bytes(7), POSITION, 10, 3, len(data) + 7).stop
    assert scan_entries(data + bytes(8), POSITION, 10, 3, len(data) + 8).next_index == 11


@pytest.mark.parametrize("bit", range(8 * 50))
def test_scan_finds_every_flipped_bit(bit: int) -> None:
    data = bytearray(entries(b"aa"))
    data[bit // 8] ^= 1 << bit % 8
    scan = scan_entries(bytes(data) + bytes(100), POSITION, 10, 3, 150)
    assert (scan.size_bytes, scan.next_index) == (0, 10)


@pytest.mark.parametrize(
    ("index", "term", "position"), [(11, 3, POSITION), (10, 4, POSITION), (10, 3, POSITION + 1)]
)
def test_scan_refuses_an_entry_of_another_place(index: int, term: int, position: int) -> None:
    scan = scan_entries(entries(b"aa") + bytes(100), position, index, term, 150)
    assert (scan.size_bytes, scan.next_index) == (0, index)
    assert "found magic 1, entry 10 of term 3" in scan.stop


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_find_entry_finds_a_whole_one_among_anything(before: bytes, after: bytes) -> None:
    position = POSITION - len(before)
    raw = before + entries(b"aa") + after
    assert find_entry(raw, position, 10) == POSITION
    assert find_entry(raw, position, 11) is None
    assert find_entry(raw, position + 1, 10) is None
    assert find_entry(raw[: len(before) + 47], position, 10) is None


def test_find_entry_passes_over_a_damaged_body() -> None:
    whole = entries(b"aa", b"bb")
    raw = whole[:48] + b"x" + whole[49:]
    assert find_entry(raw, POSITION, 0) == POSITION + 50


def test_entry_head_is_one_with_its_crc_at_its_position() -> None:
    raw = entries(b"aa", b"bb")
    assert entry_head(raw, POSITION) == EntryHead(10, 3, 50, has_crc=True)
    assert entry_head(raw[:36] + bytes(8) + raw[44:], POSITION) == EntryHead(10, 3, 50, has_crc=False)
    assert entry_head(raw, POSITION + 1) is None
    assert entry_head(raw[:47], POSITION) is None
    assert entry_head(raw[:15] + b"\x0b" + raw[16:], POSITION) is None  # another index, the CRC is of 10
    assert (leading_blank(raw), leading_blank(blank(77))) == (0, 77)


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(0, 50))
def test_find_epochs_finds_every_change_of_term(steps: list[int], first_index: int) -> None:
    terms = sorted(steps)
    found = find_epochs(first_index, first_index + len(terms) - 1, lambda index: terms[index - first_index])
    assert [term for term, _ in found] == sorted(set(terms))
    assert all(terms.index(term) == first - first_index for term, first in found)


def test_torn_tail_is_distinguished_from_damage() -> None:
    check_torn_tail("file 7: position 8", "no entry", False, None)
    with pytest.raises(CorruptLogError, match="file 7: position 8: no entry; it was on the disk"):
        check_torn_tail("file 7: position 8", "no entry", True, None)
    with pytest.raises(CorruptLogError, match="whole at position 99"):
        check_torn_tail("file 7: position 8", "no entry", False, 99)


def record(position: int, body: bytes = b"hello", properties: bytes = b"A\x011\x02") -> bytes:
    data = encode_record(Message("T", 0, body, properties), 0, 0)
    return data[:28] + position.to_bytes(8, "big") + data[36:]


def test_scan_records_stops_at_javas_filler() -> None:
    data = record(0) + record(len(record(0)))
    scan = scan_records(data + filler(50) + bytes(42), 0, len(data) + 50, 0)
    assert (scan.stop, scan.size_bytes, scan.next_index) == (BLANK_STOP, len(data), 2)
    assert scan_records(data[:150], 0, len(data) + 50, 0).bytes_needed == len(record(0))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(1), "names position 1"),
        (record(0)[:88] + b"j" + record(0)[89:], "CRC"),
        (record(0, properties=b"A\x01\0\x02"), "zero byte"),
        (bytes(200), "magic 0x00000000"),
        (filler(99) + bytes(200), "magic 0xcbd43194"),
        (record(0)[:2] + b"\x40" + record(0)[3:], "of file left"),
        (record(0)[:3] + b"\x05" + record(0)[4:], "smallest"),
    ],
)
def test_scan_records_says_what_is_wrong(bad: bytes, reason: str) -> None:
    scan = scan_records(bad + bytes(200), 0, len(bad) + 200, 0)
    assert (scan.size_bytes, scan.next_index) == (0, 0)
    assert reason in scan.stop


def test_scan_records_takes_zero_bytes_in_properties_that_were_flushed() -> None:
    data = record(0, properties=b"A\x01\0\x02")
    assert scan_records(data + bytes(20), 0, len(data) + 20, len(data)).next_index == 1


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_find_record_finds_a_whole_one_among_anything(before: bytes, after: bytes) -> None:
    raw = before + record(500) + after
    assert find_record(raw, 500 - len(before)) == 500
    assert find_record(raw, 501 - len(before)) is None
