"""Decompression of bodies that producers sent compressed (sysFlag bit 0), as RocketMQ's clients do it. Pure.

RocketMQ 4 knows zlib only. RocketMQ 5 names the kind in three more bits of sysFlag.
"""

import zlib
from typing import Final

import pyarrow as pa

from rocketmq_spark.errors import CorruptDataError

COMPRESSED: Final = 0x1
INFLATED_BYTES_MAX: Final = 256 << 20
"""No decompressed body may be larger: a few hostile bytes could need all memory. Brokers accept 4 MiB."""
_KIND_SHIFT = 8
_KIND_MASK = 0x7
_ZLIB_KINDS = (0, 3)
_ARROW_CODECS = {1: "lz4", 2: "zstd"}
_CHUNK_BYTES = 1 << 20


def inflate(body: bytes, sys_flag: int, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """The body as its producer made it.

    Raises:
        CorruptDataError: it is not what sysFlag says, of an unknown kind, or larger than `bytes_max`.
    """
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    if kind in _ZLIB_KINDS:
        return _inflate_zlib(body, bytes_max)
    codec = _ARROW_CODECS.get(kind)
    if codec is None:
        raise CorruptDataError(f"sysFlag {sys_flag:#x} names compression {kind}, which is unknown")
    return _inflate_by_arrow(body, codec, bytes_max)


def _inflate_zlib(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise CorruptDataError(f"a compressed body is not zlib's: {error}") from None
    if not inflater.eof:
        problem = f"is larger than {bytes_max} bytes" if len(inflated) == bytes_max else "is cut off"
        raise CorruptDataError(f"a compressed body {problem}")
    return inflated


def _inflate_by_arrow(body: bytes, codec: str, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    room = bytes_max
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while part := stream.read(_CHUNK_BYTES):
                parts.append(part)
                room -= len(part)
                if room < 0:
                    raise CorruptDataError(f"a compressed body is larger than {bytes_max} bytes")
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptDataError(f"a compressed body is not {codec}'s: {error}") from None
    return b"".join(parts)
