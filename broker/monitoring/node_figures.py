"""The node's place in its group: role, term, marks of the log, how far its peers are."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from broker.config import BrokerConfig
from commitlog.log import MessageLog
from dledger.core.status import NodeStatus
from dledger.core.types import Role
from dledger.server import DLedgerServer
from telemetry.families import counter, gauge, gauges


class NodeFigures:
    """Reads engine and log at the moment it is asked: a node that leads no more has nothing of a leader."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        end_position: Callable[[], int | None],
    ) -> None:
        self._config = config
        self._log = log
        self._engine = engine
        self._end_position = end_position

    def collect(self) -> Iterator[Metric]:
        config, log, engine = self._config, self._log, self._engine
        labels = {
            "cluster": config.broker_cluster_name,
            "group": config.group,
            "broker": config.broker_name,
            "node": config.dledger_self_id,
            "durability": config.durability,
        }
        yield gauges("node_info", "1, with this node's names.", list(labels), [(list(labels.values()), 1)])
        yield gauge("writable", "1: it takes messages.", log.is_writable())
        yield gauge("log_applied_index", "Last entry in the consume queues.", log.applied_index)
        yield gauge("log_size_bytes", "Bytes of the log it keeps.", _size_bytes(log, self._end_position()))
        if engine is not None:
            status = engine.status()
            yield from _role(status)
            yield from _marks(status)
            yield from _peers(engine, status)


def _size_bytes(log: MessageLog, end: int | None) -> int:
    return (log.max_position if end is None else end) - log.min_position


def _role(status: NodeStatus) -> Iterator[Metric]:
    rows = [((role.value.lower(),), float(role is status.role)) for role in Role]
    yield gauges("node_role", "1: the node has this role, leader, follower or candidate.", ("role",), rows)
    yield gauge("term", "Term of the node.", status.term)
    yield gauge("leader_known", "1: the node knows who leads.", status.leader_id is not None)
    yield counter("elections", "Changes of leader that this node saw.", status.elections_total)
    yield gauge("impaired", "1: it lost log or vote, and is being healed.", status.impairment is not None)


def _marks(status: NodeStatus) -> Iterator[Metric]:
    yield gauge("log_begin_index", "First entry that is kept.", status.begin_index)
    yield gauge("log_end_index", "Last entry, on the disk or not.", status.end_index)
    yield gauge("log_persisted_index", "Last entry on this node's disk.", status.persisted_index)
    yield gauge("log_committed_index", "Last entry known to be on a majority's disks.", status.commit_index)


def _peers(engine: DLedgerServer, status: NodeStatus) -> Iterator[Metric]:
    """Known by a leader only."""
    peers = status.peers
    label = ("peer",)
    rows = [((peer.id,), float(engine.is_connected(peer.id))) for peer in peers]
    yield gauges("peer_connected", "1: there is a connection to the peer.", label, rows)
    entries = [((peer.id,), peer.lag_entries) for peer in peers]
    yield gauges("peer_lag_entries", "Leader only: entries a follower is behind.", label, entries)
    size = [((peer.id,), peer.lag_bytes) for peer in peers]
    yield gauges("peer_lag_bytes", "Leader only: bytes a follower is behind.", label, size)
    contact = [((peer.id,), _seconds(peer.last_contact_ms_ago)) for peer in peers]
    yield gauges("peer_last_contact_seconds", "Leader only: since it heard of a follower.", label, contact)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000
