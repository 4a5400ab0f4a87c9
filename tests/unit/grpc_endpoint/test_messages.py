"""A message's way into a record's properties and back, and what may not be sent."""

import gzip
import time
import zlib
from typing import Any

import lz4.frame
import pytest
import zstandard
from google.protobuf.timestamp_pb2 import Timestamp

from commitlog.record import Message as StoredMessage
from commitlog.record import encode_record, format_properties
from grpc_endpoint.messaging_pb2 import Code, Encoding, Message, MessageType, Resource, SystemProperties
from grpc_endpoint.properties import UNPACKED_BYTES_MAX, message_of, type_of, unpack
from grpc_endpoint.receiving import read_popped
from grpc_endpoint.sending import batch_body, consistent_hash, properties_of
from grpc_endpoint.status import StatusError
from grpc_endpoint.validation import BODY_BYTES_MAX, group_of, topic_of
from remoting.command import RemotingCommand
from remoting.record import Record, parse_properties, tags_code

HOST = "10.0.0.7:40000"
NOW_MS = time.time_ns() // 1_000_000


def made(body: bytes = b"body", user: dict[str, str] | None = None, **system: Any) -> Message:
    return Message(
        topic=Resource(name="orders"),
        user_properties=user or {},
        system_properties=SystemProperties(**{"message_id": "01AB", **system}),
        body=body,
    )


def record_of(properties: dict[str, str], **fields: Any) -> Record:
    known: dict[str, Any] = {
        "size": 0,
        "topic": "orders",
        "queue_id": 2,
        "queue_offset": 9,
        "physical_offset": 4_711,
        "body": b"body",
        "body_crc": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp_ms": NOW_MS,
        "born_host": bytes([10, 0, 0, 7]) + (40_000).to_bytes(4, "big"),
        "store_timestamp_ms": NOW_MS + 1,
        "store_host": bytes([10, 0, 0, 8]) + (10_911).to_bytes(4, "big"),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    return Record(**known | fields, properties=format_properties(properties))


def encoded(properties: bytes) -> bytes:
    """A record of topic orders, queue 3, offset 7."""
    host = bytes([10, 0, 0, 8]) + (10_911).to_bytes(4, "big")
    message = StoredMessage("orders", 3, b"body", properties, store_host=host, born_host=host)
    return encode_record(message, 7, NOW_MS)


def test_a_message_comes_back_as_it_was_sent() -> None:
    sent = made(
        user={"colour": "red"},
        tag="A",
        keys=["k1", "k2"],
        message_group="group-1",
        trace_context="trace",
        message_type=MessageType.FIFO,
    )
    sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS)
    got = message_of(record_of(properties_of(sent, "orders", HOST, NOW_MS)), "billing")
    system = got.system_properties
    assert dict(got.user_properties) == {"colour": "red"}
    assert (system.tag, list(system.keys), system.message_group) == ("A", ["k1", "k2"], "group-1")
    assert (system.message_id, system.trace_context) == ("01AB", "trace")
    assert system.message_type == MessageType.FIFO
    assert system.born_timestamp == sent.system_properties.born_timestamp
    assert (system.born_host, system.store_host) == (HOST, "10.0.0.8:10911")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (2, 9, 1)
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"


def test_properties_have_the_names_that_remoting_clients_read() -> None:
    sent = made(tag="A", keys=["k1", "k2"], message_type=MessageType.TRANSACTION)
    sent.system_properties.orphaned_transaction_recovery_duration.FromSeconds(30)
    properties = properties_of(sent, "orders", HOST, NOW_MS)
    assert properties == {
        "TAGS": "A",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "01AB",
        "PGROUP": "orders",
        "TRAN_MSG": "true",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
        "__BORNHOST": HOST,
    }


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, MessageType.NORMAL),
        ({"__SHARDINGKEY": "g"}, MessageType.FIFO),
        ({"DELAY": "3", "__SHARDINGKEY": "g"}, MessageType.DELAY),
        ({"TIMER_DELIVER_MS": "1"}, MessageType.DELAY),
        ({"TRAN_MSG": "true", "DELAY": "3"}, MessageType.TRANSACTION),
        ({"_SYS_MSG_PRIORITY_": "1"}, MessageType.PRIORITY),
        ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "chat"}, MessageType.PRIORITY),
        ({"__LITE_TOPIC": "chat"}, MessageType.LITE),
    ],
)
def test_the_type_follows_from_the_properties(properties: dict[str, str], expected: MessageType) -> None:
    assert type_of(properties) == expected


def test_a_message_of_a_remoting_client_has_the_brokers_id_when_it_has_none() -> None:
    got = message_of(record_of({}), "billing")
    assert got.system_properties.message_id == "0A00000800002A9F0000000000001267"


@pytest.mark.parametrize("sys_flag", [0x1, 0x101, 0x201, 0x301, 0x501])
def test_a_packed_body_is_named_so(sys_flag: int) -> None:
    got = message_of(record_of({}, sys_flag=sys_flag), "g")
    assert (got.body, got.system_properties.body_encoding) == (b"body", Encoding.GZIP)


TEXT = b"body" * 100
PACKED = {0x001: zlib.compress(TEXT), 0x101: lz4.frame.compress(TEXT), 0x201: zstandard.compress(TEXT)}


@pytest.mark.parametrize("sys_flag", PACKED)
def test_consumers_get_a_body_plain_that_a_remoting_client_has_packed(sys_flag: int) -> None:
    records = [record_of({}, sys_flag=sys_flag, body=PACKED[sys_flag]), record_of({})]
    unpack(records)
    got = [message_of(record, "g") for record in records]
    assert [each.body for each in got] == [TEXT, b"body"]
    assert {each.system_properties.body_encoding for each in got} == {Encoding.IDENTITY}
    assert got[0].system_properties.body_digest.checksum == "9C6902B2972C1FDDD3695F226AD7D6FD"


def test_a_body_that_is_packed_by_gzip_stays_so() -> None:
    """gRPC's clients make and read it."""
    packed = gzip.compress(TEXT)
    record = record_of({}, sys_flag=1, body=packed)
    unpack([record])
    assert (record.body, record.sys_flag) == (packed, 1)


def test_what_the_bodies_of_one_answer_unpack_to_is_bounded() -> None:
    large = zlib.compress(bytes(UNPACKED_BYTES_MAX + 1))
    fits = zlib.compress(bytes(UNPACKED_BYTES_MAX // 2))
    records = [record_of({}, sys_flag=1, body=body) for body in (large, fits, fits)]
    unpack(records)
    assert [record.sys_flag for record in records] == [1, 0, 1]


def test_a_message_of_a_remoting_client_was_born_at_an_address() -> None:
    assert message_of(record_of({}), "g").system_properties.born_host == "10.0.0.7"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [("a b", ["a", "b"]), ("a ", ["a"]), (" a", ["", "a"]), (" ", []), ("a  b", ["a", "", "b"])],
)
def test_keys_are_what_is_between_blanks(keys: str, expected: list[str]) -> None:
    assert list(message_of(record_of({"KEYS": keys}), "g").system_properties.keys) == expected


@pytest.mark.parametrize(
    ("properties", "expected_ms"),
    [
        ({"TIMER_DELIVER_MS": "1700000000500", "TIMER_OUT_MS": "1700000001000"}, 1_700_000_000_500),
        ({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1700000001000"}, 1_700_000_001_000),
    ],
)
def test_a_timer_message_says_when_it_was_due(properties: dict[str, str], expected_ms: int) -> None:
    got = message_of(record_of(properties), "g").system_properties
    assert got.delivery_timestamp.ToMilliseconds() == expected_ms


def test_a_message_from_the_retry_topic_is_of_the_topic_it_was_sent_to() -> None:
    got = message_of(record_of({}, topic="%RETRY%billing_orders", reconsume_times=2), "billing")
    assert got.topic.name == "orders"
    assert got.system_properties.delivery_attempt == 3


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (made(b""), Code.MESSAGE_BODY_EMPTY),
        (made(bytes(BODY_BYTES_MAX + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (made(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (made(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (made(tag="a\n"), Code.ILLEGAL_MESSAGE_TAG),
        (made(keys=["\t"]), Code.ILLEGAL_MESSAGE_KEY),
        (made(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (made(message_group="x" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (made(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (made(user={"TAGS": "A"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(user={"__LITE_TOPIC": "A"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(lite_topic="a b"), Code.ILLEGAL_LITE_TOPIC),
        (made(lite_topic=" "), Code.ILLEGAL_LITE_TOPIC),
        (made(lite_topic="x" * 65), Code.ILLEGAL_LITE_TOPIC),
        (made(priority=-1), Code.BAD_REQUEST),
        (made(delivery_timestamp=Timestamp(seconds=2**60)), Code.ILLEGAL_DELIVERY_TIME),
        (made(user={"a\x01": "A"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(user={"a": "\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (made(user={str(n): "" for n in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (made(user={"a": "x" * 16_384}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_what_may_not_be_sent_is_refused_by_its_code(message: Message, code: Code) -> None:
    with pytest.raises(StatusError) as refused:
        properties_of(message, "orders", HOST, NOW_MS)
    assert refused.value.code == code


@pytest.mark.parametrize("born", [Timestamp(seconds=2**60), Timestamp(nanos=-1), None])
def test_a_message_that_was_born_at_no_time_has_none(born: Timestamp | None) -> None:
    properties = properties_of(made(born_timestamp=born), "orders", HOST, NOW_MS)
    assert "BORN_TIMESTAMP" not in properties


def test_a_message_may_wait_for_a_day_at_most() -> None:
    message = made()
    message.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + 86_400_000)
    assert properties_of(message, "orders", HOST, NOW_MS)["TIMER_DELIVER_MS"] == str(NOW_MS + 86_400_000)
    message.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + 86_400_001)
    with pytest.raises(StatusError) as refused:
        properties_of(message, "orders", HOST, NOW_MS)
    assert refused.value.code == Code.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize(
    "name", ["", "with blank", "x" * 128, "TBW102", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]
)
def test_topics_that_clients_may_not_name(name: str) -> None:
    with pytest.raises(StatusError) as refused:
        topic_of(Resource(name=name))
    assert refused.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", "with blank", "x" * 256, "CID_RMQ_SYS_TRANS"])
def test_groups_that_clients_may_not_name(name: str) -> None:
    with pytest.raises(StatusError) as refused:
        group_of(Resource(name=name))
    assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP


def test_the_queue_of_a_message_group_is_the_one_of_guava() -> None:
    """Values of com.google.common.hash.Hashing.consistentHash."""
    assert [consistent_hash(seed, 10) for seed in (0, 1, 2, 3, -1)] == [0, 6, 6, 8, 9]
    assert consistent_hash(tags_code("group-1"), 16) == 15
    assert consistent_hash(12_345, 1) == 0


def test_a_batch_has_each_message_with_its_properties() -> None:
    body = batch_body([b"one", b"three"], [b"a\x011\x02", b""])
    assert body[:4] == len(body[: 20 + 3 + 2 + 4]).to_bytes(4, "big")
    assert body.count(b"three") == 1
    assert len(body) == 2 * 22 + 3 + 5 + 4


def test_popped_messages_have_handles_and_counts() -> None:
    record = encoded(b"TAGS\x01A\x02")
    ext = {
        "popTime": "1700000000000",
        "invisibleTime": "60000",
        "reviveQid": "999",
        "startOffsetInfo": "0 3 5",
        "msgOffsetInfo": "0 3 7",
        "orderCountInfo": "0 qo3%7 2;0 3 2",
    }
    (popped,) = read_popped(RemotingCommand(0, ext_fields=ext, body=record), "g", "broker-a", in_order=True)
    assert str(popped.handle).startswith("5 1700000000000 60000 999 0 broker-a 3 7 ")
    assert popped.message.system_properties.receipt_handle == str(popped.handle)
    assert (popped.tag, popped.attempts, popped.message.system_properties.delivery_attempt) == ("A", 2, 3)


def test_popped_bodies_are_plain() -> None:
    host = bytes([10, 0, 0, 8]) + (10_911).to_bytes(4, "big")
    stored = StoredMessage("orders", 3, PACKED[1], b"", sys_flag=1, store_host=host, born_host=host)
    ext = {"popTime": "1", "invisibleTime": "1", "reviveQid": "0", "startOffsetInfo": "0 3 5"}
    answer = RemotingCommand(0, ext_fields=ext, body=encode_record(stored, 7, NOW_MS))
    (popped,) = read_popped(answer, "g", "broker-a", in_order=False)
    assert popped.message.body == TEXT


def test_an_answer_without_the_start_of_its_queue_is_an_error() -> None:
    answer = RemotingCommand(0, ext_fields={}, body=encoded(b""))
    with pytest.raises(StatusError) as refused:
        read_popped(answer, "g", "broker-a", in_order=False)
    assert refused.value.code == Code.INTERNAL_SERVER_ERROR


def test_properties_without_a_value_are_left_out() -> None:
    assert parse_properties(format_properties({"a": "", "b": "1"})) == {"b": "1"}
