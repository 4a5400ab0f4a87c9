"""What the endpoint reports to Prometheus: its calls, the clients that are connected, and its own process."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from grpc_endpoint.clients import Client
from grpc_endpoint.messaging_pb2 import ClientType, Code
from telemetry.families import PREFIX, Row, counters, gauge, gauges, histogram, histograms
from telemetry.histogram import Histogram
from telemetry.loop_delay import LoopDelay

CANCELLED: Final = "CANCELLED"
"""In place of a code: the caller had gone before the end."""
REFUSED: Final = "INVALID_ARGUMENT"
"""In place of a code: a stream of commands that could not go on, which ends with a status of gRPC itself."""


class CallFigures:
    """The calls of one method. `open`: those under way; a receive that is held is one, too."""

    __slots__ = ("ended", "open", "seconds")

    def __init__(self) -> None:
        self.open = 0
        self.ended: Counter[int | str] = Counter()
        """By the code of their answers; a stream's is that of its first."""
        self.seconds = Histogram()

    def begin(self) -> float:
        """A call has come; what `end` needs."""
        self.open += 1
        return time.perf_counter()

    def end(self, begun_s: float, code: int | str) -> None:
        self.open -= 1
        self.ended[code] += 1
        self.seconds.observe(time.perf_counter() - begun_s)


class EndpointMetrics(Collector):
    """`renewals`: the messages that are renewed. `connections`: how many there are; `refused`: how many were
    refused, by the bound that they exceeded.
    """

    def __init__(
        self,
        calls: Mapping[str, CallFigures],
        clients: Iterable[Client],
        renewals: Sized,
        connections: Callable[[], int],
        refused: Mapping[str, int],
    ) -> None:
        self._calls = calls
        self._clients = clients
        self._renewals = renewals
        self._connections = connections
        self._refused = refused
        self.delay = LoopDelay()
        self._process = ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=None)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def render(self) -> bytes:
        """The whole text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Collector."""
        yield from self._of_calls()
        yield gauge("grpc_connections", "Connections of clients.", self._connections())
        refused: list[Row] = [((bound,), count) for bound, count in sorted(self._refused.items())]
        text = "Connections that were refused, by the bound that they exceeded: of all, or of one address."
        yield counters("grpc_connections_refused", text, ("bound",), refused)
        kinds = Counter((each.language, ClientType.Name(each.settings.client_type)) for each in self._clients)
        clients: list[Row] = [(kind, count) for kind, count in sorted(kinds.items())]
        yield gauges("grpc_clients", "Clients with settings.", ("language", "type"), clients)
        text = "Messages that it keeps invisible for push consumers."
        yield gauge("grpc_renewed_messages", text, len(self._renewals))
        yield histogram("event_loop_delay_seconds", "How late the event loop is.", self.delay.seconds)
        process: Iterable[Metric] = self._process.collect()
        yield from process

    def _of_calls(self) -> Iterator[Metric]:
        calls = sorted(self._calls.items())
        ended: list[Row] = [
            ((name, code if isinstance(code, str) else _name(code)), count)
            for name, figures in calls
            for code, count in sorted(figures.ended.items(), key=str)
        ]
        text = "Calls that have ended, by the code of their answers; CANCELLED: the caller had gone."
        yield counters("grpc_calls", text, ("method", "code"), ended)
        under_way: list[Row] = [((name,), figures.open) for name, figures in calls]
        text = "Calls under way: of Telemetry the clients' streams, of ReceiveMessage the receives held."
        yield gauges("grpc_open_calls", text, ("method",), under_way)
        text = "From a call to its end."
        seconds = [((name,), figures.seconds) for name, figures in calls if figures.seconds.count]
        yield histograms("grpc_call_seconds", text, ("method",), seconds)


def _name(code: int) -> str:
    return Code.Name(code) if code in Code.values() else str(code)
