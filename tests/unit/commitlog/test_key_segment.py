"""Segments of the key index, in memory and in files, against a list of what was put into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.key_segment import (
    NEVER,
    DamagedKeyFileError,
    Extent,
    OpenSegment,
    SealedSegment,
    Span,
    load_segments,
    newest,
    sort_in_python,
    sort_units,
    window_of,
    write_segment,
)
from tests.support.memory_fs import MemoryFs

FOLDER = Path("/store/keyindex")
BASE = 2**32 - 500
"""The positions of the units pass 4 GiB."""

Row = tuple[bytes, int, int]
"""Hash, position, store time."""

hashes = st.sampled_from([b"aaaa", b"aaab", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff"])
rows = st.lists(st.tuples(hashes, st.integers(1, 20)), max_size=40)


def laid_out(choices: list[tuple[bytes, int]], base: int = BASE) -> list[Row]:
    return [(word, base + 48 + 100 * number, time_ms) for number, (word, time_ms) in enumerate(choices)]


def unit(row: Row) -> bytes:
    return row[0] + (row[1] & 0xFFFFFFFF).to_bytes(4, "big")


def opened(found: list[Row], per_batch: int = 3, begin_index: int = 7, base: int = BASE) -> OpenSegment:
    segment = OpenSegment(begin_index, base)
    for first in range(0, len(found), per_batch):
        batch = found[first : first + per_batch]
        times = [time_ms for _, _, time_ms in batch]
        last_index = begin_index + first + len(batch) - 1
        segment.add(last_index, batch[-1][1] + 52, (b"".join(map(unit, batch)), min(times), max(times)))
    if not found:
        segment.skip(begin_index, base + 10)
    return segment


def sealed(segment: OpenSegment, fs: MemoryFs) -> SealedSegment:
    fs.make_directory(FOLDER)
    return write_segment(fs, FOLDER, segment)


def wanted(found: list[Row], word: bytes, begin_ms: int, end_ms: int) -> list[int]:
    return [at for each, at, time_ms in reversed(found) if each == word and begin_ms <= time_ms <= end_ms]


def assert_finds(segment: OpenSegment | SealedSegment, found: list[Row], begin_ms: int, end_ms: int) -> None:
    """All that is wanted, the newest first, and nothing that has another hash."""
    for word in (b"aaaa", b"aaab", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"none"):
        positions = list(segment.newest(word, begin_ms, end_ms))
        assert positions == sorted(positions, reverse=True)
        assert set(positions) <= set(wanted(found, word, 0, 100))
        assert set(wanted(found, word, begin_ms, end_ms)) <= set(positions)


@given(rows, st.integers(0, 21), st.integers(0, 21))
def test_what_was_put_in_is_found_newest_first(
    choices: list[tuple[bytes, int]], begin_ms: int, end_ms: int
) -> None:
    found = laid_out(choices)
    segment = opened(found)
    assert_finds(segment, found, begin_ms, end_ms)
    fs = MemoryFs()
    assert_finds(sealed(segment, fs), found, begin_ms, end_ms)
    (loaded,) = load_segments(fs, FOLDER)
    assert loaded.extent == segment.extent
    assert_finds(loaded, found, begin_ms, end_ms)


@given(rows, rows)
def test_two_made_one_find_the_same(first: list[tuple[bytes, int]], second: list[tuple[bytes, int]]) -> None:
    one = opened(laid_out(first))
    end = one.end_position
    more = laid_out(second, end)
    two = opened(more, begin_index=one.last_index + 1, base=end)
    fs = MemoryFs()
    both = OpenSegment(7, BASE)
    for each in (one, two):
        closed = sealed(each, fs)
        both.absorb(closed.extent, *closed.read_all())
    assert both.unit_count == len(first) + len(second)
    assert (both.last_index, both.end_position) == (two.last_index, two.end_position)
    assert_finds(both, laid_out(first) + more, 0, 100)
    assert_finds(sealed(both, fs), laid_out(first) + more, 5, 9)


def test_times_narrow_what_is_looked_at() -> None:
    """A key that every message has, asked for at a time long past, leads to few of them."""
    found = [(b"aaaa", BASE + 48 + 100 * number, number) for number in range(20_000)]
    segment = opened(found, per_batch=100)
    assert len(segment.spans) == 5
    for each in (segment, sealed(segment, MemoryFs())):
        positions = list(each.newest(b"aaaa", 50, 60))
        assert len(positions) == 4100
        assert set(wanted(found, b"aaaa", 50, 60)) <= set(positions)


def test_times_that_step_back_hide_nothing() -> None:
    spans = [Span(100, 50, 60), Span(200, 10, 20), Span(300, 55, 58)]
    extent = Extent(0, 9, 0, 300, 10, 60, 9)
    assert window_of(extent, spans, 57, 99) == (0, 300)
    assert window_of(extent, spans, 15, 15) == (100, 200)
    assert window_of(extent, spans, 30, 40) == (300, 0)
    assert not extent.overlaps(61, 99)
    assert not Extent(0, 9, 0, 300, *NEVER, 0).overlaps(0, 2**63 - 1)


def test_half_of_one_unit_and_half_of_the_next_are_no_unit() -> None:
    units = b"\x00\x00\x00\x01" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x00" + b"\x01\x00\x00\x00"
    assert list(newest(units, b"\x00\x00\x00\x00", 0, (0, 2**31))) == [2**24]
    assert list(newest(units, b"\x00\x01\x00\x00", 0, (0, 2**31))) == []


@given(rows, st.data())
def test_damage_is_found_or_does_no_harm(choices: list[tuple[bytes, int]], data: st.DataObject) -> None:
    found = laid_out(choices)
    fs = MemoryFs()
    segment = sealed(opened(found), fs)
    at = data.draw(st.integers(0, segment.size_bytes - 1))
    value = data.draw(st.binary(min_size=1, max_size=20))
    fs.overwrite(segment.path, at, value)
    for loaded in load_segments(fs, FOLDER):
        for word, _ in choices:
            try:
                positions = list(loaded.newest(word, 0, 100))
            except DamagedKeyFileError:
                continue
            assert positions == wanted(found, word, 0, 100)


def test_zeros_where_a_row_was_are_no_empty_bucket() -> None:
    fs = MemoryFs()
    segment = sealed(opened(laid_out([(b"aaaa", 1)])), fs)
    fs.overwrite(segment.path, segment.size_bytes - 16, bytes(16))
    with pytest.raises(DamagedKeyFileError):
        list(segment.newest(b"aaaa", 0, 100))


@pytest.mark.parametrize("kept", [0, 40, 76, 150])
def test_a_torn_file_is_deleted(kept: int) -> None:
    fs = MemoryFs()
    segment = sealed(opened(laid_out([(b"aaaa", 1)] * 20)), fs)
    fd = fs.open(segment.path)
    fs.set_size(fd, kept)
    fs.close(fd)
    with pytest.raises(DamagedKeyFileError):
        list(segment.newest(b"aaaa", 0, 100))
    assert load_segments(fs, FOLDER) == []
    assert fs.list(FOLDER) == []


def test_what_another_file_covers_and_what_is_no_file_of_ours_is_deleted() -> None:
    fs = MemoryFs()
    whole = sealed(opened(laid_out([(b"aaaa", 1)] * 20)), fs)
    sealed(opened(laid_out([(b"aaaa", 1)] * 3), begin_index=10), fs)
    for name in ("00000000000000000900.tmp", "notes"):
        fs.close(fs.open(FOLDER / name))
    assert [each.path for each in load_segments(fs, FOLDER)] == [whole.path]
    assert fs.list(FOLDER) == [whole.path.name]


def test_many_units_are_sorted_into_many_buckets_as_in_python() -> None:
    pieces = [b"".join(unit((n.to_bytes(4, "big"), n, 0)) for n in range(0, 2**32, 2**20)) for _ in range(2)]
    assert sort_units(pieces, 5) == sort_in_python(pieces, 5)
