"""The name server's tables (`RouteInfoManager` of RocketMQ): the addresses of brokers, and the topics of
each.

Pure: time and connections come as numbers. Three tables, one rule each:

* a broker node stays as long as it registers and its connection is open; with its last node a broker's
  topics are removed;
* one address has one broker id; the newest registration of an address or id wins, but for id 0,
  which a node of a lower `state_version` (a leader of an earlier term) cannot replace;
* topics come from id 0 only, and no registration deletes any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import orjson

from remoting.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
)

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topics. `state_version` is the term of its leader; counter and time follow
    it.
    """

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def to_json(self) -> bytes:
        """As sent on the wire."""
        return orjson.dumps(
            {
                "counter": self.counter,
                "stateVersion": self.state_version,
                "timestamp": self.timestamp_ms,
            }
        )


@dataclass(frozen=True, slots=True)
class Registration:
    """One broker node as it presents itself. `topics` are ignored unless `broker_id` is 0."""

    cluster: str
    broker_name: str
    broker_id: int
    addr: str
    ha_server_addr: str
    timeout_ms: int
    data_version: DataVersion
    topics: Mapping[str, QueueData]


class TablesFullError(Exception):
    """A registration would exceed the bound of a table; nothing of it was stored."""


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """The answer to a broker: the node to follow, for one that is not id 0.

    is_new: the node was not known before. is_ignored: a later leader holds id 0, and the tables are as they
        were.
    """

    master_addr: str | None = None
    ha_server_addr: str | None = None
    is_new: bool = False
    is_ignored: bool = False


@dataclass(slots=True)
class _Broker:
    cluster: str
    addrs: dict[int, str]


@dataclass(slots=True)
class _LiveNode:
    broker_name: str
    ha_server_addr: str
    data_version: DataVersion
    timeout_ms: int
    updated_at_ms: int
    connection_id: int


class RouteInfoManager:
    """All tables of one name server."""

    def __init__(self, brokers_max: int = 10_000, topics_max: int = 200_000) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._nodes: dict[str, _LiveNode] = {}

    def register(self, registration: Registration, now_ms: int, connection_id: int) -> RegisterResult:
        """Add a broker node, or refresh it.

        Raises:
            TablesFullError: there is no room for it or its topics.
        """
        known = self._nodes.get(registration.addr)
        broker = self._brokers.get(registration.broker_name)
        holder = broker.addrs.get(registration.broker_id) if broker is not None else None
        if self._is_of_earlier_term(registration, holder):
            return RegisterResult(holder, self._ha_server_addr(holder), is_ignored=True)
        self._check_room(registration, is_new=known is None)
        self._remove_other_places(registration)
        broker = self._brokers.setdefault(registration.broker_name, _Broker(registration.cluster, {}))
        broker.cluster = registration.cluster
        broker.addrs[registration.broker_id] = registration.addr
        assert list(broker.addrs.values()).count(registration.addr) == 1, f"{registration.addr} has two ids"
        is_first = known is None or holder != registration.addr
        is_changed = known is None or is_first or known.data_version != registration.data_version
        if registration.broker_id == MASTER_ID and is_changed:
            for topic, queue_data in registration.topics.items():
                self._topics.setdefault(topic, {})[registration.broker_name] = queue_data
        self._nodes[registration.addr] = _LiveNode(
            registration.broker_name,
            registration.ha_server_addr,
            _held_version(registration, is_first),
            registration.timeout_ms,
            now_ms,
            connection_id,
        )
        if registration.broker_id == MASTER_ID:
            return RegisterResult(is_new=known is None)
        master_addr = broker.addrs.get(MASTER_ID)
        return RegisterResult(master_addr, self._ha_server_addr(master_addr), is_new=known is None)

    def unregister(self, addr: str) -> bool:
        """Drop a broker node; return whether it was known."""
        if addr not in self._nodes:
            return False
        self._remove_node(addr)
        return True

    def refresh(self, addr: str, now_ms: int) -> bool:
        """Note that a broker node is alive; return whether it is known."""
        node = self._nodes.get(addr)
        if node is None:
            return False
        node.updated_at_ms = now_ms
        return True

    def expire(self, now_ms: int) -> list[str]:
        """Drop the nodes that have been silent for longer than they may; return their addresses."""
        return self._remove_nodes(
            addr for addr, node in self._nodes.items() if now_ms - node.updated_at_ms > node.timeout_ms
        )

    def connection_closed(self, connection_id: int) -> list[str]:
        """Drop the nodes that registered last over this connection; return their addresses."""
        return self._remove_nodes(
            addr for addr, node in self._nodes.items() if node.connection_id == connection_id
        )

    def data_version(self, addr: str) -> DataVersion | None:
        """The version of the topics that a node registered, None for an unknown node."""
        node = self._nodes.get(addr)
        return node.data_version if node is not None else None

    def route(self, topic: str) -> TopicRoute | None:
        """Where the topic's queues are; None unless at least one broker that has some is alive."""
        queue_datas = tuple(
            queue_data
            for name, queue_data in sorted(self._topics.get(topic, {}).items())
            if name in self._brokers
        )
        if not queue_datas:
            return None
        return TopicRoute(queue_datas, tuple(self._broker_data(queue.broker_name) for queue in queue_datas))

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for name, broker in sorted(self._brokers.items()):
            clusters.setdefault(broker.cluster, []).append(name)
        return ClusterInfo(
            {name: self._broker_data(name) for name in sorted(self._brokers)},
            {cluster: tuple(names) for cluster, names in sorted(clusters.items())},
        )

    def members(self, broker_name: str) -> BrokerData | None:
        """One broker's nodes, None for an unknown broker."""
        return self._broker_data(broker_name) if broker_name in self._brokers else None

    def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The names of the topics that brokers of this cluster have."""
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return sorted(topic for topic, queues in self._topics.items() if not names.isdisjoint(queues))

    def topics_with_flags(self, wanted: int, unwanted: int = 0) -> list[str]:
        """The names of the topics with one of the `wanted` bits and none of the `unwanted` in their system
        flag.
        """
        return sorted(
            topic
            for topic, queues in self._topics.items()
            if any(q.topic_sys_flag & wanted and not q.topic_sys_flag & unwanted for q in queues.values())
        )

    def add_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> int:
        """Add the queues that known brokers have of a topic; return how many.

        Raises:
            TablesFullError: there is no room for another topic.
        """
        known = [queue_data for queue_data in queue_datas if queue_data.broker_name in self._brokers]
        if known and topic not in self._topics and len(self._topics) >= self._topics_max:
            raise TablesFullError(f"{len(self._topics)} topics are known, the bound")
        for queue_data in known:
            self._topics.setdefault(topic, {})[queue_data.broker_name] = queue_data
        return len(known)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, or only its queues on the brokers of one cluster."""
        queues = self._topics.get(topic, {})
        for name in list(queues):
            broker = self._brokers.get(name)
            if cluster is None or (broker is not None and broker.cluster == cluster):
                del queues[name]
        if not queues:
            self._topics.pop(topic, None)

    def set_writable(self, broker_name: str, is_writable: bool) -> int:
        """Remove or restore the write permission of all topics of a broker; return how many it has.

        It lasts until the broker registers a new version of its topics.
        """
        count = 0
        for queues in self._topics.values():
            queue_data = queues.get(broker_name)
            if queue_data is not None:
                perm = PERM_READ | PERM_WRITE if is_writable else queue_data.perm & ~PERM_WRITE
                queues[broker_name] = replace(queue_data, perm=perm)
                count += 1
        return count

    def _is_of_earlier_term(self, registration: Registration, holder: str | None) -> bool:
        if registration.broker_id != MASTER_ID or holder is None or holder == registration.addr:
            return False
        node = self._nodes.get(holder)
        return node is not None and node.data_version.state_version > registration.data_version.state_version

    def _check_room(self, registration: Registration, is_new: bool) -> None:
        if is_new and len(self._nodes) >= self._brokers_max:
            raise TablesFullError(f"{len(self._nodes)} broker nodes are known, the bound")
        if registration.broker_id == MASTER_ID:
            topics = len(self._topics) + sum(topic not in self._topics for topic in registration.topics)
            if topics > self._topics_max:
                raise TablesFullError(f"{topics} topics would be known, the bound is {self._topics_max}")

    def _remove_other_places(self, registration: Registration) -> None:
        """An address that registers with another id or name no longer has the old one."""
        known = self._nodes.get(registration.addr)
        broker = self._brokers.get(known.broker_name) if known is not None else None
        if known is None or broker is None:
            return
        is_same_name = known.broker_name == registration.broker_name
        for broker_id, addr in list(broker.addrs.items()):
            if addr == registration.addr and not (is_same_name and broker_id == registration.broker_id):
                del broker.addrs[broker_id]
        if not is_same_name:
            self._remove_if_empty(known.broker_name)

    def _remove_nodes(self, addrs: Iterable[str]) -> list[str]:
        removed = list(addrs)  # `addrs` reads the table that changes here
        for addr in removed:
            self._remove_node(addr)
        return removed

    def _remove_node(self, addr: str) -> None:
        name = self._nodes.pop(addr).broker_name
        broker = self._brokers.get(name)
        if broker is None:
            return
        broker.addrs = {broker_id: known for broker_id, known in broker.addrs.items() if known != addr}
        self._remove_if_empty(name)

    def _remove_if_empty(self, broker_name: str) -> None:
        if self._brokers[broker_name].addrs:
            return
        del self._brokers[broker_name]
        for topic, queues in list(self._topics.items()):
            if queues.pop(broker_name, None) is not None and not queues:
                del self._topics[topic]

    def _broker_data(self, broker_name: str) -> BrokerData:
        broker = self._brokers[broker_name]
        return BrokerData(broker.cluster, broker_name, dict(broker.addrs))

    def _ha_server_addr(self, addr: str | None) -> str | None:
        node = self._nodes.get(addr) if addr is not None else None
        return node.ha_server_addr if node is not None else None


def _held_version(registration: Registration, is_first: bool) -> DataVersion:
    """The version to compare the next registration with.

    RocketMQ 5 registers a new topic alone, under the version of all its topics. When such a registration is
    the first, the other topics are still to come and must not count as known.
    """
    if is_first and len(registration.topics) == 1:
        return DataVersion(registration.data_version.state_version)
    return registration.data_version
