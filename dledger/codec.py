"""Frames between members of a group: what goes over a replication connection, and back.

    frame   u32 length of what follows | u32 header length | header | entry bytes
    header  msgpack array: [kind, field, field, ...] in the order of the message's dataclass
            an EntryRange is three fields (first index, last index, term); its bytes follow the header
            unchanged, and only an AppendRequest and a FetchResponse have any; no entries are -1, -1, 0
            a ConfigurationEntry is one field: [index, term, format level, generation, members], and each
            member [id, host, port, role, replaces], where "" replaces none

All integers are big-endian. Every field is checked for type and range before it is used; a wrong one raises
PeerProtocolError, and its connection must be closed. See docs/formats/protocols.md.
"""

import enum
import struct
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import msgpack

import native
from dledger.core.membership import (
    ID_CHARACTERS_MAX,
    MEMBERS_MAX,
    Configuration,
    ConfigurationEntry,
    ConfigurationError,
    Member,
    MemberRole,
)
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CommitRequest,
    CompareRequest,
    CompareResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MembershipNotice,
    Message,
    RepairRequest,
    RepairResponse,
    TakeLeadershipRequest,
    TruncateRequest,
    TruncateResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import EntryRange, ResponseCode

PROTOCOL_VERSION = 2
"""Of every Hello, and of a connection until both sides have named a newer one: release 0.1.0 refuses all
others."""
NEWEST_PROTOCOL_VERSION = 3
HEADER_BYTES_MAX = 64 * 1024
TEXT_BYTES_MAX = 1024
INTEGER_MIN = -1
INTEGER_MAX = (1 << 63) - 1
_LENGTHS = struct.Struct(">II")
_LENGTH_BYTES = 4
_RANGE_FIELDS = 3
_ERROR_CHARACTERS_MAX = 200
_PART_BYTES_MIN = 4096


class PeerProtocolError(Exception):
    """A peer sent bytes that are not a frame of this protocol."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection, the handshake: the connecting node, and where it serves clients."""

    group: str
    node_id: str
    version: int
    client_address: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The accepting node's answer to a Hello, on the same connection: `version` is the newest that it speaks.
    Nodes of version 2 neither send it nor read it. format_level and generation are those of the
    configuration that the node uses; release is for people.
    """

    version: int
    node_id: str
    format_level: int
    generation: int
    release: str


@dataclass(frozen=True, slots=True)
class Introduction:
    """The connecting node's answer to a Welcome: from here on its connection is of `version`. Where it
    accepts replication connections, and the other values as in a Welcome.
    """

    version: int
    replication_host: str
    replication_port: int
    format_level: int
    generation: int
    release: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the accepting node closes the connection, for the log of the connecting one."""

    reason: str


Handshake = Hello | Welcome | Introduction | Refused
"""The frames about the connection itself. Their fields are the same in all versions."""
HANDSHAKE_TYPES: frozenset[type[Any]] = frozenset(typing.get_args(Handshake))


_KINDS: Sequence[type[Any]] = (
    Hello,
    VoteRequest,
    VoteResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    CommitRequest,
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    TruncateRequest,
    TruncateResponse,
    TakeLeadershipRequest,
    RepairRequest,
    RepairResponse,
    FetchRequest,
    FetchResponse,
    Welcome,
    Introduction,
    Refused,
    MembershipNotice,
    TruncateRequest,
    RepairResponse,
)
"""A kind's number on the wire is its place here: never reorder, only add. A class that is here twice has a
last field which nodes of version 2 do not know: its first kind is without that field, its second with it."""

_WITH_ENTRIES = (AppendRequest, FetchResponse)
_NO_ENTRIES = (-1, -1, 0)

_KIND_OF: types.MappingProxyType[type[Any], int] = types.MappingProxyType(
    {cls: _KINDS.index(cls) for cls in _KINDS}
)
_LONG_KIND_OF: types.MappingProxyType[type[Any], int] = types.MappingProxyType(
    {cls: kind for kind, cls in enumerate(_KINDS) if kind != _KIND_OF[cls]}
)


_ENCODE_NUMBERS = native.function("_log", "encode_numbers")
_DECODE_PUSHES = native.function("_log", "decode_pushes")
_APPEND_REQUEST = _KIND_OF[AppendRequest]
_APPEND_RESPONSE = _KIND_OF[AppendResponse]
_PUSH_TYPES = (
    *(AppendRequest, tuple(field.name for field in fields(AppendRequest))),
    *(AppendResponse, tuple(field.name for field in fields(AppendResponse))),
    *(EntryRange, tuple(field.name for field in fields(EntryRange))),
    types.MappingProxyType({code.value: code for code in ResponseCode}),
)
"""The types that `decode_pushes` constructs."""


CHANGED_SINCE_2: frozenset[type[Any]] = frozenset({MembershipNotice, *_LONG_KIND_OF})
"""Messages of all other types need version 2 only."""


def version_needed(message: Message) -> int:
    """The protocol version that a connection must have to carry this message."""
    is_new = isinstance(message, MembershipNotice) or _configuration_in(message) is not None
    return NEWEST_PROTOCOL_VERSION if is_new else PROTOCOL_VERSION


def _configuration_in(message: Message | Handshake) -> ConfigurationEntry | None:
    if isinstance(message, TruncateRequest):
        return message.base
    return message.configuration if isinstance(message, RepairResponse | MembershipNotice) else None


def encode_frame(message: Message | Handshake) -> tuple[bytes | memoryview, ...]:
    """The buffers of one frame in wire order. Entry bytes are passed on, not copied."""
    if _ENCODE_NUMBERS is not None:
        if isinstance(message, AppendResponse):
            head = _ENCODE_NUMBERS(_numbers_of_response(message), 0)
            if head is not None:
                return (head,)
        elif isinstance(message, AppendRequest) and (data := message.entries.data):
            head = _ENCODE_NUMBERS(_numbers_of_request(message), len(data))
            if head is not None:
                return head, data
    return _encode_frame(message)


def _numbers_of_request(message: AppendRequest) -> tuple[int, ...]:
    entries = message.entries
    numbers = (entries.first_index, entries.last_index, entries.term)
    return (_APPEND_REQUEST, message.term, message.commit_index, message.prev_term, *numbers)


def _numbers_of_response(message: AppendResponse) -> tuple[int, ...]:
    numbers = (message.first_index, message.last_index, message.end_index)
    return (_APPEND_RESPONSE, message.term, message.code, *numbers)


def _encode_frame(message: Message | Handshake) -> tuple[bytes | memoryview, ...]:
    kind = _KIND_OF[type(message)]
    if _configuration_in(message) is not None:
        kind = _LONG_KIND_OF.get(type(message), kind)
    values: list[Any] = [kind]
    data: bytes | memoryview = b""
    for name, _ in _SCHEMAS[kind]:
        value = getattr(message, name)
        if isinstance(value, EntryRange):
            values += (value.first_index, value.last_index, value.term)
            data = value.data
        elif isinstance(value, ConfigurationEntry):
            values.append(_configuration_values(value))
        elif value is None:
            values += _NO_ENTRIES
        else:
            values.append(value)
    header = msgpack.packb(values)
    lengths = _LENGTHS.pack(_LENGTH_BYTES + len(header) + len(data), len(header))
    return (lengths + header, data) if len(data) else (lengths + header,)


def _configuration_values(entry: ConfigurationEntry) -> list[Any]:
    configuration = entry.configuration
    members = [
        [member.id, member.host, member.port, member.role.value, member.replaces or ""]
        for member in configuration.members
    ]
    return [entry.index, entry.term, configuration.format_level, configuration.generation, members]


class _Parts:
    """The chunks of an incomplete frame. They are joined once, when it is complete: a push to a peer that
    catches up has 1 MiB and arrives in several chunks.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._whole: list[bytes] = []
        self._small = bytearray()

    def append(self, data: bytes) -> None:
        """Small chunks are joined at once: a list of them would take many times their bytes."""
        self.size_bytes += len(data)
        if len(data) < _PART_BYTES_MIN:
            self._small += data
            return
        if self._small:
            self._whole.append(bytes(self._small))
            self._small.clear()
        self._whole.append(data)

    def take(self) -> bytes:
        """All of it; none is left."""
        data = b"".join((*self._whole, self._small))
        self._whole.clear()
        self._small.clear()
        self.size_bytes = 0
        return data


class FrameDecoder:
    """Cuts a stream of bytes into messages. After PeerProtocolError it must not be fed again."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._parts = _Parts()
        self._needed_bytes = 0
        """So many bytes are there when the first frame of the parts is complete."""

    def feed(self, data: bytes) -> list[Message | Handshake]:
        """The messages completed by `data`. Raises PeerProtocolError."""
        if self._parts.size_bytes:
            self._parts.append(data)
            if self._parts.size_bytes < self._needed_bytes:
                return []
            data = self._parts.take()
        # Usually a chunk consists of whole frames: then nothing is kept.
        messages, end = self._decode_whole_frames(data)
        if end < len(data):
            # The lengths were checked, as far as they are here: see `_frame_bytes_at`.
            rest = memoryview(data)[end:]
            is_begun = len(rest) >= _LENGTHS.size
            self._needed_bytes = _LENGTHS.unpack_from(rest)[0] + _LENGTH_BYTES if is_begun else _LENGTHS.size
            self._parts.append(bytes(rest))
        return messages

    def _decode_whole_frames(self, source: bytes | memoryview) -> tuple[list[Message | Handshake], int]:
        """The whole frames, and where they end."""
        messages: list[Message | Handshake] = []
        start = 0
        if _DECODE_PUSHES is not None:
            messages, start = _DECODE_PUSHES(source, 0, self._frame_bytes_max, _PUSH_TYPES)
            if start == len(source):
                return messages, start
        while (frame_bytes := self._frame_bytes_at(source, start)) is not None:
            messages.append(self._decode(source, start, frame_bytes))
            start += frame_bytes
        return messages, start

    def _frame_bytes_at(self, source: bytes | memoryview, start: int) -> int | None:
        """Size of the frame that begins at `start`, None when it is not complete. Its lengths are checked
        before the rest of it has arrived: a wrong length must not make the buffer grow.
        """
        available = len(source) - start
        if available < _LENGTHS.size:
            return None
        length, header_bytes = _LENGTHS.unpack_from(source, start)
        if length > self._frame_bytes_max:
            raise PeerProtocolError(f"a frame of {length} bytes is longer than {self._frame_bytes_max}")
        if header_bytes > HEADER_BYTES_MAX or header_bytes + _LENGTH_BYTES > length:
            raise PeerProtocolError(f"a header of {header_bytes} bytes in a frame of {length}")
        frame_bytes = int(length) + _LENGTH_BYTES
        return frame_bytes if available >= frame_bytes else None

    @staticmethod
    def _decode(source: bytes | memoryview, start: int, frame_bytes: int) -> Message | Handshake:
        _, header_bytes = _LENGTHS.unpack_from(source, start)
        header_start = start + _LENGTHS.size
        data_start = header_start + header_bytes
        values = _unpack(bytes(source[header_start:data_start]))
        return _build(values, bytes(source[data_start : start + frame_bytes]))


def _unpack(header: bytes) -> list[Any]:
    try:
        values = msgpack.unpackb(header)
    except (ValueError, msgpack.exceptions.UnpackException, TypeError, RecursionError) as error:
        raise PeerProtocolError(f"the header is not msgpack: {error}") from error
    if not isinstance(values, list) or not values:
        raise PeerProtocolError("the header is not an array of a kind and its fields")
    return values


def _build(values: list[Any], data: bytes) -> Message | Handshake:
    kind = values[0]
    if type(kind) is not int or not 0 <= kind < len(_KINDS):
        raise PeerProtocolError(f"unknown kind of message {kind!r}")
    cls = _KINDS[kind]
    schema = _SCHEMAS[kind]
    fields_expected = len(schema) + (_RANGE_FIELDS - 1 if cls in _WITH_ENTRIES else 0)
    if len(values) - 1 != fields_expected:
        raise PeerProtocolError(f"{len(values) - 1} fields in a {cls.__name__}, not {fields_expected}")
    if cls in _WITH_ENTRIES:
        values = [*values[:-_RANGE_FIELDS], _entry_range(values[-_RANGE_FIELDS:], data)]
    elif data:
        raise PeerProtocolError(f"{len(data)} bytes of entries in a {cls.__name__}")
    arguments = [read(name, value) for (name, read), value in zip(schema, values[1:], strict=True)]
    return cast("Message | Handshake", cls(*arguments))


def _entry_range(numbers: list[Any], data: bytes) -> EntryRange | None:
    first_index, last_index, term = (_integer("entries", number) for number in numbers)
    if (first_index, last_index, term) == _NO_ENTRIES and not data:
        return None
    if not 0 <= first_index <= last_index or term < 0 or not data:
        raise PeerProtocolError(f"entries {first_index}..{last_index} of term {term} in {len(data)} bytes")
    return EntryRange(first_index, last_index, term, data)


def _integer(name: str, value: Any) -> int:
    if type(value) is not int or not INTEGER_MIN <= value <= INTEGER_MAX:
        raise PeerProtocolError(f"{name} is not a number from {INTEGER_MIN} to {INTEGER_MAX}: {value!r:.80}")
    return value


def _boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise PeerProtocolError(f"{name} is not a boolean: {value!r:.80}")
    return value


def _text(name: str, value: Any) -> str:
    if type(value) is not str or len(value.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise PeerProtocolError(f"{name} is not a text of at most {TEXT_BYTES_MAX} bytes: {value!r:.80}")
    return value


def _enumerated(cls: type[enum.IntEnum]) -> Callable[[str, Any], enum.IntEnum]:
    members = {member.value: member for member in cls}

    def read(name: str, value: Any) -> enum.IntEnum:
        member = members.get(_integer(name, value))
        if member is None:
            raise PeerProtocolError(f"{name} is not a {cls.__name__}: {value}")
        return member

    return read


def _range(name: str, value: Any) -> EntryRange:
    if not isinstance(value, EntryRange):
        raise PeerProtocolError(f"{name} has no entries")
    return value


def _optional_range(_name: str, value: Any) -> EntryRange | None:
    return cast("EntryRange | None", value)


def _configuration_entry(name: str, value: Any) -> ConfigurationEntry:
    if not isinstance(value, list) or len(value) != 5:
        raise PeerProtocolError(f"{name} is not an array of 5 values")
    index, term, format_level, generation = (_integer(name, number) for number in value[:4])
    members = value[4]
    if min(term, format_level, generation) < 0:
        raise PeerProtocolError(f"{name} of term {term}, level {format_level}, generation {generation}")
    if not isinstance(members, list) or len(members) > MEMBERS_MAX:
        raise PeerProtocolError(f"{name} is not an array of at most {MEMBERS_MAX} members")
    try:
        configuration = Configuration(tuple(map(_member, members)), format_level, generation)
    except ConfigurationError as error:
        raise PeerProtocolError(f"{name}: {str(error)[:_ERROR_CHARACTERS_MAX]}") from None
    return ConfigurationEntry(index, term, configuration)


_ROLES = types.MappingProxyType({role.value: role for role in MemberRole})


def _member(value: Any) -> Member:
    if not isinstance(value, list) or len(value) != 5:
        raise PeerProtocolError("a member is not an array of 5 values")
    member_id, host, role, replaces = (_text("a member", value[place]) for place in (0, 1, 3, 4))
    if role not in _ROLES or len(replaces) > ID_CHARACTERS_MAX:
        raise PeerProtocolError(f"a member of role {role!r:.80} that replaces {replaces!r:.80}")
    return Member(member_id, host, _integer("port", value[2]), _ROLES[role], replaces or None)


def _reader(annotation: Any) -> Callable[[str, Any], Any]:
    if isinstance(annotation, type) and issubclass(annotation, enum.IntEnum):
        return _enumerated(annotation)
    readers: dict[Any, Callable[[str, Any], Any]] = {
        int: _integer,
        bool: _boolean,
        str: _text,
        EntryRange: _range,
        EntryRange | None: _optional_range,
        ConfigurationEntry: _configuration_entry,
        ConfigurationEntry | None: _configuration_entry,
    }
    return readers[annotation]


_Schema = tuple[tuple[str, Callable[[str, Any], Any]], ...]


def _schema_of(kind: int) -> _Schema:
    """The fields of a kind, each with what reads it."""
    cls = _KINDS[kind]
    annotations = typing.get_type_hints(cls)
    is_short = cls in _LONG_KIND_OF and kind == _KIND_OF[cls]
    named = fields(cls)[:-1] if is_short else fields(cls)
    return tuple((field.name, _reader(annotations[field.name])) for field in named)


_SCHEMAS: tuple[_Schema, ...] = tuple(map(_schema_of, range(len(_KINDS))))


NUMBER_MAX = 1 << 62
"""The highest index, position or term that a peer may name: counting on from there must fit into 64 bits."""
TERM_STEP_MAX = 1 << 32
"""How far a peer's term may be ahead: more elections than a group can hold in years. The terms up to
NUMBER_MAX are then used up by no less than a thousand million messages, each in a turn of its own.
"""
_TERMS = types.MappingProxyType(
    {
        cls: tuple(
            each.name for each in fields(cls) if each.name.endswith("_term") and each.name != "ballot_term"
        )
        for cls in typing.get_args(Message)
    }
)
"""Terms of entries: none is above that of the node which names them, since an answer comes in the term
asked.
"""
_NUMBERS = types.MappingProxyType(
    {
        cls: tuple(each.name for each in fields(cls) if each.name.endswith(("_index", "position")))
        for cls in typing.get_args(Message)
    }
)


def refuse_impossible(message: Message, term_max: int) -> None:
    """Raises PeerProtocolError for numbers that no member of a group can reach, however long it runs.

    A member adopts any higher term (Raft 5.1), so a broken peer could use up all terms with one message.
    """
    ballot_term = message.ballot_term if isinstance(message, VoteRequest | VoteResponse) else 0
    if max(message.term, ballot_term) > term_max:
        raise PeerProtocolError(f"a {type(message).__name__} of term {message.term}, above {term_max}")
    for name in _TERMS[type(message)]:
        if getattr(message, name) > message.term:
            raise PeerProtocolError(
                f"a {type(message).__name__} of term {message.term} with {name} {getattr(message, name)}"
            )
    for name in _NUMBERS[type(message)]:
        if getattr(message, name) > NUMBER_MAX:
            raise PeerProtocolError(f"a {type(message).__name__} with {name} {getattr(message, name)}")
    _refuse_impossible_configuration(message)
    entries = message.entries if isinstance(message, AppendRequest | FetchResponse) else None
    if entries is not None and entries.last_index > NUMBER_MAX:
        raise PeerProtocolError(f"entries up to {entries.last_index}, above {NUMBER_MAX}")


def _refuse_impossible_configuration(message: Message) -> None:
    entry = _configuration_in(message)
    if entry is None:
        return
    level, generation = entry.configuration.format_level, entry.configuration.generation
    if entry.term > message.term or max(entry.index, level, generation) > NUMBER_MAX:
        raise PeerProtocolError(
            f"a {type(message).__name__} of term {message.term} with a configuration of term {entry.term}, "
            f"index {entry.index}, level {level}, generation {generation}"
        )
