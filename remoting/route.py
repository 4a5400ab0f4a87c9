"""Topics and brokers as a name server describes them: the bodies of 105 and 106. Pure.

One form suits every client: compact, ids quoted, numbers as numbers. The Go client parses `brokerAddrs` by
hand and fails on white space; the C++ client accepts the ids quoted or not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from remoting.fastjson import FastjsonError, loads

DEFAULT_TOPIC = "TBW102"
"""A topic that does not exist is created like this one when its first message arrives. Every broker that
creates topics so has it.
"""
MASTER_ID = 0
PERM_READ = 4
PERM_WRITE = 2


class RouteError(ValueError):
    """A body that should describe routes does not."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker has; `perm` is the sum of PERM_READ, PERM_WRITE and 1
    (inherited).
    """

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The nodes of one broker by broker id; id 0 is the leader, which accepts messages."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]

    @property
    def master_addr(self) -> str | None:
        """`host:port` of the leader, None while there is none."""
        return self.broker_addrs.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic's queues are."""

    queue_datas: tuple[QueueData, ...]
    broker_datas: tuple[BrokerData, ...]
    order_topic_conf: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All brokers by name, and the broker names of each cluster."""

    brokers: Mapping[str, BrokerData] = field(default_factory=dict)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def format_topic_route(route: TopicRoute) -> bytes:
    """The body of an answer to 105."""
    body: dict[str, Any] = {
        "brokerDatas": [_broker_to_json(broker) for broker in route.broker_datas],
        "filterServerTable": {},
    }
    if route.order_topic_conf is not None:
        body["orderTopicConf"] = route.order_topic_conf
    body["queueDatas"] = [_queue_to_json(queue) for queue in route.queue_datas]
    return orjson.dumps(body)


def parse_topic_route(body: bytes) -> TopicRoute:
    """Read the body of an answer to 105, of ours or of a Java name server.

    Raises:
        RouteError: it is no route.
    """
    route = _load_object(body)
    order_topic_conf = route.get("orderTopicConf")
    try:
        return TopicRoute(
            tuple(_queue_from_json(queue) for queue in route.get("queueDatas") or ()),
            tuple(_broker_from_json(broker) for broker in route.get("brokerDatas") or ()),
            None if order_topic_conf is None else str(order_topic_conf),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RouteError(f"not a topic route: {error!r}") from None


def format_cluster_info(info: ClusterInfo) -> bytes:
    """The body of an answer to 106."""
    brokers = {name: _broker_to_json(broker) for name, broker in info.brokers.items()}
    clusters = {cluster: list(names) for cluster, names in info.clusters.items()}
    return orjson.dumps({"brokerAddrTable": brokers, "clusterAddrTable": clusters})


def parse_cluster_info(body: bytes) -> ClusterInfo:
    """Read the body of an answer to 106, of ours or of a Java name server.

    Raises:
        RouteError: it does not describe clusters.
    """
    info = _load_object(body)
    try:
        brokers = {str(k): _broker_from_json(v) for k, v in (info.get("brokerAddrTable") or {}).items()}
        clusters = info.get("clusterAddrTable") or {}
        return ClusterInfo(brokers, {str(k): tuple(map(str, names)) for k, names in clusters.items()})
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RouteError(f"not a cluster description: {error!r}") from None


def _load_object(body: bytes) -> dict[str, Any]:
    try:
        value = loads(body)
    except FastjsonError as error:
        raise RouteError(str(error)) from None
    if not isinstance(value, dict):
        raise RouteError("not a JSON object")
    return value


def _queue_to_json(queue: QueueData) -> dict[str, Any]:
    return {
        "brokerName": queue.broker_name,
        "perm": queue.perm,
        "readQueueNums": queue.read_queue_nums,
        "topicSysFlag": queue.topic_sys_flag,
        "writeQueueNums": queue.write_queue_nums,
    }


def _queue_from_json(value: Mapping[str, Any]) -> QueueData:
    sys_flag = value.get("topicSysFlag", value.get("topicSynFlag", 0))
    return QueueData(
        str(value["brokerName"]),
        _int32(value["readQueueNums"]),
        _int32(value["writeQueueNums"]),
        _int32(value["perm"]),
        _int32(sys_flag),
    )


def _int32(value: Any) -> int:
    number = int(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{str(number)[:40]} is beyond 32 bits")
    return number


def _broker_to_json(broker: BrokerData) -> dict[str, Any]:
    addrs = {str(broker_id): addr for broker_id, addr in sorted(broker.broker_addrs.items())}
    return {
        "brokerAddrs": addrs,
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }


def _broker_from_json(value: Mapping[str, Any]) -> BrokerData:
    addrs = {int(broker_id): str(addr) for broker_id, addr in (value.get("brokerAddrs") or {}).items()}
    return BrokerData(str(value.get("cluster", "")), str(value["brokerName"]), addrs)
