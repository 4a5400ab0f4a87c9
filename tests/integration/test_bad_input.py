"""What is wrong gets the error answer of the protocol or a closed connection, and harms nobody else."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.codes import RequestCode, ResponseCode
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, WireError, broker_of

pytestmark = pytest.mark.integration
MIB = 1 << 20
LOG_SETTLE_S = 5.0


def send_ext(topic: str, **changes: str | None) -> dict[str, str]:
    """The header of an ordinary send in its one-letter form, with fields changed or (None) left out."""
    now_ms = str(time.time_ns() // 1_000_000)
    ext: dict[str, str | None] = {"a": "BadInput", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    ext |= {"g": now_ms, "h": "0", "i": "", "j": "0", "k": "false", "l": "16", "m": "false"}
    ext |= changes
    return {name: value for name, value in ext.items() if value is not None}


def frame(header: bytes, body: bytes = b"", header_length: int | None = None) -> bytes:
    """A JSON frame; `header_length` may lie."""
    length = len(header) if header_length is None else header_length
    return struct.pack(">II", 4 + len(header) + len(body), length) + header + body


@pytest.fixture(scope="module")
def broker(namesrv: str) -> str:
    return broker_of(namesrv)


@pytest.fixture
def topic(broker: str, name: str) -> Iterator[str]:
    """A topic for messages; another client's connection is served before the test and after it.

    The same connection both times: a broker that dies of bad input closes it, also when it is started again.
    """
    topic = f"BadInput{name}"
    with Wire(broker) as other_client:
        assert_stores_messages(other_client, topic)
        yield topic
        assert_stores_messages(other_client, topic)


def assert_takes_messages(broker: str, topic: str) -> None:
    with Wire(broker) as wire:
        assert_stores_messages(wire, topic)


def assert_stores_messages(wire: Wire, topic: str) -> None:
    answer = wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"an ordinary message")
    assert answer.code == ResponseCode.SUCCESS, answer


BROKEN_FRAMES = {
    "over-long frame": struct.pack(">II", 17 * MIB, 100) + b"x" * 100,
    "negative length": struct.pack(">iI", -1, 100) + b"x" * 100,
    "header longer than the frame": frame(b'{"code":310}', header_length=5000),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "noise": bytes(range(255, 0, -1)) * 64,
}


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("data", BROKEN_FRAMES.values(), ids=BROKEN_FRAMES.keys())
def test_broken_frame_closes_the_connection(broker: str, data: bytes) -> None:
    """After a wrong length nobody knows where the next frame begins."""
    with Wire(broker) as wire:
        wire.send_bytes(data)
        assert wire.is_closed_by_peer()


BROKEN_HEADERS = {
    "truncated JSON": b'{"code":310,"opaque":1,"extFields":{"a":"b',
    "not an object": b"[310]",
    "not JSON": b"\x00\xff\xfe\x01",
    "not UTF-8": b'{"code":310,"opaque":1,"remark":"\xff\xff"}',
    "text for the code": b'{"code":"send","opaque":1}',
    "deeply nested": b'{"code":310,"opaque":1,"extFields":' + b"[" * 20_000,
}


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("header", BROKEN_HEADERS.values(), ids=BROKEN_HEADERS.keys())
def test_broken_header_is_refused_or_closes_the_connection(broker: str, header: bytes) -> None:
    with Wire(broker) as wire:
        wire.send_bytes(frame(header))
        try:
            answer = wire.read_command()
        except WireError:
            return
        assert answer.is_response
        assert answer.code != ResponseCode.SUCCESS


@pytest.mark.usefixtures("topic")
def test_unknown_code_is_answered_and_the_connection_goes_on(broker: str, topic: str) -> None:
    with Wire(broker) as wire:
        for code in (29_999, 0, -7):
            assert wire.invoke(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"on the same connection").code == 0


REFUSED_SENDS: dict[str, tuple[dict[str, str | None], set[int]]] = {
    "no topic": ({"b": None}, {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}),
    "queue id is no number": ({"e": "three"}, {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}),
    "queue id out of range": ({"e": "4096"}, {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}),
    "illegal topic": ({"b": "no good!"}, {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}),
    "topic too long": ({"b": "x" * 300}, {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}),
    "absent topic without a template": (
        {"b": "AbsentTopic", "c": "NoSuchTemplate"},
        {ResponseCode.TOPIC_NOT_EXIST},
    ),
    "properties too long": ({"i": "k\x01" + "v" * 40_000 + "\x02"}, {ResponseCode.MESSAGE_ILLEGAL}),
}


@pytest.mark.parametrize(("changes", "codes"), REFUSED_SENDS.values(), ids=REFUSED_SENDS.keys())
def test_send_with_a_wrong_field_is_refused(
    broker: str, topic: str, changes: dict[str, str | None], codes: set[int]
) -> None:
    with Wire(broker) as wire:
        answer = wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **changes), b"refused")
        assert answer.code in codes, answer
        assert answer.remark
        assert wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"on the same connection").code == 0


def test_message_of_five_mebibytes_is_refused(broker: str, topic: str) -> None:
    with Wire(broker) as wire:
        answer = wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"x" * (5 * MIB))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
        assert wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"on the same connection").code == 0


def test_half_a_frame_keeps_nobody_waiting(broker: str, topic: str) -> None:
    with Wire(broker) as stalled:
        stalled.send_bytes(struct.pack(">II", MIB, 100) + b"only a part")
        assert_takes_messages(broker, topic)


def test_wrong_requests_are_logged_once_a_connection(cluster: Cluster) -> None:
    """However often a connection repeats its mistake, the log tells of it once."""
    with Wire(cluster.address(cluster.wait_leader())) as wire:
        for _ in range(20):
            wire.invoke(29_998)
        wait_for("the log tells of it", lambda: cluster.log_text().count(wire.local_address), LOG_SETTLE_S)
        wire.send_bytes(struct.pack(">II", 17 * MIB, 0))
        assert wire.is_closed_by_peer()
    lines = [line for line in cluster.log_text().splitlines() if wire.local_address in line]
    assert len([line for line in lines if "29998" in line]) == 1, lines
    assert len([line for line in lines if "29998" not in line]) <= 1, lines


def test_unknown_topic_is_refused_where_topics_are_not_made_by_sends(tmp_path: Path) -> None:
    """A cluster of one node with autoCreateTopicEnable=false."""
    cluster = Cluster(tmp_path, nodes=1)
    try:
        cluster.start({"autoCreateTopicEnable": "false"})
        with Wire(cluster.address("n0")) as wire:
            answer = wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext("NeverMade"), b"refused")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST, answer
        assert "NeverMade" in (answer.remark or "")
    finally:
        cluster.stop()
