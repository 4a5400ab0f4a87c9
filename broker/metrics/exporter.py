"""`/metrics` of one broker: what the node knows of itself at the moment it is asked, in Prometheus' text."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from broker.context import BrokerContext
from broker.group_lag import QueueEnds
from broker.metrics.host_figures import HostFigures
from broker.metrics.http_server import MetricsServer
from broker.metrics.lags import ConsumerLags
from broker.metrics.node_figures import NodeFigures
from broker.metrics.traffic_figures import TrafficFigures
from remoting.server import RemotingServer
from telemetry.loop_delay import LoopDelay


class Exporter(Collector):
    """A service of the broker. Nothing is kept between two looks but which names are shown, and the lags."""

    def __init__(self, context: BrokerContext, server: RemotingServer) -> None:
        config = context.config
        self._delay = LoopDelay()
        self._lags = ConsumerLags(
            lambda: context.state.offsets,
            lambda: QueueEnds(context.state.topics.get, context.log.queues.get),
            context.log.is_writable,
            config.metrics_topics_max,
        )
        self._traffic = TrafficFigures(context, self._lags)
        self._parts = (
            NodeFigures(context),
            self._traffic,
            HostFigures(context, server, self._delay),
        )
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
        await self._lags.look()
        await self._traffic.look()
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Collector."""
        for part in self._parts:
            yield from part.collect()
