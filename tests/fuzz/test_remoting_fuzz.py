"""Bytes from anywhere: decoded, or FrameError or CommandError, never anything else, never more memory than
the bound.
"""

import random
import struct
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from namesrv.registration_body import RegistrationError, read_body, read_compressed_body
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
from remoting.headers.consume import PullMessageRequestHeader
from remoting.headers.fields import RequestHeader
from remoting.headers.namesrv import RegisterBrokerRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import RouteError, parse_cluster_info, parse_topic_route
from remoting.slices import finish
from tests.support.long_runs import examples
from tests.unit.remoting.frames import BINARY_FRAME, JSON_FRAME

FRAME_BYTES_MAX = 4096
_NAME_SERVER_BODY = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}],'
    b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":4}],'
    b'"topicConfigSerializeWrapper":{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"perm":6}}}}'
)
_int32 = st.integers(-(2**31), 2**31 - 1)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields"])
_random_seeds = pytest.mark.parametrize("seed", range(20))


def _decode_all(data: bytes, cuts: list[int]) -> list[RemotingCommand] | None:
    """Feed the bytes in the given pieces; None when the decoders refuse them."""
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    commands: list[RemotingCommand] = []
    start = 0
    try:
        for end in [*sorted(cuts), len(data)]:
            commands += map(decode_command, decoder.feed(data[start:end]))
            start = max(start, end)
    except (FrameError, CommandError):
        return None
    return commands


def _check(command: RemotingCommand) -> None:
    """What holds of every decoded command, wherever it came from."""
    assert all(type(k) is str and type(v) is str for k, v in command.ext_fields.items())
    assert type(command.language) is str
    assert command.remark is None or type(command.remark) is str
    for number in (command.code, command.opaque, command.flag, command.version):
        assert -(2**31) <= number < 2**31
    for header in (SendMessageRequestHeader, PullMessageRequestHeader, RegisterBrokerRequestHeader):
        _parse(header, command.ext_fields)


def _parse(header: type[RequestHeader], ext: dict[str, str]) -> None:
    try:
        header.parse(ext)
    except HeaderError as error:
        assert len(str(error)) < 200  # noqa: PT017  what the peer sent must not fill the log


def _mutate(frame: bytes, chance: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                data[place] ^= 1 << chance.randrange(8)
            case 2:
                del data[place : place + chance.randint(1, 8)]
            case _:
                data[place:place] = chance.randbytes(chance.randint(1, 8))
        data = data or bytearray(1)
    return bytes(data)


@_random_seeds
def test_random_bytes_are_decoded_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        data = chance.randbytes(chance.randint(0, 200))
        for command in _decode_all(data, []) or []:
            _check(command)


@_random_seeds
@pytest.mark.parametrize("frame", [JSON_FRAME, BINARY_FRAME], ids=["json", "binary"])
def test_damaged_frames_are_decoded_or_refused(frame: bytes, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        for command in _decode_all(_mutate(frame * 3, chance), []) or []:
            _check(command)


@_random_seeds
@pytest.mark.parametrize("serialize_type", [JSON_HEADER, BINARY_HEADER])
def test_damaged_headers_in_whole_frames_are_decoded_or_refused(serialize_type: int, seed: int) -> None:
    """The frame's lengths are right, so that every damage reaches the header codecs."""
    chance = random.Random(seed)
    sample = JSON_FRAME[8:] if serialize_type == JSON_HEADER else BINARY_FRAME[8:]
    for _ in range(500):
        header = _mutate(sample, chance)
        payload = struct.pack(">I", serialize_type << 24 | len(header)) + header + b"body"
        try:
            command = decode_command(payload)
        except CommandError:
            continue
        assert command.body == b"body"
        _check(command)


@settings(max_examples=examples(300), deadline=None)
@given(fields=st.dictionaries(_names | _text, _json, max_size=8))
def test_any_json_object_is_a_header_or_refused(fields: dict[str, Any]) -> None:
    header = orjson.dumps(fields)
    try:
        command = decode_command(struct.pack(">I", len(header)) + header)
    except CommandError:
        return
    _check(command)
    assert decode_command(encode_command(command)[4:]).ext_fields == command.ext_fields


@settings(max_examples=examples(300), deadline=None)
@given(
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=_int32,
    flag=_int32,
    version=st.integers(-(2**15), 2**15 - 1),
    remark=st.none() | _text.filter(bool),
    ext=st.dictionaries(_text, _text, max_size=6),
    body=st.binary(max_size=100),
    serialize_type=st.sampled_from([JSON_HEADER, BINARY_HEADER]),
)
def test_any_command_survives_the_round_trip(
    code: int,
    opaque: int,
    flag: int,
    version: int,
    remark: str | None,
    ext: dict[str, str],
    body: bytes,
    serialize_type: int,
) -> None:
    command = RemotingCommand(code, opaque, flag, remark, ext, body, "GO", version, serialize_type)
    decoded = decode_command(encode_command(command)[4:])
    for name in RemotingCommand.__slots__:
        assert getattr(decoded, name) == getattr(command, name), name


@settings(max_examples=examples(300), deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=300), max_size=6),
    tail=st.binary(max_size=20),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
)
def test_stream_means_the_same_however_it_is_cut(bodies: list[bytes], tail: bytes, cuts: list[int]) -> None:
    frames = [encode_command(RemotingCommand(310, n, body=body)) for n, body in enumerate(bodies)]
    data = b"".join(frames) + tail
    whole, pieces = _decode_all(data, []), _decode_all(data, [cut for cut in cuts if cut < len(data)])
    assert (whole is None) == (pieces is None)
    if whole is not None and pieces is not None:
        assert [command.body for command in whole] == [command.body for command in pieces]
        assert [command.body for command in whole[: len(bodies)]] == bodies


@_random_seeds
def test_memory_stays_within_the_bound_whatever_the_lengths_say(seed: int) -> None:
    """A stream of valid and lying lengths, fed in small pieces to a decoder that may hold 4 KiB."""
    chance = random.Random(seed)
    lengths = [chance.choice([4, 100, 4096, 4097, 2**24, 2**31, 2**32 - 1]) for _ in range(200)]
    tracemalloc.start()
    try:
        for length in lengths:
            decoder = FrameDecoder(FRAME_BYTES_MAX)
            header_word = chance.choice([0, 2**24 - 1, chance.randrange(2**32)])
            try:
                decoder.feed(struct.pack(">II", length, header_word))
                for _ in range(100):
                    decoder.feed(bytes(chance.randint(1, 50)))
            except FrameError:
                continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * FRAME_BYTES_MAX


@settings(max_examples=examples(300), deadline=None)
@given(data=st.binary(max_size=60) | st.text('{}[]:,"0123456789.-truefalsn \\', max_size=60).map(str.encode))
def test_any_text_is_fastjson_or_refused(data: bytes) -> None:
    try:
        loads(data)
    except FastjsonError:
        return


@_random_seeds
def test_damaged_bodies_for_the_name_server_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        data = _mutate(_NAME_SERVER_BODY, chance)
        for read in (parse_topic_route, parse_cluster_info):
            try:
                read(data)
            except RouteError:
                continue
        try:
            finish(read_body(data, "b", 409))
            finish(read_compressed_body(data, "b", 1000))
        except RegistrationError:
            continue
