"""A rate limit that holds over any period, for tasks that do not communicate.

The whole rate is divided among the tasks before they start, so their sum cannot exceed it, no matter which
of them run at the same time. A task that is late does not catch up faster than its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 0.1
"""Size of a burst: as much as the rate allows in this time, and at least one message."""
TASK_MESSAGES: Final = 5_000.0
TASK_BYTES: Final = 4.0 * 1024 * 1024
"""Messages and bytes a second that one task can send easily. Up to this, one task has the whole rate: the
shares of several tasks depend on what each of them has to send, of which only the mean size is known.
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """Upper bounds in messages and bytes per second; None is no bound."""

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
        """The time that these messages and bytes need at this rate, in seconds."""
        by_count = messages / self.messages if self.messages is not None else 0.0
        by_bytes = body_bytes / self.body_bytes if self.body_bytes is not None else 0.0
        return max(by_count, by_bytes)

    def messages_in(self, seconds: float, message_bytes: float = 0.0) -> int | None:
        """How many messages may be sent in `seconds`, at least one; None without a bound. message_bytes:
        mean size of a body, 0 if unknown: then a bound in bytes does not bound the messages.
        """
        bounds = []
        if self.messages is not None:
            bounds.append(self.messages * seconds)
        if self.body_bytes is not None and message_bytes > 0:
            bounds.append(self.body_bytes * seconds / message_bytes)
        return max(1, int(min(bounds))) if bounds else None

    def tasks(self, tasks_max: int) -> int:
        """How many tasks this rate needs, at most `tasks_max`; `tasks_max` without a bound."""
        needed = [tasks_max]
        if self.messages is not None:
            needed.append(math.ceil(self.messages / TASK_MESSAGES))
        if self.body_bytes is not None:
            needed.append(math.ceil(self.body_bytes / TASK_BYTES))
        return max(1, min(needed))


def shares(rate: Rate, weights: Sequence[float]) -> list[Rate]:
    """The rate divided by the weights (seconds of each task at the whole rate), so that all end together."""
    total = sum(weights)
    return [rate.share(weight / total) if total else rate for weight in weights]


class Limiter:
    """Computes when the next messages may be sent. Reads no clock: the time is an argument, in seconds."""

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._free_s = now_s

    def wait_s(self, messages: int, body_bytes: int, now_s: float) -> float:
        """Reserve these messages; returns the seconds to wait before they may be sent.

        Unused time is not saved for later.
        """
        start_s = max(self._free_s, now_s)
        self._free_s = start_s + self._rate.seconds_for(messages, body_bytes)
        return start_s - now_s


def pieces(sizes: Sequence[int], rate: Rate, burst_s: float = BURST_S) -> list[int]:
    """Split messages of these body sizes into bursts that need at most `burst_s` each; returns their lengths.

    A message that needs longer is a burst of its own.
    """
    if not rate.is_bounded:
        return [len(sizes)] if sizes else []
    found: list[int] = []
    count = total_bytes = 0
    for size in sizes:
        if count and rate.seconds_for(count + 1, total_bytes + size) > burst_s:
            found.append(count)
            count = total_bytes = 0
        count += 1
        total_bytes += size
    return [*found, count] if count else found
