"""Compressed bodies (bit 0 of sysFlag), packed and unpacked as by RocketMQ's clients. Pure.

RocketMQ 4 knows zlib only; RocketMQ 5 names the kind in three more bits. zlib is always there; LZ4 (its frame
format) and Zstandard where the libraries `lz4` and `zstandard` are installed.
"""

import importlib
import zlib
from typing import Any, Final

COMPRESSED: Final = 0x1
_KIND_SHIFT: Final = 8
_KIND_MASK: Final = 0x7
_KINDS: Final = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_NUMBERS: Final = {"lz4": 1, "zstd": 2, "zlib": 3}
_WINDOW_BYTES_MAX: Final = 128 * 1024 * 1024
"""The most that Zstandard itself uses by default."""
_LIBRARIES: Final = {"lz4": "lz4.frame", "zstd": "zstandard"}


class BodyError(ValueError):
    """The body cannot be packed or unpacked; the text is a sentence for people."""


def compressed_flags(kind: str) -> int:
    """The bits of sysFlag that name this compression. Raises BodyError for an unknown one."""
    if kind not in _NUMBERS:
        raise BodyError(f"{kind[:20]!r} is no compression: {', '.join(_NUMBERS)} are")
    return COMPRESSED | _NUMBERS[kind] << _KIND_SHIFT


def pack_body(body: bytes, kind: str, level: int) -> bytes:
    """The body compressed by `zlib`, `lz4` or `zstd`; the level is the library's.

    Raises BodyError for an unknown kind, or where its library is not installed.
    """
    compressed_flags(kind)
    if kind == "zlib":
        return zlib.compress(body, level)
    library = _library(kind, "send")
    if kind == "lz4":
        return bytes(library.compress(body, compression_level=level))
    return bytes(library.ZstdCompressor(level=level).compress(body))


def compression_of(sys_flag: int) -> str | None:
    """`zlib`, `lz4`, `zstd`, `unknown (N)`, or None for a body that is as its producer made it."""
    if not sys_flag & COMPRESSED:
        return None
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    return _KINDS.get(kind, f"unknown ({kind})")


def unpack_body(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """The body as its producer made it.

    Raises: BodyError when it does not match sysFlag, is larger than `bytes_max`, or needs a library that is
    not installed.
    """
    plain, is_whole = _unpack(body, sys_flag, bytes_max + 1)
    if len(plain) > bytes_max and sys_flag & COMPRESSED:
        raise BodyError(f"the compressed body is larger than {bytes_max} bytes")
    if not is_whole:
        raise BodyError("the compressed body is cut off")
    return plain


def unpack_beginning(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """The first `bytes_max` of the body as its producer made it, for the cost of these.

    Raises: BodyError when they do not match sysFlag, or need a library that is not installed.
    """
    return _unpack(body, sys_flag, bytes_max)[0][:bytes_max]


def _unpack(body: bytes, sys_flag: int, bytes_max: int) -> tuple[bytes, bool]:
    """At most `bytes_max` of what is in the body, and whether its end was seen; one that is not compressed is
    whole. Raises BodyError.
    """
    kind = compression_of(sys_flag)
    if kind is None:
        return body, True
    if kind == "zlib":
        return _inflate(zlib.decompressobj(), body, bytes_max, zlib.error)
    if kind not in _LIBRARIES:
        raise BodyError(f"sysFlag {sys_flag:#x} names a compression that is {kind}")
    library = _library(kind, "see")
    if kind == "lz4":
        return _inflate(library.LZ4FrameDecompressor(), body, bytes_max, RuntimeError)
    return _read_zstd(library, body, bytes_max)


def _library(kind: str, what: str) -> Any:
    """Raises BodyError."""
    try:
        return importlib.import_module(_LIBRARIES[kind])
    except ImportError:
        name = _LIBRARIES[kind].partition(".")[0]
        raise BodyError(
            f"the body is compressed by {kind}; install the library {name} to {what} it"
        ) from None


def _inflate(unpacker: Any, body: bytes, bytes_max: int, problem: type[Exception]) -> tuple[bytes, bool]:
    """By an object of zlib's kind. Raises BodyError."""
    try:
        plain = bytes(unpacker.decompress(body, bytes_max))
    except (problem, EOFError) as error:
        raise BodyError(f"the compressed body cannot be unpacked: {error}") from None
    return plain, bool(unpacker.eof)


def _read_zstd(library: Any, body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """A stream reader has a bound but does not report a cut frame; an object like zlib's does, unbounded."""
    unpacker = library.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
    try:
        with unpacker.stream_reader(body) as reader:
            plain: bytes = reader.read(bytes_max)
        return plain, len(plain) < bytes_max and _is_whole_frame(unpacker.decompressobj(), body)
    except library.ZstdError as error:
        raise BodyError(f"the compressed body cannot be unpacked: {error}") from None


def _is_whole_frame(unpacker: Any, body: bytes) -> bool:
    unpacker.decompress(body)
    return bool(unpacker.eof)
