"""The bodies of a registration, plain and compressed, of each broker version, and unreadable ones."""

import struct
import zlib

import orjson
import pytest

from namesrv.registration import (
    RegistrationError,
    parse_body,
    parse_compressed_body,
    parse_data_version,
)
from namesrv.route_info import DataVersion
from remoting.route import QueueData
from tests.unit.namesrv.registrations import TOPIC_CONFIG, body, compressed_body

_VERSION = DataVersion(1, 1_700_000_000_000, 1)


def test_plain_body_is_read() -> None:
    config = {**TOPIC_CONFIG, "perm": 7, "topicSysFlag": 2, "writeQueueNums": 8}
    assert parse_body(body({"T": config}), "b", 409) == (_VERSION, {"T": QueueData("b", 4, 8, 7, 2)})


def test_plain_body_of_a_broker_before_3_0_11_is_the_wrapper_alone() -> None:
    wrapper = orjson.dumps(orjson.loads(body({"T": TOPIC_CONFIG}))["topicConfigSerializeWrapper"])
    assert parse_body(wrapper, "b", 36) == (_VERSION, {"T": QueueData("b", 4, 4, 6)})
    assert parse_body(wrapper, "b", 37) == (DataVersion(), {})


def test_body_without_content_is_a_broker_without_topics() -> None:
    assert parse_body(b"", "b", 409) == (DataVersion(), {})
    assert parse_body(b'{"topicConfigSerializeWrapper":null}', "b", 409) == (DataVersion(), {})


def test_compressed_body_is_read_with_and_without_attributes() -> None:
    data = compressed_body(["T 4 8 6 SINGLE_TAG", 'U 1 1 2 MULTI_TAG {"a":"b c"}', "V 2 2 4"])
    assert parse_compressed_body(data, "b", 10_000) == (
        _VERSION,
        {"T": QueueData("b", 4, 8, 6), "U": QueueData("b", 1, 1, 2), "V": QueueData("b", 2, 2, 4)},
    )


def test_data_version_survives_the_round_trip() -> None:
    version = DataVersion(3, 5, 7)
    assert parse_data_version(version.to_json()) == version
    assert orjson.loads(version.to_json()) == {"counter": 7, "stateVersion": 3, "timestamp": 5}


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"topicConfigSerializeWrapper":[1]}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":7}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"x"}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":1}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":{}}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":1e999}}}}',
    ],
)
def test_plain_body_unreadable_raises(data: bytes) -> None:
    with pytest.raises(RegistrationError):
        parse_body(data, "b", 409)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not zlib",
        compressed_body(["T 4 4 6 SINGLE_TAG"])[:-5],
        compressed_body(["T 4 4"]),
        compressed_body(["T four 4 6 SINGLE_TAG"]),
        compressed_body([], count=3),
        compressed_body(["T 4 4 6 SINGLE_TAG"], count=0x7FFFFFFF),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 0x7FFFFFFF) + b"{}"),
        zlib.compress(struct.pack(">i", 2) + b"[]"),
        zlib.compress(b"\x00"),
    ],
)
def test_compressed_body_unreadable_raises(data: bytes) -> None:
    with pytest.raises(RegistrationError):
        parse_compressed_body(data, "b", 10_000)


def test_compressed_body_may_not_grow_beyond_the_bound() -> None:
    bomb = zlib.compress(bytes(100_000_000), 9)
    with pytest.raises(RegistrationError, match="more than 10000 bytes"):
        parse_compressed_body(bomb, "b", 10_000)
