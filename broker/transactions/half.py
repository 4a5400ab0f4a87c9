"""Half messages: how one is stored, and the messages that are made from it (TransactionalMessageBridge,
EndTransactionProcessor). Pure.

A half message is an ordinary message of RMQ_SYS_TRANS_HALF_TOPIC, queue 0, whose real topic and queue are
properties of it. It is found by its position, and named by its offset in that queue.
"""

from collections.abc import Mapping

from broker.state.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from broker.store.redelivery import copy_of, property_of, real_place
from broker.timer.admission import TimerRules, asks_for_time
from broker.timer.scheduling import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    effective_level,
    to_scheduled,
)
from commitlog.record import (
    PHYSICAL_OFFSET_AT,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    Message,
    Record,
    encode_record,
    parse_properties,
)

HALF_QUEUE_ID = 0
PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
IMMUNITY_S_MAX = 10 * 365 * 86_400


def is_half(sys_flag: int, properties: Mapping[str, str], reconsume_times: int) -> bool:
    """Whether a send prepares a transaction. The copy of a message for another try is none, though it has
    the property (SendMessageProcessor).
    """
    is_retry = reconsume_times > 0 and effective_level(properties.get(PROPERTY_DELAY), 1) > 0
    is_prepared = sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
    return (is_prepared or properties.get(PROPERTY_TRANSACTION, "").lower() == "true") and not is_retry


def half_properties(
    properties: Mapping[str, str], topic: str, queue_id: int, producer_group: str, unique_key: str
) -> dict[str, str]:
    """Properties that keep the message's real topic and queue, and the producer group to ask for the
    decision.
    """
    return {
        PROPERTY_PRODUCER_GROUP: producer_group,
        **properties,
        PROPERTY_TRANSACTION: "true",
        PROPERTY_TRANSACTION_ID: unique_key,
        PROPERTY_REAL_TOPIC: topic,
        PROPERTY_REAL_QUEUE_ID: str(queue_id),
    }


def producer_group_of(record: Record) -> str:
    return property_of(record, PROPERTY_PRODUCER_GROUP)


def immunity_ms(record: Record, timeout_ms: int) -> int | None:
    """For how many ms the message itself asks not to be checked; None when it has no such property."""
    text = property_of(record, PROPERTY_IMMUNITY)
    if not text:
        return None
    try:
        seconds = int(text)
    except ValueError:
        return timeout_ms
    return min(seconds, IMMUNITY_S_MAX) * 1_000 if seconds >= 0 else timeout_ms


def committed(record: Record, store_host: bytes, levels: int, timers: TimerRules) -> Message:
    """The message that consumers get: its properties stay as they are, TRAN_MSG and REAL_TOPIC among them.
    One with a delay level, or a time of its own, waits for it from now on.

    Raises ValueError when the half message does not name its topic and queue.
    """
    topic, queue_id = _place_of(record)
    message = _copy(record, topic, queue_id, store_host)
    message.sys_flag |= TRANSACTION_COMMIT
    message.prepared_transaction_offset = record.physical_offset  # by which a new leader finds it (LogTail)
    level = effective_level(property_of(record, PROPERTY_DELAY), levels)
    if level > 0:
        return to_scheduled(message, level)
    is_timed = asks_for_time(message.properties)
    return timers.committed(message, parse_properties(message.properties)) if is_timed else message


def discarded(record: Record, store_host: bytes) -> Message:
    """The half message as it is put aside for an operator."""
    message = _copy(record, CHECK_MAX_TIME_TOPIC, 0, store_host)
    message.prepared_transaction_offset = record.physical_offset
    return message


def resumed(record: Record, store_host: bytes) -> Message:
    """A half message again, of one that was put aside."""
    return _copy(record, HALF_TOPIC, HALF_QUEUE_ID, store_host)


def check_body(record: Record, checks: int) -> bytes:
    """The half message as a check shows it to its producer: in its real topic and queue, at its own place.

    Raises ValueError when it does not name them.
    """
    topic, queue_id = _place_of(record)
    properties = record.properties + f"{PROPERTY_CHECK_TIMES}\x01{checks}\x02".encode()
    message = copy_of(record, topic, queue_id, record.store_host, properties)
    message.sys_flag = record.sys_flag
    data = encode_record(message, record.queue_offset, record.store_timestamp_ms)
    position = record.physical_offset.to_bytes(8, "big")
    return data[:PHYSICAL_OFFSET_AT] + position + data[PHYSICAL_OFFSET_AT + 8 :]


def _place_of(record: Record) -> tuple[str, int]:
    """Topic and queue to which the message is delivered. Raises ValueError."""
    place = real_place(record)
    if place is None or place[0] == HALF_TOPIC:
        raise ValueError(f"the half message {record.queue_offset} names no topic and queue")
    return place


def _copy(record: Record, topic: str, queue_id: int, store_host: bytes) -> Message:
    message = copy_of(record, topic, queue_id, store_host)
    message.sys_flag &= ~TRANSACTION_MASK
    return message
