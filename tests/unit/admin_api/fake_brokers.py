"""A name server and brokers with topics, producers and settings, without a network.

Each answers in bytes as the real one would, fastjson's dialect among them; stock ones refuse what only
LedgerMQ knows.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker.admin.types import NodeRole, NodeStatusMessage
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RequestTimeoutError
from remoting.fastjson import object_key_map
from remoting.properties_text import format_properties_text, parse_properties_text
from tests.unit.admin_api.node_samples import node_status

NAMESRV = "127.0.0.1:9876"
RUNTIME = {
    "brokerVersionDesc": "LedgerMQ",
    "bootTimestamp": "1700000000000",
    "brokerActive": "true",
    "putTps": "12.50 11.00 10.00",
    "getTransferredTps": "25.00 1.00 1.00",
    "msgPutTotalTodayMorning": "100",
    "msgPutTotalTodayNow": "150",
    "msgGetTotalTodayMorning": "10",
    "msgGetTotalTodayNow": "40",
    "commitLogMinOffset": "0",
    "commitLogMaxOffset": "3000",
    "commitLogDiskRatio": "0.4200",
    "commitLogDirCapacity": "Total : 40.0 GiB, Free : 10.0 GiB.",
    "diskTotalBytes": "42949672960",
    "diskFreeBytes": "10737418240",
    "dispatchBehindBytes": "0",
    "earliestMessageTimeStamp": "1700000001000",
}
SETTINGS = {
    "fileReservedTime": "72",
    "deleteWhen": "04",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceWarningLevelRatio": "90",
    "mappedFileSizeCommitLog": "1000",
    "storePathRootDir": "/store",
    "listenPort": "10911",
    "someSecretKey": "hunter2",
}


def topic_row(name: str, queues: int = 4, perm: int = 6, **facts: Any) -> dict[str, Any]:
    row = {
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }
    return {**row, **facts}


@dataclass
class FakeBroker:
    """One broker process; `is_stock` ones tell no node status and no attributes."""

    name: str
    address: str
    broker_id: int = 0
    is_stock: bool = False
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    bounds: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    stats: dict[tuple[str, str], int] = field(default_factory=dict)
    producers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runtime: dict[str, str] = field(default_factory=lambda: dict(RUNTIME))
    settings: dict[str, str] = field(default_factory=lambda: dict(SETTINGS))
    runtime_keys: str | None = "fileReservedTime,deleteWhen,preferredLeaderId"
    facts: dict[str, Any] = field(default_factory=dict)

    def status(self) -> NodeStatusMessage:
        plain = {
            "role": NodeRole.LEADER if self.broker_id == 0 else NodeRole.FOLLOWER,
            "broker_name": self.name,
            "remoting_address": self.address,
            "group": self.name,
        }
        return node_status("n0", **{**plain, **self.facts})

    def add_topic(self, name: str, queues: int = 4, perm: int = 6, **facts: Any) -> None:
        self.topics[name] = topic_row(name, queues, perm, **facts)


class FakeBrokers:
    """The seam `Invoker`: who was asked what, and how many bytes came back. `account`: what it signs as."""

    account: str | None = None

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = {broker.address: broker for broker in brokers}
        self.listed = {broker.address: broker for broker in brokers}
        self.hanging: set[str] = set()
        self.dead: set[str] = set()
        self.refusing: dict[tuple[str, RequestCode], tuple[int, str]] = {}
        self.bodies: dict[RequestCode, bytes] = {}
        """Sent instead of what the brokers would answer."""
        self.asked: Counter[tuple[str, RequestCode]] = Counter()
        self.commands: list[tuple[str, RemotingCommand]] = []
        self.answered_bytes = 0
        self.routes_deleted: list[str] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self.release = asyncio.Event()
        self.holds = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        code = RequestCode(command.code)
        self.asked[address, code] += 1
        self.commands.append((address, command))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            if self.holds:
                await self.release.wait()
            else:
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        answer = self._answer(address, code, command, timeout_s)
        self.answered_bytes += len(answer.body)
        return answer

    def asks_of(self, code: RequestCode) -> int:
        return sum(count for (_, asked), count in self.asked.items() if asked is code)

    def _answer(
        self, address: str, code: RequestCode, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if address in self.hanging:
            raise RequestTimeoutError(f"{address}: no answer within {timeout_s} s")
        if address in self.dead or (address != NAMESRV and address not in self.brokers):
            raise ConnectFailedError(f"{address}: refused")
        if (address, code) in self.refusing:
            refusal, remark = self.refusing[address, code]
            return RemotingCommand(code=refusal, remark=remark)
        if address == NAMESRV:
            return self._of_namesrv(code, command.ext_fields)
        if code in self.bodies:
            return RemotingCommand(code=0, body=self.bodies[code])
        broker = self.brokers[address]
        answer = _ANSWERS.get(code)
        if answer is None or (broker.is_stock and code is RequestCode.LEDGERMQ_NODE_STATUS):
            remark = f" request type {int(code)} not supported"
            return RemotingCommand(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return answer(broker, command)

    def _of_namesrv(self, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        if code is RequestCode.GET_KVLIST_BY_NAMESPACE:
            return RemotingCommand(code=ResponseCode.QUERY_NOT_FOUND)
        if code is RequestCode.DELETE_TOPIC_IN_NAMESRV:
            self.routes_deleted.append(ext["topic"])
            return RemotingCommand(code=0)
        if code is RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(ext["topic"])
        assert code is RequestCode.GET_BROKER_CLUSTER_INFO, code
        # fastjson writes integer keys without quotes
        by_name: dict[str, list[FakeBroker]] = {}
        for broker in self.listed.values():
            by_name.setdefault(broker.name, []).append(broker)
        rows = ",".join(f'"{name}":{_broker_text(name, each)}' for name, each in by_name.items())
        names = orjson.dumps(list(by_name)).decode()
        body = f'{{"brokerAddrTable":{{{rows}}},"clusterAddrTable":{{"DefaultCluster":{names}}}}}'
        return RemotingCommand(code=0, body=body.encode())

    def _route(self, topic: str) -> RemotingCommand:
        having = [broker for broker in self.listed.values() if topic in broker.topics]
        if not having:
            return RemotingCommand(code=ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        rows = ",".join(_broker_text(broker.name, [broker]) for broker in having)
        queues = [
            {
                "brokerName": broker.name,
                "perm": broker.topics[topic]["perm"],
                "readQueueNums": broker.topics[topic]["readQueueNums"],
                "writeQueueNums": broker.topics[topic]["writeQueueNums"],
                "topicSysFlag": 0,
            }
            for broker in having
        ]
        queue_text = orjson.dumps(queues).decode()
        body = f'{{"brokerDatas":[{rows}],"filterServerTable":{{}},"queueDatas":{queue_text}}}'
        return RemotingCommand(code=0, body=body.encode())


def _broker_text(name: str, brokers: list[FakeBroker]) -> str:
    addresses = ",".join(f'{broker.broker_id}:"{broker.address}"' for broker in brokers)
    return f'{{"brokerAddrs":{{{addresses}}},"brokerName":"{name}","cluster":"DefaultCluster"}}'


def _json(value: Any) -> RemotingCommand:
    return RemotingCommand(code=0, body=orjson.dumps(value))


def _status(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    return RemotingCommand(code=0, body=broker.status().to_json())


def _configs(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    return _json({"dataVersion": {"counter": 1}, "topicConfigTable": broker.topics})


def _bounds(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    topic = command.ext_fields["topic"]
    rows = [
        (
            {"brokerName": broker.name, "queueId": queue_id, "topic": topic},
            {"minOffset": least, "maxOffset": most, "lastUpdateTimestamp": at_ms},
        )
        for queue_id, (least, most, at_ms) in enumerate(broker.bounds.get(topic, []))
    ]
    return _json({"offsetTable": object_key_map(rows)})


def _groups(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    return _json({"groupList": broker.groups.get(command.ext_fields["topic"], [])})


def _figures(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    key = command.ext_fields["statsName"], command.ext_fields["statsKey"]
    if key not in broker.stats:
        return RemotingCommand(code=ResponseCode.SYSTEM_ERROR, remark="The stats not exist")
    count = broker.stats[key]
    windows = {"statsMinute": count, "statsHour": count * 10, "statsDay": count * 100}
    return _json({name: {"sum": total, "tps": total / 60, "avgpt": 1.0} for name, total in windows.items()})


def _put_topic(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    ext = command.ext_fields
    row = topic_row(ext["topic"], int(ext["readQueueNums"]), int(ext["perm"]), order=ext["order"] == "true")
    row["writeQueueNums"] = int(ext["writeQueueNums"])
    attributes = dict(broker.topics.get(ext["topic"], {}).get("attributes") or {})
    for part in filter(None, ext.get("attributes", "").split(",")):
        key, _, value = part[1:].partition("=")
        attributes.update({key: value} if part[0] == "+" else {})
        if part[0] == "-":
            del attributes[key]
    broker.topics[ext["topic"]] = row if broker.is_stock else {**row, "attributes": attributes}
    return RemotingCommand(code=0)


def _delete_topic(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    broker.topics.pop(command.ext_fields["topic"], None)
    return RemotingCommand(code=0)


def _producers(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    return _json({"data": broker.producers})


def _one_producer(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    rows = broker.producers.get(command.ext_fields["producerGroup"])
    if rows is None:
        return RemotingCommand(code=ResponseCode.SYSTEM_ERROR, remark="not online")
    return _json({"connectionSet": [{**row, "clientAddr": row["remoteIP"]} for row in rows]})


def _show_config(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    told = not broker.is_stock and broker.runtime_keys is not None
    ext = {"runtimeKeys": broker.runtime_keys or ""} if told else {}
    return RemotingCommand(code=0, body=format_properties_text(broker.settings), ext_fields=ext)


def _change_config(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    broker.settings.update(parse_properties_text(command.body))
    return RemotingCommand(code=0)


def _runtime(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    return _json({"table": broker.runtime})


_ANSWERS: dict[RequestCode, Callable[[FakeBroker, RemotingCommand], RemotingCommand]] = {
    RequestCode.LEDGERMQ_NODE_STATUS: _status,
    RequestCode.GET_ALL_TOPIC_CONFIG: _configs,
    RequestCode.GET_TOPIC_STATS_INFO: _bounds,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _groups,
    RequestCode.VIEW_BROKER_STATS_DATA: _figures,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _put_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: _delete_topic,
    RequestCode.GET_ALL_PRODUCER_INFO: _producers,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _one_producer,
    RequestCode.GET_BROKER_CONFIG: _show_config,
    RequestCode.UPDATE_BROKER_CONFIG: _change_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: _runtime,
}
