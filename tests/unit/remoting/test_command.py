"""Both header codecs, against computed bytes and against what real clients send."""

import struct

import orjson
import pytest

from remoting.command import (
    BINARY_HEADER,
    FIELDS_MAX,
    JSON_HEADER,
    RemotingCommand,
    answers_in,
    decode_command,
    encode_command,
    encode_head,
    error_response,
    success_response,
)
from remoting.errors import CommandError
from tests.unit.remoting.frames import BINARY_FRAME, JSON_FRAME


def _payload(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    return struct.pack(">I", serialize_type << 24 | len(header)) + header + body


def _fields(command: RemotingCommand) -> tuple[object, ...]:
    return tuple(getattr(command, name) for name in RemotingCommand.__slots__)


def test_json_frame_of_a_java_client_is_read() -> None:
    command = decode_command(JSON_FRAME[4:])
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 409)
    assert (command.language, command.remark, command.ext_fields) == ("JAVA", None, {"topic": "T"})
    assert (command.body, command.serialize_type) == (b"", JSON_HEADER)


def test_binary_frame_is_read_and_written_to_the_byte() -> None:
    command = decode_command(BINARY_FRAME[4:])
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 409)
    assert (command.language, command.remark, command.ext_fields) == ("JAVA", None, {"topic": "T"})
    assert encode_command(command) == BINARY_FRAME


@pytest.mark.parametrize("serialize_type", [JSON_HEADER, BINARY_HEADER])
@pytest.mark.parametrize("language", ["PYTHON", "GO"])
def test_command_with_everything_survives_the_round_trip(serialize_type: int, language: str) -> None:
    command = RemotingCommand(
        310,
        -5,
        3,
        'remark "quoted" 说明',
        {"i": "A\x01b\x02", "empty": "", "名": "值"},
        b"\x00body\n",
        language,
        317,
        serialize_type,
    )
    assert _fields(decode_command(encode_command(command)[4:])) == _fields(command)


def test_answers_are_known_by_their_opaques() -> None:
    answers = [
        RemotingCommand(1, opaque, 1, remark, {"a": remark or ""}, bytes(size), serialize_type=kind)
        for kind in (JSON_HEADER, BINARY_HEADER)
        for opaque, remark, size in (
            (7, '"opaque":8,"a', 0),
            (-5, None, 3),
            (2**31 - 1, '\\"opaque":9', 70_000),
        )
    ]
    frames = [encode_command(answer) for answer in answers]
    expected = [(answer.opaque, len(frame)) for answer, frame in zip(answers, frames, strict=True)]
    assert list(answers_in(b"".join(frames))) == expected


def test_cpp_header_with_numbers_and_booleans_becomes_text() -> None:
    header = (
        b'{"code":310,"extFields":{"d":4,"e":0,"k":true,"n":null,"r":1.5,"s":"x","t":[1,{"a":2}]},'
        b'"flag":0,"language":"CPP","opaque":1,"remark":"","version":333}'
    )
    command = decode_command(_payload(header, b"{}\n"))
    assert command.ext_fields == {"d": "4", "e": "0", "k": "true", "r": "1.5", "s": "x", "t": '[1,{"a":2}]'}
    assert command.body == b"{}\n"
    assert command.remark == ""


def test_json_header_with_absent_fields_has_zeros() -> None:
    command = decode_command(_payload(b"{}"))
    assert (command.code, command.opaque, command.flag, command.version) == (0, 0, 0, 0)
    assert (command.language, command.remark, command.ext_fields) == ("OTHER", None, {})


def test_json_header_with_quoted_numbers_and_nulls_is_read() -> None:
    header = b'{"code":"34","opaque":-1,"flag":null,"extFields":null,"remark":null,"language":null}'
    command = decode_command(_payload(header))
    assert (command.code, command.opaque, command.flag, command.ext_fields) == (34, -1, 0, {})


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b'{"code":10',
        b"[]",
        b"7",
        b"null",
        b'{"code":1.5}',
        b'{"code":true, "opaque":{}}',
        b'{"code":"x"}',
        b'{"code":4294967296}',
        b'{"opaque":99999999999999999999999}',
        b'{"code":"' + b"9" * 5000 + b'"}',
        b'{"extFields":[]}',
        b'{"extFields":"x"}',
        b'{"extFields":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"remark":7}',
        b'{"language":{}}',
        b'{"code":1}\xff',
        b'{"remark":"\xc3\x28"}',
        b"[" * 100_000,
    ],
)
def test_json_header_unreadable_raises(header: bytes) -> None:
    with pytest.raises(CommandError):
        decode_command(_payload(header))


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\xff{}", b"\x02\x00\x00\x00"]
)
def test_payload_without_a_whole_header_raises(payload: bytes) -> None:
    with pytest.raises(CommandError):
        decode_command(payload)


@pytest.mark.parametrize("end", range(len(BINARY_FRAME) - 8))
def test_binary_header_cut_anywhere_raises(end: int) -> None:
    with pytest.raises(CommandError):
        decode_command(_payload(BINARY_FRAME[8 : 8 + end], b"body", 1))


@pytest.mark.parametrize("length", [-1, 13, 0x7FFFFFFF])
@pytest.mark.parametrize("position", [13, 17, 28])
def test_binary_header_with_a_wrong_length_raises(position: int, length: int) -> None:
    header = bytearray(BINARY_FRAME[8:])
    header[position : position + 4] = struct.pack(">i", length)
    with pytest.raises(CommandError, match="length"):
        decode_command(_payload(bytes(header), b"body", 1))


def test_binary_header_with_text_that_is_not_utf8_raises() -> None:
    with pytest.raises(CommandError, match="UTF-8"):
        decode_command(BINARY_FRAME[4:-1] + b"\xff")


def test_binary_header_with_an_unknown_language_is_other() -> None:
    header = bytearray(BINARY_FRAME[8:])
    header[2] = 99
    assert decode_command(_payload(bytes(header), b"", 1)).language == "OTHER"


@pytest.mark.parametrize("serialize_type", [JSON_HEADER, BINARY_HEADER])
def test_answer_has_the_opaque_and_the_serialize_type_of_its_request(serialize_type: int) -> None:
    request = RemotingCommand(10, 42, serialize_type=serialize_type)
    answer = decode_command(encode_command(success_response(request, {"queueId": "3"}, b"B"))[4:])
    assert (answer.opaque, answer.flag, answer.serialize_type) == (42, 1, serialize_type)
    assert (answer.code, answer.ext_fields, answer.body, answer.remark) == (0, {"queueId": "3"}, b"B", None)
    refusal = decode_command(encode_command(error_response(request, 17, "no topic"))[4:])
    assert (refusal.code, refusal.remark, refusal.is_response, refusal.is_oneway) == (
        17,
        "no topic",
        True,
        False,
    )


def test_json_answer_holds_strings_only_in_its_ext_fields() -> None:
    frame = encode_command(success_response(RemotingCommand(10, 1), {"queueId": "3"}))
    header = orjson.loads(frame[8:])
    assert header["extFields"] == {"queueId": "3"}
    assert header["code"] <= 32767
    assert header["language"] == "PYTHON"
    assert header["serializeTypeCurrentRPC"] == "JSON"
    assert "remark" not in header


def test_text_that_is_no_unicode_is_replaced_not_refused() -> None:
    command = error_response(RemotingCommand(10), 1, "file \udcff")
    command.ext_fields = {"name": "a\udcff"}
    answer = decode_command(encode_command(command)[4:])
    assert (answer.remark, answer.ext_fields) == ("file ?", {"name": "a?"})
    command.language = "\udcff"
    assert decode_command(encode_command(command)[4:]).language == "?"
    command.serialize_type = BINARY_HEADER
    assert decode_command(encode_command(command)[4:]).remark == "file ?"


def test_command_too_large_for_a_frame_is_refused() -> None:
    with pytest.raises(CommandError, match="too large"):
        encode_head(RemotingCommand(1, body=bytes(16 * 1024 * 1024)))
    with pytest.raises(CommandError, match="too large"):
        encode_head(RemotingCommand(1, remark="r" * (16 * 1024 * 1024)))


def test_command_without_a_place_in_the_binary_header_is_refused() -> None:
    with pytest.raises(CommandError, match="65001"):
        encode_command(RemotingCommand(65001, serialize_type=BINARY_HEADER))
    with pytest.raises(CommandError, match="32768"):
        encode_command(RemotingCommand(1, ext_fields={"k" * 32768: ""}, serialize_type=BINARY_HEADER))
    assert decode_command(encode_command(RemotingCommand(65001))[4:]).code == 65001


def test_repr_names_the_code_and_hides_the_body() -> None:
    text = repr(RemotingCommand(34, body=b"secret"))
    assert "code=34" in text
    assert "body_bytes=6" in text
    assert "secret" not in text


@pytest.mark.parametrize("blank", ["", " "])
def test_a_header_of_too_many_fields_is_refused_before_it_is_read(blank: str) -> None:
    fields = ",".join(f'"{at:x}"{blank}:""' for at in range(2 * FIELDS_MAX + 100))
    header = f'{{"code":1,"language":"JAVA","extFields":{{{fields}}}}}'.encode()
    with pytest.raises(CommandError, match="fields are possible"):
        decode_command(len(header).to_bytes(4, "big") + header)


def test_a_binary_header_of_too_many_fields_is_refused() -> None:
    few = RemotingCommand(1, ext_fields={f"{at:x}": "" for at in range(FIELDS_MAX)})
    few.serialize_type = BINARY_HEADER
    assert len(decode_command(encode_command(few)[4:]).ext_fields) == FIELDS_MAX
    few.ext_fields["one more"] = ""
    with pytest.raises(CommandError, match="more than"):
        decode_command(encode_command(few)[4:])


def test_a_long_text_in_a_header_may_have_any_signs() -> None:
    text = '{"a":"b\\\\"}' * 20_000
    command = RemotingCommand(1, ext_fields={"text": text})
    assert decode_command(encode_command(command)[4:]).ext_fields == {"text": text}
