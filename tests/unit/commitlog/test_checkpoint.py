from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.checkpoint import (
    MEMBERS_FORMAT_VERSION,
    Checkpoint,
    LogBegin,
    check_format,
    decode_checkpoint,
    decode_log_begin,
    encode_format,
    unseal,
)
from commitlog.errors import CorruptLogError
from dledger.core.types import Epoch


@given(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_checkpoint_round_trip(end_index: int, committed_index: int) -> None:
    checkpoint = Checkpoint(end_index, committed_index)
    assert decode_checkpoint(checkpoint.encode()) == checkpoint


def test_checkpoint_of_java_is_read() -> None:
    content = b"#Sat Nov 21 09:00:00 UTC 2026\ncommittedIndex=41\r\nendIndex=43\r\n"
    assert decode_checkpoint(content) == Checkpoint(43, 41)


@pytest.mark.parametrize("content", [None, b"", b"endIndex=5\n", b"endIndex=x\ncommittedIndex=1\n"])
def test_checkpoint_that_is_none_promises_nothing(content: bytes | None) -> None:
    assert decode_checkpoint(content) == Checkpoint(-1, -1)


@given(st.lists(st.builds(Epoch, st.integers(0, 2**60), st.integers(0, 2**60))), st.data())
def test_log_begin_round_trip_and_any_flipped_bit_is_seen(epochs: list[Epoch], data: st.DataObject) -> None:
    begin = LogBegin(5, 700, tuple(epochs))
    content = bytearray(begin.encode())
    assert decode_log_begin(bytes(content)) == begin
    at = data.draw(st.integers(0, len(content) - 2))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_log_begin(bytes(content)) in (None, begin)  # equal: a hex digit's other case


@pytest.mark.parametrize("content", [None, b"", b"\n00000000\n", b"{}", b"{}\n12345678\n"])
def test_unseal_of_what_was_not_sealed_is_none(content: bytes | None) -> None:
    assert unseal(content) is None


def test_format_names_version_and_sizes() -> None:
    content = encode_format("entries", 10, 20)
    assert check_format(Path("f"), content, content)
    with pytest.raises(CorruptLogError, match="entries"):
        check_format(Path("f"), encode_format("entries", 10, 21), content)


def test_format_of_a_log_that_names_members_is_read_and_a_later_one_is_not() -> None:
    expected = encode_format("entries", 10, 20)
    assert check_format(Path("f"), encode_format("entries", 10, 20, MEMBERS_FORMAT_VERSION), expected) == 2
    with pytest.raises(CorruptLogError, match="entries"):
        check_format(Path("f"), encode_format("entries", 10, 20, MEMBERS_FORMAT_VERSION + 1), expected)


def test_format_without_a_crc_is_of_an_earlier_version() -> None:
    content = encode_format("entries", 10, 20)
    line = content.partition(b"\n")[0]
    assert not check_format(Path("f"), line, content)
    with pytest.raises(CorruptLogError, match="entries"):
        check_format(Path("f"), line.replace(b"20", b"21"), content)


def test_a_flipped_bit_of_a_format_or_checkpoint_never_says_something_else() -> None:
    content = encode_format("entries", 10, 20)
    checkpoint = Checkpoint(199, 50).encode()
    for bit in range(8 * len(content) - 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not check_format(Path("f"), bytes(damaged), content) or unseal(bytes(damaged)) is not None
    for bit in range(8 * len(checkpoint)):
        damaged = bytearray(checkpoint)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_checkpoint(bytes(damaged)) in (Checkpoint(199, 50), Checkpoint())
