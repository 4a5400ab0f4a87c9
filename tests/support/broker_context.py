"""A BrokerContext over a FakeLog, for tests of processors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.config import config_from
from broker.consume.clients import ClientRegistry
from broker.context import BrokerContext
from broker.monitoring.statistics import BrokerStatistics
from broker.state.state import ReplicatedState
from commitlog.record import host_bytes
from dledger.core.status import NodeStatus
from dledger.core.types import ResponseCode, Role
from remoting.client.aio import RemotingClient
from remoting.router import Router
from tests.support.fake_log import FakeLog

NOW_MS = 1_700_000_000_000


@dataclass(slots=True)
class FakeEngine:
    """Implements ReplicationEngine."""

    term: int = 3
    leader_id: str | None = "n0"
    client_addresses: Mapping[str, str] = field(default_factory=dict)
    node_status: NodeStatus = field(
        default_factory=lambda: NodeStatus(Role.LEADER, 3, "n0", 0, 9, 9, 9, 0, (), (), {}, ())
    )
    transfer_code: ResponseCode = ResponseCode.SUCCESS
    transferees: list[str] = field(default_factory=list)
    connected: frozenset[str] = frozenset()
    undisputed: bool = True

    def is_connected(self, peer: str) -> bool:
        return peer in self.connected

    def is_undisputed(self) -> bool:
        return self.undisputed

    def status(self) -> NodeStatus:
        return self.node_status

    def transfer_leadership(self, transferee: str) -> ResponseCode:
        self.transferees.append(transferee)
        return self.transfer_code


def make_context(
    tmp_path: Path, log: FakeLog, engine: FakeEngine | None = None, **values: object
) -> BrokerContext:
    """A context whose state is restored and listens to the log. Needs a running loop."""
    config = config_from({"storePathRootDir": str(tmp_path), **values})
    state = ReplicatedState(config, log, lambda: NOW_MS)
    state.restore()
    return BrokerContext(
        config=config,
        log=log,
        state=state,
        clients=ClientRegistry(),
        router=Router(),
        remoting_client=RemotingClient(),
        clock=lambda: NOW_MS,
        store_host=host_bytes(config.broker_ip, config.listen_port),
        started_at_ms=NOW_MS,
        statistics=BrokerStatistics(config.broker_cluster_name, lambda: NOW_MS),
        engine=engine,
    )
