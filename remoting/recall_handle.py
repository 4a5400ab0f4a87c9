"""The handle by which a sender takes back a message for a later time (RecallMessageHandle): base64url of "v1
TOPIC BROKER TIME UNIQ_KEY", where TIME is one ms behind the message's own. Pure.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Final

_VERSION: Final = "v1"
_FIELDS: Final = 5
_TIME_CHARS_END: Final = 19
HANDLE_CHARS_MAX: Final = 2_048


class HandleError(ValueError):
    """The text is no recall handle."""


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """What one names."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str


def encode_handle(topic: str, broker_name: str, out_ms: int, unique_key: str) -> str:
    text = f"{_VERSION} {topic} {broker_name} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Raises HandleError."""
    if not text or len(text) > HANDLE_CHARS_MAX:
        raise HandleError("recall handle is invalid")
    try:
        padded = text + "=" * (-len(text) % 4)
        words = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError) as error:
        raise HandleError("recall handle is invalid") from error
    if len(words) < _FIELDS or words[0] != _VERSION:
        raise HandleError("recall handle is invalid")
    _, topic, broker_name, time, unique_key = words[:_FIELDS]
    time_ms = int(time) if time.isdecimal() and len(time) < _TIME_CHARS_END else -1
    return RecallHandle(topic, broker_name, time_ms, unique_key)
