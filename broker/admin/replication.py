"""The replica group in RocketMQ's words, for the commands of mqadmin that ask a master or a controller: 907
GET_BROKER_HA_STATUS, 1002 CONTROLLER_ELECT_MASTER, 1005 CONTROLLER_GET_METADATA_INFO, 1006
CONTROLLER_GET_SYNC_STATE_DATA, 1007 GET_BROKER_EPOCH_CACHE, 1010 GET_CONTROLLER_CONFIG.

Each broker is the controller of its own group: the address of any node can be given as the controller's. A
term is an epoch; a replica is in sync when its disk holds the log up to the committed index.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from broker.config import LEADER_BROKER_ID, BrokerConfig, follower_broker_id
from broker.leadership import leader_hint
from broker.members import GroupMembers
from broker.responses import invalid, json_answer
from dledger.core.membership import Member
from dledger.core.status import PeerStatus
from dledger.core.types import ResponseCode as EngineCode
from dledger.core.types import Role
from dledger.server import DLedgerServer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import FastjsonError, loads_request
from remoting.headers.admin import ElectMasterRequestHeader
from remoting.properties_text import format_properties_text
from remoting.router import Handlers

TRANSFER_LIMIT_S: Final = 2.5
"""The tools wait for 3 s."""
POLL_INTERVAL_S: Final = 0.02
NAMES_MAX: Final = 1_000


class ReplicationAdmin:
    """Shows the replica group; moves its leadership."""

    def __init__(
        self,
        config: BrokerConfig,
        engine: DLedgerServer | None,
        members: GroupMembers,
        end_position: Callable[[], int | None],
        position_of: Callable[[int], int],
    ) -> None:
        self._engine = engine
        self._end_position = end_position
        self._position_of = position_of
        self._config = config
        self._members = members

    def handlers(self) -> Handlers:
        return {
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.sync_state,
            RequestCode.CONTROLLER_ELECT_MASTER: self.elect,
            RequestCode.GET_CONTROLLER_CONFIG: self.config,
        }

    def ha_status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """907: a leader shows its followers, a follower what it has itself."""
        engine = self._group_engine()
        status = engine.status()
        log_end = self._end_position() or 0
        if status.role is not Role.LEADER:
            client = {"masterAddr": self._leader_address(engine) or "", "maxOffset": log_end}
            client |= {"lastReadTimestamp": 0, "lastWriteTimestamp": 0, "transferredByteInSecond": 0}
            client |= {"masterFlushOffset": 0, "activated": True}
            return json_answer(
                request, {"haClientRuntimeInfo": client, "haConnectionInfo": [], "master": False}
            )
        rows = [self._ha_row(engine, peer, status.commit_index, log_end) for peer in status.peers]
        return json_answer(
            request,
            {
                "haConnectionInfo": rows,
                "inSyncSlaveNums": sum(row["inSync"] for row in rows),
                "master": True,
                "masterCommitLogMaxOffset": log_end,
            },
        )

    def _ha_row(
        self, engine: DLedgerServer, peer: PeerStatus, commit_index: int, log_end: int
    ) -> dict[str, Any]:
        lag = log_end if peer.lag_bytes is None else peer.lag_bytes
        return {
            "addr": engine.client_addresses.get(peer.id, peer.id),
            "diff": lag,
            "inSync": _is_in_sync(peer, commit_index),
            "slaveAckOffset": log_end - lag,
            "transferFromWhere": log_end - lag,
            "transferredByteInSecond": 0,
        }

    def epochs(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """1007: where each term's entries begin and end in this node's log."""
        status = self._group_engine().status()
        log_end = self._end_position() or 0
        begin = max(status.begin_index, 0)
        terms = [epoch.term for epoch in status.epochs]
        starts = [
            self._position_of(max(epoch.first_index, begin))
            if max(epoch.first_index, begin) <= status.end_index
            else log_end
            for epoch in status.epochs
        ]
        ends = [*starts[1:], log_end] if starts else []
        rows = zip(terms, starts, ends, strict=True)
        return json_answer(
            request,
            {
                "brokerId": self._own_id(status.role),
                "brokerName": self._config.broker_name,
                "clusterName": self._config.broker_cluster_name,
                "epochList": [{"endOffset": end, "epoch": term, "startOffset": at} for term, at, end in rows],
                "maxOffset": log_end,
            },
        )

    def metadata(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """1005: the leader and its address."""
        engine = self._group_engine()
        address = self._leader_address(engine)
        if engine.leader_id is None or address is None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, leader_hint(engine, self._config.dledger_self_id))
        peers = ";".join(f"{each.id}-{each.host}:{each.port}" for each in self._members.all)
        ext = {
            "controllerLeaderAddress": address,
            "controllerLeaderId": engine.leader_id,
            "group": self._config.group,
            "isLeader": str(engine.leader_id == self._config.dledger_self_id).lower(),
            "peers": peers,
        }
        return success_response(request, ext)

    def sync_state(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """1006: the replicas of this broker, if it is among the names in the body. Only the leader knows."""
        engine = self._group_engine()
        status = engine.status()
        if status.role is not Role.LEADER:
            raise self._not_leader(engine)
        table = {}
        if self._config.broker_name in _names(request.body):
            by_id = {peer.id: peer for peer in status.peers}
            rows: dict[bool, list[Mapping[str, Any]]] = {True: [], False: []}
            for peer in self._members.all:
                known = by_id.get(peer.id)
                is_in_sync = known is None or _is_in_sync(known, status.commit_index)
                rows[is_in_sync].append(self._replica(engine, peer))
            table[self._config.broker_name] = {
                "inSyncReplicas": rows[True],
                "masterAddress": self._config.broker_address,
                "masterBrokerId": LEADER_BROKER_ID,
                "masterEpoch": status.term,
                "notInSyncReplicas": rows[False],
                "syncStateSetEpoch": status.term,
            }
        return json_answer(request, {"replicasInfoTable": table})

    def _replica(self, engine: DLedgerServer, peer: Member) -> Mapping[str, Any]:
        is_self = peer.id == self._config.dledger_self_id
        address = self._config.broker_address if is_self else engine.client_addresses.get(peer.id, "")
        return {
            "alive": is_self or engine.is_connected(peer.id),
            "brokerAddress": address,
            "brokerId": LEADER_BROKER_ID if is_self else follower_broker_id(peer.id),
            "brokerName": self._config.broker_name,
        }

    async def elect(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """1002: hand leadership to the node registered under the broker id; answered once it leads."""
        header = ElectMasterRequestHeader.parse(request.ext_fields)
        engine = self._group_engine()
        if (header.cluster_name, header.broker_name) != (
            self._config.broker_cluster_name,
            self._config.broker_name,
        ):
            raise invalid(f"this group is {self._config.broker_name} of {self._config.broker_cluster_name}")
        if engine.status().role is not Role.LEADER:
            raise self._not_leader(engine)
        if header.broker_id != LEADER_BROKER_ID:
            await self._transfer(engine, header.broker_id)
        return self._elected(request, engine)

    async def _transfer(self, engine: DLedgerServer, broker_id: int) -> None:
        wanted = [peer.id for peer in self._members.all if follower_broker_id(peer.id) == broker_id]
        if not wanted or wanted[0] == self._config.dledger_self_id:
            raise invalid(f"no other node of the group has the broker id {broker_id}")
        code = engine.transfer_leadership(wanted[0])
        if code is not EngineCode.SUCCESS:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the transfer was refused: {code.name}")
        for _ in range(int(TRANSFER_LIMIT_S / POLL_INTERVAL_S)):
            if engine.leader_id == wanted[0]:
                return
            await asyncio.sleep(POLL_INTERVAL_S)
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{wanted[0]} does not lead after {TRANSFER_LIMIT_S} s")

    def _elected(self, request: RemotingCommand, engine: DLedgerServer) -> RemotingCommand:
        term, address = engine.term, self._leader_address(engine) or ""
        ext = {"masterBrokerId": str(LEADER_BROKER_ID), "masterAddress": address}
        ext |= {"masterEpoch": str(term), "syncStateSetEpoch": str(term)}
        addresses = {
            LEADER_BROKER_ID if peer.id == engine.leader_id else follower_broker_id(peer.id): self._address(
                engine, peer.id
            )
            for peer in self._members.all
        }
        group = {
            "brokerAddrs": {number: addresses[number] for number in sorted(addresses)},
            "brokerName": self._config.broker_name,
            "cluster": self._config.broker_cluster_name,
        }
        # mqadmin reads the body as the member group, RocketMQ's own brokers as what holds it.
        body = orjson.dumps({**group, "brokerMemberGroup": group}, option=orjson.OPT_NON_STR_KEYS)
        return success_response(request, ext, body)

    def config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """1010: the group's part of the broker's configuration."""
        self._group_engine()
        values = self._config.to_properties()
        group = {key: value for key, value in values.items() if key in _GROUP_KEYS}
        return success_response(request, body=format_properties_text(group))

    def _group_engine(self) -> DLedgerServer:
        engine = self._engine
        if engine is None:
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this broker has no replica group")
        return engine

    def _not_leader(self, engine: DLedgerServer) -> RequestError:
        hint = leader_hint(engine, self._config.dledger_self_id)
        return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"only the leader answers this: {hint}")

    def _leader_address(self, engine: DLedgerServer) -> str | None:
        return None if engine.leader_id is None else self._address(engine, engine.leader_id) or None

    def _address(self, engine: DLedgerServer, node_id: str) -> str:
        own = node_id == self._config.dledger_self_id
        return self._config.broker_address if own else engine.client_addresses.get(node_id, "")

    def _own_id(self, role: Role) -> int:
        return LEADER_BROKER_ID if role is Role.LEADER else self._config.follower_broker_id


_GROUP_KEYS: Final = frozenset(
    {
        "dLegerGroup",
        "dLegerPeers",
        "dLegerSelfId",
        "durability",
        "electionTimeoutMaxMs",
        "electionTimeoutMinMs",
        "heartbeatIntervalMs",
        "maxPendingRequestsNum",
        "maxWaitAckTimeMs",
        "peerPushQuota",
        "peerPushThrottlePoint",
        "preferredLeaderId",
    }
)


def _is_in_sync(peer: PeerStatus, commit_index: int) -> bool:
    return peer.match_index is not None and peer.match_index >= commit_index


def _names(body: bytes) -> list[str]:
    try:
        names = loads_request(body)
    except FastjsonError as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(names, list) or len(names) > NAMES_MAX:
        raise invalid(f"the body is no list of at most {NAMES_MAX} broker names")
    return [str(name) for name in names]
