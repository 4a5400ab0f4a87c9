"""Operators' requests: topics, groups, offsets, queues, consumers, the node, its group and settings. Requests
of RocketMQ's broker that are not supported are answered 3 REQUEST_CODE_NOT_SUPPORTED with a sentence that
names the reason and what to do instead.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from broker.admin.consumers import ConsumerAdmin, GrpcEndpoints
from broker.admin.groups import GroupAdmin
from broker.admin.lists import ListAdmin
from broker.admin.members import MembersAdmin
from broker.admin.node import BrokerAdmin, ConfigAdmin, NodeStatusBuilder, StatsAdmin
from broker.admin.offsets import OffsetAdmin
from broker.admin.progress import ProgressAdmin
from broker.admin.replication import ReplicationAdmin
from broker.admin.topics import TopicAdmin
from broker.config import BrokerConfig
from broker.consume.consumers import Consumers
from broker.feature import Core, Feature
from broker.monitoring.exposure import Exposure
from broker.monitoring.runtime_info import RuntimeInfo, delayed_count, process_figures
from broker.pop.table import GroupQueue
from remoting.codes import RequestCode as Code
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.router import Handlers

NO_ACL = (
    "aclEnable is off, so there is no plain_acl.yml to show or change: createUser and createAcl of RocketMQ "
    "5 manage users and their rights"
)
NO_COLD_DATA = "LedgerMQ does not slow down readers of cold data, so there is no group to set a limit for"
NO_ROCKSDB = "LedgerMQ keeps nothing in RocksDB: topics and groups are in the log, queues in plain files"
NO_LITE = "lite topics (RocketMQ 5.5) are not supported: use a topic with tags or SQL92 filters"
NO_CONTAINER = "a LedgerMQ process is one broker: start another with `ledgermq node` or `python -m broker`"

REASONS: Final[Mapping[Code, str]] = {
    Code.QUERY_BROKER_OFFSET: "no client sends this since RocketMQ 3; 30 and 31 answer a queue's offsets",
    Code.UPDATE_AND_CREATE_ACL_CONFIG: NO_ACL,
    Code.DELETE_ACL_CONFIG: NO_ACL,
    Code.GET_BROKER_CLUSTER_ACL_INFO: NO_ACL,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: NO_ACL,
    Code.GET_TIMER_CHECK_POINT: "timers follow from the replicated log; there is no checkpoint to copy",
    Code.GET_TIMER_METRICS: "timers are not counted by topic; GET_BROKER_RUNTIME_INFO has their number",
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        "reading is not forbidden by group and topic: set the group's consumeEnable or the topic's permission"
    ),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: NO_ROCKSDB,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: NO_ROCKSDB,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "there are no static topics: a topic's queues stay in their replica group, whichever node leads it"
    ),
    Code.ADD_BROKER: NO_CONTAINER,
    Code.REMOVE_BROKER: NO_CONTAINER,
    Code.RESET_MASTER_FLUSH_OFFSET: (
        "followers know by the log's terms and indexes what they lack; there is no flush offset to set"
    ),
    Code.UPDATE_CONTROLLER_CONFIG: "the group's settings are part of each node's configuration file",
    Code.CLEAN_BROKER_DATA: "`ledgermq member remove` takes a member out of the group",
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    Code.SET_COMMITLOG_READ_MODE: "the log's files are read by pread, not mapped: there is no mode to set",
    Code.SWITCH_TIMER_ENGINE: (
        "there is one timer engine: timer messages wait in the replicated log (no timer wheel in files, no "
        "RocksDB), so there is none to switch to"
    ),
    Code.POP_ROLLBACK: "there is no RocksDB store of POP records that could be moved to files",
    **dict.fromkeys(
        (
            Code.POP_LITE_MESSAGE,
            Code.LITE_SUBSCRIPTION_CTL,
            Code.ACK_LITE_MESSAGE,
            Code.NOTIFY_UNSUBSCRIBE_LITE,
            Code.GET_BROKER_LITE_INFO,
            Code.GET_PARENT_TOPIC_INFO,
            Code.GET_LITE_TOPIC_INFO,
            Code.GET_LITE_CLIENT_INFO,
            Code.GET_LITE_GROUP_INFO,
            Code.TRIGGER_LITE_DISPATCH,
        ),
        NO_LITE,
    ),
}


def _refuse(reason: str, request: RemotingCommand, connection: Connection) -> RemotingCommand:
    raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)


def unsupported_handlers(served: Container[int]) -> Handlers:
    """`served`: the codes that have a handler."""
    return {code: partial(_refuse, reason) for code, reason in REASONS.items() if code not in served}


RuntimeFigures = Callable[[], dict[str, str]]


def admin_feature(
    core: Core,
    consumers: Consumers,
    runtime_figures: Sequence[RuntimeFigures] = (),
    popped_queues: Callable[[], Iterable[GroupQueue] | None] = lambda: None,
    refuses_settings: Callable[[BrokerConfig], str | None] = lambda wanted: None,
    waiting: Mapping[str, Callable[[], int | None]] | None = None,
) -> Feature:
    """`runtime_figures` and `waiting`: those of other features; `popped_queues`: see pop_feature;
    `refuses_settings`: why the broker cannot go on with a configuration.
    """
    config, log, engine, state, clients = core.config, core.log, core.engine, core.state, core.clients
    statistics, on_leader = core.statistics, core.on_leader
    log.on_writable_change(lambda is_writable: statistics.begin() if is_writable else None)
    state.on_settings_changed(statistics.begin)  # producers send on by routes from before brokerPermission
    runtime_info = make_runtime_info(core, runtime_figures)
    stats = StatsAdmin(log, state, statistics)
    endpoints = GrpcEndpoints()
    parts = (
        TopicAdmin(config, log, engine, state, statistics, on_leader),
        GroupAdmin(config, log, engine, state, clients, statistics, consumers.commits, on_leader),
        BrokerAdmin(engine, core.readiness, make_node_status(core), runtime_info),
        ConfigAdmin(config, log, state, on_leader, core.members, refuses_settings),
        OffsetAdmin(config, log, state, core.clock, core.now_ms, consumers, on_leader, core.router),
        ConsumerAdmin(config, log, state, clients, core.clock, core.now_ms),
        ProgressAdmin(
            config,
            log,
            state,
            clients,
            core.clock,
            statistics,
            popped_queues,
            _undelivered(core, waiting or {}),
        ),
        ListAdmin(state, on_leader),
        ReplicationAdmin(config, engine, core.members, core.opened.end_position, core.opened.position_of),
        MembersAdmin(config, engine, core.members, on_leader),
        endpoints,
        stats,
    )
    return Feature(
        handlers={code: handler for part in parts for code, handler in part.handlers().items()},
        services=(*runtime_info.services, stats),
        connection_closed=(endpoints.connection_closed,),
    )


def _undelivered(
    core: Core, waiting: Mapping[str, Callable[[], int | None]]
) -> Mapping[str, Callable[[], int | None]]:
    """Messages that no consumer could have got yet, by kind."""
    kinds = {kind: waiting[kind] for kind in ("timer", "transaction") if kind in waiting}
    return {"delay": partial(delayed_count, core.config, core.state, core.log), **kinds}


def make_node_status(core: Core) -> NodeStatusBuilder:
    """For LEDGERMQ_NODE_STATUS."""
    return NodeStatusBuilder(
        config=core.config,
        log=core.log,
        engine=core.engine,
        members=core.members,
        clock=core.clock,
        now_ms=core.now_ms,
        started_at_ms=core.started_at_ms,
        end_position=core.opened.end_position,
        position_of=core.opened.position_of,
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
        added_figures=(
            partial(process_figures, core.clock),
            Exposure(core.config, core.now_ms).figures,
            *added_figures,
        ),
        now_s=lambda: asyncio.get_running_loop().time(),
    )
