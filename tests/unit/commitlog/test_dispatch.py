import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.dispatch import SCHEDULE_TOPIC, Dispatcher, DispatchRequest, is_topic_name
from commitlog.record import Message, decode_record, encode_record, format_properties, host_bytes, tags_code
from tests.unit.commitlog.test_record import VECTOR


def parse(dispatcher: Dispatcher, *records: bytes, gap: bytes = b"") -> list[DispatchRequest]:
    starts = []
    data = b""
    for record in records:
        data += gap
        starts.append(len(data))
        data += record
    return dispatcher.parse(data, starts, 5000, range(7, 7 + len(records)))


def test_parse_vector_gives_every_field() -> None:
    for _ in range(2):  # the second time the names are known
        [request] = parse(Dispatcher(), VECTOR, gap=bytes(48))
        assert request == DispatchRequest(7, "T", 1, 5, 5048, 107, 2598919, 1700000000123, 0)


letters = st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])
tags = st.none() | st.text(letters, min_size=1)


@st.composite
def queued_messages(draw: st.DrawFn) -> tuple[Message, str | None]:
    tag = draw(tags)
    properties = {"XTAGS": "no", "KEYS": "k TAGS"} if draw(st.booleans()) else {}
    if tag is not None:
        properties["TAGS"] = tag
    if draw(st.booleans()):
        properties["UNIQ_KEY"] = "u"
    wire = format_properties(properties)
    if draw(st.booleans()):
        wire = wire.removesuffix(b"\x02")
    v6 = draw(st.sampled_from([0, 0x10, 0x20, 0x30]))
    topic = draw(st.sampled_from(["A", "B" * 127, "C" * 130, "标签", "%RETRY%g"]))
    message = Message(topic, draw(st.integers(0, 9)), draw(st.binary(max_size=30)), wire)
    message.sys_flag = v6 | draw(st.sampled_from([0, 1, 4, 8, 12]))
    message.born_host = bytes(20 if v6 & 0x10 else 8)
    message.store_host = bytes(20 if v6 & 0x20 else 8)
    return message, tag


@given(st.lists(queued_messages(), min_size=1, max_size=6), st.booleans())
def test_parse_agrees_with_decode(messages: list[tuple[Message, str | None]], with_headers: bool) -> None:
    records = [encode_record(message, n, 10 + n) for n, (message, _) in enumerate(messages)]
    dispatcher = Dispatcher()
    for _ in range(2):
        found = parse(dispatcher, *records, gap=bytes(48) if with_headers else b"")
        position = 5000
        for n, (request, record, (message, tag)) in enumerate(zip(found, records, messages, strict=True)):
            position += 48 if with_headers else 0
            assert request == DispatchRequest(
                7 + n,
                message.topic,
                message.queue_id,
                n,
                position,
                len(record),
                tags_code(tag) if tag else 0,
                10 + n,
                message.sys_flag,
            )
            position += len(record)


def test_delayed_message_has_its_due_time_as_tags_code() -> None:
    dispatcher = Dispatcher([1000, 5000])
    for delay, code in ((b"1", 1100), (b"2", 5100), (b"9", 5100), (b"0", 2598919), (b"x", 2598919)):
        message = Message(SCHEDULE_TOPIC, 0, b"", b"TAGS\x01TagA\x02DELAY\x01" + delay + b"\x02")
        for _ in range(2):
            [request] = parse(dispatcher, encode_record(message, 0, 100))
            assert request.tags_code == code


@pytest.mark.parametrize("at", [0, 2, 4, 84, 86, 93, 95, 96])
def test_bytes_that_are_no_record_are_logged_and_left_out(at: int, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher()
    parse(dispatcher, VECTOR)
    with caplog.at_level(logging.WARNING):
        found = parse(dispatcher, VECTOR, VECTOR[:at] + b"\xff" + VECTOR[at + 1 :], VECTOR)
    assert [request.index for request in found] == [7, 9]
    [line] = caplog.messages
    assert line.startswith("entry 8, position 5107: not a record")


def test_record_with_a_topic_that_is_a_path_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("..", ".x", "a/b", "a\\b", "", "a\0"):
        assert parse(Dispatcher(), encode_record(Message(topic, 0, b""), 0, 0)) == []
        assert not is_topic_name(topic)
    assert len(caplog.records) == 6
    assert not is_topic_name("ü" * 128)
    assert is_topic_name("%DLQ%a-b_c|1")


def test_names_are_forgotten_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.dispatch.NAMES_KNOWN_MAX", 3)
    dispatcher = Dispatcher()
    for number in range(20):
        message = Message(f"t{number}", 0, b"", f"TAGS\x01x{number}\x02".encode())
        [request] = parse(dispatcher, encode_record(message, 0, 0))
        assert (request.topic, request.tags_code) == (f"t{number}", tags_code(f"x{number}"))


def test_last_of_several_tags_counts() -> None:
    message = Message("T", 0, b"", b"TAGS\x01a\x02TAGS\x01b\x02", store_host=host_bytes("10.0.0.1", 1))
    record = encode_record(message, 0, 0)
    for _ in range(2):
        [request] = parse(Dispatcher(), record)
        assert request.tags_code == tags_code("b")
    changed = dataclasses.replace(message, properties=b"XTAGS\x01a\x02")
    assert parse(Dispatcher(), encode_record(changed, 0, 0))[0].tags_code == 0
    assert decode_record(record).properties == message.properties
