"""The pure parts of the messages' services: ids, cursors, traces; and bytes that are none of these."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_api.errors import InvalidError
from admin_api.gateway import AskError, Gateway
from admin_api.messages.tracks import spans_of
from admin_api.messages.views import BodyFormat, parse_offset_id, show_body, view
from admin_api.messages.window import LaneMark, Search, format_cursor, parse_cursor
from admin_api.settings import Settings
from admin_api.sources.messages import MessageSource
from admin_api.sources.name_server import NameServerSource
from commitlog.record import Message, encode_record, host_bytes, offset_msg_id
from remoting.command import RemotingCommand
from remoting.record import CorruptRecordError, Record, decode_record, decode_records

ID = "AA" * 16


def record_of(body: bytes, sys_flag: int = 0) -> Record:
    message = Message("T", 0, body, b"K\x01v\x02", sys_flag=sys_flag, born_host=host_bytes("10.0.0.7", 1))
    return decode_record(encode_record(message, 7, 1000))


@pytest.mark.parametrize("ip", ["10.0.0.1", "::1"])
def test_offset_id_is_taken_apart(ip: str) -> None:
    found = parse_offset_id(offset_msg_id(host_bytes(ip, 10911), 4711))
    assert found is not None
    assert (found.address, found.position) == (f"[{ip}]:10911" if ":" in ip else f"{ip}:10911", 4711)


@given(st.text(max_size=60) | st.text(alphabet="0123456789abcdefABCDEF", min_size=32, max_size=32))
def test_offset_id_of_any_text_is_one_or_none(text: str) -> None:
    found = parse_offset_id(text)
    assert found is None or 0 <= found.position < 2**63


def test_cursor_comes_back_as_it_was() -> None:
    search = Search("T", 5, 9, "a")
    marks = [LaneMark(broker_name="b", queue_id=3, low=1, high=2**40, step=32)]
    text = format_cursor(search, marks)
    assert text is not None
    assert parse_cursor(text) == (search, marks)
    assert format_cursor(search, []) is None


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{0,200}", fullmatch=True))
def test_cursor_of_any_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_cursor(text)


def test_trace_of_a_send_and_its_consumption() -> None:
    sent = f"Pub\x011000\x01R\x01makers\x01T\x01{ID}\x01tag\x01key\x0110.0.0.1:10911\x01"
    sent += "17\x0112\x010\x01OID\x01true"
    before = f"SubBefore\x012000\x01R\x01billing\x01Q1\x01{ID}\x012\x01key"
    other = f"SubBefore\x012000\x01R\x01billing\x01Q2\x01{'BB' * 16}\x012\x01key"
    after = f"SubAfter\x01Q1\x01{ID}\x0134\x01false\x01key\x012\x012034"
    texts = (f"{sent}\x02", f"{before}\x02{other}\x02", f"{after}\x02")
    first, second = spans_of([record_of(text.encode()) for text in texts], ID)
    assert (first.kind, first.at_ms, first.cost_ms, first.is_success) == ("send", 1000, 12, True)
    assert (first.group, first.topic, first.offset_id, first.message_type) == ("makers", "T", "OID", "normal")
    assert (first.store_host, first.client_host) == ("10.0.0.1:10911", "10.0.0.7")
    assert (second.kind, second.at_ms, second.cost_ms, second.is_success) == ("consume", 2000, 34, False)
    assert (second.group, second.status, second.retry_times) == ("billing", "exception", 2)


def test_trace_without_an_end_or_a_begin_leaves_it_open() -> None:
    before = f"SubBefore\x012000\x01R\x01billing\x01Q1\x01{ID}\x010\x01\x02"
    after = f"SubAfter\x01Q2\x01{ID}\x015\x01true\x01\x010\x02"
    begun, ended = spans_of([record_of(before.encode()), record_of(after.encode())], ID)
    assert (begun.is_success, begun.cost_ms) == (None, None)
    assert (ended.at_ms, ended.group, ended.is_success) == (None, None, True)


def test_trace_of_a_transaction() -> None:
    told = f"EndTransaction\x013000\x01R\x01makers\x01T\x01{ID}\x01\x01k\x01h:1\x01"
    told += f"2\x01{ID}\x01COMMIT_MESSAGE\x01true\x02"
    (span,) = spans_of([record_of(told.encode())], ID)
    assert (span.kind, span.transaction_state, span.is_from_check) == (
        "endTransaction",
        "COMMIT_MESSAGE",
        True,
    )


_KINDS = st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", ID, "1", "true", "", "null", "-"])


@given(
    st.binary(max_size=300)
    | st.lists(st.lists(_KINDS, max_size=16)).map(
        lambda rows: "\x02".join("\x01".join(row) for row in rows).encode()
    )
)
def test_trace_of_any_bytes_is_some_spans(body: bytes) -> None:
    for span in spans_of([record_of(body), record_of(body, sys_flag=1)], ID):
        assert span.kind in ("send", "consume", "endTransaction")


@given(st.binary(max_size=64), st.sampled_from(BodyFormat), st.integers(0, 70), st.integers(0, 0x7FF))
def test_any_body_is_shown_within_its_bound(
    body: bytes, wanted: BodyFormat, shown: int, sys_flag: int
) -> None:
    found = show_body(record_of(body, sys_flag & 0x701), wanted, shown)
    assert found.format is not BodyFormat.AUTO
    assert found.stored_bytes == len(body)
    if found.content is not None and found.format is BodyFormat.HEX:
        assert len(found.content) <= 2 * shown
        assert found.body_bytes is not None
        assert found.is_body_cut == (found.body_bytes > shown)


@given(st.binary(max_size=200), st.integers(0, 160), st.binary(min_size=1, max_size=4))
def test_damaged_records_are_read_or_refused(noise: bytes, at: int, damage: bytes) -> None:
    """Whatever a broker answers is records whose parts are inside, or an error."""
    whole = encode_record(Message("Topic", 1, b"body", b"KEYS\x01k\x02"), 7, 1000) * 2
    changed = bytearray(whole)
    changed[at : at + len(damage)] = damage
    for data in (noise, bytes(changed), whole[:at], whole + noise):
        try:
            records = decode_records(data)
        except CorruptRecordError:
            continue
        assert sum(record.size for record in records) == len(data)
        for record in records:
            view(record, None, BodyFormat.AUTO, 1024, [])


class _Answering:
    """A broker that gives one answer to everything."""

    def __init__(self, answer: RemotingCommand) -> None:
        self._answer = answer

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        return self._answer


def gateway_of(answer: RemotingCommand) -> Gateway:
    return Gateway(_Answering(answer), Settings(namesrv="n:1"))


def asking(answer: RemotingCommand) -> MessageSource:
    return MessageSource(gateway_of(answer))


async def test_record_of_another_position_is_not_the_one() -> None:
    data = bytearray(encode_record(Message("T", 0, b""), 0, 1))
    struct.pack_into(">q", data, 28, 5)
    source = asking(RemotingCommand(0, body=bytes(data)))
    assert await source.view("b:1", 5) is not None
    assert await source.view("b:1", 6) is None


@pytest.mark.parametrize("fields", [{}, {"nextBeginOffset": "x", "minOffset": "0", "maxOffset": "1"}])
async def test_pull_without_its_numbers_is_no_answer(fields: dict[str, str]) -> None:
    with pytest.raises(AskError, match="unusable"):
        await asking(RemotingCommand(0, ext_fields=fields)).pull("b:1", "T", 0, 0, 32, "*")


async def test_lists_that_are_none_are_no_answer() -> None:
    for body in (b"", b"[]", b'{"topicList":{"a":1}}', b'{"topicList":[1]}'):
        with pytest.raises(AskError, match="list of topics"):
            await NameServerSource(gateway_of(RemotingCommand(0, body=body)), "n:1").topics()
