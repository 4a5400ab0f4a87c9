"""The memory that all connections of a server may hold together. Each has bounds of its own, but ten thousand
times a connection's bound is more than a machine has.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

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
