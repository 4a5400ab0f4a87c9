"""Remoting frames, commands in both header codecs, and every typed header."""

import struct
from contextlib import suppress

from remoting.command import (
    BINARY_HEADER,
    JSON_HEADER,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
)
from remoting.errors import CommandError, FrameError, HeaderError
from remoting.fastjson import FastjsonError, loads
from remoting.headers.fields import RequestHeader
from remoting.route import (
    RouteError,
    format_cluster_info,
    format_topic_route,
    parse_cluster_info,
    parse_topic_route,
)
from tests.fuzz.header_classes import header_classes, sample_of
from tests.fuzz.target import Target, check_words

FRAME_BYTES_MAX = 4096
_HEADER_CLASSES = header_classes()
_SEND = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
_COMMANDS = (
    RemotingCommand(310, 1, ext_fields={**_SEND, "i": "KEYS\x01k\x02", "j": "0", "m": "false"}, body=b"body"),
    RemotingCommand(34, 2, flag=2, remark="words", language="GO", version=317, body=b"{}"),
    RemotingCommand(11, -1, flag=1, ext_fields={"topic": "T\u00fc", "queueId": "0"}, language="JAVA"),
)


def _encoded(serialize_type: int) -> list[bytes]:
    frames = []
    for command in _COMMANDS:
        command.serialize_type = serialize_type
        frames.append(encode_command(command))
    return frames


_JSON_FRAMES = _encoded(JSON_HEADER)
_BINARY_FRAMES = _encoded(BINARY_HEADER)


def _header_of(frame: bytes) -> bytes:
    return frame[8 : 8 + int.from_bytes(frame[5:8], "big")]


def check_stream(data: bytes) -> None:
    """The first byte says how the rest is cut: however it is, it means the same."""
    if not data:
        return
    step = data[0] + 1
    stream = data[1:]
    cuts = [stream[start : start + step] for start in range(0, len(stream), step)]
    assert _payloads([stream]) == _payloads(cuts)


def _payloads(pieces: list[bytes]) -> list[bytes] | None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    payloads: list[bytes] = []
    try:
        for piece in pieces:
            payloads += decoder.feed(piece)
    except FrameError:
        return None
    return payloads


def check_command(payload: bytes) -> None:
    try:
        command = decode_command(payload)
    except CommandError as error:
        check_words(error)
        return
    assert all(type(k) is str and type(v) is str for k, v in command.ext_fields.items())
    assert type(command.language) is str
    assert command.remark is None or type(command.remark) is str
    for number in (command.code, command.opaque, command.flag, command.version):
        assert -(2**31) <= number < 2**31
    again = decode_command(encode_command(command)[4:])
    assert again.ext_fields == command.ext_fields
    assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
    assert again.body == command.body
    check_ext_fields(command.ext_fields)


def check_ext_fields(ext: dict[str, str]) -> None:
    """Every typed header of the product, from these fields."""
    for header_class in _HEADER_CLASSES:
        check_header(header_class, ext)


def check_header(header_class: type[RequestHeader], ext: dict[str, str]) -> None:
    try:
        header = header_class.parse(ext)
    except HeaderError as error:
        check_words(error)
        return
    assert header_class.parse(header.ext_fields()) == header


def _check_headers(data: bytes) -> None:
    """Fields as text: `name\\x01value\\x02`. A class is chosen by the first byte."""
    if not data:
        return
    pairs = (piece.partition("\x01")[::2] for piece in data[1:].decode(errors="replace").split("\x02"))
    check_header(_HEADER_CLASSES[data[0] % len(_HEADER_CLASSES)], dict(pairs))


def _header_samples() -> tuple[bytes, ...]:
    samples = []
    for number, header_class in enumerate(_HEADER_CLASSES):
        fields = sample_of(header_class).ext_fields()
        text = "".join(f"{name}\x01{value}\x02" for name, value in fields.items())
        samples.append(bytes([number]) + text.encode())
    send = "".join(f"{name}\x01{value}\x02" for name, value in _SEND.items())
    names = [header_class.__name__ for header_class in _HEADER_CLASSES]
    return (*samples, bytes([names.index("SendMessageRequestHeader")]) + send.encode())


def _check_fastjson(data: bytes) -> None:
    with suppress(FastjsonError):
        loads(data)


def _check_topic_route(data: bytes) -> None:
    with suppress(RouteError):
        route = parse_topic_route(data)
        assert parse_topic_route(format_topic_route(route)) == route


def _check_cluster_info(data: bytes) -> None:
    with suppress(RouteError):
        info = parse_cluster_info(data)
        assert parse_cluster_info(format_cluster_info(info)) == info


_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"h:1","1":"h:2"},"brokerName":"b","cluster":"c"}],'
    b'"orderTopicConf":"b:4","queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,'
    b'"topicSynFlag":0,"writeQueueNums":4}]}'
)
_CLUSTER = (
    b'{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"h:1"},"brokerName":"b","cluster":"c"}},'
    b'"clusterAddrTable":{"c":["b"]}}'
)
_DIALECT = b'{0:"h:1",{"brokerName":"b","queueId":0,"topic":"T"}:[1.5e3,-2,true,false,null,{}],"\\u00fc":""}'

TARGETS = (
    Target(
        "remoting_stream",
        check_stream,
        tuple(bytes([step]) + b"".join(_JSON_FRAMES + _BINARY_FRAMES) for step in (0, 7, 255)),
    ),
    Target("remoting_json_command", check_command, tuple(frame[4:] for frame in _JSON_FRAMES)),
    Target("remoting_binary_command", check_command, tuple(frame[4:] for frame in _BINARY_FRAMES)),
    Target(
        "remoting_json_header",
        lambda data: check_command(struct.pack(">I", min(len(data), 0xFFFFFF)) + data + b"body"),
        tuple(_header_of(frame) for frame in _JSON_FRAMES),
    ),
    Target("remoting_typed_headers", _check_headers, _header_samples()),
    Target("fastjson", _check_fastjson, (_DIALECT, _ROUTE)),
    Target("topic_route", _check_topic_route, (_ROUTE,)),
    Target("cluster_info", _check_cluster_info, (_CLUSTER,)),
)
