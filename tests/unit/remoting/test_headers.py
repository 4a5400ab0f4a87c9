"""Typed headers as Java, Go and C++ clients send them, and the errors that name the field at fault."""

import pytest

from remoting.codes import RequestCode
from remoting.errors import HeaderError
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryMessageRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.fields import Int, RequestHeader, parse_bool, request_header, wire_name
from remoting.headers.namesrv import RegisterBrokerRequestHeader
from remoting.headers.send import SendMessageRequestHeader, SendRequest, send_header

_V2 = {
    "a": "PID",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "2",
    "f": "1",
    "g": "1700000000000",
    "h": "7",
    "i": "TAGS\x01A\x02",
    "j": "3",
    "k": "1",
    "l": "16",
    "m": "false",
    "n": "broker-a",
}
_V1 = {
    "producerGroup": "PID",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "2",
    "sysFlag": "1",
    "bornTimestamp": "1700000000000",
    "flag": "7",
    "properties": "TAGS\x01A\x02",
    "reconsumeTimes": "3",
    "unitMode": "true",
    "maxReconsumeTimes": "16",
    "batch": "false",
    "bname": "broker-a",
}


def test_send_header_reads_the_same_from_letters_and_from_names() -> None:
    header = SendMessageRequestHeader.parse(_V2)
    assert header == SendMessageRequestHeader.parse(_V1)
    assert header == SendMessageRequestHeader(
        "PID", "T", "TBW102", 4, 2, 1, 1700000000000, 7, "TAGS\x01A\x02", 3, True, 16, False, "broker-a"
    )
    assert header.ext_fields() == _V1


def test_fields_of_a_typed_send_are_those_of_its_header() -> None:
    request = SendRequest(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=dict(_V2))
    assert send_header(request) == SendMessageRequestHeader.parse(_V1)
    assert request.ext_fields == _V1


def test_send_header_with_the_required_letters_alone_has_defaults() -> None:
    header = SendMessageRequestHeader.parse({letter: _V2[letter] for letter in "abcdefgh"})
    assert (header.properties, header.reconsume_times, header.max_reconsume_times) == ("", 0, None)
    assert (header.unit_mode, header.is_batch, header.broker_name) == (False, False, None)


@pytest.mark.parametrize(("text", "is_batch"), [("true", True), ("1", True), ("0", False), ("TRUE", True)])
def test_send_header_batch_is_read_as_every_client_writes_it(text: str, is_batch: bool) -> None:
    assert SendMessageRequestHeader.parse({**_V2, "m": text}).is_batch is is_batch


@pytest.mark.parametrize(
    ("letter", "text"),
    [
        ("e", "-1"),
        ("h", "-2147483648"),
        ("f", "2147483647"),
        ("g", "-1"),
        ("l", "-1"),
        ("g", "9223372036854775807"),
    ],
)
def test_send_header_takes_every_number_that_java_takes(letter: str, text: str) -> None:
    names = dict(zip("abcdefghijklmn", _V1, strict=True))
    header = SendMessageRequestHeader.parse({**_V2, letter: text})
    assert header.ext_fields()[names[letter]] == text


def test_send_header_with_a_number_out_of_the_ordinary_and_the_required_letters_alone() -> None:
    header = SendMessageRequestHeader.parse({**{each: _V2[each] for each in "abcdefgh"}, "e": "-1"})
    assert header.queue_id == -1
    assert (header.properties, header.reconsume_times, header.max_reconsume_times) == ("", 0, None)


@pytest.mark.parametrize("letter", "abcdefgh")
def test_send_header_without_a_required_letter_names_it(letter: str) -> None:
    ext = {key: value for key, value in _V2.items() if key != letter}
    with pytest.raises(HeaderError) as raised:
        SendMessageRequestHeader.parse(ext)
    assert raised.value.field == ("producerGroup" if letter == "b" else letter)


@pytest.mark.parametrize(
    ("letter", "text"),
    [
        ("d", "x"),
        ("e", "2147483648"),
        ("f", "-2147483649"),
        ("g", "9223372036854775808"),
        ("h", "1" * 5000),
        ("j", "1.5"),
        ("l", "many"),
        ("m", "maybe"),
    ],
)
def test_send_header_with_an_unreadable_letter_names_it(letter: str, text: str) -> None:
    with pytest.raises(HeaderError) as raised:
        SendMessageRequestHeader.parse({**_V2, letter: text})
    assert raised.value.field == letter
    assert len(str(raised.value)) < 150


def test_pull_header_of_a_cpp_client_is_read() -> None:
    header = PullMessageRequestHeader.parse(
        {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "12",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "11",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "1700000000000",
            "OnsChannel": "ALIYUN",
        }
    )
    assert (header.queue_offset, header.commit_offset, header.suspend_timeout_ms) == (12, 11, 15000)
    assert (header.subscription, header.expression_type, header.max_msg_bytes) == ("*", None, None)


def test_header_without_a_required_field_names_it() -> None:
    with pytest.raises(HeaderError, match="<commitOffset> is null"):
        UpdateConsumerOffsetRequestHeader.parse({"consumerGroup": "G", "topic": "T", "queueId": "0"})


def test_header_with_a_number_beyond_its_type_names_the_bits() -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "2147483648", "commitOffset": "1"}
    with pytest.raises(HeaderError, match=r"<queueId> .*beyond 32 bits"):
        UpdateConsumerOffsetRequestHeader.parse(ext)


def test_header_with_empty_optional_numbers_has_defaults() -> None:
    header = CreateTopicRequestHeader.parse({"topic": "T", "perm": "", "order": "", "attributes": ""})
    assert (header.perm, header.order, header.attributes, header.write_queue_nums) == (6, False, "", 8)


def test_header_fields_with_names_of_their_own_keep_them() -> None:
    assert UnregisterClientRequestHeader.parse({"clientID": "c", "producerGroup": ""}).client_id == "c"
    header = QueryMessageRequestHeader("T", "k", 32, 0, 9, True)
    assert header.ext_fields()["_UNIQUE_KEY_QUERY"] == "true"
    assert QueryMessageRequestHeader.parse(header.ext_fields()) == header


def test_register_header_of_a_java_4_broker_is_read() -> None:
    header = RegisterBrokerRequestHeader.parse(
        {
            "brokerName": "b",
            "brokerAddr": "127.0.0.1:10911",
            "clusterName": "c",
            "haServerAddr": "127.0.0.1:10912",
            "brokerId": "0",
            "compressed": "false",
            "bodyCrc32": "12",
        }
    )
    assert (header.broker_id, header.body_crc32, header.heartbeat_timeout_ms) == (0, 12, None)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False)]
)
def test_boolean_is_read_in_each_clients_form(text: str, value: bool) -> None:
    assert parse_bool("k", text) is value


@pytest.mark.parametrize("text", ["", "2", "yes", "truetrue"])
def test_boolean_of_another_text_raises(text: str) -> None:
    with pytest.raises(HeaderError, match="not a boolean"):
        parse_bool("k", text)


@request_header
class _Sample(RequestHeader):
    own_name: str
    number: Int = wire_name("n")
    maybe: bool | None = None


def test_header_class_reads_and_writes_what_it_declares() -> None:
    assert _Sample.parse({"ownName": "x", "n": "-3"}) == _Sample("x", -3)
    assert _Sample("x", -3, False).ext_fields() == {"ownName": "x", "n": "-3", "maybe": "false"}
