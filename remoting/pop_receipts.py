"""The names and texts of POP consumption on the wire: retry topics, receipt handles (extraInfo, the property
POP_CK), the offset fields of an answer, and what an answer hands out (KeyBuilder, ExtraInfoUtil,
ReceiptHandle, MQClientAPIImpl.processPopResponse). Pure.

A handle names one message that was handed out, and the pop that did it, so that any client or endpoint can
end it, after any failover:

    first offset of the pop | pop time | invisible time | revive queue | mark | broker | queue | offset
    | position

separated by blanks. The mark names the kind of topic that holds the message: normal or retry. Brokers need
the first seven parts; the position, which the client adds, makes a dead letter of the message.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from remoting.command import RemotingCommand
from remoting.record import CorruptRecordError, Record, decode_records, parse_properties
from remoting.topic_names import RETRY_PREFIX

MARK_NORMAL = "0"
MARK_RETRY = "1"
MARK_RETRY_V2 = "2"
POP_CHECKPOINT: Final = "POP_CK"
ORDER_REVIVE_QUEUE = 999
"""In handles of ordered pops."""
_HANDLE_PARTS_MIN = 7
_HANDLE_CHARS_MAX = 1_024
_LONG_MAX = 2**63 - 1
_MARKS: Final = (MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2)
_COUNT_OF_OFFSET: Final = "qo"


class HandleError(ValueError):
    """A receipt handle from a client cannot be read."""


class PopAnswerError(ValueError):
    """A broker's answer to a pop cannot be read."""


def pop_retry_topic(topic: str, group: str, v2: bool = False) -> str:
    """The retry topic through which a group receives messages of a topic again that it did not acknowledge in
    time.
    """
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def mark_of(topic: str) -> str:
    if not topic.startswith(RETRY_PREFIX):
        return MARK_NORMAL
    return MARK_RETRY_V2 if "+" in topic else MARK_RETRY


def marked_topic(topic: str, group: str, mark: str) -> str:
    """The topic that holds a message of `topic` with this mark. Raises HandleError."""
    if mark == MARK_NORMAL:
        return topic
    if mark not in (MARK_RETRY, MARK_RETRY_V2):
        raise HandleError(f"the mark {mark[:8]!r} is none of 0, 1 and 2")
    return pop_retry_topic(topic, group, mark == MARK_RETRY_V2)


def origin_topic(topic: str, group: str) -> str:
    """The topic that a message of this one was sent to."""
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix) and len(topic) > len(prefix):
            return topic[len(prefix) :]
    return topic


@dataclass(frozen=True, slots=True)
class Handle:
    """What a broker needs of a receipt handle."""

    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDER_REVIVE_QUEUE


def parse_handle(text: str) -> Handle:
    """Read an `extraInfo`. Raises HandleError."""
    parts = text[: _HANDLE_CHARS_MAX + 1].split(" ")
    if len(parts) < _HANDLE_PARTS_MIN or len(text) > _HANDLE_CHARS_MAX:
        raise HandleError(f"the receipt handle {text[:80]!r} has {len(parts)} parts, not 7 or 8")
    try:
        pop_time_ms, invisible_ms, revive_queue_id = (int(part[:20]) for part in parts[1:4])
    except ValueError:
        raise HandleError(f"the receipt handle {text[:80]!r} has no times") from None
    if not (0 <= pop_time_ms <= _LONG_MAX and 0 <= invisible_ms <= _LONG_MAX):
        raise HandleError(f"the receipt handle {text[:80]!r} has times out of range")
    return Handle(pop_time_ms, invisible_ms, revive_queue_id)


def start_offset_info(topic: str, queue_id: int, start: int) -> str:
    """One queue's part of `startOffsetInfo`."""
    return f"{mark_of(topic)} {queue_id} {start}"


def msg_offset_info(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    """One queue's part of `msgOffsetInfo`."""
    return f"{mark_of(topic)} {queue_id} {','.join(map(str, offsets))}"


def order_count_info(topic: str, queue_id: int, counts: Iterable[tuple[int, int]], least: int) -> str:
    """One queue's part of `orderCountInfo`: how often each message was handed out before, and for clients
    that know only queues, the least of all.
    """
    mark = mark_of(topic)
    parts = [f"{mark} qo{queue_id}%{offset} {count}" for offset, count in counts]
    return ";".join([*parts, f"{mark} {queue_id} {least}"])


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
        """Raises HandleError."""
        parts = text[: _HANDLE_CHARS_MAX + 1].split(" ")
        if len(parts) not in (8, 9) or len(text) > _HANDLE_CHARS_MAX:
            raise HandleError(f"the receipt handle {text[:80]!r} has {len(parts)} parts, not 8 or 9")
        start, popped, invisible, revive, mark, broker, queue, offset, *position = parts
        try:
            numbers = [int(each[:20]) for each in (start, popped, invisible, revive, queue, offset)]
            where = int(position[0][:20]) if position else -1
            marked_topic("topic", "group", mark)
        except ValueError:
            raise HandleError(f"the receipt handle {text[:80]!r} cannot be read") from None
        if not broker or not all(0 <= each <= _LONG_MAX for each in (*numbers, where + 1)):
            raise HandleError(f"the receipt handle {text[:80]!r} has numbers out of range")
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

    def changed(self, answer: RemotingCommand) -> "ReceiptHandle":
        """The handle after this answer to a change of the invisible time. Raises PopAnswerError."""
        ext = answer.ext_fields
        try:
            popped_ms, invisible_ms, revive = (int(ext[n]) for n in ("popTime", "invisibleTime", "reviveQid"))
        except (KeyError, ValueError) as error:
            raise PopAnswerError(repr(error)) from error
        return self._replace(
            start_offset=self.offset,
            pop_time_ms=popped_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=revive,
        )


def read_popped(
    answer: RemotingCommand, broker_name: str, *, in_order: bool = False
) -> list[tuple[ReceiptHandle, Record]]:
    """What an answer with messages hands out. Their `reconsume_times` is how often they were before, which
    an ordered pop's answer says beside them. Raises PopAnswerError.
    """
    ext = answer.ext_fields
    try:
        starts = _starts(ext.get("startOffsetInfo", ""))
        counts = _counts(ext.get("orderCountInfo", "")) if in_order else {}
        times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
        records = decode_records(answer.body)
        for each in records if counts else ():
            _count(each, counts)
        return [(_handle(each, times, starts, broker_name), each) for each in records]
    except (KeyError, ValueError, CorruptRecordError) as error:
        raise PopAnswerError(repr(error)) from error


def _handle(
    record: Record, times: tuple[int, int, int], starts: Mapping[tuple[str, int], int], broker_name: str
) -> ReceiptHandle:
    given = _given_handle(record, times)
    if given is not None:
        return given
    mark, (popped_ms, invisible_ms, revive_queue_id) = mark_of(record.topic), times
    return ReceiptHandle(
        start_offset=starts[mark, record.queue_id],
        pop_time_ms=popped_ms,
        invisible_ms=invisible_ms,
        revive_queue_id=revive_queue_id,
        mark=mark,
        broker_name=broker_name,
        queue_id=record.queue_id,
        offset=record.queue_offset,
        position=record.physical_offset,
    )


def _given_handle(record: Record, times: tuple[int, int, int]) -> ReceiptHandle | None:
    """RocketMQ 5 renames the topic of a record from a retry topic and puts the handle into the record. One of
    another record or pop, which a producer may have copied, counts for nothing.
    """
    text = parse_properties(record.properties).get(POP_CHECKPOINT)
    try:
        handle = None if text is None else ReceiptHandle.parse(text)
    except HandleError:
        return None
    if handle is None or (handle.queue_id, handle.offset) != (record.queue_id, record.queue_offset):
        return None
    if (handle.pop_time_ms, handle.invisible_ms, handle.revive_queue_id) != times:
        return None
    return handle._replace(position=record.physical_offset)


def _count(record: Record, counts: Mapping[tuple[str, str], int]) -> None:
    mark = mark_of(record.topic)
    of_message = f"{_COUNT_OF_OFFSET}{record.queue_id}%{record.queue_offset}"
    count = counts.get((mark, of_message), counts.get((mark, str(record.queue_id)), 0))
    if count > 0:
        record.reconsume_times = count


def _starts(text: str) -> dict[tuple[str, int], int]:
    """`MARK QUEUE OFFSET` of each queue, separated by semicolons."""
    starts = {}
    for part in filter(None, text.split(";")):
        mark, queue_id, start = part.split(" ")
        if mark not in _MARKS:
            raise ValueError(f"the mark {mark[:8]!r} is none of {', '.join(_MARKS)}")
        starts[mark, int(queue_id)] = int(start)
    return starts


def _counts(text: str) -> dict[tuple[str, str], int]:
    """`MARK qoQUEUE%OFFSET COUNT` of each message, and `MARK QUEUE COUNT` of each queue."""
    parts = (part.split(" ") for part in text.split(";") if part)
    return {(mark, place): int(count) for mark, place, count in parts}
