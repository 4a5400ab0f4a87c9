"""Receipt handles and transaction ids: texts that a client gives back, with all that a broker needs to find
the message, so that any endpoint can use them, after any failover (ReceiptHandle, ExtraInfoUtil).

A receipt handle is RocketMQ's, nine parts separated by blanks:

    first offset of the pop | pop time | invisible time | revive queue | mark | broker | queue | offset
    | position

The mark says in which topic the message is: the normal one or the group's retry topic. RocketMQ's transaction
id is the message's own and its proxy remembers the rest; ours names the half message:

    queue offset | position | broker | unique key        separated by colons
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from broker.pop.names import HandleError, mark_of, marked_topic
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError

_CHARS_MAX: Final = 1_024
_LONG_MAX: Final = 2**63 - 1


class ReceiptHandle(NamedTuple):
    """Names one message that was handed out, and the pop that did it. `position`: -1 where not known."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    mark: str
    broker_name: str
    queue_id: int
    offset: int
    position: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises StatusError."""
        parts = text[: _CHARS_MAX + 1].split(" ")
        if len(parts) not in (8, 9) or len(text) > _CHARS_MAX:
            raise _invalid(f"the receipt handle {text[:80]!r} has {len(parts)} parts, not 8 or 9")
        start, popped, invisible, revive, mark, broker, queue, offset, *position = parts
        try:
            numbers = [int(each[:20]) for each in (start, popped, invisible, revive, queue, offset)]
            where = int(position[0][:20]) if position else -1
            marked_topic("topic", "group", mark)
        except (ValueError, HandleError):
            raise _invalid(f"the receipt handle {text[:80]!r} cannot be read") from None
        if not broker or not all(0 <= each <= _LONG_MAX for each in (*numbers, where + 1)):
            raise _invalid(f"the receipt handle {text[:80]!r} has numbers out of range")
        start_offset, pop_time_ms, invisible_ms, revive_queue_id, queue_id, at = numbers
        return cls(
            start_offset, pop_time_ms, invisible_ms, revive_queue_id, mark, broker, queue_id, at, where
        )

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} {self.mark} "
            f"{self.broker_name} {self.queue_id} {self.offset} {self.position}"
        )

    @property
    def visible_at_ms(self) -> int:
        """When the message is handed out again, by the broker's clock."""
        return self.pop_time_ms + self.invisible_ms

    def topic(self, topic: str, group: str) -> str:
        """Where the message is, of which the client knows the normal topic."""
        return marked_topic(topic, group, self.mark)

    def check_not_over(self, now_ms: int) -> None:
        """Raises StatusError when the message may be another consumer's by now."""
        if self.visible_at_ms <= now_ms:
            raise _invalid("receipt handle is expired")

    def changed(self, pop_time_ms: int, invisible_ms: int, revive_queue_id: int) -> "ReceiptHandle":
        """The handle after a change of the invisible time."""
        return self._replace(
            start_offset=self.offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=revive_queue_id,
        )


def mark_in(topic: str) -> str:
    """The mark of the topic that a popped message is in."""
    return mark_of(topic)


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
