"""What a member of the group is sent by others, and the files it keeps beside its log."""

import enum
import struct
import typing
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from dledger import codec, durable_state
from dledger.codec import FrameDecoder, Handshake, PeerProtocolError, encode_frame
from dledger.core.membership import Configuration, ConfigurationEntry, Member, MemberRole
from dledger.core.messages import Message, TruncateRequest
from dledger.core.types import EntryRange, HardState, Impairment
from tests.fuzz.target import Target, check_words

FRAME_BYTES_MAX = 4096
_MEMBERS = (Member("n0", "10.0.0.1", 7), Member("n3", "host", 8, MemberRole.JOINING, "n1"))
_ENTRY = ConfigurationEntry(5, 2, Configuration(_MEMBERS, 3, 1))


def _value_of(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return next(iter(annotation))
    if typing.get_args(annotation):
        return _value_of(typing.get_args(annotation)[0])
    values = {int: 7, bool: True, str: "n1", EntryRange: EntryRange(7, 8, 3, b"entry bytes")}
    return _ENTRY if annotation is ConfigurationEntry else values[annotation]


def _sample(cls: type[Any]) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(**{name: _value_of(annotation) for name, annotation in hints.items()})


def _frame(message: Message | Handshake) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode_frame(message))


_FRAMES = (
    *(_frame(_sample(cls)) for cls in codec._KINDS),
    _frame(TruncateRequest(7, 7, 7, 3, 7, False, 7, 3)),
)


def _decode(pieces: list[bytes]) -> list[Any] | None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    found: list[Any] = []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
    except PeerProtocolError as error:
        check_words(error)
        return None
    return found


def _check_stream(data: bytes) -> None:
    """The first byte says how the rest is cut: however it is, it means the same."""
    if not data:
        return
    step, stream = data[0] + 1, data[1:]
    whole = _decode([stream])
    assert whole == _decode([stream[start : start + step] for start in range(0, len(stream), step)])
    for message in whole or ():
        assert _decode([_frame(message)]) == [message]


def _check_header(data: bytes) -> None:
    """One frame whose lengths are right: header up to the first two bytes' number, then entry bytes."""
    if len(data) < 2:
        return
    header_bytes = min(int.from_bytes(data[:2], "big"), len(data) - 2)
    frame = struct.pack(">II", len(data) + 2, header_bytes) + data[2:]
    for message in _decode([frame]) or ():
        assert _decode([_frame(message)]) == [message]


def _header_sample(frame: bytes) -> bytes:
    return frame[6:]  # the low half of the header's length, header, entry bytes


_parse_hard_state = durable_state._parse_vote
_format_hard_state = durable_state._format_vote
_HARD_STATES = tuple(_format_hard_state(state) for state in (HardState(7, "n1"), HardState(0, None)))


def _check_hard_state(data: bytes) -> None:
    body = data.rpartition(b"crc32=")[0]
    for content in (data, body + b"crc32=%d\n" % zlib.crc32(body)):
        with suppress(durable_state.CorruptHardStateError):
            state = _parse_hard_state(content, Path("currterm"))
            assert _parse_hard_state(_format_hard_state(state), Path("currterm")) == state


_MARK = durable_state._format_mark(Impairment(7, True, "the vote file is damaged"))


def _check_impairment(data: bytes) -> None:
    body = data.rpartition(b"crc32=")[0]
    for content in (data, body + b"crc32=%d\n" % zlib.crc32(body)):
        found = durable_state._parse_mark(content)
        assert found is None or durable_state._parse_mark(durable_state._format_mark(found)) == found


TARGETS = (
    Target("impairment_file", _check_impairment, (_MARK,)),
    Target("peer_stream", _check_stream, tuple(b"\x05" + frame for frame in (*_FRAMES, b"".join(_FRAMES)))),
    Target("peer_header", _check_header, tuple(map(_header_sample, _FRAMES))),
    Target("hard_state_file", _check_hard_state, _HARD_STATES),
)
