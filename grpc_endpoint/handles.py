"""Receipt handles (remoting.pop_receipts) and transaction ids: texts that a client gives back, with all that
a broker needs to find the message, so that any endpoint can use them, after any failover.

RocketMQ's transaction id is the message's own and its proxy remembers the rest; ours names the half message:

    queue offset | position | broker | unique key        separated by colons
"""

from dataclasses import dataclass
from typing import Final, Self

from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError
from remoting.pop_receipts import HandleError, ReceiptHandle

_CHARS_MAX: Final = 1_024
_LONG_MAX: Final = 2**63 - 1


def read_handle(text: str) -> ReceiptHandle:
    """Raises StatusError."""
    try:
        return ReceiptHandle.parse(text)
    except HandleError as error:
        raise _invalid(str(error)) from error


def check_not_over(handle: ReceiptHandle, now_ms: int) -> None:
    """Raises StatusError when the message may be another consumer's by now."""
    if handle.visible_at_ms <= now_ms:
        raise _invalid("receipt handle is expired")


@dataclass(frozen=True, slots=True)
class TransactionId:
    """Names a half message: its offset in the queue of half messages, and its position in the log."""

    queue_offset: int
    position: int
    broker_name: str
    unique_key: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises StatusError."""
        if not text.strip():
            raise StatusError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        try:
            queue_offset, position, broker_name, unique_key = text[: _CHARS_MAX + 1].split(":", 3)
            numbers = int(queue_offset[:20]), int(position[:20])
        except ValueError:
            numbers, broker_name, unique_key = (-1, -1), "", ""
        if len(text) > _CHARS_MAX or not all(0 <= each <= _LONG_MAX for each in numbers):
            message = f"the transaction id {text[:80]!r} is none of this endpoint's"
            raise StatusError(Code.INVALID_TRANSACTION_ID, message)
        return cls(*numbers, broker_name, unique_key)

    def __str__(self) -> str:
        return f"{self.queue_offset}:{self.position}:{self.broker_name}:{self.unique_key}"


def _invalid(message: str) -> StatusError:
    return StatusError(Code.INVALID_RECEIPT_HANDLE, message)
