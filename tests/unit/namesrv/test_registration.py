"""The bodies of a registration, plain and compressed, of each broker version, and unreadable ones."""

import struct
import zlib

import orjson
import pytest

from namesrv.registration import (
    ROW_BYTES_MAX,
    TOPICS_MAX,
    RegistrationError,
    parse_data_version,
    read_body,
    read_compressed_body,
)
from namesrv.route_info import COUNTER_MAX, STATE_VERSION_MAX, DataVersion
from remoting.route import QueueData
from remoting.slices import finish
from tests.unit.namesrv.registrations import TOPIC_CONFIG, body, compressed_body

MIB = 1 << 20
_VERSION = DataVersion(1, 1_700_000_000_000, 1)


def test_plain_body_is_read() -> None:
    config = {**TOPIC_CONFIG, "perm": 7, "topicSysFlag": 2, "writeQueueNums": 8}
    assert finish(read_body(body({"T": config}), "b", 409)) == (_VERSION, {"T": QueueData("b", 4, 8, 7, 2)})


def test_plain_body_of_a_broker_before_3_0_11_is_the_wrapper_alone() -> None:
    wrapper = orjson.dumps(orjson.loads(body({"T": TOPIC_CONFIG}))["topicConfigSerializeWrapper"])
    assert finish(read_body(wrapper, "b", 36)) == (_VERSION, {"T": QueueData("b", 4, 4, 6)})
    assert finish(read_body(wrapper, "b", 37)) == (DataVersion(), {})


def test_body_without_content_is_a_broker_without_topics() -> None:
    assert finish(read_body(b"", "b", 409)) == (DataVersion(), {})
    assert finish(read_body(b'{"topicConfigSerializeWrapper":null}', "b", 409)) == (DataVersion(), {})


@pytest.mark.parametrize(
    "table",
    [
        {"T": TOPIC_CONFIG, "%RETRY%g": {"readQueueNums": 1, "perm": "6"}},
        {"T": {"writeQueueNums": None, "topicSysFlag": 2.0}},
        {"a name\t\u00e9": TOPIC_CONFIG},
        {},
    ],
)
def test_a_small_body_is_read_as_the_walk_over_a_large_one_reads_it(
    table: dict[str, dict[str, object]],
) -> None:
    small = body(table)
    assert finish(read_body(small, "b", 409)) == finish(read_body(small + b" " * 9_000, "b", 409))


def test_a_small_body_with_keys_that_are_numbers_is_read() -> None:
    small = body({"T": TOPIC_CONFIG})[:-1] + b',"filterServerList":[],"x":{1:2}}'
    assert finish(read_body(small, "b", 409)) == (_VERSION, {"T": QueueData("b", 4, 4, 6)})


def test_compressed_body_is_read_with_and_without_attributes() -> None:
    data = compressed_body(["T 4 8 6 SINGLE_TAG", 'U 1 1 2 MULTI_TAG {"a":"b c"}', "V 2 2 4"])
    assert finish(read_compressed_body(data, "b", 10_000)) == (
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
        finish(read_body(data, "b", 409))


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
        finish(read_compressed_body(data, "b", 10_000))


def test_compressed_body_may_not_grow_beyond_the_bound() -> None:
    bomb = zlib.compress(bytes(100_000_000), 9)
    with pytest.raises(RegistrationError, match="more than 10000 bytes"):
        finish(read_compressed_body(bomb, "b", 10_000))


def _version(text: str) -> bytes:
    return b'{"topicConfigSerializeWrapper":{"dataVersion":%s}}' % text.encode()


@pytest.mark.parametrize("name", ["stateVersion", "timestamp", "counter"])
def test_data_version_beyond_what_a_broker_can_have_is_refused(name: str) -> None:
    most = STATE_VERSION_MAX if name == "stateVersion" else COUNTER_MAX
    assert finish(read_body(_version(f'{{"{name}":{most}}}'), "b", 409))
    for number in (most + 1, 2**63, -1):
        with pytest.raises(RegistrationError, match=name):
            finish(read_body(_version(f'{{"{name}":{number}}}'), "b", 409))
        with pytest.raises(RegistrationError, match=name):
            parse_data_version(b'{"%s":%d}' % (name.encode(), number))


def _steps_of(body_bytes: bytes, compressed: bool = False) -> int:
    """How many steps a body takes, read or refused."""
    steps = read_compressed_body(body_bytes, "b", 16 * MIB) if compressed else read_body(body_bytes, "b", 409)
    count = 0
    try:
        for _ in steps:
            count += 1
    except RegistrationError:
        pass
    return count


def test_registration_of_many_topics_is_read_in_steps() -> None:
    topics = {f"Topic{number:06d}": TOPIC_CONFIG for number in range(20_000)}
    data = body(topics)
    assert _steps_of(data) >= len(data) // (16 * 1024)
    version, found = finish(read_body(data, "b", 409))
    assert (version, len(found)) == (_VERSION, 20_000)
    texts = [f"Topic{number:06d} 4 4 6 SINGLE_TAG" for number in range(20_000)]
    assert _steps_of(compressed_body(texts), compressed=True) >= 200
    assert finish(read_compressed_body(compressed_body(texts), "b", 16 * MIB))[1] == found


def test_more_topics_than_possible_are_refused_before_they_are_read() -> None:
    data = compressed_body(["T 4 4 6 SINGLE_TAG"], count=TOPICS_MAX + 1)
    with pytest.raises(RegistrationError, match="more than 100000 topics"):
        finish(read_compressed_body(data, "b", 16 * MIB))
    rows = b",".join(b'"%d":{}' % number for number in range(TOPICS_MAX + 1))
    data = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%s}}}' % rows
    with pytest.raises(RegistrationError, match="more than 100000 topics"):
        finish(read_body(data, "b", 409))


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 300_000 + b"[]]",
        b"[" * 300_000,
        b'{"a":' * 100_000,
        b'"' + b"x" * 600_000 + b'"',
        b'"' + b"\\\\" * 300_000 + b'"',
        b" " * 600_000,
        b"[" + b"1," * 300_000 + b"1]",
    ],
)
def test_parts_that_nobody_reads_are_skipped_in_steps_or_refused(value: bytes) -> None:
    """No step looks at more than a bounded part of the body."""
    for place in (b"%s", b'{"other":%s}', b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":%s}}}'):
        data = place % value
        steps = _steps_of(data)
        refused = False
        try:
            finish(read_body(data, "b", 409))
        except RegistrationError:
            refused = True
        assert refused or steps > len(data) // ROW_BYTES_MAX


def test_keys_that_are_numbers_and_parts_of_other_versions_are_skipped() -> None:
    mapping = b'{"x":{"currIdMap":{0:0,1:1},"epoch":1},"y":[{"a":[1,{"b":"}"}]}]}'
    table = b'{"T":{"attributes":{"+message.type":"NORMAL"},"perm":6,"readQueueNums":4,"writeQueueNums":4}}'
    data = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"mappingDataVersion":{"counter":0},'
        b'"topicConfigTable":%s,"topicQueueMappingInfoMap":%s,"dataVersion":{"counter":2}} , "a":-1.5e3}'
    )
    version, topics = finish(read_body(data % (table, mapping), "b", 409))
    assert (version.counter, topics) == (2, {"T": QueueData("b", 4, 4, 6)})


def test_name_with_an_escape_is_read() -> None:
    data = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"%\\u0052ETRY\\"":{}}}}'
    assert list(finish(read_body(data, "b", 409))[1]) == ['%RETRY"']


@pytest.mark.parametrize("data", [b'{,"a":1}', b'{"a":1 "b":2}', b'{"a":1}x', b"{}{}", b'{"a"}', b'{"a":"'])
def test_text_that_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(RegistrationError, match="not JSON"):
        finish(read_body(data, "b", 409))
