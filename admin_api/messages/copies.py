"""Copies of stored messages for sending again: which properties are kept and which are dropped. Pure."""

from typing import Final

from admin_api.messages.views import id_of
from admin_api.sources.messages import OutMessage
from remoting.record import Record, get_property, parse_properties

RESENT_FROM: Final = "LEDGERMQ_RESENT_FROM"
"""Property of a copy: the offset message id of what it was made from. By it a resend is known later."""
RETRY_PREFIX: Final = "%RETRY%"
RETRIES_MAX: Final = 16
"""RocketMQ's own; said with a copy to a retry topic, so that it is no dead letter again at once."""
PROPERTIES_BYTES_MAX: Final = 32_000
"""A record holds 32,767 bytes, and the broker adds some."""

_OF_ONE_TRY: Final = frozenset(
    {
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "TRAN_MSG",
        "PGROUP",
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_DEL_UNIQKEY",
        "POP_CK",
        "1ST_POP_TIME",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_ID",
        "RETRY_TOPIC",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "LEDGERMQ_SEQ",
        "LEDGERMQ_SUM",
    }
)
RESERVED: Final = _OF_ONE_TRY | {"KEYS", "TAGS", "WAIT", "UNIQ_KEY", "EXTEND_UNIQ_INFO", RESENT_FROM}
"""Properties that mean something to brokers and clients: no message's own."""
_BODY_BITS: Final = 0x703
"""Of sysFlag: how the body is compressed, and several tags. The rest is the broker's."""


def original_topic(record: Record) -> str:
    """Where a message of a retry or dead-letter topic was sent first; of another, its topic."""
    for name in (b"RETRY_TOPIC", b"DLQ_ORIGIN_TOPIC"):
        value = get_property(record.properties, name)
        if value is not None:
            return value.decode(errors="replace")
    return record.topic


def original_id(record: Record) -> str | None:
    """The offset message id of the first one, where its retries have kept it."""
    for name in (b"ORIGIN_MESSAGE_ID", b"DLQ_ORIGIN_MESSAGE_ID"):
        value = get_property(record.properties, name)
        if value is not None:
            return value.decode(errors="replace")
    return None


def unique_key_of(record: Record) -> str:
    """Its client's id; of a message without one, its own id, so that its copy can be found."""
    value = get_property(record.properties, b"UNIQ_KEY")
    return id_of(record) if value is None else value.decode(errors="replace")


def copy_of(record: Record, topic: str, now_ms: int) -> OutMessage:
    """A new message of the topic with the same body, keys, tags, client's id and properties of its own."""
    properties = {
        name: value for name, value in parse_properties(record.properties).items() if name not in _OF_ONE_TRY
    }
    properties |= {"UNIQ_KEY": unique_key_of(record), RESENT_FROM: id_of(record), "WAIT": "true"}
    is_retry = topic.startswith(RETRY_PREFIX)
    if is_retry:
        # The consumer gives it to its listener as a message of this topic.
        properties["RETRY_TOPIC"] = original_topic(record)
        properties["ORIGIN_MESSAGE_ID"] = original_id(record) or id_of(record)
    return OutMessage(
        topic=topic,
        body=record.body,
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag & _BODY_BITS,
        born_ms=now_ms,
        max_reconsume_times=RETRIES_MAX if is_retry else None,
    )


def is_copy_of(record: Record, source_id: str) -> bool:
    return get_property(record.properties, RESENT_FROM.encode()) == source_id.encode()
