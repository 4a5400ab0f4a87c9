import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.record import (
    CorruptRecordError,
    Message,
    MessageIllegalError,
    decode_record,
    encode_record,
    format_properties,
    get_property,
    host_bytes,
    offset_msg_id,
    parse_properties,
    properties_of,
    record_size,
    size_and_position,
    tags_code,
)
from remoting.record import decode_records
from remoting.record_layout import MAGIC_V2, RECORD_BYTES_MIN

VECTOR = bytes.fromhex(
    "0000006b daa320a7 3610a686 00000001 00000000 00000000 00000005 00000000"
    "00000418 00000000 0000018b cfe56800 0a000002 0000c350 0000018b cfe5687b"
    "0a000001 00002a9f 00000000 00000000 00000000 00000005 68656c6c 6f015400"
    "0a544147 53015461 674102"
)
STORED_MS = 1700000000123


def vector_message() -> Message:
    return Message(
        topic="T",
        queue_id=1,
        body=b"hello",
        properties=b"TAGS\x01TagA\x02",
        born_timestamp_ms=1700000000000,
        born_host=host_bytes("10.0.0.2", 50000),
        store_host=host_bytes("10.0.0.1", 10911),
    )


def test_encode_vector_is_exact_but_for_the_position() -> None:
    record = encode_record(vector_message(), 5, STORED_MS)
    assert record == VECTOR[:28] + bytes(8) + VECTOR[36:]


def test_decode_vector_gives_every_field() -> None:
    record = decode_record(VECTOR, check_crc=True)
    assert record.size == 107
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 1, 5)
    assert record.physical_offset == 1048
    assert (record.body, record.body_crc) == (b"hello", 907060870)
    assert record.properties == b"TAGS\x01TagA\x02"
    assert record.born_timestamp_ms == 1700000000000
    assert record.store_timestamp_ms == STORED_MS
    assert record.born_host == host_bytes("10.0.0.2", 50000)
    assert record.store_host == host_bytes("10.0.0.1", 10911)
    assert (record.flag, record.sys_flag, record.reconsume_times) == (0, 0, 0)
    assert record.prepared_transaction_offset == 0


@pytest.mark.parametrize(
    ("tag", "code"),
    [("", 0), ("TagA", 2598919), ("TagB", 2598920), ("polygenelubricants", -(2**31)), ("标签", 857175)],
)
def test_tags_code_is_javas_hash(tag: str, code: int) -> None:
    assert tags_code(tag) == code


def test_tags_code_counts_utf16_units() -> None:
    assert tags_code("😀") == 0xD83D * 31 + 0xDE00


def test_offset_msg_id_vector() -> None:
    assert offset_msg_id(host_bytes("10.0.0.1", 10911), 1048) == "0A00000100002A9F0000000000000418"


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    sys_flag = draw(int32)
    born_bytes = 20 if sys_flag & 0x10 else 8
    store_bytes = 20 if sys_flag & 0x20 else 8
    return Message(
        topic=draw(topics),
        queue_id=draw(int32),
        body=draw(st.binary(max_size=200)),
        properties=draw(st.binary(max_size=100)),
        flag=draw(int32),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(int64),
        born_host=draw(st.binary(min_size=born_bytes, max_size=born_bytes)),
        store_host=draw(st.binary(min_size=store_bytes, max_size=store_bytes)),
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
    )


@given(messages(), int64, int64, st.binary(max_size=8), st.binary(max_size=8))
def test_decode_of_encode_gives_the_message_back(
    message: Message, queue_offset: int, stored_ms: int, before: bytes, after: bytes
) -> None:
    data = encode_record(message, queue_offset, stored_ms)
    record = decode_record(before + data + after, len(before), check_crc=True)
    assert record.size == len(data) == record_size(data)
    assert (record.queue_offset, record.store_timestamp_ms, record.physical_offset) == (
        queue_offset,
        stored_ms,
        0,
    )
    for name in Message.__slots__:
        assert getattr(record, name) == getattr(message, name), name


@given(st.binary(max_size=300), st.integers(0, 300))
def test_decode_of_any_bytes_gives_a_record_or_its_error(noise: bytes, cut: int) -> None:
    mangled = VECTOR[:cut] + noise
    try:
        record = decode_record(mangled)
    except CorruptRecordError:
        return
    assert record.size <= len(mangled)


def test_long_topic_is_written_as_v2() -> None:
    message = vector_message()
    message.topic = "x" * 128
    data = encode_record(message, 0, 0)
    assert int.from_bytes(data[4:8], "big") == MAGIC_V2
    assert decode_record(data).topic == message.topic


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "x" * 32_768),
        ("properties", bytes(32_768)),
        ("queue_id", 2**31),
        ("flag", -(2**31) - 1),
        ("born_host", bytes(20)),
        ("store_host", bytes(7)),
        ("sys_flag", 0x10),
    ],
)
def test_encode_field_out_of_range_is_illegal(name: str, value: object) -> None:
    message = vector_message()
    setattr(message, name, value)
    with pytest.raises(MessageIllegalError):
        encode_record(message, 0, 0)


CORRUPTIONS = [
    (0, b"\x00\x00\x00\x5a", "smallest record"),
    (0, b"\x00\x00\x00\x6c", "only 107 bytes"),
    (0, b"\x80\x00\x00\x6b", "smallest record"),
    (4, b"\xda\xa3\x20\xa8", "magic"),
    (36, b"\x00\x00\x00\x30", "hosts"),
    (84, b"\x00\x00\x00\x7f", "body of 127"),
    (84, b"\xff\xff\xff\xff", "body of -1"),
    (93, b"\xff", "topic of 255"),
    (94, b"\xff", "not UTF-8"),
    (95, b"\x00\x0b", "properties of 11"),
    (95, b"\xff\xff", "properties of -1"),
    (88, b"j", "CRC"),
]


@pytest.mark.parametrize(("at", "damage", "reason"), CORRUPTIONS)
def test_decode_damaged_record_says_what_is_wrong(at: int, damage: bytes, reason: str) -> None:
    data = VECTOR[:at] + damage + VECTOR[at + len(damage) :]
    with pytest.raises(CorruptRecordError, match=reason):
        decode_record(data, check_crc=True)


@pytest.mark.parametrize("length", range(len(VECTOR)))
def test_decode_cut_record_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptRecordError):
        decode_record(VECTOR[:length])


@pytest.mark.parametrize(
    ("at", "damage", "reason"),
    [
        (84, b"\x00\x00\x00\x7f", "body of 127"),
        (84, b"\xff\xff\xff\xff", "body of -1"),
        (93, b"\xff", "topic that does not end"),
    ],
)
def test_properties_of_a_damaged_record_are_not_given(at: int, damage: bytes, reason: str) -> None:
    data = VECTOR[:at] + damage + VECTOR[at + len(damage) :]
    with pytest.raises(CorruptRecordError, match=reason):
        properties_of(data, 0, len(data))


def test_no_record_begins_before_the_bytes_or_at_their_end() -> None:
    for start in (-1, len(VECTOR)):
        with pytest.raises(CorruptRecordError, match="no record"):
            record_size(VECTOR, start)


def test_records_without_a_gap_are_decoded_one_by_one() -> None:
    records = [encode_record(vector_message(), offset, STORED_MS) for offset in range(3)]
    assert [one.queue_offset for one in decode_records(b"".join(records))] == [0, 1, 2]
    assert decode_records(b"") == []
    with pytest.raises(CorruptRecordError):
        decode_records(records[0] + records[1][:-1])


def test_size_and_position_are_read_from_whole_records_only() -> None:
    assert size_and_position(VECTOR) == (len(VECTOR), int.from_bytes(VECTOR[28:36], "big"))
    assert size_and_position(VECTOR[: RECORD_BYTES_MIN - 1]) == (0, -1)


def test_parse_properties_drops_empty_names_and_values() -> None:
    data = b"A\x011\x02\x012\x02B\x01\x02nothing\x02C\x01x\x01y\x02D\x01last"
    assert parse_properties(data) == {"A": "1", "C": "x\x01y", "D": "last"}


names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
values = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(names, values))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    data = format_properties(properties)
    assert parse_properties(data) == properties
    assert parse_properties(data[:-1]) == properties
    for name, value in properties.items():
        assert get_property(data, name.encode()) == value.encode()
        assert get_property(data[:-1], name.encode()) == value.encode()


def test_format_properties_refuses_separators() -> None:
    for properties in ({"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}):
        with pytest.raises(MessageIllegalError, match="separator"):
            format_properties(properties)
    assert format_properties({"": "x", "y": ""}) == b""


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"TAGS\x01a\x02", b"a"),
        (b"XTAGS\x01a\x02", None),
        (b"XTAGS\x01a\x02TAGS\x01b\x02", b"b"),
        (b"TAGS\x01b\x02XTAGS\x01a\x02", b"b"),
        (b"TAGS\x01a\x02TAGS\x01b", b"b"),
        (b"TAGS\x01\x02", None),
        (b"", None),
    ],
)
def test_get_property_finds_whole_names_only(data: bytes, value: bytes | None) -> None:
    assert get_property(data, b"TAGS") == value
