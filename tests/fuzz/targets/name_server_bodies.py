"""What brokers tell a name server of themselves, and the file of its key-value table."""

import zlib
from contextlib import suppress

from namesrv.registration_body import (
    RegistrationError,
    parse_data_version,
    read_body,
    read_compressed_body,
)
from remoting.route import BrokerData, TopicRoute, format_topic_route
from remoting.slices import finish
from tests.fuzz.target import Target

VERSION_WITH_FILTERS = 409
BODY_BYTES_MAX = 100_000
_BODY = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":2,'
    b'"timestamp":3},"topicConfigTable":{"T":{"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}}}}'
)
_VERSION = b'{"counter":1,"stateVersion":2,"timestamp":3}'
_TOPIC = b"T 4 4 6 SINGLE_TAG a=b c"
_PLAIN = b"".join((len(_VERSION).to_bytes(4, "big"), _VERSION, b"\0\0\0\1", b"\0\0\0\x18", _TOPIC))


def _check_body(data: bytes) -> None:
    for broker_version in (VERSION_WITH_FILTERS, 0):
        with suppress(RegistrationError):
            version, topics = finish(read_body(data, "b", broker_version))
            version.to_json()
            format_topic_route(TopicRoute(tuple(topics.values()), (BrokerData("c", "b", {0: "h:1"}),)))


def _check_compressed(data: bytes) -> None:
    for body in (data, zlib.compress(data, 1)):
        with suppress(RegistrationError):
            version, topics = finish(read_compressed_body(body, "b", BODY_BYTES_MAX))
            version.to_json()
            format_topic_route(TopicRoute(tuple(topics.values()), ()))


def _check_data_version(data: bytes) -> None:
    with suppress(RegistrationError):
        version = parse_data_version(data)
        assert parse_data_version(version.to_json()) == version


TARGETS = (
    Target("registration", _check_body, (_BODY,)),
    Target("compressed_registration", _check_compressed, (_PLAIN, zlib.compress(_PLAIN))),
    Target("data_version", _check_data_version, (_VERSION,)),
)
