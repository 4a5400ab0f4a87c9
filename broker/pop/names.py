"""The names and texts of POP consumption on the wire: retry topics, receipt handles (extraInfo, the property
POP_CK) and the offset fields of an answer (KeyBuilder, ExtraInfoUtil). Pure.

A handle names one message that was handed out, and the pop that did it:

    first offset of the pop | pop time | invisible time | revive queue | mark | broker | queue | offset

separated by blanks. The mark names the kind of topic that holds the message: normal or retry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remoting.topic_names import RETRY_PREFIX

MARK_NORMAL = "0"
MARK_RETRY = "1"
MARK_RETRY_V2 = "2"
ORDER_REVIVE_QUEUE = 999
"""In handles of ordered pops."""
_HANDLE_PARTS_MIN = 7
_HANDLE_CHARS_MAX = 1_024
_LONG_MAX = 2**63 - 1


class HandleError(ValueError):
    """A receipt handle from a client cannot be read."""


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
