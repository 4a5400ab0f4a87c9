"""What a feature of the broker is made of, and what it adds to the broker.

`Core` holds the parts that exist before any feature. Each feature's folder has a `feature.py` that builds its
classes from the core and returns a `Feature`. `broker/app.py` builds the features in the order in which they
depend on each other, and installs what they return.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.background import BackgroundTasks
from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry
from broker.consume.queue_reader import ReadMetrics
from broker.leadership import Forwarder, LeaderRequests, OnLeader, Readiness
from broker.members import GroupMembers
from broker.monitoring.put_metrics import PutMetrics
from broker.monitoring.statistics import BrokerStatistics
from broker.read_index import ReadIndex
from broker.state.state import ReplicatedState
from broker.store.message_log import OpenedLog
from commitlog.log import MessageLog
from commitlog.record import host_bytes
from dledger.environment import Environment
from dledger.server import DLedgerServer
from remoting.acl import Signer
from remoting.client.aio import RemotingClient
from remoting.client.tls import ClientTls
from remoting.connection import Connection
from remoting.fair_shares import FairShares
from remoting.quotas import QuotaRules
from remoting.router import BatchHandler, Handlers, Router


class Service(Protocol):
    """Background work of a feature."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of one broker that every feature may be built from."""

    config: BrokerConfig
    environment: Environment
    opened: OpenedLog
    members: GroupMembers
    """Of the replica group."""
    state: ReplicatedState
    clients: ClientRegistry
    router: Router
    shares: FairShares
    """The quotas of the clients."""
    client: RemotingClient
    """For requests to other nodes."""
    namesrv_client: RemotingClient
    """For requests to name servers; the same one where both are sent over the same TLS, or none."""
    readiness: Readiness
    forwarder: Forwarder
    read_index: ReadIndex
    tasks: BackgroundTasks
    statistics: BrokerStatistics
    puts: PutMetrics
    reads: ReadMetrics
    started_at_ms: int
    """Unix time."""

    @property
    def log(self) -> MessageLog:
        return self.opened.log

    @property
    def engine(self) -> DLedgerServer | None:
        """None for a plain log."""
        return self.opened.engine

    @property
    def clock(self) -> Callable[[], int]:
        """Unix time in ms; it may jump."""
        return self.environment.wall_clock_ms

    @property
    def now_ms(self) -> Callable[[], int]:
        """A clock that never goes back."""
        return self.environment.monotonic_ms

    @property
    def store_host(self) -> bytes:
        """brokerIP1:listenPort as a record holds it (4 address bytes, 4-byte port)."""
        return host_bytes(self.config.broker_ip, self.config.listen_port)

    @property
    def on_leader(self) -> OnLeader:
        """Makes handlers that run on the writable leader only; other nodes forward the request to it."""
        return LeaderRequests(self.log, self.readiness, self.forwarder).handler


def make_core(
    config: BrokerConfig,
    environment: Environment,
    opened: OpenedLog,
    state: ReplicatedState,
    router: Router | None = None,
) -> Core:
    """The core over an open log and the state that was read from it. Raises TlsFilesError."""
    client = _client(config, config.client_tls)
    is_alike = config.namesrv_tls == config.client_tls
    namesrv_client = client if is_alike else _client(config, config.namesrv_tls)
    log, engine = opened.log, opened.engine
    router = router or Router()
    members = GroupMembers(config, engine)

    def quota_rules() -> QuotaRules:
        return config.quota_rules(member.host for member in members.others)

    shares = FairShares(quota_rules(), router)
    state.on_settings_changed(lambda: shares.apply(quota_rules()))
    members.on_change(lambda: shares.apply(quota_rules()))
    now_ms, tasks = environment.monotonic_ms, BackgroundTasks()
    readiness = Readiness(log, engine, config.dledger_self_id, now_ms)
    forwarder = Forwarder(config, log, engine, client, members)
    return Core(
        config=config,
        environment=environment,
        opened=opened,
        members=members,
        state=state,
        clients=ClientRegistry(),
        router=router,
        shares=shares,
        client=client,
        namesrv_client=namesrv_client,
        readiness=readiness,
        forwarder=forwarder,
        read_index=ReadIndex(
            log, engine, readiness, forwarder, now_ms, environment.wall_clock_ms, tasks.spawn
        ),
        tasks=tasks,
        statistics=BrokerStatistics(config.broker_cluster_name, now_ms),
        puts=PutMetrics(config.slow_put_ms),
        reads=ReadMetrics(),
        started_at_ms=environment.wall_clock_ms(),
    )


def _client(config: BrokerConfig, tls: ClientTls | None) -> RemotingClient:
    inner = config.inner_account
    return RemotingClient(
        signer=None if inner is None else Signer(*inner), tls=None if tls is None else tls.credentials()
    )


@dataclass(frozen=True, slots=True)
class Feature:
    """What one feature adds to the broker."""

    handlers: Handlers = field(default_factory=dict)
    batch_handlers: Mapping[int, BatchHandler] = field(default_factory=dict)
    services: tuple[Service, ...] = ()
    """Started after the log, in this order; stopped before it, in the reverse order."""
    retention_pins: tuple[Callable[[], int | None], ...] = ()
    """Each gives the position of the earliest record that is still needed, None for none: no file from there
    on is deleted. They depend only on what all nodes share, the replicated state and the queues, so that
    all nodes delete the same files."""
    log_rewriters: tuple[Callable[[int], None], ...] = ()
    """Each has the leader write again, at the end of the log, what it still needs before this position."""
    waiting: Mapping[str, Callable[[], int | None]] = field(default_factory=dict)
    """How many items of each kind wait for something; None while that is not known."""
    runtime_figures: tuple[Callable[[], dict[str, str]], ...] = ()
    """Added to the answer to GET_BROKER_RUNTIME_INFO."""
    connection_closed: tuple[Callable[[Connection], None], ...] = ()
    """Called with each client connection that has closed."""


def install(router: Router, *features: Feature) -> Feature:
    """Register the features' handlers; what else they add, joined.

    Raises ValueError when two of them serve the same request code.
    """
    for feature in features:
        assert feature.handlers.keys().isdisjoint(feature.batch_handlers), "a code has one handler"
        for code, handler in feature.handlers.items():
            router.register(code, handler)
        by_handler: dict[BatchHandler, list[int]] = {}
        for code, batch_handler in feature.batch_handlers.items():
            by_handler.setdefault(batch_handler, []).append(code)
        for batch_handler, codes in by_handler.items():
            router.register_batch(codes, batch_handler)
    return join(features)


def join(features: Sequence[Feature]) -> Feature:
    """All they add but their handlers, in their order."""
    return Feature(
        services=tuple(service for each in features for service in each.services),
        retention_pins=tuple(pin for each in features for pin in each.retention_pins),
        log_rewriters=tuple(rewrite for each in features for rewrite in each.log_rewriters),
        waiting={kind: count for each in features for kind, count in each.waiting.items()},
        runtime_figures=tuple(read for each in features for read in each.runtime_figures),
        connection_closed=tuple(closed for each in features for closed in each.connection_closed),
    )
