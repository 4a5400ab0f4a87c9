"""Operators' requests: topics, groups, offsets, queues, consumers, the node, its group and settings."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from broker.admin.config import ConfigAdmin
from broker.admin.consumers import ConsumerAdmin
from broker.admin.group_progress import ProgressAdmin
from broker.admin.groups import GroupAdmin
from broker.admin.lists import ListAdmin
from broker.admin.node import BrokerAdmin, NodeStatusBuilder
from broker.admin.offsets import OffsetAdmin
from broker.admin.queues import QueueAdmin
from broker.admin.replication import ReplicationAdmin
from broker.admin.stats import StatsAdmin
from broker.admin.topics import TopicAdmin
from broker.consume.consumers import Consumers
from broker.feature import Core, Feature
from broker.monitoring.runtime_info import RuntimeInfo, process_figures
from broker.pop.table import GroupQueue

RuntimeFigures = Callable[[], dict[str, str]]


def admin_feature(
    core: Core,
    consumers: Consumers,
    runtime_figures: Sequence[RuntimeFigures] = (),
    popped_queues: Callable[[], Iterable[GroupQueue] | None] = lambda: None,
) -> Feature:
    """`runtime_figures`: those of other features; `popped_queues`: see pop_feature."""
    config, log, engine, state, clients = core.config, core.log, core.engine, core.state, core.clients
    statistics, on_leader = core.statistics, core.on_leader
    runtime_info = make_runtime_info(core, runtime_figures)
    stats = StatsAdmin(log, state, statistics)
    parts = (
        TopicAdmin(config, log, engine, state, statistics, on_leader),
        GroupAdmin(config, log, engine, state, clients, statistics, consumers.commits, on_leader),
        BrokerAdmin(engine, core.readiness, make_node_status(core), runtime_info),
        ConfigAdmin(config, log, state, on_leader),
        OffsetAdmin(config, log, state, core.clock, core.now_ms, consumers, on_leader),
        ConsumerAdmin(config, log, state, clients, core.clock, core.now_ms),
        QueueAdmin(config, log, state, clients, statistics),
        ProgressAdmin(config, log, state, clients, core.clock, statistics, popped_queues),
        ListAdmin(state, on_leader),
        ReplicationAdmin(config, engine, core.opened.end_position, core.opened.position_of),
        stats,
    )
    return Feature(
        handlers={code: handler for part in parts for code, handler in part.handlers().items()},
        services=(*runtime_info.services, stats),
    )


def make_node_status(core: Core) -> NodeStatusBuilder:
    """For LEDGERMQ_NODE_STATUS."""
    return NodeStatusBuilder(
        config=core.config,
        log=core.log,
        engine=core.engine,
        clock=core.clock,
        started_at_ms=core.started_at_ms,
        end_position=core.opened.end_position,
        stored_ms_of=core.opened.stored_ms_of,
    )


def make_runtime_info(core: Core, added_figures: Sequence[RuntimeFigures] = ()) -> RuntimeInfo:
    """For GET_BROKER_RUNTIME_INFO; `added_figures` are those of other features."""
    return RuntimeInfo(
        config=core.config,
        log=core.log,
        state=core.state,
        clock=core.clock,
        started_at_ms=core.started_at_ms,
        statistics=core.statistics,
        puts=core.puts,
        reads=core.reads,
        end_position=core.opened.end_position,
        added_figures=(partial(process_figures, core.clock), *added_figures),
        now_s=lambda: asyncio.get_running_loop().time(),
    )
