"""The limit on the memory that all connections of a server hold together, and what each counts towards it.

Each connection has bounds of its own, but ten thousand times a connection's bound is more memory than a
machine has.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from remoting.command import RemotingCommand

_log = logging.getLogger(__name__)
_RELIEF = 0.75
"""Down to this part of the bound room is made, so that not every further byte makes some again."""


class Holder(Protocol):
    """A connection, as the budget sees it."""

    def measure(self) -> int:
        """The bytes it holds now; from now on it reports what comes on top of these."""

    def shed(self) -> None:
        """Let go of everything at once."""


class ByteBudget:
    """The sum of what the holders reported. It may be more than they hold, as they do not report at once what
    they no longer do; they are asked before any is made to shed.
    """

    def __init__(self, bytes_max: int, holders: Callable[[], Iterable[Holder]]) -> None:
        self._bytes_max = bytes_max
        self._holders = holders
        self._sum_bytes = 0

    @property
    def sum_bytes(self) -> int:
        return self._sum_bytes

    def add(self, grown_bytes: int) -> None:
        """A holder holds so much more than it last reported, or less. Over the bound those that hold the most
        shed.
        """
        self._sum_bytes += grown_bytes
        if grown_bytes > 0 and self._sum_bytes > self._bytes_max:
            self._relieve()

    def _relieve(self) -> None:
        measured = [(holder.measure(), holder) for holder in self._holders()]
        self._sum_bytes = sum(size for size, _ in measured)
        if self._sum_bytes <= self._bytes_max:
            return
        _log.warning("all connections together hold %d bytes; the largest are aborted", self._sum_bytes)
        room = self._sum_bytes - int(self._bytes_max * _RELIEF)
        for size, holder in sorted(measured, key=lambda pair: pair[0], reverse=True):
            if room <= 0:
                return
            holder.shed()
            room -= size


REPORT_STEP_BYTES = 64 * 1024
"""How much more or less than it last told its budget a connection may hold."""


class Holdings:
    """Counts, and tells the budget of the server.

    partial_bytes: of a frame that is not whole yet.
    unsent_bytes: not taken by the peer when last looked at.
    large_bytes: larger requests that somebody still keeps.
    on_forgotten: called on the loop after a large request was forgotten, if `wants_forgotten` is set.
    """

    __slots__ = (
        *("__weakref__", "_budget", "_large", "_loop", "_on_forgotten", "_reported_bytes"),
        *("large_bytes", "partial_bytes", "unsent_bytes", "wants_forgotten"),
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, budget: ByteBudget | None, on_forgotten: Callable[[], None]
    ) -> None:
        self.partial_bytes = 0
        self.unsent_bytes = 0
        self.large_bytes = 0
        self.wants_forgotten = False
        self._loop = loop
        self._budget = budget
        self._on_forgotten = on_forgotten
        self._reported_bytes = 0
        self._large: dict[weakref.ref[RemotingCommand], int] = {}

    @property
    def sum_bytes(self) -> int:
        return self.partial_bytes + self.large_bytes + self.unsent_bytes

    @property
    def reported_bytes(self) -> int:
        return self._reported_bytes

    def watch(self, request: RemotingCommand, size_bytes: int) -> None:
        """Count a request for as long as it exists, answered or not."""
        self._large[weakref.ref(request, self._forget)] = size_bytes
        self.large_bytes += size_bytes

    def report(self) -> None:
        """Tell the budget, but not of every byte."""
        grown_bytes = self.sum_bytes - self._reported_bytes
        if self._budget is not None and abs(grown_bytes) >= REPORT_STEP_BYTES:
            self._reported_bytes += grown_bytes
            self._budget.add(grown_bytes)

    def take_report(self) -> int:
        """What is held now, for a budget that asks: it counts as told."""
        self._reported_bytes = self.sum_bytes
        return self._reported_bytes

    def close(self) -> None:
        """The connection is gone; whoever still works on its requests has bounds of its own."""
        if self._budget is not None:
            self._budget.add(-self._reported_bytes)
        self._budget = None

    def _forget(self, reference: "weakref.ref[RemotingCommand]") -> None:
        """Comes at any moment, on any thread: it counts, and leaves the rest to the loop."""
        self.large_bytes -= self._large.pop(reference, 0)
        if self.wants_forgotten and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_forgotten)
