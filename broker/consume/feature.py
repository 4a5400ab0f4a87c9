"""Consuming by pulls: pulls, heartbeats, consumer offsets, queue locks, queues assigned by the broker."""

from broker.consume.assignment import Assignment, TopicRoutes
from broker.consume.client_requests import ClientProcessor
from broker.consume.consumers import Consumers, make_consumers
from broker.consume.nearest import NearestReplica
from broker.consume.offsets import OffsetProcessor
from broker.consume.pull import PullMessageProcessor
from broker.consume.queue_locks import LockProcessor
from broker.feature import Core, Feature


def consumers_of(core: Core) -> Consumers:
    """Made once for each broker."""
    return make_consumers(core.config, core.log, core.state, core.clients, core.clock, core.now_ms)


def pull_feature(core: Core, consumers: Consumers) -> Feature:
    """PULL_MESSAGE and LITE_PULL_MESSAGE, with the pulls that are held."""
    nearest = NearestReplica(core.config, core.log, core.read_index, core.now_ms)
    pulls = PullMessageProcessor(
        config=core.config,
        log=core.log,
        engine=core.engine,
        state=core.state,
        router=core.router,
        now_ms=core.now_ms,
        statistics=core.statistics,
        reads=core.reads,
        consumers=consumers,
        read_index=core.read_index,
        nearest=nearest,
        spawn=core.tasks.spawn,
    )
    return Feature(
        handlers={**pulls.handlers(), **nearest.handlers()},
        services=(pulls.held, nearest),
        waiting={"pull_request": lambda: len(pulls.held)},
        connection_closed=(pulls.connection_closed,),
    )


def client_feature(core: Core, consumers: Consumers) -> Feature:
    """Heartbeats and the members of groups."""
    clients = ClientProcessor(
        config=core.config,
        log=core.log,
        state=core.state,
        clients=core.clients,
        now_ms=core.now_ms,
        spawn=core.tasks.spawn,
        sql_filters=consumers.sql_filters,
        router=core.router,
    )
    return Feature(
        handlers=clients.handlers(),
        services=(clients,),
        connection_closed=(clients.connection_closed,),
    )


def offset_feature(core: Core, consumers: Consumers) -> Feature:
    offsets = OffsetProcessor(
        config=core.config,
        log=core.log,
        state=core.state,
        now_ms=core.now_ms,
        resets=consumers.resets,
        commits=consumers.commits,
        readiness=core.readiness,
        read_index=core.read_index,
    )
    return Feature(handlers=offsets.handlers(), services=(consumers.commits,))


def lock_feature(core: Core) -> Feature:
    """Queue locks of ordered consumers."""
    locks = LockProcessor(core.config, core.log, core.state, core.now_ms, core.readiness, core.forwarder)
    return Feature(handlers=locks.handlers(), services=(locks,))


def assignment_feature(core: Core) -> Feature:
    """QUERY_ASSIGNMENT and the modes of requests."""
    routes = TopicRoutes(core.config, core.state, core.namesrv_client, core.now_ms, core.tasks.spawn)
    assignment = Assignment(core.config, core.state, core.clients, core.readiness, routes, core.router)
    return Feature(handlers=assignment.handlers())
