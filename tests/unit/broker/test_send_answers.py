"""The quick answer must say exactly what the general encoder would."""

import pytest

from broker.send.turn import SendAnswers
from commitlog.record import host_bytes, offset_msg_id
from remoting.command import BINARY_HEADER, RemotingCommand, decode_command

HOST = host_bytes("10.0.0.1", 10911)
ANSWERS = SendAnswers(HOST, "DefaultRegion", trace_on=True)
KEY = "7F00000100002A9F0000000000000001"


def answer_fields(frame: bytes) -> RemotingCommand:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return decode_command(frame[4:])


def test_success_carries_where_the_message_is() -> None:
    answer = answer_fields(ANSWERS.success(RemotingCommand(310, opaque=77), 3, KEY, [1000], 42))
    assert (answer.code, answer.opaque, answer.is_response, answer.body) == (0, 77, True, b"")
    assert answer.ext_fields == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "0A00000100002A9F00000000000003E8",
        "queueId": "3",
        "queueOffset": "42",
        "transactionId": KEY,
    }


@pytest.mark.parametrize("key", ['a"b\\c', "schlüssel", "with space", "\x01"])
def test_keys_that_need_escaping_arrive_unchanged(key: str) -> None:
    answer = answer_fields(ANSWERS.success(RemotingCommand(10, opaque=1), 0, key, [48], 0))
    assert answer.ext_fields["transactionId"] == key


def test_a_negative_opaque_is_kept() -> None:
    assert answer_fields(ANSWERS.success(RemotingCommand(310, opaque=-5), 0, KEY, [48], 0)).opaque == -5


def test_a_batch_answer_lists_every_id_and_the_first_offset() -> None:
    answer = answer_fields(ANSWERS.success(RemotingCommand(320), 1, "", [48, 300], 7))
    assert answer.ext_fields["msgId"] == ",".join(offset_msg_id(HOST, position) for position in (48, 300))
    assert answer.ext_fields["queueOffset"] == "7"
    assert "transactionId" not in answer.ext_fields


def test_a_binary_request_gets_a_binary_answer() -> None:
    request = RemotingCommand(310, opaque=9, serialize_type=BINARY_HEADER)
    answer = answer_fields(ANSWERS.success(request, 2, KEY, [48], 1))
    assert answer.serialize_type == BINARY_HEADER
    assert (answer.opaque, answer.ext_fields["queueId"], answer.ext_fields["transactionId"]) == (9, "2", KEY)


def test_errors_carry_region_and_trace_too() -> None:
    answer = answer_fields(
        SendAnswers(HOST, "r1", trace_on=False).error(RemotingCommand(310, opaque=3), 14, "why")
    )
    assert (answer.code, answer.opaque, answer.remark) == (14, 3, "why")
    assert answer.ext_fields == {"MSG_REGION": "r1", "TRACE_ON": "false"}
