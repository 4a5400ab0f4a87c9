"""A bound on a rate that holds over any stretch of time, for tasks that cannot see each other.

The whole rate is divided among the tasks before they start, so their sum cannot exceed it whichever of them
run at the same time. A task that is late does not catch up faster than its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 0.1
"""What may pass at once: as much as the rate allows in this time, and one message at least."""
TASK_MESSAGES: Final = 5_000.0
TASK_BYTES: Final = 4.0 * 1024 * 1024
"""A second, which one task sends with ease. Where it suffices, one task has the whole rate: shares of several
rest on what each has to send, which is known in the mean only.
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many messages and bytes a second; None is no bound."""

    messages: float | None = None
    body_bytes: float | None = None

    @property
    def is_bounded(self) -> bool:
        return self.messages is not None or self.body_bytes is not None

    def share(self, part: float) -> Rate:
        """This part (0 to 1) of the rate."""
        return Rate(
            None if self.messages is None else self.messages * part,
            None if self.body_bytes is None else self.body_bytes * part,
        )

    def seconds_for(self, messages: int, body_bytes: float) -> float:
        """How long so much takes at this rate."""
        by_count = messages / self.messages if self.messages is not None else 0.0
        by_bytes = body_bytes / self.body_bytes if self.body_bytes is not None else 0.0
        return max(by_count, by_bytes)

    def messages_in(self, seconds: float, message_bytes: float = 0.0) -> int | None:
        """How many messages may pass in so long a time, one at least; None without a bound. message_bytes:
        of a body in the mean, 0 if that is unknown: then a bound in bytes does not bound the messages.
        """
        bounds = []
        if self.messages is not None:
            bounds.append(self.messages * seconds)
        if self.body_bytes is not None and message_bytes > 0:
            bounds.append(self.body_bytes * seconds / message_bytes)
        return max(1, int(min(bounds))) if bounds else None

    def tasks(self, tasks_max: int) -> int:
        """How many tasks such a rate needs, `tasks_max` at most and without a bound."""
        needed = [tasks_max]
        if self.messages is not None:
            needed.append(math.ceil(self.messages / TASK_MESSAGES))
        if self.body_bytes is not None:
            needed.append(math.ceil(self.body_bytes / TASK_BYTES))
        return max(1, min(needed))


def shares(rate: Rate, weights: Sequence[float]) -> list[Rate]:
    """The rate divided by the weights (how long each task's messages take), so that all end together."""
    total = sum(weights)
    return [rate.share(weight / total) if total else rate for weight in weights]


class Limiter:
    """Says when the next messages may pass. Reads no clock: the time is an argument, in seconds."""

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._free_s = now_s

    def wait_s(self, messages: int, body_bytes: int, now_s: float) -> float:
        """Take so many messages; return how long to wait before they may be sent.

        Time in which nothing was sent is not saved up.
        """
        start_s = max(self._free_s, now_s)
        self._free_s = start_s + self._rate.seconds_for(messages, body_bytes)
        return start_s - now_s


def pieces(sizes: Sequence[int], rate: Rate, burst_s: float = BURST_S) -> list[int]:
    """Cut messages of these body sizes into stretches that each take at most `burst_s`; their lengths.

    A single message that takes longer is a stretch of its own.
    """
    if not rate.is_bounded:
        return [len(sizes)] if sizes else []
    found: list[int] = []
    count = taken = 0
    for size in sizes:
        if count and rate.seconds_for(count + 1, taken + size) > burst_s:
            found.append(count)
            count = taken = 0
        count += 1
        taken += size
    return [*found, count] if count else found
