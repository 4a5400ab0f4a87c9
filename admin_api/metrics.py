"""Prometheus figures of the admin process: the cluster as it sees it, the requests it serves and sends."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from admin_api.cluster.schemas import ClusterView, GroupState, NodeState, NodeView
from admin_api.gateway import Invoker
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingError, RequestTimeoutError
from telemetry.families import PREFIX, Row, gauge, gauges, histogram
from telemetry.histogram import SECONDS
from telemetry.loop_delay import LoopDelay

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MEMBER: Final = ("group", "node")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class AdminMetrics(Collector):
    """Of one process. The cluster is what it was given to `render`."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry(auto_describe=False)
        begin = f"{PREFIX}admin_"
        labels = ("route", "method", "status")
        self.requests = Counter(f"{begin}requests", "Requests, by route.", labels, registry=own)
        text = "From a request to the beginning of its answer."
        self.request_seconds = Histogram(
            f"{begin}request_seconds", text, ("route",), registry=own, buckets=SECONDS
        )
        text = "Asks to brokers and name server, by how they ended."
        self.asks = Counter(f"{begin}asks", text, ("outcome",), registry=own)
        text = "How long they took."
        self.ask_seconds = Histogram(f"{begin}ask_seconds", text, registry=own, buckets=SECONDS)
        self.delay = LoopDelay()
        self._process = ProcessCollector(namespace=PREFIX.removesuffix("_"), registry=None)
        self._view: ClusterView | None = None
        self._streams = 0
        self._registry.register(self)

    def render(self, view: ClusterView, streams: int) -> bytes:
        """The whole text. `streams`: the open event streams."""
        self._view, self._streams = view, streams
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Collector."""
        yield gauge("admin_event_streams", "Open event streams.", self._streams)
        yield histogram("event_loop_delay_seconds", "How late the event loop is.", self.delay.seconds)
        process: Iterable[Metric] = self._process.collect()
        yield from process
        if self._view is not None:
            yield from _cluster(self._view)


def _cluster(view: ClusterView) -> Iterator[Metric]:
    groups = view.groups
    namesrvs: list[Row] = [((each.address,), each.state is NodeState.UP) for each in view.namesrvs]
    yield gauges("cluster_namesrv_up", "1: the name server answers.", ("address",), namesrvs)
    writable: list[Row] = [((each.group,), each.state is GroupState.WRITABLE) for each in groups]
    yield gauges("cluster_writable", "1: the group has a leader that takes messages.", ("group",), writable)
    terms: list[Row] = [((each.group,), each.term) for each in groups]
    yield gauges("cluster_term", "Term of the group.", ("group",), terms)
    members = [(each, node) for each in groups for node in each.nodes]
    leads: list[Row] = [
        ((each.group, _name(node)), node.id is not None and node.id == each.leader_id)
        for each, node in members
    ]
    yield gauges("cluster_node_leader", "1: the node leads its group.", _MEMBER, leads)

    def rows(read: Callable[[NodeView], float | None]) -> list[Row]:
        return [((each.group, _name(node)), read(node)) for each, node in members]

    up = rows(lambda node: None if node.state is NodeState.UNKNOWN else node.state is NodeState.UP)
    yield gauges("cluster_node_up", "1: the node answers; no sample where it is unknown.", _MEMBER, up)
    text = "1: it holds what is committed, or nearly."
    yield gauges("cluster_node_in_sync", text, _MEMBER, rows(lambda node: node.is_in_sync))
    entries = rows(lambda node: node.lag_entries)
    yield gauges("cluster_node_lag_entries", "Entries behind the leader.", _MEMBER, entries)
    size = rows(lambda node: node.lag_bytes)
    yield gauges("cluster_node_lag_bytes", "Bytes behind the leader.", _MEMBER, size)
    ages = rows(lambda node: None if node.lag_ms is None else node.lag_ms / 1_000)
    yield gauges("cluster_node_lag_seconds", "Age of the first entry it lacks.", _MEMBER, ages)


def _name(node: NodeView) -> str:
    return node.id or node.remoting_address or "unknown"


class CountedClient:
    """A client whose asks are counted by how they ended."""

    def __init__(self, client: Invoker, metrics: AdminMetrics) -> None:
        self._client = client
        self._metrics = metrics

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Invoker."""
        begun_s = time.perf_counter()
        outcome = "cancelled"
        try:
            answer = await self._client.invoke(address, command, timeout_s=timeout_s)
            outcome = "answered" if answer.code == ResponseCode.SUCCESS else "refused"
        except RequestTimeoutError:
            outcome = "timed out"
            raise
        except ConnectFailedError:
            outcome = "unreachable"
            raise
        except RemotingError:
            outcome = "failed"
            raise
        finally:
            self._metrics.asks.labels(outcome).inc()
            self._metrics.ask_seconds.observe(time.perf_counter() - begun_s)
        return answer


class CountedRequests:
    """ASGI: counts requests by the route they came to. Those that the guard refuses came to none."""

    def __init__(self, app: App, metrics: AdminMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.perf_counter()
        is_counted = False

        async def counted(message: Message) -> None:
            nonlocal is_counted
            if message["type"] == "http.response.start" and not is_counted:
                is_counted = True
                self._count(scope, int(message["status"]), time.perf_counter() - begun_s)
            await send(message)

        await self._app(scope, receive, counted)

    def _count(self, scope: Message, status: int, took_s: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(route, method, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(took_s)
