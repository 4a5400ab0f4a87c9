"""What a sender asks for, a delay level or a delivery time, and the message as it is stored until then
(HookUtils.handleScheduleMessage). Pure.

A message with a delay level waits in SCHEDULE_TOPIC_XXXX, queue level - 1; one with a delivery time of its
own in rmq_sys_wheel_timer, queue 0. Both keep their real topic and queue as properties, from which the
delivering side makes the message for consumers. The names are RocketMQ's (MessageConst,
ScheduleMessageService, TimerMessageStore).
"""

import dataclasses
import re
from collections.abc import Mapping

from commitlog.record import Message, format_properties, parse_properties

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PROPERTY_DELAY = "DELAY"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
LEVELS_MAX = 64
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])\Z")
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_QUEUE_ID = 0
PROPERTY_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_DELIVER_MS = "TIMER_DELIVER_MS"
ASKING_PROPERTIES = (PROPERTY_DELAY_SEC, PROPERTY_DELAY_MS, PROPERTY_DELIVER_MS)
"""Properties by which a sender asks for a delivery time; of several, the first one here counts."""
PROPERTY_OUT_MS = "TIMER_OUT_MS"
"""When the message is due: the broker's own, and on every message that waits or has waited."""
PROPERTY_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_RECALL_KEY = "TIMER_DEL_UNIQKEY"
"""Topic+UNIQ_KEY of the message of the same time that is not to be delivered."""
_JAVA_LONG_MAX = (1 << 63) - 1


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delay in ms of level 1, 2, …, from RocketMQ's text, like "1s 5s 10s 1m 2h". Raises ValueError."""
    levels = tuple(_parse_level(word) for word in text.split())
    if not 1 <= len(levels) <= LEVELS_MAX:
        raise ValueError(f"has {len(levels)} levels; 1 to {LEVELS_MAX} are possible")
    return levels


def _parse_level(word: str) -> int:
    match = _LEVEL.match(word)
    if match is None:
        raise ValueError(f"the level '{word}' is not a number followed by s, m, h or d")
    return int(match[1]) * _UNIT_MS[match[2]]


def effective_level(text: str | None, levels: int) -> int:
    """The delay level a DELAY property asks for: 0 = no delay; above the last level means the last one."""
    if not text:
        return 0
    try:
        level = int(text)
    except ValueError:
        return 0
    return min(max(level, 0), levels)


def to_scheduled(message: Message, level: int) -> Message:
    """The message as it is stored while it waits at delay level `level` (1 = the first)."""
    assert level >= 1, f"delay level {level}"
    properties = parse_properties(message.properties)
    properties[PROPERTY_DELAY] = str(level)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return dataclasses.replace(
        message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=format_properties(properties)
    )


class TimerIllegalError(ValueError):
    """The time cannot be kept (WHEEL_TIMER_MSG_ILLEGAL)."""


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether the sender asks for a time. A message that has waited, and is sent again with all properties
    that it had, does not wait again.
    """
    return PROPERTY_OUT_MS not in properties and any(name in properties for name in ASKING_PROPERTIES)


def due_ms(properties: Mapping[str, str], now_ms: int, delay_max_ms: int, precision_ms: int) -> int | None:
    """Due time of a timer message in ms, by RocketMQ's rule: the last multiple of `precision_ms` before the
    requested time; the message is delivered `precision_ms` after it. None: at once.

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
            raise TimerIllegalError("the delivery time of the message to be recalled has passed")
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
    """The properties without a delivery time: a delay level has priority."""
    return {name: value for name, value in properties.items() if name not in ASKING_PROPERTIES}


def _is_long(value: str) -> bool:
    digits = value[1:] if value[:1] in ("-", "+") else value
    return digits.isascii() and digits.isdecimal() and len(digits) <= 19 and int(digits) <= _JAVA_LONG_MAX
