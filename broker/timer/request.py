"""When a sender wants its message to be delivered, and the message that waits for it
(HookUtils.handleScheduleMessage). Pure.
"""

import dataclasses
from collections.abc import Mapping

from broker.scheduling import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from broker.timer.names import (
    ASKING_PROPERTIES,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    PROPERTY_OUT_MS,
    PROPERTY_RECALL_KEY,
    TIMER_QUEUE_ID,
    TIMER_TOPIC,
)
from commitlog.record import Message, format_properties

_JAVA_LONG_MAX = (1 << 63) - 1


class TimerIllegalError(ValueError):
    """The time cannot be kept (WHEEL_TIMER_MSG_ILLEGAL)."""


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether the sender asks for a time. A message that has waited, and is sent again with all properties
    that it had, does not wait again.
    """
    return PROPERTY_OUT_MS not in properties and any(name in properties for name in ASKING_PROPERTIES)


def due_ms(properties: Mapping[str, str], now_ms: int, delay_max_ms: int, precision_ms: int) -> int | None:
    """When a timed message is due, as RocketMQ says it: the last step of `precision_ms` before the time that
    was asked for, of which it is delivered at the end. None: at once.

    Raises TimerIllegalError.
    """
    asked = next(name for name in ASKING_PROPERTIES if name in properties)
    value = properties[asked]
    number = int(value) if _is_long(value) else None
    if number is None:
        raise TimerIllegalError(f"{asked} is {value[:32]!r}, which is no number")
    deliver_ms = {
        PROPERTY_DELAY_SEC: now_ms + number * 1_000,
        PROPERTY_DELAY_MS: now_ms + number,
        PROPERTY_DELIVER_MS: number,
    }[asked]
    if deliver_ms <= now_ms:
        if PROPERTY_RECALL_KEY in properties:
            raise TimerIllegalError("the time of the message to be recalled is over")
        return None
    if deliver_ms - now_ms > delay_max_ms:
        raise TimerIllegalError(f"{deliver_ms - now_ms} ms are too long")
    return (deliver_ms - 1) // precision_ms * precision_ms


def to_timer(message: Message, properties: Mapping[str, str], out_ms: int) -> Message:
    """The message as it is stored while it waits. Raises MessageIllegalError."""
    kept = {
        **properties,
        PROPERTY_OUT_MS: str(out_ms),
        PROPERTY_REAL_TOPIC: message.topic,
        PROPERTY_REAL_QUEUE_ID: str(message.queue_id),
    }
    return dataclasses.replace(
        message, topic=TIMER_TOPIC, queue_id=TIMER_QUEUE_ID, properties=format_properties(kept)
    )


def without_timer(properties: Mapping[str, str]) -> dict[str, str]:
    """What is left when a delay level rules."""
    return {name: value for name, value in properties.items() if name not in ASKING_PROPERTIES}


def _is_long(value: str) -> bool:
    digits = value[1:] if value[:1] in ("-", "+") else value
    return digits.isascii() and digits.isdecimal() and len(digits) <= 19 and int(digits) <= _JAVA_LONG_MAX
