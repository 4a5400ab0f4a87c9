"""Consume-queue units of committed entries, compiled and by way of Python's requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.consume_queue import UNIT
from commitlog.dispatch import SCHEDULE_TOPIC, DispatchBatch, Dispatcher
from commitlog.entry import encode_entries, write_physical_offset
from commitlog.record import Message, encode_record, format_properties
from native import _log

letters = st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])
properties = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "XTAGS", "UNIQ_KEY"]), st.text(letters, max_size=4), max_size=4
).map(format_properties)
raw_properties = st.lists(
    st.sampled_from([b"TAGS\x01", b"TAGS", b"\x01", b"\x02", b"a", b"\xff", b"KEYS\x01k\x02"]), max_size=8
).map(b"".join)
messages = st.builds(
    Message,
    topic=st.sampled_from(["A", "B", "标签"]),
    queue_id=st.integers(0, 2),
    body=st.binary(max_size=20),
    properties=properties | raw_properties,
    sys_flag=st.sampled_from([0, 1, 8]),
)
POSITION = 9000

Run = tuple[str, int, int, bytes]


def lay_out(batch: list[Message]) -> bytes:
    offsets: dict[tuple[str, int], int] = {}
    records = []
    for message in batch:
        key = (message.topic, message.queue_id)
        offset = offsets[key] = offsets.get(key, 10) + 1
        records.append(encode_record(message, offset, 5))
    return encode_entries(records, 40, 2, POSITION, write_physical_offset)[0]


def taught() -> Dispatcher:
    """A dispatcher that knows the topics."""
    dispatcher = Dispatcher()
    known = [Message(topic, 0, b"") for topic in ("A", "B", "标签", SCHEDULE_TOPIC)]
    dispatcher.parse_entries(lay_out(known), 40, 43, POSITION)
    return dispatcher


def runs_in_python(batch: DispatchBatch) -> list[Run]:
    runs: dict[tuple[str, int], tuple[int, bytes]] = {}
    for request in batch:
        first, units = runs.get((request.topic, request.queue_id), (request.queue_offset, b""))
        assert request.queue_offset == first + len(units) // UNIT.size
        units += UNIT.pack(request.position, request.size, request.tags_code)
        runs[request.topic, request.queue_id] = first, units
    return [(*key, *run) for key, run in runs.items()]


@given(st.lists(messages, min_size=1, max_size=12))
def test_runs_hold_what_python_parses(batch: list[Message]) -> None:
    found = taught().parse_entries(lay_out(batch), 40, 39 + len(batch), POSITION)
    assert found.runs is not None
    assert [tuple(run) for run in found.runs] == runs_in_python(found)
    assert len(found) == len(list(found)) == len(batch)
    assert found.last_index == found[-1].index
    assert found.topics == {message.topic for message in batch}


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_damaged_bytes_are_parsed_as_python_does_or_handed_back(
    batch: list[Message], data: st.DataObject
) -> None:
    raw = bytearray(lay_out(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    topics = {name.encode(): name for name in ("A", "B", "标签")}
    runs = _log.parse_units(bytes(raw), len(batch), POSITION, topics)
    if runs is None:
        return
    starts, at = [], 0
    while at < len(raw):
        starts.append(at + 48)
        at += int.from_bytes(raw[at + 4 : at + 8], "big")
    requests = taught().parse(bytes(raw), starts, POSITION, range(40, 40 + len(batch)))
    assert [tuple(run) for run in runs] == runs_in_python(DispatchBatch.of(requests))


@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_are_handed_back(data: bytes, count: int) -> None:
    assert _log.parse_units(data, count, 0, {}) in (None, [])


def test_what_is_not_ordinary_is_handed_back() -> None:
    topics = {b"A": "A"}
    plain = Message("A", 0, b"")
    assert _log.parse_units(lay_out([plain]), 1, POSITION, topics) is not None
    for message in (
        Message("A", 0, b"", sys_flag=4),
        Message("A", 0, b"", sys_flag=0x10, born_host=bytes(20)),
        Message("A" * 128, 0, b""),
        Message("B", 0, b""),
        Message("A", -1, b""),
    ):
        assert _log.parse_units(lay_out([plain, message]), 2, POSITION, topics) is None
    for count, position in ((2, POSITION), (0, POSITION), (1, -1), (-1, POSITION), (1, 2**63)):
        assert _log.parse_units(lay_out([plain]), count, position, topics) is None


def test_offsets_that_do_not_follow_each_other_are_handed_back() -> None:
    records = [encode_record(Message("A", 0, b""), offset, 5) for offset in (3, 5)]
    data = encode_entries(records, 0, 1, POSITION, write_physical_offset)[0]
    assert _log.parse_units(data, 2, POSITION, {b"A": "A"}) is None


def test_scheduled_messages_have_codes_of_their_own() -> None:
    delayed = Message(SCHEDULE_TOPIC, 0, b"", format_properties({"DELAY": "1", "TAGS": "x"}))
    dispatcher = Dispatcher([1000])
    for _ in range(2):
        found = dispatcher.parse_entries(lay_out([delayed]), 40, 40, POSITION)
        assert found.runs is None
        assert found[0].tags_code == 1005
