"""Frames whole, byte by byte, with trailing data, and every length that must not pass."""

import struct

import pytest

from remoting.command import FRAME_BYTES_MAX, FrameDecoder
from remoting.errors import FrameError
from tests.unit.remoting.frames import BINARY_FRAME, JSON_FRAME


def test_frame_whole_gives_the_payload() -> None:
    assert FrameDecoder().feed(JSON_FRAME) == [JSON_FRAME[4:]]


def test_frame_byte_by_byte_gives_the_payload_at_the_last_byte() -> None:
    decoder = FrameDecoder()
    for byte in JSON_FRAME[:-1]:
        assert decoder.feed(bytes([byte])) == []
    assert decoder.feed(JSON_FRAME[-1:]) == [JSON_FRAME[4:]]


@pytest.mark.parametrize("cut", range(1, len(BINARY_FRAME)))
def test_frame_with_trailing_data_keeps_it_for_the_next(cut: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(JSON_FRAME + BINARY_FRAME[:cut]) == [JSON_FRAME[4:]]
    assert decoder.feed(BINARY_FRAME[cut:] + JSON_FRAME) == [BINARY_FRAME[4:], JSON_FRAME[4:]]


def test_frames_together_come_in_order() -> None:
    frames = [struct.pack(">II", 4 + size, 0) + bytes(size) for size in range(300)]
    assert FrameDecoder().feed(b"".join(frames)) == [frame[4:] for frame in frames]


def test_frame_of_the_header_word_alone_is_the_shortest() -> None:
    assert FrameDecoder().feed(struct.pack(">II", 4, 0)) == [bytes(4)]


def test_frame_of_the_longest_length_passes() -> None:
    decoder = FrameDecoder(frame_bytes_max=100)
    frame = struct.pack(">II", 100, 0) + bytes(96)
    assert decoder.feed(frame) == [frame[4:]]


@pytest.mark.parametrize("length", [0, 3, 101, FRAME_BYTES_MAX, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_frame_length_out_of_bounds_raises(length: int) -> None:
    with pytest.raises(FrameError, match=str(length)):
        FrameDecoder(frame_bytes_max=100).feed(struct.pack(">II", length, 0))


@pytest.mark.parametrize("header_length", [97, 0xFFFFFF])
def test_frame_whose_header_exceeds_it_raises_before_it_is_whole(header_length: int) -> None:
    with pytest.raises(FrameError, match="header length"):
        FrameDecoder().feed(struct.pack(">II", 100, header_length))


def test_frame_refused_leaves_nothing_allocated_for_it() -> None:
    decoder = FrameDecoder(frame_bytes_max=1000)
    decoder.feed(struct.pack(">II", 1000, 0))
    assert decoder.feed(bytes(995)) == []
    assert decoder.feed(bytes(1)) == [bytes(1000)]
