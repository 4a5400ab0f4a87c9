"""Names of topics: which are possible, and those of a consumer group's own topics. Pure."""

import re
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
TOPIC_CHARS_MAX: Final = 127
_TOPIC_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def topic_name_error(name: str) -> str | None:
    """Why RocketMQ would refuse a topic name, or None if it is good (TopicValidator.validateTopic)."""
    if not name.strip():
        return "The specified topic is blank."
    checked = name.replace("+", "_", 1) if name.startswith(RETRY_PREFIX) else name  # of POP, version 2
    if not _TOPIC_NAME.match(checked):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > TOPIC_CHARS_MAX:
        return f"The specified topic is longer than topic max length {TOPIC_CHARS_MAX}."
    return None
