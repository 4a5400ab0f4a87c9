"""What a read asks of its answer: a topic's attribute `read.consistency`, and ext fields that our own clients
set in a request. Pure.

A linearizable read shows every message that was acknowledged before the read was sent, whichever node
acknowledged it. An ordinary one may miss the last ones at a leader that was cut off, or at a follower. A read
that accepts a follower gets an answer that says how old it may be, and may name the greatest age it accepts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from broker.responses import invalid
from broker.state import topics
from broker.state.topics import TopicConfig

READ_FIELD: Final = "LEDGERMQ_READ"
"""Ext field of a request: a `Consistency`. It has precedence over the topic's attribute."""
MAX_AGE_FIELD: Final = "LEDGERMQ_MAX_AGE_MS"
"""Ext field of a request: the greatest age that the client accepts; means `follower`."""
AGE_FIELD: Final = "LEDGERMQ_AGE_MS"
"""Ext field of an answer: it misses nothing that was acknowledged so long ago or earlier. Not there: unknown.
"""
ZONE_FIELD: Final = "__ZONE_NAME"
"""Ext field of all requests of Java clients that run with -Drocketmq.zone or ROCKETMQ_ZONE."""
AGE_MS_MAX: Final = 24 * 3_600_000
_DIGITS_MAX: Final = 10


class Consistency(Enum):
    COMMITTED = "committed"
    LINEARIZABLE = topics.LINEARIZABLE
    FOLLOWER = "follower"


CONSISTENCIES_OF_TOPICS: Final = (Consistency.COMMITTED.value, Consistency.LINEARIZABLE.value)


@dataclass(frozen=True, slots=True)
class ReadChoice:
    """What one request asks for. max_age_ms is for FOLLOWER only; None: any age, also an unknown one."""

    consistency: Consistency
    max_age_ms: int | None = None

    def accepts(self, age_ms: int | None) -> bool:
        """Whether an answer so old will do. An unknown age is too old for every bound."""
        return self.max_age_ms is None or (age_ms is not None and age_ms <= self.max_age_ms)


COMMITTED: Final = ReadChoice(Consistency.COMMITTED)
_LINEARIZABLE: Final = ReadChoice(Consistency.LINEARIZABLE)


def age_ext(age_ms: int | None) -> dict[str, str]:
    """For an answer. An unknown age is not named."""
    return {} if age_ms is None else {AGE_FIELD: str(age_ms)}


def read_choice(ext_fields: Mapping[str, str], topic: TopicConfig | None) -> ReadChoice:
    """Raises RequestError for a value that is none."""
    named, max_age = ext_fields.get(READ_FIELD), ext_fields.get(MAX_AGE_FIELD)
    if named is None and max_age is None:
        return _LINEARIZABLE if topic is not None and topic.is_read_linearizable else COMMITTED
    try:
        consistency = Consistency.FOLLOWER if named is None else Consistency(named)
    except ValueError:
        raise invalid(f"{READ_FIELD} is none of {', '.join(each.value for each in Consistency)}") from None
    if consistency is Consistency.COMMITTED and max_age is None:
        return COMMITTED
    if max_age is not None and consistency is not Consistency.FOLLOWER:
        raise invalid(f"{MAX_AGE_FIELD} is for {READ_FIELD} {Consistency.FOLLOWER.value}")
    return ReadChoice(consistency, None if max_age is None else _age_ms(max_age))


def _age_ms(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not is_number or int(text) > AGE_MS_MAX:
        raise invalid(f"{MAX_AGE_FIELD} is no number from 0 to {AGE_MS_MAX}")
    return int(text)
