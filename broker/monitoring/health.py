"""What a node says to what watches over its process (Kubernetes, a supervisor, a load balancer): `/live`
and `/ready`, beside its metrics.

Live is a node whose event loop answers. It may be without a leader or far behind: a restart would not help,
and would take away a vote.

Ready is a node that does its part: it leads and takes messages, or it follows and shows everything that its
group acknowledged up to `readyLagMaxMs` ago, by its leader's word (`broker.read_index`). Who restarts the
nodes of a group one after the other waits until each is ready again: before that, the next one could take
away the majority, or make the group wait for a node that has much to fetch.
"""

from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.leadership import Readiness
from broker.read_index import ReadIndex
from dledger.server import DLedgerServer
from telemetry.http_server import Checks, Verdict


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Of one broker. `engine`: None for a plain log, which is ready when it is writable."""

    config: BrokerConfig
    engine: DLedgerServer | None
    readiness: Readiness
    read_index: ReadIndex

    def checks(self) -> Checks:
        """By path."""
        return {"/live": self.live, "/ready": self.ready}

    async def live(self) -> Verdict:
        return Verdict(True, "the node answers")

    async def ready(self) -> Verdict:
        """Takes up to 3 s: the leader's answer and what is applied then."""
        if self.readiness.is_ready():
            return Verdict(True, "the node takes messages")
        if self.engine is None or self.engine.leader_id in (None, self.config.dledger_self_id):
            return Verdict(False, self.readiness.leader_hint())
        reason = self._unfit(self.engine)
        return await self._follows() if reason is None else Verdict(False, reason)

    @staticmethod
    def _unfit(engine: DLedgerServer) -> str | None:
        """Why a node that follows is no part of its group's majority; None: it is."""
        if engine.newer_generation is not None:
            return f"its group goes on without it, as generation {engine.newer_generation} (ledgermq recover)"
        impairment = engine.status().impairment
        return None if impairment is None else f"it is being healed: {impairment}"

    async def _follows(self) -> Verdict:
        bound_ms = self.config.ready_lag_max_ms
        age_ms = await self.read_index.age_ms(bound_ms)
        leader = self.readiness.leader_hint()
        if age_ms is None:
            return Verdict(False, f"it has shown nothing of its leader's log yet; {leader}")
        text = f"it shows what was acknowledged {age_ms} ms ago"
        if age_ms > bound_ms:
            return Verdict(False, f"{text}, which is more than {bound_ms} (readyLagMaxMs); {leader}")
        return Verdict(True, f"{text}; {leader}")
