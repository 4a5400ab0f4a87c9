"""The node itself for operators: its figures (28), its configuration (25, 26), its statistics by topic and
group (315), and our own LEDGERMQ_NODE_STATUS (65001), one node's view of itself and its group, and
LEDGERMQ_TRANSFER_LEADER (65002).

A change of the configuration is a record of the replicated state (broker/config.py lists the keys that can be
changed): it applies to all nodes of the group, also to those that are down now, and after a restart.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import orjson

from broker.admin.members import ReceivedRates, member_view
from broker.admin.types import (
    ElectionView,
    EpochStatus,
    NodeRole,
    NodeStatusMessage,
    OlderNodeView,
    PeerView,
)
from broker.config import (
    LEADER_BROKER_ID,
    RUNTIME_KEYS,
    BrokerConfig,
    ConfigError,
    FixedKeyError,
    check_settings,
)
from broker.leadership import OnLeader, Readiness
from broker.members import GroupMembers
from broker.monitoring.runtime_info import RuntimeInfo
from broker.monitoring.statistics import STATS, BrokerStatistics, Figures
from broker.responses import committed_answer, invalid, json_answer
from broker.state.changes import PutSettings
from broker.state.state import ReplicatedState
from broker.state.topics import TRACE_TOPIC
from commitlog.log import MessageLog
from dledger.codec import NEWEST_PROTOCOL_VERSION
from dledger.core.membership import FORMAT_LEVEL, Member
from dledger.core.status import NodeStatus, PeerStatus
from dledger.core.types import NO_TERM
from dledger.core.types import ResponseCode as EngineCode
from dledger.server import DLedgerServer
from dledger.transport import OlderNode
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.admin import TransferLeaderRequestHeader, ViewBrokerStatsRequestHeader
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text
from remoting.route import PERM_WRITE
from remoting.router import HandlerResult, Handlers
from telemetry.release import own_release


class NodeStatusBuilder:
    """Reads log and engine."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        members: GroupMembers,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
        started_at_ms: int,
        end_position: Callable[[], int | None],
        position_of: Callable[[int], int],
        stored_ms_of: Callable[[int], int | None],
    ) -> None:
        self._log = log
        self._engine = engine
        self._members = members
        self._rates = ReceivedRates(now_ms)
        self._position_of = position_of
        self._clock = clock
        self._started_at_ms = started_at_ms
        self._end_position = end_position
        self._stored_ms_of = stored_ms_of
        self._config = config

    def build(self) -> NodeStatusMessage:
        config = self._config
        engine = self._engine
        engine_fields = self._plain_fields() if engine is None else self._engine_fields(engine)
        return NodeStatusMessage(
            cluster=config.broker_cluster_name,
            group=config.group,
            broker_name=config.broker_name,
            node_id=config.dledger_self_id,
            is_writable=self._log.is_writable(),
            durability=config.durability,
            release=own_release(),
            protocol_version=NEWEST_PROTOCOL_VERSION,
            format_level_max=FORMAT_LEVEL,
            accepts_messages=bool(config.broker_permission & PERM_WRITE),
            remoting_address=config.broker_address,
            applied_index=self._log.applied_index,
            committed_position=self._log.max_position,
            started_at_ms=self._started_at_ms,
            pid=os.getpid(),
            **engine_fields,
        )

    def _plain_fields(self) -> dict[str, Any]:
        """A node without a group leads itself; entry numbers it has none."""
        return {
            "role": NodeRole.LEADER,
            "term": NO_TERM,
            "leader_id": self._config.dledger_self_id,
            "end_position": self._end_position(),
        }

    def _engine_fields(self, engine: DLedgerServer) -> dict[str, Any]:
        status = engine.status()
        own = self._config.own_peer
        return {
            "role": NodeRole(status.role.value),
            "term": status.term,
            "leader_id": status.leader_id,
            "impairment": status.impairment,
            "replication_address": _address(own.host, own.port),
            "begin_index": status.begin_index,
            "end_index": status.end_index,
            "committed_index": status.commit_index,
            "persisted_index": status.persisted_index,
            "end_position": self._end_position(),
            "epochs": tuple(EpochStatus(term=e.term, first_index=e.first_index) for e in status.epochs),
            "peers": self._peers(engine, status),
            **self._member_fields(),
            "newer_generation": engine.newer_generation,
            "older_nodes": tuple(map(_older_node_view, engine.older_nodes())),
            "begin_position": self._begin_position(status),
            "watermarks_by_term": {term: dict(marks) for term, marks in status.watermarks_by_term.items()},
            "elections": tuple(
                ElectionView(at_ms=each.at_ms, term=each.term, leader_id=each.leader_id, reason=each.reason)
                for each in status.elections
            ),
        }

    def _peers(self, engine: DLedgerServer, status: NodeStatus) -> tuple[PeerView, ...]:
        by_id = {peer.id: peer for peer in status.peers}
        others = self._members.others
        self._rates.keep({peer.id for peer in others})
        return tuple(self._peer_view(peer, engine, by_id.get(peer.id)) for peer in others)

    def _member_fields(self) -> dict[str, Any]:
        entry = self._members.entry
        return {
            "members": tuple(map(member_view, entry.configuration.members)),
            "configuration_index": entry.index,
            "is_configuration_committed": self._members.is_committed,
            "format_level": entry.configuration.format_level,
            "generation": entry.configuration.generation,
        }

    def _begin_position(self, status: NodeStatus) -> int | None:
        """None of an empty log."""
        if status.end_index < max(status.begin_index, 0):
            return None
        return self._position_of(max(status.begin_index, 0))

    def _peer_view(self, peer: Member, engine: DLedgerServer, status: PeerStatus | None) -> PeerView:
        known = status or _unknown_peer(peer.id)
        return _peer_view(peer, engine, known, self._lag_ms(known), self._rate(known))

    def _rate(self, known: PeerStatus) -> int | None:
        end_position = self._end_position()
        if end_position is None or known.lag_bytes is None:
            return None
        return self._rates.rate(known.id, end_position - known.lag_bytes)

    def _lag_ms(self, known: PeerStatus) -> int | None:
        """The age of the first entry that the peer is not known to hold."""
        if known.match_index is None or known.lag_entries is None:
            return None
        if known.lag_entries == 0:
            return 0
        stored_ms = self._stored_ms_of(known.match_index + 1)
        return None if stored_ms is None else max(0, self._clock() - stored_ms)


def _peer_view(
    peer: Member, engine: DLedgerServer, known: PeerStatus, lag_ms: int | None, rate: int | None
) -> PeerView:
    return PeerView(
        id=peer.id,
        replication_address=_address(peer.host, peer.port),
        remoting_address=engine.client_addresses.get(peer.id),
        is_connected=engine.is_connected(peer.id),
        push_state=None if known.push_state is None else known.push_state.value,
        match_index=known.match_index,
        next_index=known.next_index,
        lag_entries=known.lag_entries,
        lag_bytes=known.lag_bytes,
        lag_ms=lag_ms,
        last_contact_ms=known.last_contact_ms_ago,
        is_throttled=known.is_throttled,
        held_bytes=known.held_bytes,
        bytes_per_s=rate if known.bytes_per_s is None else known.bytes_per_s,
        caught_up_in_ms=known.caught_up_in_ms,
    )


def _older_node_view(node: OlderNode) -> OlderNodeView:
    return OlderNodeView(
        id=node.id,
        replication_address=_address(*node.replication_address),
        remoting_address=node.client_address,
        generation=node.generation,
    )


def _unknown_peer(peer_id: str) -> PeerStatus:
    return PeerStatus(peer_id, None, None, None, None, None, None)


def _address(host: str, port: int) -> str:
    return f"{host}:{port}"


class BrokerAdmin:
    """Answers operators' questions about this node."""

    def __init__(
        self,
        engine: DLedgerServer | None,
        readiness: Readiness,
        status: NodeStatusBuilder,
        runtime_info: RuntimeInfo,
    ) -> None:
        self._engine = engine
        self._readiness = readiness
        self._status = status
        self._runtime_info = runtime_info

    def handlers(self) -> Handlers:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self.cold_data,
            RequestCode.LEDGERMQ_NODE_STATUS: self.node_status,
            RequestCode.LEDGERMQ_TRANSFER_LEADER: self.transfer_leader,
        }

    def runtime_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """28 GET_BROKER_RUNTIME_INFO"""
        return json_answer(request, {"table": self._runtime_info.table()})

    def cold_data(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """2003 GET_COLD_DATA_FLOW_CTR_INFO: reads of cold data are not limited; the tools read an empty
        answer as that.
        """
        return success_response(request)

    def node_status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65001 LEDGERMQ_NODE_STATUS"""
        return success_response(request, body=self._status.build().to_json())

    def transfer_leader(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65002 LEDGERMQ_TRANSFER_LEADER: answered when the transfer has begun."""
        transferee = TransferLeaderRequestHeader.parse(request.ext_fields).transferee
        engine = self._engine
        if engine is None:
            raise RequestError(
                ResponseCode.NO_PERMISSION, "this node has no group to hand leadership over in"
            )
        code = engine.transfer_leadership(transferee)
        if code is EngineCode.SUCCESS:
            return success_response(request)
        if code is EngineCode.NOT_LEADER:
            hint = self._readiness.leader_hint()
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"only the leader hands over: {hint}")
        if code in (EngineCode.UNKNOWN_MEMBER, EngineCode.UNEXPECTED_MEMBER):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"{transferee[:64]} is no other member of the group"
            )
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the transfer was refused: {code.name}")


class ConfigAdmin:
    """Shows and changes the configuration."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        on_leader: OnLeader,
        members: GroupMembers,
        refuses: Callable[[BrokerConfig], str | None] = lambda wanted: None,
    ) -> None:
        self._on_leader = on_leader
        self._members = members
        self._refuses = refuses
        self._config = config
        self._state = state
        self._log = log

    def handlers(self) -> Handlers:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self._on_leader(self.update),
            RequestCode.GET_BROKER_CONFIG: self.show,
        }

    def show(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """26: every key with its current value. The answer also names the keys that can change."""
        version = orjson.dumps(self._state.data_version.to_json()).decode()
        body = format_properties_text(self._values())
        ext_fields = {"version": version, "runtimeKeys": ",".join(sorted(RUNTIME_KEYS))}
        return success_response(request, ext_fields, body)

    def update(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """25: all keys or none. What is in force already needs no record, whatever its key."""
        try:
            wanted = parse_properties_text(request.body)
            known = self._values()
            changes = {key: value for key, value in wanted.items() if known.get(key) != value}
            for key in changes.keys() & self._facts():
                raise FixedKeyError(f"{key} says what this node is: it cannot be set")
            wanted_config = check_settings(self._config, changes)
        except (PropertiesTextError, ConfigError) as error:
            raise invalid(str(error)) from error
        except FixedKeyError as error:
            raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from error
        if not changes:
            return success_response(request)
        reason = self._refuses(wanted_config) or self._unknown_preferred(wanted_config)
        if reason is not None:
            raise invalid(reason)
        return committed_answer(request, self._state.propose(PutSettings(changes)))

    def _unknown_preferred(self, wanted: BrokerConfig) -> str | None:
        ids = [member.id for member in self._members.all]
        if wanted.preferred_leader_id in (None, self._config.preferred_leader_id, *ids):
            return None
        return f"preferredLeaderId {wanted.preferred_leader_id} is no member ({', '.join(ids)})"

    def _values(self) -> dict[str, str]:
        return self._config.to_properties() | self._facts()

    def _facts(self) -> dict[str, str]:
        """RocketMQ keys that tools read; here their values follow from other keys or from this node's
        role.
        """
        config, is_leader = self._config, self._log.is_writable()
        master = "SYNC_MASTER" if config.enable_dledger else "ASYNC_MASTER"
        is_synced = config.durability == "persisted" or not config.enable_dledger
        return {
            "brokerId": str(LEADER_BROKER_ID if is_leader else config.follower_broker_id),
            "brokerRole": master if is_leader else "SLAVE",
            "flushDiskType": "SYNC_FLUSH" if is_synced else "ASYNC_FLUSH",
            "useTLS": str(config.server_tls.mode_in_force != "disabled").lower(),
            "msgTraceTopicName": TRACE_TOPIC,
        }


class StatsAdmin:
    """Shows the statistics; has the log's puts counted."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        statistics: BrokerStatistics,
    ) -> None:
        self._log = log
        self._state = state
        self._statistics = statistics
        self._is_started = False
        self._is_cleaning = False
        log.on_writable_change(self._on_writable_change)
        state.on_topic_deleted(self._on_topic_deleted)

    def handlers(self) -> Handlers:
        return {
            RequestCode.VIEW_BROKER_STATS_DATA: self.view,
        }

    async def start(self) -> None:
        """What was in the log at the start has been dispatched by now."""
        self._is_started = True
        self._on_writable_change(self._log.is_writable())

    async def stop(self) -> None:
        self._is_started = False
        self._log.remove_listener(self._statistics.put)

    def view(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """315"""
        header = ViewBrokerStatsRequestHeader.parse(request.ext_fields)
        windows = self._statistics.view(header.stats_name, header.stats_key)
        if windows is None:
            remark = f"The stats <{header.stats_name[:64]}> <{header.stats_key[:512]}> not exist"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        _, is_size = STATS[header.stats_name]
        minute, hour, day = (_item(figures, is_size) for figures in windows)
        return json_answer(request, {"statsDay": day, "statsHour": hour, "statsMinute": minute})

    def _on_writable_change(self, is_writable: bool) -> None:
        """A follower has the same messages, and a node that starts has them again: neither put them."""
        if is_writable and self._is_started:
            self._log.add_listener(self._statistics.put)
        else:
            self._log.remove_listener(self._statistics.put)

    def _on_topic_deleted(self, topic: str) -> None:
        """All counters are looked at: once in a turn, however many topics are deleted in it."""
        if not self._is_cleaning:
            self._is_cleaning = True
            asyncio.get_running_loop().call_soon(self._drop_deleted)

    def _drop_deleted(self) -> None:
        self._is_cleaning = False
        self._statistics.keep_topics(self._state.topics)


def _item(figures: Figures, is_size: bool) -> dict[str, Any]:
    total = figures.bytes if is_size else figures.count
    average = total / figures.calls if figures.calls else 0.0
    return {"avgpt": average, "sum": total, "tps": figures.per_second(total)}
