"""Metrics of the log, and the leader of its group as text."""

from dataclasses import dataclass, field

from dledger.server import DLedgerServer
from dledger.writer import WriteMetrics
from telemetry.histogram import Histogram


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """`dispatch`: seconds from the commit of entries until every listener was called."""

    dispatch: Histogram = field(default_factory=Histogram)
    writes: WriteMetrics = field(default_factory=WriteMetrics)


def leader_hint(engine: DLedgerServer | None, own_id: str) -> str:
    """Text for remarks: the leader and its address for clients, as far as this node knows."""
    if engine is None:
        return "this node is not writable now"
    leader_id = engine.leader_id
    if leader_id is None:
        return "no leader is known now"
    if leader_id == own_id:
        return f"this node ({own_id}) leads but is not ready yet"
    address = engine.client_addresses.get(leader_id)
    return f"the leader is {leader_id}" + ("" if address is None else f" at {address}")
