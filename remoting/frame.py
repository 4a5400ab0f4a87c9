"""Splits a byte stream into Remoting frames (RocketMQ's `NettyDecoder`). Pure: bytes in, payloads out.

    | total length (4) | header word (4) | header | body |    total length = 4 + header length + body length
                       |----------- payload -------------|    header word = type (1), header length (3)

All integers are big-endian. A decoder that has raised is of no further use: where the next frame begins is
unknown.
"""

import struct

from remoting.errors import FrameError

FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = 0xFFFFFF
"""The largest length that the header word can express."""
LENGTH_BYTES = 4
FRAME_BYTES_MIN = 8

_two_words = struct.Struct(">II").unpack_from


class FrameDecoder:
    """Keeps the bytes of one incomplete frame, never more than `frame_bytes_max` + one chunk."""

    __slots__ = ("_bytes_needed", "_frame_bytes_max", "_header_bytes_max", "_partial")

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._partial = bytearray()
        self._bytes_needed = FRAME_BYTES_MIN

    @property
    def partial_bytes(self) -> int:
        """The bytes received of an incomplete frame."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Add the next bytes of the stream; return the payloads that are complete now.

        Raises:
            FrameError: a length is negative, too large or contradicts another. Complete frames before
                it in the same bytes are dropped with it.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._bytes_needed:
                return []
            data = bytes(self._partial)
            self._partial.clear()
        return self._split(data)

    def _split(self, data: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        start, end = 0, len(data)
        self._bytes_needed = FRAME_BYTES_MIN
        while end - start >= FRAME_BYTES_MIN:
            length, word = _two_words(data, start)
            if length > self._frame_bytes_max or length < LENGTH_BYTES:
                raise FrameError(f"frame length {length} is not in 4..{self._frame_bytes_max}")
            header_bytes = word & 0xFFFFFF
            if header_bytes > length - LENGTH_BYTES:
                raise FrameError(f"header length {header_bytes} exceeds the frame's {length} bytes")
            if header_bytes > self._header_bytes_max:
                raise FrameError(f"header length {header_bytes} exceeds {self._header_bytes_max}")
            frame_end = start + LENGTH_BYTES + length
            if frame_end > end:
                self._bytes_needed = LENGTH_BYTES + length
                break
            payloads.append(data[start + LENGTH_BYTES : frame_end])
            start = frame_end
        if start < end:
            self._partial += data[start:]
        return payloads
