"""What a log measures of itself, for whoever shows it.

What the broker asks of the replication engine beside the log: DLedgerServer, or a stand-in in tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dledger.core.status import NodeStatus
from dledger.core.types import ResponseCode
from dledger.write_measures import WriteMeasures
from telemetry.histogram import Histogram


@dataclass(frozen=True, slots=True)
class LogMeasures:
    """`dispatch`: the seconds that stretches of committed entries took to come into the queues and to be told
    to all who wait for them.
    """

    dispatch: Histogram = field(default_factory=Histogram)
    writes: WriteMeasures = field(default_factory=WriteMeasures)


class ReplicationEngine(Protocol):
    """The part of dledger.server.DLedgerServer that admin answers and remarks need."""

    @property
    def term(self) -> int: ...
    @property
    def leader_id(self) -> str | None: ...
    @property
    def client_addresses(self) -> Mapping[str, str]:
        """Where the peers serve clients, as far as they said."""

    def is_connected(self, peer: str) -> bool: ...
    def is_undisputed(self) -> bool:
        """Whether this node leads, and nobody else can well lead already."""

    def status(self) -> NodeStatus:
        """Its elections' times are milliseconds since 1970."""

    def transfer_leadership(self, transferee: str) -> ResponseCode: ...


def leader_hint(engine: ReplicationEngine | None, own_id: str) -> str:
    """For remarks: who leads, and where clients find it, as far as this node knows."""
    if engine is None:
        return "this node is not writable now"
    leader_id = engine.leader_id
    if leader_id is None:
        return "no leader is known now"
    if leader_id == own_id:
        return f"this node ({own_id}) leads but is not ready yet"
    address = engine.client_addresses.get(leader_id)
    return f"the leader is {leader_id}" + ("" if address is None else f" at {address}")
