"""What an answer to a pop hands out, and the receipts of it."""

import pytest

from commitlog.record import Message, encode_record
from remoting.command import RemotingCommand
from remoting.pop_receipts import HandleError, PopAnswerError, ReceiptHandle, read_popped
from remoting.record import format_properties

TEXT = "5 1700000000000 60000 0 2 broker-a 3 7 123456"
TIMES = {"popTime": "1700000000000", "invisibleTime": "60000", "reviveQid": "0"}


def answer(topic: str = "orders", **ext: str) -> RemotingCommand:
    body = encode_record(Message(topic, 3, b"m"), 7, 4711)
    return RemotingCommand(0, ext_fields={**TIMES, "startOffsetInfo": "0 3 5", **ext}, body=body)


def test_each_message_gets_a_receipt_that_names_it_and_the_pop() -> None:
    ((handle, record),) = read_popped(answer(), "broker-a")
    assert str(handle) == "5 1700000000000 60000 0 0 broker-a 3 7 0"
    assert (record.body, record.reconsume_times) == (b"m", 0)
    assert ReceiptHandle.parse(str(handle)) == handle
    assert handle.topic("orders", "g") == "orders"


@pytest.mark.parametrize(("topic", "mark"), [("%RETRY%g_orders", "1"), ("%RETRY%g+orders", "2")])
def test_a_message_of_a_retry_topic_keeps_its_place(topic: str, mark: str) -> None:
    ((handle, _),) = read_popped(answer(topic, startOffsetInfo=f"{mark} 3 6"), "broker-a")
    assert (handle.mark, handle.start_offset) == (mark, 6)
    assert handle.topic("orders", "g") == topic


def test_a_stock_broker_renames_the_topic_of_a_revived_message_and_gives_its_receipt() -> None:
    """Both may be in one answer, of the same queue id."""
    given = "6 1700000000000 60000 0 1 broker-a 3 7"
    ((handle, _),) = read_popped(with_receipt(given), "broker-a")
    assert str(handle) == f"{given} 0"
    assert handle.topic("orders", "g") == "%RETRY%g_orders"
    copied = ("6 1 60000 0 1 broker-a 3 7", given.replace(" 3 7", " 3 8"), "what a producer has set")
    for text in copied:
        ((handle, _),) = read_popped(with_receipt(text), "broker-a")
        assert (handle.mark, handle.start_offset) == ("0", 5)


def with_receipt(text: str) -> RemotingCommand:
    found = answer()
    properties = format_properties({"POP_CK": text})
    found.body = encode_record(Message("orders", 3, b"m", properties=properties), 7, 4711)
    return found


def test_an_ordered_pop_says_how_often_a_message_was_out() -> None:
    counted = answer(orderCountInfo="0 qo3%7 2;0 3 1")
    ((_, record),) = read_popped(counted, "broker-a", in_order=True)
    assert record.reconsume_times == 2
    ((_, record),) = read_popped(answer(orderCountInfo="0 3 1"), "broker-a", in_order=True)
    assert record.reconsume_times == 1
    ((_, record),) = read_popped(counted, "broker-a")
    assert record.reconsume_times == 0


@pytest.mark.parametrize(
    "ext",
    [{"popTime": "x"}, {"startOffsetInfo": ""}, {"startOffsetInfo": "9 3 5"}, {"startOffsetInfo": "0 3"}],
)
def test_an_answer_that_cannot_be_read_is_an_error(ext: dict[str, str]) -> None:
    with pytest.raises(PopAnswerError):
        read_popped(answer(**ext), "broker-a")


def test_a_cut_record_is_an_error() -> None:
    cut = answer()
    cut.body = cut.body[:-1]
    with pytest.raises(PopAnswerError):
        read_popped(cut, "broker-a")


def test_a_change_gives_a_new_receipt_for_the_same_message() -> None:
    ext = {"popTime": "1800000000000", "invisibleTime": "10000", "reviveQid": "1"}
    changed = ReceiptHandle.parse(TEXT).changed(RemotingCommand(0, ext_fields=ext))
    assert str(changed) == "7 1800000000000 10000 1 2 broker-a 3 7 123456"
    for wrong in ({}, {**ext, "popTime": "?"}):
        with pytest.raises(PopAnswerError):
            changed.changed(RemotingCommand(0, ext_fields=wrong))


@pytest.mark.parametrize("text", ["", "1 2 3", TEXT.replace(" 2 b", " 9 b"), TEXT.replace("7 ", "-7 ", 1)])
def test_a_text_that_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(HandleError):
        ReceiptHandle.parse(text)
