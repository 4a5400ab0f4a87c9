"""Delay levels, and how a message is put aside until its time (ScheduleMessageService's topic and
properties).

A delayed message is stored in SCHEDULE_TOPIC_XXXX, queue level - 1, with its real topic and queue kept as
properties, from which the delivering side puts it back together.
"""

import dataclasses
import re

from commitlog.record import Message, format_properties, parse_properties

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PROPERTY_DELAY = "DELAY"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
LEVELS_MAX = 64

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])\Z")


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
