"""Waits for this node to become the writable leader, for the short while of an election.

A client that asks a node in the middle of an election would be refused, and come back only with its next
rebalance, 10 to 20 s later. Held for a moment, it gets the answer from the new leader itself.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from broker.store.replication import leader_hint
from commitlog.log import MessageLog
from dledger.environment import monotonic_ms
from dledger.server import DLedgerServer
from remoting.codes import ResponseCode
from remoting.errors import RequestError

ELECTION_WAIT_MS = 2_000
"""An election is over by then. A group without a majority stays without a leader: after this time requests
are not held any more, or a client with many queues would wait this long for each.
"""
LOOK_INTERVAL_MS = 100
"""Interval at which a waiting request checks whether another node leads: there is no notification of that."""
OUTAGE_MEMORY_S = 30.0
"""Without a request for this long, a leader may have come and gone unseen."""


@dataclass(slots=True)
class _Outage:
    """This node has known of no leader in `term` from `since_s` to `seen_s`."""

    term: int
    since_s: float
    seen_s: float


class Readiness:
    """Whether this node may answer for the group."""

    def __init__(
        self,
        log: MessageLog,
        engine: DLedgerServer | None,
        own_id: str,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._log = log
        self._engine = engine
        self._own_id = own_id
        self._now_ms = now_ms
        self._outage: _Outage | None = None
        self._writable = asyncio.Event()
        log.on_writable_change(self._on_writable_change)

    def _now_s(self) -> float:
        return self._now_ms() / 1000

    def is_ready(self) -> bool:
        return self._log.is_writable()

    def refusal(self) -> RequestError:
        """What a client is answered that should have asked the leader."""
        remark = f"only the leader answers this: {self.leader_hint()}"
        return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def leader_hint(self) -> str:
        """For remarks: who leads, and where clients find it, as far as this node knows."""
        return leader_hint(self._engine, self._own_id)

    def has_lease(self) -> bool:
        """Of a node that leads: no other node can lead by now. A leader that was cut off from its
        majority may not know yet that it was replaced.
        """
        return self._engine is None or self._engine.has_lease()

    def check(self) -> None:
        """Raises the refusal when this node is not the writable leader now."""
        if not self._log.is_writable():
            raise self.refusal()

    async def wait(self, timeout_ms: int = ELECTION_WAIT_MS) -> bool:
        """Whether this node is the writable leader, after waiting while that is still open. Ends at once
        when another node leads, or when there has been no leader for longer than an election takes.
        """
        deadline_s = self._now_s() + timeout_ms / 1000
        while not self._log.is_writable():
            now_s = self._now_s()
            left_s = min(deadline_s, self._hope_ends_s(now_s)) - now_s
            if left_s <= 0:
                return False
            try:
                async with asyncio.timeout(min(left_s, LOOK_INTERVAL_MS / 1000)):
                    await self._writable.wait()
            except TimeoutError:
                continue
        return True

    def _hope_ends_s(self, now_s: float) -> float:
        """Until when this node can be expected to become the leader."""
        leader_id = None if self._engine is None else self._engine.leader_id
        if leader_id == self._own_id:
            return math.inf
        if self._engine is None or leader_id is not None:
            self._outage = None
            return now_s
        outage = self._outage
        if outage is None or outage.term != self._engine.term or now_s - outage.seen_s > OUTAGE_MEMORY_S:
            outage = self._outage = _Outage(self._engine.term, now_s, now_s)
        outage.seen_s = now_s
        return outage.since_s + ELECTION_WAIT_MS / 1000

    def _on_writable_change(self, is_writable: bool) -> None:
        self._outage = None
        if is_writable:
            self._writable.set()
        else:
            self._writable.clear()
