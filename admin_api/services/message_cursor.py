"""Where a search through a topic goes on: an opaque text that its next part is asked for with. Pure.

It comes from outside like any other, so everything in it is checked; nothing in it can name a place that the
topic's route does not.
"""

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from admin_api.services.errors import InvalidError

CURSOR_CHARS_MAX: Final = 16_384
_PLAIN_BYTES_MAX: Final = 256 * 1024
_OFFSET_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for: messages stored between two times (Unix ms, both included), with a tag or any."""

    topic: str
    from_ms: int
    to_ms: int
    tag: str | None = None


class LaneMark(BaseModel):
    """What is left to look at of one queue: offsets from `low` to before `high`, `step` of them at once."""

    model_config = ConfigDict(frozen=True)

    broker_name: str = Field(max_length=255)
    queue_id: int = Field(ge=0, le=65_535)
    low: int = Field(ge=0, le=_OFFSET_MAX)
    high: int = Field(ge=0, le=_OFFSET_MAX)
    step: int = Field(ge=1, le=_OFFSET_MAX)


class _Content(BaseModel):
    topic: str
    from_ms: int = Field(ge=0, le=_OFFSET_MAX)
    to_ms: int = Field(ge=0, le=_OFFSET_MAX)
    tag: str | None
    lanes: list[tuple[str, int, int, int, int]]


def format_cursor(search: Search, lanes: list[LaneMark]) -> str | None:
    """None when nothing is left."""
    rows = [(mark.broker_name, mark.queue_id, mark.low, mark.high, mark.step) for mark in lanes]
    if not rows:
        return None
    fields = [search.topic, search.from_ms, search.to_ms, search.tag, rows]
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(fields))).rstrip(b"=").decode()


def parse_cursor(text: str) -> tuple[Search, list[LaneMark]]:
    """Raises: InvalidError."""
    problem = "The cursor is none that this service gave."
    if len(text) > CURSOR_CHARS_MAX:
        raise InvalidError(problem)
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        plain = zlib.decompressobj().decompress(packed, _PLAIN_BYTES_MAX)
        topic, from_ms, to_ms, tag, lanes = orjson.loads(plain)
        content = _Content(topic=topic, from_ms=from_ms, to_ms=to_ms, tag=tag, lanes=lanes)
        marks = [
            LaneMark(broker_name=name, queue_id=queue_id, low=low, high=high, step=step)
            for name, queue_id, low, high, step in content.lanes
        ]
    except (binascii.Error, zlib.error, ValidationError, ValueError, TypeError) as error:
        raise InvalidError(problem) from error
    return Search(content.topic, content.from_ms, content.to_ms, content.tag), marks
