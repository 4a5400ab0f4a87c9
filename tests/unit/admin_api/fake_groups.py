"""Brokers with consumer groups behind the gateway's one seam: LedgerMQ's answers, and those of RocketMQ 4.9
and 5 in fastjson's dialect.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from broker.admin.types import GroupProgress, NodeRole, NodeStatusMessage, ProgressMessage, TopicProgress
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestTimeoutError
from remoting.fastjson import object_key_map
from remoting.route import BrokerData, ClusterInfo, format_cluster_info
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS

Kind = Literal["ledgermq", "rocketmq5", "rocketmq4"]
NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class RefusalError(Exception):
    """Answered with this code."""

    def __init__(self, code: int, remark: str = "no") -> None:
        super().__init__(remark)
        self.code, self.remark = code, remark


@dataclass
class FakeBroker:
    """Offsets of a queue are (first, end); the message at offset n was stored at n * 1000 ms."""

    kind: Kind
    name: str = "broker-a"
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    queues: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    clients: dict[str, list[str]] = field(default_factory=dict)
    modes: dict[str, dict[str, Any]] = field(default_factory=dict)
    message_model: str = "CLUSTERING"
    is_hanging: bool = False
    port_shift: int = 0
    asked: list[int] = field(default_factory=list)
    failing: set[int] = field(default_factory=set)
    """Requests that it fails at."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{10911 + self.port_shift + ord(self.name[-1]) - ord('a')}"

    def answer(self, command: RemotingCommand) -> RemotingCommand:
        self.asked.append(command.code)
        if command.code in self.failing:
            return RemotingCommand(code=ResponseCode.SYSTEM_ERROR, remark="a fault")
        handlers = {
            RequestCode.LEDGERMQ_NODE_STATUS: self._status,
            RequestCode.LEDGERMQ_GROUP_PROGRESS: self._all_progress,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._configs,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._put,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running,
            RequestCode.GET_CONSUME_STATS: self._progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self._stock_progress,
            RequestCode.GET_TOPIC_STATS_INFO: self._bounds,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._spans,
            RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._modes,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
        }
        try:
            made = handlers[RequestCode(command.code)](command)
        except RefusalError as refusal:
            return RemotingCommand(code=refusal.code, remark=refusal.remark)
        if isinstance(made, RemotingCommand):
            return made
        return RemotingCommand(code=0, body=self._dump(made) if made is not None else b"")

    def _dump(self, value: Any) -> bytes:
        return value if isinstance(value, bytes) else orjson.dumps(value)

    def _status(self, _: RemotingCommand) -> bytes:
        if self.kind != "ledgermq":
            raise RefusalError(NOT_SUPPORTED)
        return NodeStatusMessage(
            cluster="DefaultCluster",
            group=self.name,
            broker_name=self.name,
            node_id="n0",
            role=NodeRole.LEADER,
            term=1,
            leader_id="n0",
            is_writable=True,
            durability="persisted",
            remoting_address=self.address,
            applied_index=1,
            committed_position=1,
            started_at_ms=1,
            pid=1,
        ).to_json()

    def _all_progress(self, _: RemotingCommand) -> bytes:
        if self.kind != "ledgermq":
            raise RefusalError(NOT_SUPPORTED)
        groups = {name: self._group_progress(name) for name in {*self.groups, *self.clients}}
        return ProgressMessage(broker_name=self.name, at_ms=1, groups=groups).to_json()

    def _group_progress(self, name: str) -> GroupProgress:
        topics = {}
        for (group, topic), queues in self.offsets.items():
            if group == name:
                lag = sum(end - queues[n] for n, (_, end) in enumerate(self.queues[topic]) if n in queues)
                topics[topic] = TopicProgress(lag=lag)
        members = len(self.clients.get(name, ()))
        model = self.message_model if members else None
        return GroupProgress(topics=topics, members=members, message_model=model, consume_tps=2.0)

    def _configs(self, _: RemotingCommand) -> Any:
        return {"subscriptionGroupTable": self.groups}

    def _put(self, command: RemotingCommand) -> None:
        config = orjson.loads(command.body)
        self.groups[config["groupName"]] = config

    def _delete(self, command: RemotingCommand) -> None:
        self.groups.pop(command.ext_fields["groupName"], None)
        if command.ext_fields["removeOffset" if self.kind == "rocketmq4" else "cleanOffset"] == "true":
            for key in [key for key in self.offsets if key[0] == command.ext_fields["groupName"]]:
                del self.offsets[key]

    def _connections(self, command: RemotingCommand) -> Any:
        group = command.ext_fields["consumerGroup"]
        if not self.clients.get(group):
            raise RefusalError(ResponseCode.CONSUMER_NOT_ONLINE)
        rows = [
            {"clientId": each, "clientAddr": "10.0.0.1:1", "language": "JAVA", "version": 409}
            for each in self.clients[group]
        ]
        wanted = {"t": {"topic": "t", "subString": "*", "expressionType": "TAG", "subVersion": 1}}
        return {
            "connectionSet": rows,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": self.message_model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionTable": wanted,
        }

    def _running(self, command: RemotingCommand) -> Any:
        client_id = command.ext_fields["clientId"]
        mine = self.clients[command.ext_fields["consumerGroup"]].index(client_id)
        rows = [
            (self._key("t", n), {"commitOffset": 1, "cachedMsgCount": 2, "droped": False})
            for n in range(len(self.queues["t"]))
            if n % len(self.clients[command.ext_fields["consumerGroup"]]) == mine
        ]
        stack = "at org.example.Work" if command.ext_fields["jstackEnable"] == "true" else None
        return {
            "properties": {"PROP_CLIENT_VERSION": "V4_9_8", "secretKey": "hunter2"},
            "mqTable": object_key_map(rows),
            "statusTable": {"t": {"pullRT": 1.5, "consumeOKTPS": 3.0, "consumeFailedMsgs": 1}},
            "jstack": stack,
        }

    def _key(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"brokerName": self.name, "queueId": queue_id, "topic": topic}

    def _rows(self, group: str, topic: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        offsets = self.offsets.get((group, topic), {})
        rows = []
        for n, (_, end) in enumerate(self.queues.get(topic, [])):
            offset = offsets.get(n, 0)
            row = {"brokerOffset": end, "consumerOffset": offset, "lastTimestamp": max(0, offset - 1) * 1000}
            if self.kind != "rocketmq4":
                row["pullOffset"] = offset + (3 if self.kind == "rocketmq5" else 0)
            rows.append((self._key(topic, n), row))
        return rows

    def _progress(self, command: RemotingCommand) -> Any:
        group, topic = command.ext_fields["consumerGroup"], command.ext_fields.get("topic")
        topics = [topic] if topic else [each for owner, each in self.offsets if owner == group]
        rows = [row for each in topics for row in self._rows(group, each)]
        return {"consumeTps": 1.5, "offsetTable": object_key_map(rows)}

    def _stock_progress(self, _: RemotingCommand) -> Any:
        stats = [
            {group: [{"consumeTps": 0.0, "offsetTable": object_key_map(self._rows(group, topic))}]}
            for group, topic in self.offsets
        ]
        return {"consumeStatsList": stats, "totalDiff": 0, "brokerAddr": self.address}

    def _bounds(self, command: RemotingCommand) -> Any:
        topic = command.ext_fields["topic"]
        if topic not in self.queues:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST)
        rows = [
            (self._key(topic, n), {"minOffset": first, "maxOffset": end, "lastUpdateTimestamp": end * 1000})
            for n, (first, end) in enumerate(self.queues[topic])
        ]
        return {"offsetTable": object_key_map(rows)}

    def _spans(self, command: RemotingCommand) -> Any:
        queues = range(len(self.queues[command.ext_fields["topic"]]))
        rows = [{"messageQueue": self._key(command.ext_fields["topic"], n), "delayTime": 700} for n in queues]
        return {"consumeTimeSpanSet": rows}

    def _committed(self, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        queue_id = int(ext["queueId"])
        offset = self.offsets.get((ext["consumerGroup"], ext["topic"]), {}).get(queue_id)
        if offset is None and self.kind == "rocketmq4" and self.queues[ext["topic"]][queue_id][0] == 0:
            offset = 0
        if offset is None:
            raise RefusalError(ResponseCode.QUERY_NOT_FOUND)
        return RemotingCommand(code=0, ext_fields={"offset": str(offset)})

    def _all_offsets(self, _: RemotingCommand) -> bytes:
        """In fastjson's dialect: numbers are keys."""
        tables = (
            f'"{topic}@{group}":{{{",".join(f"{n}:{offset}" for n, offset in queues.items())}}}'
            for (group, topic), queues in self.offsets.items()
        )
        return f'{{"offsetTable":{{{",".join(tables)}}}}}'.encode()

    def _config(self, _: RemotingCommand) -> bytes:
        return b"" if self.kind == "rocketmq4" else b"useServerSideResetOffset=true\n"

    def _commit(self, command: RemotingCommand) -> None:
        ext = command.ext_fields
        self._store(ext["consumerGroup"], ext["topic"], {int(ext["queueId"]): int(ext["commitOffset"])})

    def _store(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.offsets.setdefault((group, topic), {}).update(offsets)

    def _search(self, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        offset = self._by_time(ext["topic"], int(ext["queueId"]), int(ext["timestamp"]))
        return RemotingCommand(code=0, ext_fields={"offset": str(offset)})

    def _by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        first, end = self.queues[topic][queue_id]
        last = max(first, end - 1) if self.kind == "rocketmq4" else end
        return end if time_ms < 0 else min(last, max(first, -(-time_ms // 1000)))

    def _reset(self, command: RemotingCommand) -> Any:
        ext = command.ext_fields
        group, topic, time_ms = ext["group"], ext["topic"], int(ext["timestamp"])
        numbers = range(len(self.queues[topic]))
        offsets = {n: self._by_time(topic, n, time_ms) for n in numbers}
        if self.kind == "rocketmq4":
            known = self.offsets.get((group, topic), {})
            if any(n not in known for n in numbers):
                raise RefusalError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            if ext["isForce"] == "false":
                offsets = {n: min(known[n], offsets[n]) for n in numbers}
            if not self.clients.get(group):
                raise RefusalError(
                    ResponseCode.CONSUMER_NOT_ONLINE, "Consumer not online, so can not reset offset"
                )
        elif int(ext.get("queueId", "-1")) >= 0:
            offsets = {int(ext["queueId"]): int(ext["offset"])}
        self._store(group, topic, offsets)
        return {"offsetTable": object_key_map((self._key(topic, n), each) for n, each in offsets.items())}

    def _clone(self, command: RemotingCommand) -> None:
        ext = command.ext_fields
        self._store(ext["destGroup"], ext["topic"], self.offsets.get((ext["srcGroup"], ext["topic"]), {}))

    def _modes(self, _: RemotingCommand) -> Any:
        if self.kind == "rocketmq4":
            raise RefusalError(NOT_SUPPORTED)
        return {"messageRequestModeMap": self.modes}

    def _set_mode(self, command: RemotingCommand) -> None:
        row = orjson.loads(command.body)
        self.modes.setdefault(row["topic"], {})[row["consumerGroup"]] = row


class FakeBrokers:
    """The name server and its brokers."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = {broker.address: broker for broker in brokers}

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        await asyncio.sleep(0)
        if address == NAMESRV_ADDRESS:
            data = {
                each.name: BrokerData("DefaultCluster", each.name, {0: each.address})
                for each in self.brokers.values()
            }
            return RemotingCommand(code=0, body=format_cluster_info(ClusterInfo(data)))
        broker = self.brokers[address]
        if broker.is_hanging:
            raise RequestTimeoutError(f"{address}: no answer within {timeout_s} s")
        return broker.answer(command)


def group_config(name: str, **other: Any) -> dict[str, Any]:
    """As brokers send it; fields that are not known here among it."""
    return {"groupName": name, "consumeEnable": True, "retryMaxTimes": 16, "groupSysFlag": 5, **other}


def sample(kind: Kind, name: str = "broker-a") -> FakeBroker:
    """Topic t: queue 0 holds 10..100, queue 1 nothing. Group g is at 40 there; h never consumed."""
    return FakeBroker(
        kind,
        name,
        groups={each: group_config(each) for each in ("g", "h", "CID_RMQ_SYS_TRANS")},
        queues={"t": [(10, 100), (0, 0)]},
        offsets={("g", "t"): {0: 40, 1: 0}},
    )
