"""How far a consumer is in one queue: what it has, which offset it may commit, and whether it may pull more
(ProcessQueue). Pure.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from ledgermq.client.messages import ReceivedMessage

MESSAGE_BYTES: Final = 1_024
"""What a message takes beside its body and its properties, about."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Of one queue; beyond any of them nothing more is pulled. A single answer may go over them.

    messages, size_bytes: not finished. span: from the first unfinished offset to the last; None: any.
    """

    messages: int = 1_000
    size_bytes: int = 100 * 1024 * 1024
    span: int | None = 2_000


class QueueProgress:
    """The messages of one queue that are pulled and not finished, in the order of their offsets.

    start: the first offset that is pulled.
    """

    def __init__(self, start: int) -> None:
        self._next = start
        self._unfinished: OrderedDict[int, int] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._unfinished)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def next_offset(self) -> int:
        """The offset of the next pull."""
        return self._next

    @property
    def committable(self) -> int:
        """All messages below this offset are finished or not wanted. A message that is still being handled
        holds it, however many after it are finished: after a crash these come again, but none is lost.
        """
        return next(iter(self._unfinished), self._next)

    def pulled(self, messages: list[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """A pull has brought these messages. Returns those that are new: a broker's answer may begin before
        the offset that was asked for.
        """
        new = [each for each in messages if each.queue_offset >= self._next]
        for each in new:
            size_bytes = size_of(each)
            self._unfinished[each.queue_offset] = size_bytes
            self._size_bytes += size_bytes
        self._next = max(self._next, next_offset)
        return new

    def finish(self, offset: int) -> None:
        """The message was handled, or sent back for a retry."""
        self._size_bytes -= self._unfinished.pop(offset)

    def may_pull(self, limits: PullLimits) -> bool:
        return (
            len(self._unfinished) < limits.messages
            and self._size_bytes < limits.size_bytes
            and (limits.span is None or self._next - self.committable <= limits.span)
        )


def size_of(message: ReceivedMessage) -> int:
    """The memory that a message takes, about."""
    properties = sum(len(name) + len(value) for name, value in message.properties.items())
    return MESSAGE_BYTES + len(message.body) + properties


def was_trimmed(next_offset: int, min_offset: int, asked: int) -> bool:
    """Whether an answer PULL_OFFSET_MOVED means that the messages at the offset that was asked for were
    removed with their age. What was pulled before then stays good; otherwise an operator has set the group's
    offset, or the topic was made again, and it does not.
    """
    return next_offset == min_offset and asked < next_offset
