"""Frames of HTTP/2 (RFC 9113): their numbers, and the bytes of those that a server sends. Pure."""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
HEAD: Final = struct.Struct(">BHBBI")
"""Of a frame: length (1 and 2 bytes), type, flags, stream."""
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_MAX: Final = 2**24 - 1
STREAM_ID_MASK: Final = 2**31 - 1

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(Exception):
    """The peer broke the protocol or a bound: the whole connection ends with this code."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{text} ({code.name})")
        self.code = code
        self.text = text


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings_frame(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in values.items()))


def window_update_frame(stream_id: int, grown_bytes: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, grown_bytes.to_bytes(4, "big"))


def rst_stream_frame(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway_frame(last_id: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_id, code) + text.encode("ascii", "replace"))


def header_frames(stream_id: int, block: bytes, *, ends_stream: bool, frame_bytes: int) -> bytes:
    """HEADERS, and CONTINUATION where the block is longer than the peer's longest frame."""
    ends = END_STREAM if ends_stream else 0
    if len(block) <= frame_bytes:
        return frame(HEADERS, END_HEADERS | ends, stream_id, block)
    parts = [frame(HEADERS, ends, stream_id, block[:frame_bytes])]
    for at in range(frame_bytes, len(block), frame_bytes):
        flags = END_HEADERS if at + frame_bytes >= len(block) else 0
        parts.append(frame(CONTINUATION, flags, stream_id, block[at : at + frame_bytes]))
    return b"".join(parts)


def unpadded(payload: bytes, flags: int, *, has_priority: bool = False) -> bytes:
    """The payload of DATA or HEADERS without padding and priority. Raises Http2Error."""
    begin, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is empty")
        begin, end = 1, end - payload[0]
    if has_priority:
        begin += 5
    if begin > end:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame is shorter than its padding or priority")
    return payload[begin:end]
