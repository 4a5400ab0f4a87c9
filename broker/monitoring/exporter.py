"""`/metrics` of one broker, in Prometheus' text format, as of the moment of the request.

HostFigures: process, event loop, disk, connections, and the number of waiting items.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry
from broker.feature import Core
from broker.monitoring.group_lag import QueueEnds
from broker.monitoring.http_server import MetricsServer
from broker.monitoring.lags import ConsumerLags
from broker.monitoring.node_figures import NodeFigures
from broker.monitoring.traffic_figures import TrafficFigures
from broker.state.state import ReplicatedState
from dledger.fs import disk_space
from remoting.server import RemotingServer
from telemetry.families import PREFIX, Row, counter, gauge, gauges, histogram
from telemetry.loop_delay import LoopDelay


class HostFigures:
    """Asks the system when it is asked itself."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        clients: ClientRegistry,
        waiting: Mapping[str, Callable[[], int | None]],
        server: RemotingServer,
        delay: LoopDelay,
    ) -> None:
        self._config = config
        self._state = state
        self._clients_known = clients
        self._waiting = waiting
        self._server = server
        self._delay = delay
        self._process = ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=None)

    def collect(self) -> Iterator[Metric]:
        yield from self._disk()
        yield from self._clients()
        yield histogram("event_loop_delay_seconds", "How late the event loop is.", self._delay.seconds)
        process: Iterable[Metric] = self._process.collect()
        yield from process

    def _disk(self) -> Iterator[Metric]:
        config = self._config
        space = disk_space(config.store_path_root_dir)
        yield gauge("disk_used_ratio", "How full the disk of the store is, as df says it.", space.used_ratio)
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
    ) -> None:
        self._traffic = traffic
        self._lags = lags
        self._delay = delay
        self._parts = (node, traffic, host)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._server = MetricsServer(self.render, config.metrics_address, config.metrics_port)

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
        HostFigures(config, state, core.clients, waiting, server, delay),
        lags,
        delay,
    )
