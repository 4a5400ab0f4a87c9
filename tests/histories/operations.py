"""What a history is made of: operations of clients, each with who, when and how it ended.

A process does one thing after another; a client with several requests in flight is several processes (`p0/0`,
`p0/1` …). The operations of a process stand in the history in the order it did them. Times are of one clock
for the whole history, in whatever unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """What the client knows of an operation's end."""

    OK = "ok"
    FAIL = "fail"
    """Definitely not done, then or later."""
    INFO = "info"
    """Unknown: no answer came, or one that leaves it open."""


class Queue(NamedTuple):
    """A queue of a topic. A topic that is deleted and made anew is another one: name it `name#2`."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class Place(NamedTuple):
    """Where a message stands."""

    queue: Queue
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Send:
    """One message, or a batch that the broker takes as one.

    `values` are unique in the whole history. `queue` and `offsets` say what the answer said: a producer that
    tries again elsewhere does not know where a lost try ended up. `tries` counts the requests that may have
    reached a broker, None where the client does not tell.
    """

    process: str
    invoked: int
    completed: int | None
    outcome: Outcome
    values: tuple[str, ...]
    queue: Queue | None = None
    offsets: tuple[int, ...] = ()
    tries: int | None = 1


@dataclass(frozen=True, slots=True)
class Poll:
    """Messages that were asked for from `start` on, and the offset that the next poll is to ask for.

    A push consumer's listener does not see the polls: its `start` is None. With `is_ordered` False the client
    promises no order (concurrent listeners), only content is judged.
    """

    process: str
    invoked: int
    completed: int | None
    outcome: Outcome
    queue: Queue
    start: int | None
    messages: tuple[tuple[int, str], ...] = ()
    next_offset: int | None = None
    is_ordered: bool = True


@dataclass(frozen=True, slots=True)
class Seek:
    """From here on the process polls the queue from `offset` (None: wherever), whatever it polled before."""

    process: str
    at: int
    queue: Queue
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """The process has these queues and no other; where each begins is told by a fetch, a seek or a poll."""

    process: str
    at: int
    queues: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """The group goes on at `offset`. A reset by an operator is a commit of the operator's process."""

    process: str
    invoked: int
    completed: int | None
    outcome: Outcome
    group: str
    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for the group's offset; `offset` None in an ok answer: the group has none."""

    process: str
    invoked: int
    completed: int | None
    outcome: Outcome
    group: str
    queue: Queue
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """The client is gone with all it knew; a process of its name that appears again begins anew."""

    process: str
    at: int


@dataclass(frozen=True, slots=True)
class Drain:
    """The process has read a whole queue: what it polled since its last seek, assign or crash there.

    `invoked` is when that reading began; the broker said that the queue goes from `begin` to before `end`.
    """

    process: str
    invoked: int
    completed: int
    queue: Queue
    begin: int
    end: int


Operation = Send | Poll | Seek | Assign | Commit | Fetch | Crash | Drain
