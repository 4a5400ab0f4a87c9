"""Compiled records and entries against those that Python lays out."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.entry import encode_entries, write_physical_offset
from commitlog.record import Message, MessageIllegalError, PackedBodies, encode_ordinary, encode_record
from native import _log

BODY_MAX = 200
RECORD_MAX = 600
STORED_MS = 1_700_000_000_123

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8)
ordinary = st.builds(
    Message,
    topic=st.sampled_from(["A", "topic", "标签", "B" * 127, ""]),
    queue_id=st.integers(0, 3),
    body=st.binary(max_size=BODY_MAX),
    properties=st.binary(max_size=80),
    flag=int32,
    sys_flag=int32.map(lambda value: value & ~0x34),
    born_timestamp_ms=int64,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)
wild = st.one_of(
    st.none(), st.text(max_size=3), st.binary(max_size=40), st.integers(-(2**70), 2**70), st.booleans()
)


def in_python(
    messages: list[Message], known: dict[tuple[str, int], int]
) -> tuple[list[bytes], list[int], dict[tuple[str, int], int]]:
    taken: dict[tuple[str, int], int] = {}
    offsets = []
    for message in messages:
        key = (message.topic, message.queue_id)
        offsets.append(taken.get(key, known[key]))
        taken[key] = offsets[-1] + 1
    records = [
        encode_record(message, offset, STORED_MS) for message, offset in zip(messages, offsets, strict=True)
    ]
    return records, offsets, taken


@given(st.lists(ordinary, max_size=12), st.integers(0, 1000), st.integers(0, 9), st.integers(0, 2**50))
def test_ordinary_messages_give_the_same_bytes(
    messages: list[Message], first_index: int, term: int, position: int
) -> None:
    known = {(message.topic, message.queue_id): len(message.topic) * 7 for message in messages}
    found = encode_ordinary(messages, known, STORED_MS, BODY_MAX, RECORD_MAX)
    assert found is not None
    bodies, offsets, taken = found
    records, *expected = in_python(messages, known)
    assert [offsets, taken] == expected
    assert list(bodies) == records
    assert bodies.entry_bytes == sum(map(len, records)) + 48 * len(records)
    layout = encode_entries(records, first_index, term, position, write_physical_offset)
    assert bodies.lay_out(first_index, term, position) == layout


@given(ordinary, st.sampled_from([field.name for field in dataclasses.fields(Message)]), wild)
def test_a_field_of_any_kind_is_handed_back_or_written_as_python_does(
    message: Message, name: str, value: object
) -> None:
    setattr(message, name, value)
    known = {(message.topic, message.queue_id): 5}
    found = encode_ordinary([message], known, STORED_MS, BODY_MAX, RECORD_MAX)
    if found is not None:
        assert list(found[0]) == in_python([message], known)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"queue_id": 2**31},
        {"flag": -(2**31) - 1},
        {"sys_flag": 0x10},
        {"sys_flag": 0x4},
        {"topic": "x" * 128},
        {"topic": "\ud800"},
        {"topic": "unknown"},
        {"body": bytes(BODY_MAX + 1)},
        {"properties": bytes(32_768)},
        {"born_host": bytes(7)},
        {"store_host": bytes(20)},
        {"born_timestamp_ms": 2**63},
        {"properties": bytes(RECORD_MAX)},
    ],
)
def test_what_is_not_ordinary_is_handed_back(change: dict[str, object]) -> None:
    message = dataclasses.replace(Message("A", 0, b"body"), **change)  # type: ignore[arg-type]
    good = Message("A", 0, b"body")
    known = {("A", queue_id): 0 for queue_id in (0, 2**31)} | {("x" * 128, 0): 0}
    assert encode_ordinary([good, message], known, 0, BODY_MAX, RECORD_MAX) is None
    assert encode_ordinary([good], known, 0, BODY_MAX, RECORD_MAX) is not None


def test_a_missing_field_and_a_foreign_class_are_handed_back() -> None:
    message = Message("A", 0, b"")
    del message.body

    @dataclasses.dataclass(slots=True)
    class Other(Message):
        more: int = 0

    for wrong in (message, Other("A", 0, b""), "text", None):
        assert encode_ordinary([wrong], {("A", 0): 0}, 0, BODY_MAX, RECORD_MAX) is None  # type: ignore[list-item]


@pytest.mark.parametrize("next_offset", [-1, 2**63, "5", None])
def test_an_offset_that_is_none_is_handed_back(next_offset: object) -> None:
    known = {("A", 0): next_offset}
    assert encode_ordinary([Message("A", 0, b"")], known, 0, BODY_MAX, RECORD_MAX) is None  # type: ignore[arg-type]


def test_bodies_are_a_sequence() -> None:
    messages = [Message("A", 0, body) for body in (b"x", b"y", b"z")]
    found = encode_ordinary(messages, {("A", 0): 0}, STORED_MS, BODY_MAX, RECORD_MAX)
    assert found is not None
    records = in_python(messages, {("A", 0): 0})[0]
    assert (len(found[0]), list(found[0])) == (3, records)
    assert (found[0][1], found[0][-1], found[0][:2]) == (records[1], records[2], records[:2])


def test_bodies_are_laid_out_once() -> None:
    found = encode_ordinary([Message("A", 0, b"x")], {("A", 0): 0}, 0, BODY_MAX, RECORD_MAX)
    assert found is not None
    bodies: PackedBodies = found[0]
    with pytest.raises(ValueError, match="out of range"):
        bodies.lay_out(-1, 0, 0)
    bodies.lay_out(0, 0, 0)
    with pytest.raises(ValueError, match="already"):
        bodies.lay_out(0, 0, 0)
    with pytest.raises(ValueError, match="already"):
        bodies.unpack()


def test_a_class_without_slots_has_no_layout() -> None:
    class Loose:
        topic = "A"

    with pytest.raises(TypeError, match="topic is not a slot"):
        _log.message_layout(Loose)
    with pytest.raises(AttributeError):
        _log.message_layout(int)
    with pytest.raises(TypeError):
        _log.message_layout("text")  # type: ignore[arg-type]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        _log.encode_records(5, [], {}, 0, 0, 0)
    with pytest.raises(ValueError, match="PyCapsule"):
        _log.lay_out(_log.message_layout(Message), 0, 0, 0)
    with pytest.raises(MessageIllegalError):
        encode_record(Message("A", 2**31, b""), 0, 0)
