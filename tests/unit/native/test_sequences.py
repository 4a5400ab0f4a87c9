"""The sequence numbers in committed entries, compiled and in Python."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from commitlog import sequences
from commitlog.entry import HEADER_BYTES, encode_entries, entry_starts, write_physical_offset
from commitlog.record import Message, encode_record
from commitlog.sequences import SEQUENCED, SequenceRun, joined, stamp_sequences
from native import _log

FIRST = 40
DIGESTS = [b"%016x" % (number << 59) for number in range(10)]
writers = st.sampled_from([b"q-1|0", b"q-1|12", b"A.b_c|2147483647"])
odd_properties = st.lists(
    st.sampled_from(
        [
            b"LEDGERMQ_SEQ\x01",
            b"w",
            b"|",
            b"0",
            b"01",
            b"7",
            b"\x02",
            b"\xff",
            b"9223372036854775808",
            b"TAGS\x01",
            b"LEDGERMQ_SEQ\x01w|0|0|0\x02LEDGERMQ_SUM\x01",
            b"0123456789abcdef",
            b"0123456789ABCDEF",
        ]
    ),
    max_size=10,
).map(b"".join)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[Message, int]]:
    """Messages with their store times: runs of numbered ones among others."""
    batch: list[tuple[Message, int]] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["run", "run", "plain", "copied", "odd", "v6", "long topic"]))
        topic = draw(st.sampled_from(["T", "标签"]))
        found = [Message(topic, 0, b"b" * n, b"KEYS\x01k\x02") for n in range(draw(st.integers(1, 4)))]
        if kind in ("run", "copied"):
            digests = draw(st.sampled_from([None, DIGESTS, DIGESTS[1:]]))
            stamp_sequences(found, draw(writers), draw(st.integers(0, 2)), draw(st.integers(0, 3)), digests)
        for message in found:
            if kind == "copied":
                message.prepared_transaction_offset = 0
            elif kind == "odd":
                message.properties = draw(odd_properties)
                message.prepared_transaction_offset = SEQUENCED
            elif kind == "v6":
                message.sys_flag, message.born_host = 0x10, bytes(20)
            elif kind == "long topic":
                message.topic = "T" * 128
        stored_ms = draw(st.integers(1, 2))
        batch += [(message, stored_ms) for message in found]
    return batch


def lay_out(batch: list[tuple[Message, int]]) -> bytes:
    records = [encode_record(message, 5, stored_ms) for message, stored_ms in batch]
    return encode_entries(records, FIRST, 2, 9000, write_physical_offset)[0]


def in_python(data: bytes, count: int) -> list[SequenceRun]:
    starts = [start + HEADER_BYTES for start in entry_starts(data)]
    found = [sequences._read(data, start) for start in starts]
    return joined(zip(range(FIRST, FIRST + count), found, strict=True))


@given(batches())
def test_compiled_runs_are_those_of_python(batch: list[tuple[Message, int]]) -> None:
    data, count = lay_out(batch), len(batch)
    expected = in_python(data, count)
    assert list(sequences.sequence_runs(data, FIRST, FIRST + count - 1)) == expected
    compiled = _log.sequence_runs(data, count, FIRST)
    assert compiled is None or compiled == expected
    indexes = range(FIRST, FIRST + count)
    starts = [start + HEADER_BYTES for start in entry_starts(data)]
    assert list(sequences.record_runs(data, starts, indexes)) == expected


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 20), st.integers(1, 20))
@example(2**63 - 1, 2**31 - 20, 20)
@example(0, 0, 1)
def test_what_was_stamped_is_one_compiled_run(batch_id: int, first: int, count: int) -> None:
    messages = [Message("T", 1, b"x") for _ in range(count)]
    stamp_sequences(messages, b"w|7", batch_id, first, [DIGESTS[0]] * (count - 1) + [DIGESTS[1]])
    data = lay_out([(message, 3) for message in messages])
    assert _log.sequence_runs(data, count, FIRST) == [(b"w|7", batch_id, first, count, FIRST, 3, DIGESTS[1])]


@given(batches(), st.data())
def test_damaged_bytes_give_what_python_gives_or_are_handed_back(
    batch: list[tuple[Message, int]], data: st.DataObject
) -> None:
    raw = bytearray(lay_out(batch))
    starts = [*entry_starts(bytes(raw)), len(raw)]
    for _ in range(data.draw(st.integers(1, 3))):
        # Entries are verified before: only what a record holds may be odd.
        entry = data.draw(st.integers(0, len(batch) - 1))
        at = data.draw(st.integers(starts[entry] + HEADER_BYTES, starts[entry + 1] - 1))
        raw[at] = data.draw(st.integers(0, 255))
    compiled = _log.sequence_runs(bytes(raw), len(batch), FIRST)
    assert compiled is None or compiled == in_python(bytes(raw), len(batch))


@given(st.binary(max_size=300), st.integers(-1, 3))
def test_any_bytes_are_handed_back(data: bytes, count: int) -> None:
    assert _log.sequence_runs(data, count, 0) in (None, [])


def test_a_property_that_was_copied_means_nothing() -> None:
    message = Message("T", 0, b"x")
    stamp_sequences([message], b"w|0", 1, 0)
    copy = Message("T", 0, b"x", message.properties)
    data = lay_out([(copy, 1), (message, 1)])
    assert _log.sequence_runs(data, 2, FIRST) == [(b"w|0", 1, 0, 1, FIRST + 1, 1, b"")]
