"""Waits for this node to become the writable leader, for the short while of an election.

A client that asks a node in the middle of an election would be refused, and come back only with its next
rebalance, 10 to 20 s later. Held for a moment, it gets the answer from the new leader itself.
"""

import asyncio

from broker.replication import ReplicationEngine, leader_hint
from commitlog.log import MessageLog
from remoting.codes import ResponseCode
from remoting.errors import RequestError

ELECTION_WAIT_MS = 2_000
LOOK_INTERVAL_MS = 100
"""How often a waiting request looks whether another node leads by now: nobody tells of that."""


class Readiness:
    """Whether this node may answer for the group."""

    def __init__(self, log: MessageLog, engine: ReplicationEngine | None, own_id: str) -> None:
        self._log = log
        self._engine = engine
        self._own_id = own_id
        self._writable = asyncio.Event()
        log.on_writable_change(self._on_writable_change)

    def is_ready(self) -> bool:
        return self._log.is_writable()

    def refusal(self) -> RequestError:
        """What a client is answered that should have asked the leader."""
        hint = leader_hint(self._engine, self._own_id)
        return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"only the leader answers this: {hint}")

    def check(self) -> None:
        """Raises the refusal when this node is not the writable leader now."""
        if not self._log.is_writable():
            raise self.refusal()

    async def wait(self, timeout_ms: int = ELECTION_WAIT_MS) -> bool:
        """Whether this node is the writable leader, after waiting while that is still open. Ends at once
        when another node leads.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while not self._log.is_writable():
            left_s = deadline_s - loop.time()
            if left_s <= 0 or not self._may_lead_soon():
                return False
            try:
                async with asyncio.timeout(min(left_s, LOOK_INTERVAL_MS / 1000)):
                    await self._writable.wait()
            except TimeoutError:
                continue
        return True

    def _may_lead_soon(self) -> bool:
        return self._engine is not None and self._engine.leader_id in (None, self._own_id)

    def _on_writable_change(self, is_writable: bool) -> None:
        if is_writable:
            self._writable.set()
        else:
            self._writable.clear()
