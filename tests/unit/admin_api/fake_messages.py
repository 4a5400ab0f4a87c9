"""A name server and brokers that keep messages, behind the gateway's one seam, without a network."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from commitlog.record import Message, encode_record, host_bytes
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RequestTimeoutError
from remoting.fastjson import object_key_map
from remoting.record import Record, decode_record, format_properties, get_property, parse_properties
from remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    format_cluster_info,
    format_topic_route,
)

NAMESRV = "127.0.0.1:9876"
PULLED_MAX = 32


@dataclass
class FakeStore:
    """One stock broker. A queue is a list of records; None stands for one that is gone."""

    name: str
    address: str
    queues: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    begins: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: list[tuple[str, str]] = field(default_factory=list)
    position: int = 1000
    broker_id: int = 0

    def raw(self, message: Message, offset: int, stored_ms: int) -> bytes:
        host, _, port = self.address.rpartition(":")
        message.store_host = host_bytes(host, int(port))
        data = bytearray(encode_record(message, offset, stored_ms))
        struct.pack_into(">q", data, 28, self.position)
        self.position += len(data)
        return bytes(data)

    def put(
        self,
        topic: str,
        queue_id: int = 0,
        *,
        body: bytes = b"body",
        at_ms: int = 1000,
        properties: Mapping[str, str] | None = None,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> Record:
        queue = self.queues.setdefault((topic, queue_id), [])
        message = Message(
            topic,
            queue_id,
            body,
            format_properties(properties or {}),
            sys_flag=sys_flag,
            born_timestamp_ms=at_ms - 1,
            born_host=host_bytes("10.0.0.7", 4711),
            reconsume_times=reconsume_times,
        )
        record = decode_record(self.raw(message, len(queue), at_ms))
        queue.append(record)
        return record

    def records(self) -> list[Record]:
        return [record for queue in self.queues.values() for record in queue]


class FakeMessages:
    """Answers what the messages' services ask of a name server and stock brokers."""

    def __init__(self, *stores: FakeStore) -> None:
        self.stores = {store.address: store for store in stores}
        self.topics: dict[str, int] = {}
        self.silent: set[str] = set()
        self.asked: list[tuple[str, int, dict[str, str]]] = []
        self.pull_max = PULLED_MAX
        self.now_ms = 5_000
        self.refused_sends: set[str] = set()
        self.unrouted: set[str] = set()
        """Topics that are still listed, and whose route is gone."""
        self.hidden_routes: set[str] = set()
        """Topics whose route nobody can read."""
        self.forgotten: set[str] = set()
        """Topics that are routed to brokers which do not have them (any more)."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.asked.append((address, int(command.code), command.ext_fields))
        if address in self.silent:
            raise RequestTimeoutError(f"{address}: no answer within {timeout_s} s")
        if address == NAMESRV:
            return self._namesrv(command)
        if address not in self.stores:
            raise ConnectFailedError(f"{address}: refused")
        answer = getattr(self, f"_on_{int(command.code)}", None)
        if answer is None:
            return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")
        result = answer(self.stores[address], command)
        assert isinstance(result, RemotingCommand)
        return result

    def codes(self, code: RequestCode) -> list[dict[str, str]]:
        """The fields of every request of this kind so far."""
        return [ext for _, asked, ext in self.asked if asked == code]

    def _namesrv(self, command: RemotingCommand) -> RemotingCommand:
        nodes: dict[str, dict[int, str]] = {}
        for store in self.stores.values():
            nodes.setdefault(store.name, {})[store.broker_id] = store.address
        brokers = {name: BrokerData("DefaultCluster", name, ids) for name, ids in nodes.items()}
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return RemotingCommand(0, body=format_cluster_info(ClusterInfo(brokers)))
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return RemotingCommand(0, body=orjson.dumps({"topicList": list(self.topics)}))
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")
        topic = command.ext_fields["topic"]
        if topic in self.hidden_routes:
            return RemotingCommand(0, body=b"{")
        queues = self.topics.get(topic)
        if queues is None or topic in self.unrouted:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        datas = tuple(QueueData(name, queues, queues, 6) for name in brokers)
        return RemotingCommand(0, body=format_topic_route(TopicRoute(datas, tuple(brokers.values()))))

    def _on_202(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        topic = command.ext_fields["topic"]
        if topic in self.forgotten:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, remark="no topic")
        rows = []
        for queue_id in range(self.topics.get(topic, 0)):
            queue = store.queues.get((topic, queue_id), [])
            key = {"brokerName": store.name, "queueId": queue_id, "topic": topic}
            row = {
                "minOffset": store.begins.get((topic, queue_id), 0),
                "maxOffset": len(queue),
                "lastUpdateTimestamp": queue[-1].store_timestamp_ms if queue else 0,
            }
            rows.append((key, row))
        body = orjson.dumps({"offsetTable": object_key_map(rows), "topicPutTps": 0.0})
        return RemotingCommand(0, body=body)

    def _on_29(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        queue = store.queues.get((ext["topic"], int(ext["queueId"])), [])
        time_ms = int(ext["timestamp"])
        found = next(
            (n for n, record in enumerate(queue) if record.store_timestamp_ms >= time_ms), len(queue)
        )
        return RemotingCommand(0, ext_fields={"offset": str(found)})

    def _on_32(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        key = (command.ext_fields["topic"], int(command.ext_fields["queueId"]))
        queue = store.queues.get(key, [])
        begin = store.begins.get(key, 0)
        time_ms = queue[begin].store_timestamp_ms if begin < len(queue) else -1
        return RemotingCommand(0, ext_fields={"timestamp": str(time_ms)})

    def _on_11(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        key = (ext["topic"], int(ext["queueId"]))
        queue, begin, at = store.queues.get(key, []), store.begins.get(key, 0), int(ext["queueOffset"])
        end = min(len(queue), at + min(int(ext["maxMsgNums"]), self.pull_max))
        fields = {"minOffset": str(begin), "maxOffset": str(len(queue)), "suggestWhichBrokerId": "0"}
        if not begin <= at < len(queue):
            moved = str(begin if at < begin else len(queue))
            return RemotingCommand(
                ResponseCode.PULL_OFFSET_MOVED, ext_fields={**fields, "nextBeginOffset": moved}
            )
        tag = ext["subscription"]
        chosen = [
            r for r in queue[at:end] if tag == "*" or get_property(r.properties, b"TAGS") == tag.encode()
        ]
        code = ResponseCode.SUCCESS if chosen else ResponseCode.PULL_RETRY_IMMEDIATELY
        body = b"".join(map(encoded, chosen))
        return RemotingCommand(code, ext_fields={**fields, "nextBeginOffset": str(end)}, body=body)

    def _on_12(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        found = [record for record in store.records() if record.topic == ext["topic"]]
        found = [record for record in found if ext["key"] in _keys(record)][::-1][: int(ext["maxNum"])]
        if not found:
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, remark="not found")
        return RemotingCommand(0, body=b"".join(map(encoded, found)))

    def _on_33(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        wanted = int(command.ext_fields["offset"])
        for record in store.records():
            if record.physical_offset == wanted:
                return RemotingCommand(0, body=encoded(record))
        remark = f"can not find message by the offset, {wanted}"
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=remark)

    def _on_14(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        offset = store.offsets.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
        if offset is None:
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, remark="not found")
        return RemotingCommand(0, ext_fields={"offset": str(offset)})

    def _on_203(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        members = store.members.get(command.ext_fields["consumerGroup"])
        if members is None:
            return RemotingCommand(ResponseCode.CONSUMER_NOT_ONLINE, remark="not online")
        return RemotingCommand(0, body=orjson.dumps(members))

    def _on_300(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        groups = {group for group, topic, _ in store.offsets if topic == command.ext_fields["topic"]}
        return RemotingCommand(0, body=orjson.dumps({"groupList": sorted(groups | store.members.keys())}))

    def _on_309(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        store.answers.append((command.ext_fields["clientId"], command.ext_fields["msgId"]))
        return RemotingCommand(0, body=b'{"order":false,"autoCommit":true,"consumeResult":"CR_SUCCESS"}')

    def _on_310(self, store: FakeStore, command: RemotingCommand) -> RemotingCommand:
        ext = command.ext_fields
        if ext["b"] in self.refused_sends:
            return RemotingCommand(ResponseCode.NO_PERMISSION, remark="no permission")
        queue_id = max(0, int(ext["e"]))
        properties = parse_properties(ext["i"].encode())
        record = store.put(
            ext["b"],
            queue_id,
            body=command.body,
            at_ms=self.now_ms,
            properties=properties,
            sys_flag=int(ext["f"]),
            reconsume_times=int(ext["j"]),
        )
        stored_id = f"{record.store_host.hex().upper()}{record.physical_offset:016X}"
        fields = {"msgId": stored_id, "queueId": str(queue_id), "queueOffset": str(record.queue_offset)}
        return RemotingCommand(0, ext_fields=fields)


def encoded(record: Record) -> bytes:
    """The record's bytes again."""
    message = Message(
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )
    data = bytearray(encode_record(message, record.queue_offset, record.store_timestamp_ms))
    struct.pack_into(">q", data, 28, record.physical_offset)
    return bytes(data)


def _keys(record: Record) -> list[str]:
    properties = parse_properties(record.properties)
    return [*properties.get("KEYS", "").split(), properties.get("UNIQ_KEY", "")]
