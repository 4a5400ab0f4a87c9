"""`/metrics` of one broker, in Prometheus' text format, as of the moment of the request.

Here are the figures of the node in its group (role, term, marks of the log, progress of its peers) and of its
process (event loop, disk, connections, number of waiting items); messages and requests are in
traffic_figures.py.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry
from broker.feature import Core
from broker.monitoring.health import NodeHealth
from broker.monitoring.lags import ConsumerLags, QueueEnds
from broker.monitoring.traffic_figures import TopTotals, TrafficFigures, rows
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog
from dledger.core.status import NodeStatus
from dledger.core.types import Role
from dledger.fs import disk_space
from dledger.server import DLedgerServer
from remoting.fair_shares import Tallies
from remoting.server import RemotingServer
from telemetry.families import PREFIX, Row, counter, counters, gauge, gauges, histogram
from telemetry.http_server import MetricsServer
from telemetry.loop_delay import LoopDelay

QUOTA_NAMES_MAX: Final = 20
"""Addresses and users over their quotas that are shown by name; the others as one."""


class NodeFigures:
    """Reads engine and log at each scrape: a follower shows none of a leader's figures."""

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
            is_outdated = engine.newer_generation is not None
            yield gauge(
                "outdated", "1: it has heard that its group goes on without it (recover).", is_outdated
            )
            older = len(engine.older_nodes())
            yield gauge("older_nodes", "Nodes of the group from before `ledgermq recover` that run.", older)
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
    pushed = [((peer.id,), peer.pushed_bytes) for peer in peers]
    yield counters(
        "peer_pushed_bytes", "Leader only: bytes pushed to a follower in this term.", label, pushed
    )
    contact = [((peer.id,), _seconds(peer.last_contact_ms_ago)) for peer in peers]
    yield gauges("peer_last_contact_seconds", "Leader only: since it heard of a follower.", label, contact)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000


class HostFigures:
    """Reads the system's figures at each scrape."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        clients: ClientRegistry,
        waiting: Mapping[str, Callable[[], int | None]],
        server: RemotingServer,
        delay: LoopDelay,
        tallies: Tallies,
    ) -> None:
        self._config = config
        self._tallies = tallies
        self._top_tallies = TopTotals(QUOTA_NAMES_MAX)
        self._state = state
        self._clients_known = clients
        self._waiting = waiting
        self._server = server
        self._delay = delay
        self._process = ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=None)

    def collect(self) -> Iterator[Metric]:
        yield from self._disk()
        yield from self._clients()
        yield from self._quotas()
        yield histogram("event_loop_delay_seconds", "How late the event loop is.", self._delay.seconds)
        process: Iterable[Metric] = self._process.collect()
        yield from process

    def _disk(self) -> Iterator[Metric]:
        config = self._config
        space = disk_space(config.store_path_root_dir)
        yield gauge(
            "disk_used_ratio", "How full the disk of the store is, as `df` computes it.", space.used_ratio
        )
        yield gauge("disk_free_bytes", "What is free on it, without root's.", space.free_bytes)
        full_ratio = config.disk_full_percent / 100
        yield gauge("disk_full_ratio", "Fuller than this, and no messages are taken.", full_ratio)

    def _clients(self) -> Iterator[Metric]:
        server = self._server
        yield gauge("connections", "Connections of clients.", server.connection_count)
        yield counter("connections_refused", "Turned away at the bound, or closed there.", server.turned_away)
        yield gauge("clients", "Members of producer and consumer groups.", len(self._clients_known))
        yield gauge("topics", "Topics there are.", len(self._state.topics))
        rows: list[Row] = [((kind,), read()) for kind, read in sorted(self._waiting.items())]
        yield gauges("waiting", "What waits, by kind; shown where it is known.", ("kind",), rows)

    def _quotas(self) -> Iterator[Metric]:
        kinds, names = self._tallies.kinds, self._tallies.names
        label = ("of", "quota")
        slowed: list[Row] = [(key, tally.slowed) for key, tally in sorted(kinds.items())]
        yield counters("quota_slowed", "Connections not read for a while, by quota.", label, slowed)
        refused: list[Row] = [(key, tally.refused) for key, tally in sorted(kinds.items())]
        yield counters("quota_refused", "Requests and connections over a quota.", label, refused)
        totals = {
            f"{of}@{name}": (tally.slowed + tally.refused, tally.refused)
            for (of, name), tally in names.items()
        }
        shown = self._top_tallies.update(totals, time.monotonic())
        pair = ("of", "name")
        yield counters("quota_name_over", "Both, by address or user.", pair, rows(shown, 0, pair))
        yield counters("quota_name_refused", "Of these, what was refused.", pair, rows(shown, 1, pair))


class Exporter(Collector):
    """A service of the broker. Between two scrapes only the shown names and the lags are kept."""

    def __init__(
        self,
        config: BrokerConfig,
        node: NodeFigures,
        traffic: TrafficFigures,
        host: HostFigures,
        lags: ConsumerLags,
        delay: LoopDelay,
        health: NodeHealth,
    ) -> None:
        self._traffic = traffic
        self._lags = lags
        self._delay = delay
        self._parts = (node, traffic, host)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._server = MetricsServer(
            self.render, config.metrics_address, config.metrics_port, health.checks()
        )

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.port

    async def start(self) -> None:
        """Raises OSError when the address cannot be bound."""
        await self._server.start()
        await self._delay.start()

    async def stop(self) -> None:
        await self._server.stop()
        await self._delay.stop()
        await self._lags.stop()

    async def render(self) -> bytes:
        """The whole text."""
        await self._lags.refresh()
        await self._traffic.refresh()
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Collector."""
        for part in self._parts:
            yield from part.collect()


def make_exporter(
    core: Core, waiting: Mapping[str, Callable[[], int | None]], server: RemotingServer
) -> Exporter:
    """`waiting`: how many items of each kind wait for something."""
    config, log, state = core.config, core.log, core.state
    lags = ConsumerLags(
        lambda: state.offsets,
        lambda: QueueEnds(state.topics.get, log.queues.get),
        log.is_writable,
        config.metrics_topics_max,
    )
    delay = LoopDelay()
    return Exporter(
        config,
        NodeFigures(config, log, core.engine, core.opened.end_position),
        TrafficFigures(
            config, log, core.router.counts, core.statistics, core.puts, core.opened.metrics, lags
        ),
        HostFigures(config, state, core.clients, waiting, server, delay, core.shares.tallies),
        lags,
        delay,
        NodeHealth(config, core.engine, core.readiness, core.read_index),
    )
