"""The compiled codec of pushes and their answers says what dledger.codec says in Python."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger import codec
from dledger.codec import FrameDecoder, PeerProtocolError
from dledger.core.messages import AppendRequest, AppendResponse
from dledger.core.types import EntryRange, ResponseCode
from native import _log
from tests.unit.dledger.message_strategies import messages, messages_of

FRAME_BYTES_MAX = 4096
BOUNDS = (0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1)
numbers = st.sampled_from([-1, *BOUNDS]) | st.integers(-1, 2**63 - 1)
hot: st.SearchStrategy[Any] = messages_of(AppendRequest) | messages_of(AppendResponse)
hot |= st.builds(AppendResponse, numbers, st.sampled_from(ResponseCode), numbers, numbers, numbers)


def in_python(message: Any) -> bytes:
    return b"".join(codec._encode_frame(message))


def outcome(chunks: list[bytes]) -> Any:
    """Messages and what is left of a frame, or the error."""
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    found: list[Any] = []
    try:
        for chunk in chunks:
            found += decoder.feed(chunk)
    except PeerProtocolError as error:
        return str(error)
    return found, decoder._parts.take()


def check(chunks: list[bytes]) -> None:
    compiled = outcome(chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_DECODE_PUSHES", None)
        assert outcome(chunks) == compiled


@given(hot)
def test_frames_are_the_same_bytes(message: Any) -> None:
    assert b"".join(codec.encode_frame(message)) == in_python(message)


def test_a_push_without_bytes_is_one_buffer_as_in_python() -> None:
    message = AppendRequest(1, 2, 3, EntryRange(4, 5, 6, b""))
    assert codec.encode_frame(message) == codec._encode_frame(message)


@given(st.lists(hot | messages, max_size=6), st.lists(st.integers(0, 3000), max_size=3))
def test_a_stream_in_any_pieces_is_the_same_messages(sent: list[Any], cuts: list[int]) -> None:
    stream = b"".join(map(in_python, sent))
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    check([stream[start:end] for start, end in pairwise(places)])


@given(hot, st.data())
def test_damaged_frames_have_the_same_outcome(message: Any, data: st.DataObject) -> None:
    frame = bytearray(in_python(message))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check([bytes(frame) + in_python(message)])


@given(st.binary(max_size=60))
@example(b"\x97\x06\xff\xff\xff\xff\xff\x00")
@example(b"\x97\x06\x01\x01\x01\x05\x04\x00")
@example(b"\x97\x06\xd0\xff\x01\x01\x04\x05\x00")
@example(b"\x97\x06\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01\x04\x05\x00")
@example(b"\x97\x06\xcd\x00\x01\xce\x00\x00\x00\x02\xcc\x03\x04\x05\x00")
@example(b"\x96\x07\x01\xcc\xc8\x01\x02\x03")
@example(b"\x96\x07\x01\x05\x01\x02\x03")
@example(b"\x96\x07\xc3\xcc\xc8\x01\x02\x03")
@example(b"\x96\x07\x01\xcc\xc8\x01\x02")
@example(b"\x96\x07\x01\xcc\xc8\x01\x02\x03\x04")
def test_any_header_has_the_same_outcome(header: bytes) -> None:
    for data in (b"", b"entries"):
        size = 4 + len(header) + len(data)
        check([size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + data])


@pytest.mark.parametrize(
    "arguments",
    [(), (b"", 0, 1), ("text", 0, 1, ()), (b"", 0, 1, (1,)), (b"", 1, 1, codec._PUSH_TYPES)],
)
def test_what_is_not_asked_rightly_is_an_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _log.decode_pushes(*arguments)


def test_numbers_out_of_bounds_are_left_to_python() -> None:
    assert _log.encode_numbers((7, -2), 0) is None
    assert _log.encode_numbers((7, 2**63), 0) is None
    assert _log.encode_numbers((7,) * 16, 0) is None
    assert _log.encode_numbers((7,), -1) is None
