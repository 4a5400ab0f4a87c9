"""Receipt handles and transaction ids: what a client gives back, and what is refused."""

import pytest

from grpc_endpoint.handles import TransactionId, check_not_over, read_handle
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError
from remoting.command import RemotingCommand

TEXT = "5 1700000000000 60000 0 2 broker-a 3 7 123456"


def test_a_receipt_handle_is_read_as_it_was_written() -> None:
    handle = read_handle(TEXT)
    assert str(handle) == TEXT
    assert (handle.broker_name, handle.queue_id, handle.offset, handle.position) == ("broker-a", 3, 7, 123456)
    assert handle.visible_at_ms == 1700000060000
    assert handle.topic("orders", "billing") == "%RETRY%billing+orders"


def test_a_receipt_handle_of_older_proxies_has_no_position() -> None:
    assert read_handle("5 1 2 0 0 broker-a 3 7").position == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "5 1700000000000 60000 0 9 broker-a 3 7 1",
        "5 x 60000 0 0 broker-a 3 7 1",
        "5 1 60000 0 0  3 7 1",
        "-5 1 60000 0 0 broker-a 3 7 1",
        f"5 {10**19} 60000 0 0 broker-a 3 7 1",
        TEXT + " " * 2_000,
    ],
)
def test_what_is_no_receipt_handle_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        read_handle(text)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


def test_a_handle_is_over_when_its_message_is_visible_again() -> None:
    handle = read_handle(TEXT)
    check_not_over(handle, handle.visible_at_ms - 1)
    with pytest.raises(StatusError, match="expired"):
        check_not_over(handle, handle.visible_at_ms)


def test_a_changed_handle_names_the_same_message_and_the_new_time() -> None:
    ext = {"popTime": "1800000000000", "invisibleTime": "10000", "reviveQid": "1"}
    changed = read_handle(TEXT).changed(RemotingCommand(0, ext_fields=ext))
    assert str(changed) == "7 1800000000000 10000 1 2 broker-a 3 7 123456"


def test_a_transaction_id_is_read_as_it_was_written() -> None:
    transaction = TransactionId(7, 123456, "broker-a", "key:with:colons")
    assert TransactionId.parse(str(transaction)) == transaction


@pytest.mark.parametrize(
    "text", ["", "  ", "0102030405", "a:1:broker-a:key", "1:-1:broker-a:key", "9" * 2_000]
)
def test_what_is_no_transaction_id_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        TransactionId.parse(text)
    assert refused.value.code == Code.INVALID_TRANSACTION_ID
