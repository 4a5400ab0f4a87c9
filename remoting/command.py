"""Frames, and the commands in them: `FrameDecoder` splits a byte stream (RocketMQ's `NettyDecoder`);
`RemotingCommand` has two header codecs (RocketMQ's `RemotingCommand`, `RocketMQSerializable`). Pure.

    | total length (4) | header word (4) | header | body |    total length = 4 + header length + body length
                       |----------- payload -------------|    header word = type (1), header length (3)

All integers are big-endian. A decoder that has raised is of no further use: where the next frame begins is
unknown.

Rules that real clients force on us:

* ext field values are strings in memory and on the wire; the C++ client sends numbers and booleans, which are
  turned into their text, and both the C++ and the Go client drop an answer whose ext fields hold anything but
  strings;
* an answer uses the serialize type of its request (the C++ client reads no other than JSON);
* unknown ext fields are kept: a handler ignores what it does not know.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from remoting.errors import CommandError, FrameError

FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = 0xFFFFFF
"""The largest length that the header word can express."""
LENGTH_BYTES = 4
FRAME_BYTES_MIN = 8
FIELDS_MAX = 8_192
"""Ext fields of one command. Clients send a few dozen."""
_QUOTES_MAX = 4 * FIELDS_MAX
_SMALL_HEADER_BYTES = 32 * 1024
"""Such a header is read in less than a millisecond, whatever is in it."""

JSON_HEADER: Final = 0
BINARY_HEADER: Final = 1
RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2
OWN_LANGUAGE: Final = "PYTHON"
OWN_VERSION: Final = 409
"""V4_9_8 in RocketMQ's `MQVersion`: clients ask at least 232 of a broker, and name servers 401 for standard
JSON.
"""

LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER"),
    *("HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
"""Names of `LanguageCode` by the number that the binary header carries."""
OTHER_LANGUAGE: Final = LANGUAGES.index("OTHER")
"""The number of every language that has none."""

_PROOFS = frozenset({"Signature", "SecurityToken"})
_INT32_MAX = 0x7FFFFFFF
_two_words = struct.Struct(">II").pack
_read_word = struct.Struct(">I").unpack_from
_read_two_words = struct.Struct(">II").unpack_from
_OPAQUE: Final = re.compile(rb'"opaque":(-?[0-9]+)')
"""Within a text the quotes would be escaped."""
_binary_fixed = struct.Struct(">hbhii")
_binary_length = struct.Struct(">i")
_binary_key_length = struct.Struct(">h")
_JSON_HEAD = b'{"language":%b,"version":%d,"serializeTypeCurrentRPC":"JSON","code":%d,"flag":%d,"opaque":%d'
_OWN_JSON_HEAD = (
    b'{"language":"PYTHON","version":409,"serializeTypeCurrentRPC":"JSON","code":%d,"flag":%d,"opaque":%d'
)
_loads = orjson.loads
_dumps = orjson.dumps


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

    @property
    def bytes_needed(self) -> int:
        """The length of the incomplete frame, as far as it is known."""
        return self._bytes_needed

    def clear(self) -> None:
        """Free the incomplete frame; nothing can be read after that."""
        self._partial = bytearray()

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
            length, word = _read_two_words(data, start)
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


class RemotingCommand:
    """One request or response. Mutable; owned by the last who sends it.

    `version` is the sender's `MQVersion` ordinal. `body` follows the header untouched and may be empty.
    """

    __slots__ = (
        "__weakref__",
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        language: str = OWN_LANGUAGE,
        version: int = OWN_VERSION,
        serialize_type: int = JSON_HEADER,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.ext_fields: dict[str, str] = {} if ext_fields is None else ext_fields
        self.body = body
        self.language = language
        self.version = version
        self.serialize_type = serialize_type

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of the receiver."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer. C++ and Go clients leave the bit out and drop the answer
        instead.
        """
        return self.flag & ONEWAY_FLAG != 0

    def __repr__(self) -> str:
        """Without what proves who sent it (`remoting.acl`)."""
        fields = {name: value for name, value in self.ext_fields.items() if name not in _PROOFS}
        return (
            f"RemotingCommand(code={int(self.code)}, opaque={self.opaque}, flag={self.flag}, "
            f"remark={self.remark!r}, ext_fields={fields!r}, body_bytes={len(self.body)}, "
            f"language={self.language}, version={self.version}, serialize_type={self.serialize_type})"
        )


def success_response(
    request: RemotingCommand,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
    code: int = 0,
) -> RemotingCommand:
    """Answer `request`; `code` may be another one that counts as an answer, as 19 PULL_NOT_FOUND does."""
    return RemotingCommand(
        code,
        request.opaque,
        RESPONSE_FLAG,
        remark,
        ext,
        body,
        OWN_LANGUAGE,
        OWN_VERSION,
        request.serialize_type,
    )


def error_response(request: RemotingCommand, code: int, remark: str) -> RemotingCommand:
    """Answer `request` with a failure; clients show the remark to their users."""
    return success_response(request, remark=remark, code=code)


def decode_command(payload: bytes) -> RemotingCommand:
    """Read a frame's payload: header word, header, body.

    Raises:
        CommandError: the serialize type is unknown, or the header does not match it.
    """
    word = _read_word(payload)[0] if len(payload) >= 4 else 0
    body_start = 4 + (word & HEADER_BYTES_MAX)
    if body_start > len(payload):
        raise CommandError(f"header ends at byte {body_start} of {len(payload)}")
    if word <= HEADER_BYTES_MAX:
        return _decode_json(payload, body_start)
    if word >> 24 == BINARY_HEADER:
        return _decode_binary(payload, body_start)
    raise CommandError(f"serialize type {word >> 24} is unknown")


def encode_command(command: RemotingCommand) -> bytes:
    """Return the complete frame."""
    return encode_head(command) + command.body


def encode_head(command: RemotingCommand) -> bytes:
    """Return the frame without its body: a large body need not be copied to be sent.

    Raises:
        CommandError: the header or the frame would be larger than any receiver accepts.
    """
    header = _encode_json(command) if command.serialize_type == JSON_HEADER else _encode_binary(command)
    header_bytes = len(header)
    frame_bytes = 4 + header_bytes + len(command.body)
    if header_bytes > HEADER_BYTES_MAX or frame_bytes > FRAME_BYTES_MAX:
        raise CommandError(f"a frame of {frame_bytes} bytes with a header of {header_bytes} is too large")
    return _two_words(frame_bytes, command.serialize_type << 24 | header_bytes) + header


def answers_in(frames: bytes) -> Iterator[tuple[int, int]]:
    """The opaque and the bytes of each of these frames, which this process has encoded."""
    start = 0
    while start < len(frames):
        frame_bytes, word = _read_two_words(frames, start)
        begin = start + 8
        if word >> 24 == BINARY_HEADER:
            opaque = _binary_fixed.unpack_from(frames, begin)[3]
        else:
            found = _OPAQUE.search(frames, begin, begin + (word & 0xFFFFFF))
            assert found is not None, "every header that this process writes has one"
            opaque = int(found[1])
        start += 4 + frame_bytes
        yield opaque, 4 + frame_bytes


def _decode_json(payload: bytes, body_start: int) -> RemotingCommand:
    """The plain case is checked in few steps: one `|` proves four non-negative numbers, one `join` proves
    strings.
    """
    if body_start > _SMALL_HEADER_BYTES:
        _check_fields(payload[4:body_start])
    try:
        header = _loads(payload[4:body_start])
        code, opaque, flag, version = header["code"], header["opaque"], header["flag"], header["version"]
        language, ext, remark = header["language"], header["extFields"], header.get("remark")
        "".join(ext.values())
        is_plain = 0 <= code | opaque | flag | version <= _INT32_MAX
    except orjson.JSONDecodeError as error:
        raise CommandError(f"header is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError):
        is_plain = False
    if is_plain and type(language) is str and (remark is None or type(remark) is str):
        return RemotingCommand(
            code, opaque, flag, remark, ext, payload[body_start:], language, version, JSON_HEADER
        )
    return _from_json(header, payload[body_start:])


def _check_fields(header: bytes) -> None:
    """Before it is read, by its quotation marks outside of texts. Raises CommandError."""
    quotes = header.count(b'"') - header.count(b'\\"')
    if quotes > _QUOTES_MAX:
        raise CommandError(f"header with {quotes} quotation marks: at most {FIELDS_MAX} fields are possible")


def _from_json(header: Any, body: bytes) -> RemotingCommand:
    """What `_decode_json` does, for every other header: fields absent, null or of a kindred type."""
    if not isinstance(header, dict):
        raise CommandError("header is not a JSON object")
    known = {key: value for key, value in header.items() if value is not None}
    ext, remark, language = known.get("extFields", {}), known.get("remark"), known.get("language", "OTHER")
    if not isinstance(ext, dict):
        raise CommandError("extFields is not a JSON object")
    if not (remark is None or isinstance(remark, str)) or not isinstance(language, str):
        raise CommandError("remark or language is not a string")
    code, opaque, flag, version = (
        _as_int(known.get(key, 0)) for key in ("code", "opaque", "flag", "version")
    )
    return RemotingCommand(
        code, opaque, flag, remark, _as_text_fields(ext), body, language, version, JSON_HEADER
    )


def _as_text_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Stringify as fastjson does; a null value means that the field is absent."""
    return {key: _as_text(value) for key, value in fields.items() if value is not None}


def _as_text(value: Any) -> str:
    """Raises CommandError: what may be read as JSON may be nested too deep to be written."""
    try:
        return value if isinstance(value, str) else _dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise CommandError(f"a header field cannot be a text: {error}") from None


def _as_int(value: Any) -> int:
    """A number in quotes is a number, as fastjson reads it."""
    try:
        number = int(value) if isinstance(value, int | str) else _INT32_MAX + 1
    except ValueError:
        number = _INT32_MAX + 1
    if not -_INT32_MAX - 1 <= number <= _INT32_MAX:
        raise CommandError(f"a header number is {str(value)[:40]!r}")
    return number


def _encode_json(command: RemotingCommand) -> bytes:
    if command.language == OWN_LANGUAGE and command.version == OWN_VERSION:
        header = _OWN_JSON_HEAD % (command.code, command.flag, command.opaque)
    else:
        language = _dump_text(command.language)
        header = _JSON_HEAD % (language, command.version, command.code, command.flag, command.opaque)
    if command.ext_fields:
        try:
            header += b',"extFields":' + _dumps(command.ext_fields)
        except TypeError:
            header += b',"extFields":' + _dumps({_clean(k): _clean(v) for k, v in command.ext_fields.items()})
    if command.remark is not None:
        header += b',"remark":' + _dump_text(command.remark)
    return header + b"}"


def _dump_text(text: str) -> bytes:
    try:
        return _dumps(text)
    except TypeError:
        return _dumps(_clean(text))


def _clean(text: str) -> str:
    """Lone surrogates, which a remark made of a file name can hold, cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _decode_binary(payload: bytes, end: int) -> RemotingCommand:
    if end < 4 + _binary_fixed.size:
        raise CommandError(f"binary header of {end - 4} bytes is too short")
    code, language, version, opaque, flag = _binary_fixed.unpack_from(payload, 4)
    remark, position = _read_text(payload, 4 + _binary_fixed.size, end, _binary_length)
    ext_bytes, position = _read_length(payload, position, end, _binary_length)
    ext = _read_fields(payload, position, position + ext_bytes)
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return RemotingCommand(
        code, opaque, flag, remark or None, ext, payload[end:], name, version, BINARY_HEADER
    )


def _read_fields(payload: bytes, position: int, end: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while position < end:
        key, position = _read_text(payload, position, end, _binary_key_length)
        value, position = _read_text(payload, position, end, _binary_length)
        fields[key] = value
        if len(fields) > FIELDS_MAX:
            raise CommandError(f"binary header has more than {FIELDS_MAX} fields")
    return fields


def _read_length(payload: bytes, position: int, end: int, word: struct.Struct) -> tuple[int, int]:
    """Return a length and the position behind its word, after checking that so many bytes follow."""
    start = position + word.size
    if start > end:
        raise CommandError("binary header is cut within a length")
    length: int = word.unpack_from(payload, position)[0]
    if not 0 <= length <= end - start:
        raise CommandError(f"binary header has a length {length} where {end - start} bytes are left")
    return length, start


def _read_text(payload: bytes, position: int, end: int, word: struct.Struct) -> tuple[str, int]:
    length, start = _read_length(payload, position, end, word)
    try:
        return payload[start : start + length].decode(), start + length
    except UnicodeDecodeError as error:
        raise CommandError(f"binary header holds text that is not UTF-8: {error}") from None


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = _utf8(command.remark or "")
    fields = b"".join(_binary_field(_utf8(k), _utf8(v)) for k, v in command.ext_fields.items())
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else OTHER_LANGUAGE
    try:
        fixed = _binary_fixed.pack(command.code, language, command.version, command.opaque, command.flag)
    except struct.error:
        raise CommandError(f"code {int(command.code)} does not fit into a binary header") from None
    parts = (fixed, _binary_length.pack(len(remark)), remark, _binary_length.pack(len(fields)), fields)
    return b"".join(parts)


def _binary_field(key: bytes, value: bytes) -> bytes:
    if len(key) > 0x7FFF:
        raise CommandError(f"an ext field's name has {len(key)} bytes")
    return _binary_key_length.pack(len(key)) + key + _binary_length.pack(len(value)) + value


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
