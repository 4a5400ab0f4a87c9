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
_EVICT_DOWN_TO = 0.75
"""Connections are evicted down to this part of the limit, so that the next bytes do not evict again."""
REPORT_STEP_BYTES = 64 * 1024
"""A connection reports when it holds so much more or less than it last reported."""


class Holder(Protocol):
    """A connection, as the limit sees it."""

    def measure(self) -> int:
        """The bytes it holds now; later reports count from here."""

    def evict(self) -> None:
        """Free everything at once."""


class MemoryLimit:
    """The sum of what the holders reported. It may be too high, since holders report late what they freed;
    they are measured before any is evicted.
    """

    def __init__(self, bytes_max: int, holders: Callable[[], Iterable[Holder]]) -> None:
        self._bytes_max = bytes_max
        self._holders = holders
        self._sum_bytes = 0

    @property
    def sum_bytes(self) -> int:
        return self._sum_bytes

    def add(self, grown_bytes: int) -> None:
        """A holder holds so much more than it last reported, or less if negative. Above the limit, those that
        hold the most are evicted.
        """
        self._sum_bytes += grown_bytes
        if grown_bytes > 0 and self._sum_bytes > self._bytes_max:
            self._evict_largest()

    def _evict_largest(self) -> None:
        # The sum may be too high, as freed bytes are reported late: measure before aborting any connection.
        measured = [(holder.measure(), holder) for holder in self._holders()]
        self._sum_bytes = sum(size for size, _ in measured)
        if self._sum_bytes <= self._bytes_max:
            return
        _log.warning("all connections together hold %d bytes; the largest are aborted", self._sum_bytes)
        excess = self._sum_bytes - int(self._bytes_max * _EVICT_DOWN_TO)
        for size, holder in sorted(measured, key=lambda pair: pair[0], reverse=True):
            if excess <= 0:
                return
            holder.evict()
            excess -= size


class HeldMemory:
    """What one connection holds of its peer's bytes and of the bytes for its peer.

    partial_bytes: of a frame that is not complete yet, with those that are announced and have not arrived.
    unsent_bytes: not accepted by the kernel at the last measurement.
    large_bytes: of the larger requests that still exist.
    on_freed: called on the loop after a large request was freed, if `wants_freed` is set.
    """

    __slots__ = (
        *("__weakref__", "_large", "_limit", "_loop", "_on_freed", "_reported_bytes"),
        *("large_bytes", "partial_bytes", "unsent_bytes", "wants_freed"),
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit: MemoryLimit | None, on_freed: Callable[[], None]
    ) -> None:
        self.partial_bytes = 0
        self.unsent_bytes = 0
        self.large_bytes = 0
        self.wants_freed = False
        self._loop = loop
        self._limit = limit
        self._on_freed = on_freed
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
        # A weak reference, since a handler may keep the request after its answer, or drop it long before.
        self._large[weakref.ref(request, self._freed)] = size_bytes
        self.large_bytes += size_bytes

    def report(self) -> None:
        """Report to the limit, once the difference reaches REPORT_STEP_BYTES."""
        # In steps: a report for each read would cost more than the bound's precision is worth.
        grown_bytes = self.sum_bytes - self._reported_bytes
        if self._limit is not None and abs(grown_bytes) >= REPORT_STEP_BYTES:
            self._reported_bytes += (
                grown_bytes  # before `add`, which may evict, and so close, this connection
            )
            self._limit.add(grown_bytes)

    def measure(self) -> int:
        """What is held now, for a limit that asks: it counts as reported."""
        self._reported_bytes = self.sum_bytes
        return self._reported_bytes

    def close(self) -> None:
        """The connection is closed. Requests that are still handled have bounds of their own."""
        if self._limit is not None:
            self._limit.add(-self._reported_bytes)
        self._limit = None

    def _freed(self, reference: "weakref.ref[RemotingCommand]") -> None:
        # The garbage collector may call this at any moment and on any thread. So this method only counts;
        # resuming the transport is left to the loop's thread.
        self.large_bytes -= self._large.pop(reference, 0)
        if self.wants_freed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_freed)
