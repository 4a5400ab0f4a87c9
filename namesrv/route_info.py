"""The name server's tables (`RouteInfoManager` of RocketMQ): the addresses of brokers, and the topics of
each.

Pure: time and connections come as numbers. Three tables, one rule each:

* a broker node stays as long as it registers and its connection is open; with its last node a broker's
  topics are removed;
* one address has one broker id; the newest registration of an address or id wins, but for id 0,
  which a node of a lower `state_version` (a leader of an earlier term) cannot replace, and for what another
  host registered;
* topics come from id 0 only, and no registration deletes any.

Work that grows with the number of topics is done in steps (`remoting.slices`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

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
from remoting.slices import Steps, finish

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
STATE_VERSION_MAX: Final = 2**40
"""A group that elects a leader every millisecond gets there in 34 years."""
STATE_VERSION_STEP_MAX: Final = 1_000_000
"""How far a claim of id 0 may be above the version of the node that has it."""
COUNTER_MAX: Final = 2**63 - 1
CONTEST_MS: Final = 120_000
"""A node of a lower state version that claims id 0 for so long gets it, unless the node that has it has
proven who it is. A leader of an earlier term steps down long before, but not one of a group that was
recovered without it; without this end, a stranger's absurd version would keep the true brokers out for ever.
"""
CONTEST_GAP_MS: Final = 70_000
"""At most so long between its claims: brokers register at least once a minute."""
CONTESTS_MAX: Final = 16
TIMEOUT_MIN_MS: Final = 1_000
TIMEOUT_MAX_MS: Final = 600_000
"""A node may ask to be kept for so long without a registration."""
_ROWS_PER_STEP: Final = 500


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


class RefusedError(Exception):
    """The sender may not change what another registered; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Registrant:
    """Who sent a request.

    connection_id: a node is dropped when the connection of its last registration closes.
    host: the address that the connection comes from.
    is_proven: a list of identities says that the sender may speak for the broker name of the request.
    """

    connection_id: int = 0
    host: str = ""
    is_proven: bool = False


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


@dataclass(eq=False, slots=True)
class _Broker:
    """A broker name while it has nodes. A name that comes back is another object: rows of the earlier one
    mean nothing.

    contests: since when, and when last, nodes of lower state versions have claimed id 0, by address.
    """

    name: str
    cluster: str
    addrs: dict[int, str] = field(default_factory=dict)
    contests: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _LiveNode:
    broker_name: str
    ha_server_addr: str
    data_version: DataVersion
    timeout_ms: int
    updated_at_ms: int
    registrant: Registrant


class RouteInfoManager:
    """All tables of one name server."""

    def __init__(self, brokers_max: int = 10_000, topics_max: int = 200_000) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[_Broker, QueueData]] = {}
        self._nodes: dict[str, _LiveNode] = {}
        self._has_old_rows = False

    def register(self, registration: Registration, now_ms: int, registrant: Registrant) -> RegisterResult:
        """Add a broker node, or refresh it, at once. Raises as `registering`."""
        return finish(self.registering(registration, now_ms, registrant))

    def registering(
        self, registration: Registration, now_ms: int, registrant: Registrant
    ) -> Steps[RegisterResult]:
        """Add a broker node, or refresh it. The node is there after the first step; the topics follow.

        Raises:
            TablesFullError: there is no room for it or its topics.
            RefusedError: it would replace what another host registered, or claims an impossible version.
        """
        known = self._nodes.get(registration.addr)
        broker = self._brokers.get(registration.broker_name)
        holder = broker.addrs.get(registration.broker_id) if broker is not None else None
        self._check_owner(registration, holder, registrant)
        if self._is_of_earlier_term(registration, holder, now_ms):
            return RegisterResult(holder, self._ha_server_addr(holder), is_ignored=True)
        self._check_room(registration, is_new=known is None)
        self._remove_other_places(registration)
        broker = self._brokers.get(registration.broker_name)
        if broker is None:
            broker = self._brokers[registration.broker_name] = _Broker(registration.broker_name, "")
        broker.cluster = registration.cluster
        broker.addrs[registration.broker_id] = registration.addr
        assert list(broker.addrs.values()).count(registration.addr) == 1, f"{registration.addr} has two ids"
        is_first = known is None or holder != registration.addr
        is_changed = known is None or is_first or known.data_version != registration.data_version
        node = self._nodes[registration.addr] = _LiveNode(
            registration.broker_name,
            registration.ha_server_addr,
            _held_version(registration, is_first),
            max(TIMEOUT_MIN_MS, min(registration.timeout_ms, TIMEOUT_MAX_MS)),
            now_ms,
            registrant,
        )
        if registration.broker_id == MASTER_ID:
            if is_changed:
                yield from self._add_rows(broker, node, registration)
            return RegisterResult(is_new=known is None)
        broker.contests.pop(registration.addr, None)
        master_addr = broker.addrs.get(MASTER_ID)
        return RegisterResult(master_addr, self._ha_server_addr(master_addr), is_new=known is None)

    def _add_rows(self, broker: _Broker, node: _LiveNode, registration: Registration) -> Steps[None]:
        version, node.data_version = node.data_version, DataVersion(node.data_version.state_version)
        for number, (topic, queue_data) in enumerate(registration.topics.items(), 1):
            self._topics.setdefault(topic, {})[broker] = queue_data
            if not number % _ROWS_PER_STEP:
                yield
                # Its rest is of an older version when the node has registered again, and of nothing when it
                # is gone.
                if self._nodes.get(registration.addr) is not node:
                    return
        # Last: a node whose version is known sends its topics no more.
        node.data_version = version

    def unregister(self, broker_name: str, addr: str, registrant: Registrant) -> bool:
        """Drop a broker node; return whether it was known by this name.

        Raises:
            RefusedError: another host registered it.
        """
        node = self._nodes.get(addr)
        if node is None or node.broker_name != broker_name:
            return False
        _check_may_change(addr, node, broker_name, registrant)
        self._remove_node(addr)
        return True

    def refresh(self, broker_name: str, addr: str, now_ms: int, registrant: Registrant) -> bool:
        """Note that a broker node is alive; return whether it is known, and the sender may speak for it."""
        node = self._nodes.get(addr)
        # A heartbeat (904) may come without the broker's name.
        if node is None or broker_name not in ("", node.broker_name):
            return False
        if not _may_change(addr, node, node.broker_name, registrant):
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
            addr for addr, node in self._nodes.items() if node.registrant.connection_id == connection_id
        )

    def data_version(self, addr: str) -> DataVersion | None:
        """The version of the topics that a node registered, None for an unknown node."""
        node = self._nodes.get(addr)
        return node.data_version if node is not None else None

    def route(self, topic: str) -> TopicRoute | None:
        """Where the topic's queues are; None unless at least one broker that has some is alive."""
        rows = self._topics.get(topic, {}).items()
        alive = sorted((broker.name, broker, queue) for broker, queue in rows if broker.addrs)
        if not alive:
            return None
        return TopicRoute(
            tuple(queue for _, _, queue in alive), tuple(_broker_data(broker) for _, broker, _ in alive)
        )

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for name, broker in sorted(self._brokers.items()):
            clusters.setdefault(broker.cluster, []).append(name)
        return ClusterInfo(
            {name: _broker_data(broker) for name, broker in sorted(self._brokers.items())},
            {cluster: tuple(names) for cluster, names in sorted(clusters.items())},
        )

    def members(self, broker_name: str) -> BrokerData | None:
        """One broker's nodes, None for an unknown broker."""
        broker = self._brokers.get(broker_name)
        return _broker_data(broker) if broker is not None else None

    def topics(self) -> Steps[list[str]]:
        """The names of all topics."""
        return self._topics_with(lambda _, __: True)

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """The names of the topics that brokers of this cluster have."""
        return self._topics_with(lambda broker, _: broker.cluster == cluster)

    def topics_with_flags(self, wanted: int, unwanted: int = 0) -> Steps[list[str]]:
        """The names of the topics with one of the `wanted` bits and none of the `unwanted` in their system
        flag.
        """
        return self._topics_with(
            lambda _, queue: bool(queue.topic_sys_flag & wanted and not queue.topic_sys_flag & unwanted)
        )

    def _topics_with(self, is_wanted: Callable[[_Broker, QueueData], bool]) -> Steps[list[str]]:
        names = []
        for topics in self._slices_of_topics():
            names += [
                topic
                for topic in topics
                if any(
                    broker.addrs and is_wanted(broker, queue)
                    for broker, queue in self._topics.get(topic, {}).items()
                )
            ]
            yield
        return names

    def _slices_of_topics(self) -> Iterator[list[str]]:
        """All names as they are now, a step's worth at a time: the table may change between steps."""
        names = iter(list(self._topics))
        return iter(lambda: list(islice(names, _ROWS_PER_STEP)), [])

    @property
    def has_old_rows(self) -> bool:
        """Whether brokers have left whose rows are still there."""
        return self._has_old_rows

    def remove_old_rows(self) -> Steps[None]:
        """Free the rows of brokers that have left."""
        self._has_old_rows = False
        for topics in self._slices_of_topics():
            for topic in topics:
                rows = self._topics.get(topic, {})
                for broker in [broker for broker in rows if not broker.addrs]:
                    del rows[broker]
                if not rows:
                    self._topics.pop(topic, None)
            yield

    def add_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> int:
        """Add the queues that known brokers have of a topic; return how many.

        Raises:
            TablesFullError: there is no room for another topic.
        """
        known = [
            (self._brokers[queue_data.broker_name], queue_data)
            for queue_data in queue_datas
            if queue_data.broker_name in self._brokers
        ]
        if known and topic not in self._topics and len(self._topics) >= self._topics_max:
            raise TablesFullError(f"{len(self._topics)} topics are known, the bound")
        for broker, queue_data in known:
            self._topics.setdefault(topic, {})[broker] = queue_data
        return len(known)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, or only its queues on the brokers of one cluster."""
        queues = self._topics.get(topic, {})
        for broker in [broker for broker in queues if cluster is None or broker.cluster == cluster]:
            del queues[broker]
        if not queues:
            self._topics.pop(topic, None)

    def set_writable(self, broker_name: str, is_writable: bool) -> Steps[int]:
        """Remove or restore the write permission of all topics of a broker; return how many it has.

        It lasts until the broker registers a new version of its topics.
        """
        broker = self._brokers.get(broker_name)
        count = 0
        for topics in self._slices_of_topics() if broker is not None else ():
            for rows in map(self._topics.get, topics):
                if rows is not None and broker in rows:
                    row = rows[broker]
                    perm = PERM_READ | PERM_WRITE if is_writable else row.perm & ~PERM_WRITE
                    rows[broker] = replace(row, perm=perm)
                    count += 1
            yield
        return count

    def _check_owner(self, registration: Registration, holder: str | None, registrant: Registrant) -> None:
        """A node keeps its address and its id as long as it is alive. Id 0 is the exception: after a failover
        the new leader takes it, from another host, by its later term.
        """
        known = self._nodes.get(registration.addr)
        if known is not None:
            _check_may_change(registration.addr, known, registration.broker_name, registrant)
        held = self._nodes.get(holder) if holder is not None else None
        if holder is None or held is None:
            return
        if registration.broker_id != MASTER_ID:
            _check_may_change(holder, held, registration.broker_name, registrant)
            return
        claimed, present = registration.data_version.state_version, held.data_version.state_version
        if claimed > present + STATE_VERSION_STEP_MAX:
            raise RefusedError(
                f"stateVersion {claimed} of {registration.addr} is too far above {present} of {holder},"
                f" which has id 0 of {registration.broker_name}"
            )

    def _is_of_earlier_term(self, registration: Registration, holder: str | None, now_ms: int) -> bool:
        if registration.broker_id != MASTER_ID or holder is None or holder == registration.addr:
            return False
        node = self._nodes.get(holder)
        if node is None or node.data_version.state_version <= registration.data_version.state_version:
            return False
        if node.registrant.is_proven:
            return True
        contests = self._brokers[registration.broker_name].contests
        since_ms, last_ms = contests.get(registration.addr, (now_ms, now_ms))
        if now_ms - last_ms > CONTEST_GAP_MS:
            since_ms = now_ms
        contests[registration.addr] = since_ms, now_ms
        if len(contests) > CONTESTS_MAX:
            del contests[next(iter(contests))]
        return now_ms - since_ms < CONTEST_MS

    def _check_room(self, registration: Registration, is_new: bool) -> None:
        if is_new and len(self._nodes) >= self._brokers_max:
            raise TablesFullError(f"{len(self._nodes)} broker nodes are known, the bound")
        if registration.broker_id == MASTER_ID:
            new = len(registration.topics) - sum(map(self._topics.__contains__, registration.topics))
            if len(self._topics) + new > self._topics_max:
                raise TablesFullError(
                    f"{len(self._topics) + new} topics would be known, the bound is {self._topics_max}"
                )

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
        broker.contests.pop(addr, None)
        self._remove_if_empty(name)

    def _remove_if_empty(self, broker_name: str) -> None:
        if not self._brokers[broker_name].addrs:
            del self._brokers[broker_name]
            self._has_old_rows = True

    def _ha_server_addr(self, addr: str | None) -> str | None:
        node = self._nodes.get(addr) if addr is not None else None
        return node.ha_server_addr if node is not None else None


def _broker_data(broker: _Broker) -> BrokerData:
    return BrokerData(broker.cluster, broker.name, dict(broker.addrs))


def _may_change(addr: str, node: _LiveNode, broker_name: str, registrant: Registrant) -> bool:
    """Who registered a node may change it; so may who can prove that the address is his: a connection over
    TCP cannot be made from another's address. One with a proven identity speaks for its broker name and no
    other, though several brokers may be on one host.
    """
    if registrant.is_proven:
        return node.broker_name == broker_name
    is_its_own = addr.rpartition(":")[0].strip("[]") == registrant.host
    return node.registrant.host == registrant.host or is_its_own


def _check_may_change(addr: str, node: _LiveNode, broker_name: str, registrant: Registrant) -> None:
    if not _may_change(addr, node, broker_name, registrant):
        who = broker_name if registrant.is_proven else registrant.host
        raise RefusedError(
            f"{addr} of {node.broker_name} was registered from {node.registrant.host}, not by {who}"
        )


def _held_version(registration: Registration, is_first: bool) -> DataVersion:
    """The version to compare the next registration with.

    RocketMQ 5 registers a new topic alone, under the version of all its topics. When such a registration is
    the first, the other topics are still to come and must not count as known.
    """
    if is_first and len(registration.topics) == 1:
        return DataVersion(registration.data_version.state_version)
    return registration.data_version
