"""The mark of what was synced: never too high, exact after a killed process, lowered durably."""

import random
from pathlib import Path

import pytest

from commitlog.entry_files import MARK_BYTES, SLOT, SLOT_SPACING_BYTES, SyncMark, decode_slot, encode_slot
from tests.support.memory_fs import MemoryFs

PATH = Path("/store/synced")


def opened(fs: MemoryFs) -> SyncMark:
    fs.make_directory(PATH.parent)
    mark = SyncMark(fs, PATH)
    mark.load()
    return mark


@pytest.mark.parametrize("end_index", [-1, 0, 1, 2**31 - 1, 2**31, 2**32 + 5, 2**62])
def test_s14_slot_round_trip(end_index: int) -> None:
    assert decode_slot(encode_slot(7, end_index)) == (7, end_index)


def test_flipped_bit_or_missing_byte_of_a_slot_is_seen() -> None:
    slot = encode_slot(3, 5)
    for bit in range(8 * SLOT.size):
        damaged = bytearray(slot)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_slot(bytes(damaged)) is None
    assert all(decode_slot(slot[:length]) is None for length in range(SLOT.size))
    assert decode_slot(bytes(SLOT.size)) is None


def test_new_mark_says_nothing_and_a_raised_one_is_found_by_the_next_process() -> None:
    fs = MemoryFs()
    mark = opened(fs)
    assert mark.end_index == -1
    for end_index in (4, 9, 9, 7):
        mark.raise_to(end_index)
    assert (mark.end_index, opened(fs).end_index) == (9, 9)


def test_damaged_newest_slot_leaves_the_one_before() -> None:
    fs = MemoryFs()
    mark = opened(fs)
    mark.raise_to(4)
    mark.raise_to(9)
    fs.flip(PATH, 0, 3)  # sequence 2
    assert opened(fs).end_index == 4
    fs.flip(PATH, SLOT_SPACING_BYTES, 3)
    assert opened(fs).end_index == -1


@pytest.mark.parametrize("seed", range(40))
def test_lowered_mark_never_comes_back_after_a_power_failure(seed: int) -> None:
    fs = MemoryFs()
    mark = opened(fs)
    for end_index in range(10):
        mark.raise_to(end_index)
    mark.sync()
    mark.raise_to(20)
    mark.lower_to(3)
    mark.raise_to(5)
    after = fs.crash(random.Random(seed))
    assert opened(after).end_index in (3, 5)
    damaged = fs.crash(random.Random(seed))
    damaged.flip(PATH, SLOT_SPACING_BYTES * (seed % 2), 1)
    assert opened(damaged).end_index in (3, 5)


@pytest.mark.parametrize("size_bytes", [0, 10, SLOT_SPACING_BYTES, MARK_BYTES + 1])
def test_file_of_another_length_is_mended(size_bytes: int) -> None:
    fs = MemoryFs()
    mark = opened(fs)
    mark.raise_to(4)
    mark.raise_to(9)
    fs.cut(PATH, size_bytes)
    again = opened(fs)
    assert again.end_index == (9 if size_bytes >= SLOT.size else -1)
    assert len(fs.content(PATH)) == MARK_BYTES


def test_failed_write_is_told() -> None:
    fs = MemoryFs()
    mark = opened(fs)
    fs.fail({"pwrite"})
    with pytest.raises(OSError, match="error"):
        mark.raise_to(1)
