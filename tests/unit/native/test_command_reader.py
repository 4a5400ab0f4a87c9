"""Reading a stream, compiled and in Python: the same commands, or the same error."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from native import _remoting
from remoting.command import RemotingCommand
from remoting.command_reader import CommandReader
from remoting.errors import FrameError, HeaderError
from remoting.headers.send import SendMessageRequestHeader, SendRequest
from tests.fuzz.mutations import damaged
from tests.unit.native.send_frames import CPP, FRAMES, GO, JAVA, frames, json_frame, json_send

Fields = tuple[object, ...]


def reader(*, is_native: bool) -> CommandReader:
    made = CommandReader(frame_bytes_max=100_000, header_bytes_max=50_000)
    assert made._native is not None
    if not is_native:
        made._native = None
    return made


def fields(command: RemotingCommand) -> Fields:
    """What a handler can see, but for the ext fields of a send."""
    numbers = (command.code, command.opaque, command.flag, command.version, command.serialize_type)
    return *numbers, command.language, command.remark, command.body


def header(command: RemotingCommand) -> SendMessageRequestHeader | str:
    try:
        return SendMessageRequestHeader.parse(command.ext_fields)
    except HeaderError as error:
        return str(error)


def agree(one: RemotingCommand, other: RemotingCommand) -> None:
    assert fields(one) == fields(other)
    if isinstance(one, SendRequest):
        assert one.header == header(other)
        assert repr(one.header) == repr(header(other)), "a field has another type"
        assert header(one) == one.header
    else:
        assert list(one.ext_fields.items()) == list(other.ext_fields.items())


def read(reader: CommandReader, pieces: list[bytes]) -> tuple[list[RemotingCommand], Fields]:
    """The commands, and what else is told of them; of an error its text."""
    commands: list[RemotingCommand] = []
    told: list[object] = []
    for piece in pieces:
        try:
            received = reader.feed(piece)
        except FrameError as error:
            told.append(str(error))
            break
        commands += received.commands
        told.append((received.open_count, received.code, received.has_answers, received.large))
        told.append(reader.partial_bytes)
        if received.error is not None:
            told.append(str(received.error))
            break
    return commands, tuple(told)


def check(pieces: list[bytes]) -> list[RemotingCommand]:
    compiled, compiled_told = read(reader(is_native=True), pieces)
    plain, plain_told = read(reader(is_native=False), pieces)
    assert compiled_told == plain_told
    for one, other in zip(compiled, plain, strict=True):
        agree(one, other)
    return compiled


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_of_stock_clients(frame: bytes) -> None:
    (command,) = check([frame])
    assert isinstance(command, SendRequest) == (command.code in (10, 310, 320))


@pytest.mark.parametrize("ext", [JAVA, GO, CPP])
@pytest.mark.parametrize("code", [10, 310])
def test_sends_of_stock_clients_are_read_whole(ext: dict[str, object], code: int) -> None:
    (command,) = check([json_frame(json_send(ext, code))])
    assert isinstance(command, SendRequest)
    assert command.header.topic == "t"
    assert command.header.born_timestamp_ms == 1_700_000_000_000


def test_a_signed_send_keeps_all_its_fields() -> None:
    """Its signature is checked over them, those without a name in the header too."""
    signed = JAVA | {"AccessKey": "alice", "SecurityToken": "x"}
    (command,) = check([json_frame(json_send(signed))])
    assert isinstance(command, SendRequest)
    assert command.ext_fields == signed
    (unsigned,) = check([json_frame(json_send(JAVA | {"AccessKey": ""}))])
    assert "AccessKey" not in unsigned.ext_fields
    of_endpoint = JAVA | {"LEDGERMQ_GRPC_HOST": "10.0.0.9", "LEDGERMQ_GRPC_PORT": "40000"}
    (command,) = check([json_frame(json_send(of_endpoint))])
    assert isinstance(command, SendRequest)
    assert command.ext_fields == of_endpoint, "quotas ask for it"
    forwarded = JAVA | {"LEDGERMQ_FORWARDED": "1"}
    (command,) = check([json_frame(json_send(forwarded))])
    assert isinstance(command, SendRequest)
    assert command.ext_fields == forwarded, "or two nodes could forward it to each other for ever"


@given(st.lists(frames(), min_size=1, max_size=3))
def test_kindred_sends(made: list[bytes]) -> None:
    check([b"".join(made)])


@given(damaged(FRAMES))
@example(json_frame(json_send(JAVA | {"x": "\ud800"})))
@example(json_frame(json_send(JAVA))[:-4].replace(b'"x":', b'"\\q":'))
@example(json_frame(json_send(JAVA, remark=[1])))
@example(FRAMES[0].replace(b'"p"', b'"\xff"'))
@example(FRAMES[0].replace(b'"p"', b'"\\p'))
@example(FRAMES[0].replace(b'"a":', b'"b":'))
@example(FRAMES[0].replace(b'"opaque":7', b'"flag"  :1'))
def test_damaged_frames(data: bytes) -> None:
    check([data])


@given(
    damaged([b"".join(FRAMES[:6]), b"".join(reversed(FRAMES))]), st.lists(st.integers(0, 8000), max_size=6)
)
def test_streams_in_pieces(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    check([data[start:end] for start, end in pairwise(bounds)])


@given(st.text(max_size=40), st.booleans(), st.booleans())
def test_any_text_in_a_field(text: str, is_key: bool, is_ascii: bool) -> None:
    ext = JAVA | ({text: "x"} if is_key else {"a": text})
    for code in (310, 11):
        check([json_frame(json_send(ext, code), is_ascii=is_ascii)])


@pytest.mark.parametrize("count", [47, 48, 49, 500])
def test_many_fields(count: int) -> None:
    (command,) = check([json_frame(json_send({f"k{n}": str(n) for n in range(count)}, 11))])
    assert len(command.ext_fields) == count


def test_every_length_of_text_around_the_words_of_a_scan() -> None:
    for size in range(40):
        for mark in ("", '"', "\\", "\x01", "\u00fc", "\u20ac", "\x7f"):
            check([json_frame(json_send(JAVA | {"a": "x" * size + mark + "y" * (40 - size)}))])


def test_a_byte_at_a_time() -> None:
    stream = b"".join(FRAMES[:4])
    assert len(check([stream[at : at + 1] for at in range(len(stream))])) == 4


def test_an_escape_that_is_none_is_found_where_nobody_reads() -> None:
    frame = json_frame(json_send(JAVA | {"zz": "12"})).replace(b'"12"', b'"\\q"')
    assert check([frame]) == []


def test_wrong_arguments_are_refused() -> None:
    native = reader(is_native=True)._native
    with pytest.raises(TypeError):
        native.read("text", 0)
    with pytest.raises(TypeError):
        native.read(b"")
    with pytest.raises(ValueError, match="do not reach"):
        native.read(b"", 1)
    header = SendMessageRequestHeader
    for classes in ((RemotingCommand, RemotingCommand, header), (int, SendRequest, header)):
        with pytest.raises(AttributeError):
            _remoting.FrameReader(*classes, (), "", 1, 1, 1)  # type: ignore[call-arg]
    no_slots = type("NoSlots", (), {"header": 1})
    with pytest.raises(TypeError, match="not kept in a slot"):
        _remoting.FrameReader(RemotingCommand, no_slots, header, (), "", 1, 1, 1)
