"""Which consumer groups run, for who wants to tell their consumers something.

Those whose consumers sent a heartbeat do. But some clients send none and only pull, and a node that has just
started, or has just become the leader, may not have heard of anybody yet.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.clients import ClientRegistry

HEARD_WITHIN_MS: Final = 90_000
"""Whoever runs is heard of within this time: a pull is held for 60 s at most, clients look for a new leader
and send a heartbeat every 30 s.
"""


class RunningGroups:
    """What one node has heard. Times are a monotonic clock's."""

    def __init__(self, clients: "ClientRegistry", now_ms: Callable[[], int]) -> None:
        self._clients = clients
        self._now_ms = now_ms
        self._pulled: dict[str, int] = {}
        """Groups without a heartbeat, and when each pulled; the latest at the end. Only groups that exist are
        noted, and those of the last HEARD_WITHIN_MS kept."""
        self.heard_since_ms = now_ms()
        """Since when clients come to this node."""

    def begin(self) -> None:
        """This node leads from now on: clients that went to another one come here."""
        self.heard_since_ms = self._now_ms()

    def pulled(self, group: str) -> None:
        """A consumer of the group pulled here."""
        if group in self._clients.consumer_groups:
            return
        now_ms = self._now_ms()
        self._pulled.pop(group, None)
        self._pulled[group] = now_ms
        while (oldest := next(iter(self._pulled))) != group and not self._is_recent(self._pulled[oldest]):
            del self._pulled[oldest]

    def is_known(self, group: str) -> bool:
        """Whether a consumer that is connected said that it is one of the group."""
        return group in self._clients.consumer_groups

    def may_run(self, group: str) -> bool:
        """Whether consumers of the group run, as far as this node can know."""
        if self.is_known(group) or self._is_recent(self.heard_since_ms):
            return True
        pulled_ms = self._pulled.get(group)
        return pulled_ms is not None and self._is_recent(pulled_ms)

    def _is_recent(self, time_ms: int) -> bool:
        return self._now_ms() - time_ms < HEARD_WITHIN_MS
