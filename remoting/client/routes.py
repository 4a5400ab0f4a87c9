"""The rules by which every client finds the node to ask, and asks again: routes and leaders as name servers
answer them, how several answers are merged and how long they are valid, and which answers are worth another
try. Pure.

The requests are sent by `RouteTable` for programs with an event loop, and by Spark's blocking `Cluster`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError
from remoting.fastjson import FastjsonError, loads
from remoting.headers.topics import TopicRequestHeader
from remoting.route import (
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteError,
    TopicRoute,
    parse_topic_route,
)

BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
NOT_LEADER_CODES: Final = frozenset(
    {
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)
UNCERTAIN_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST})
"""May be passing: a leader that was just elected does not know all topics for a moment."""
ACL_REFUSALS: Final = (
    *("No default permission for ", "No acl config for ", "No accessKey is configured"),
    *("Check signature failed for ", "Need admin permission "),
)
"""In the remark of a SYSTEM_ERROR of RocketMQ 4's access control: nothing passes by itself there."""
_REASONS_MAX: Final = 4
DEFAULT_QUEUES_MAX: Final = 4
"""Queues requested for a topic that is created by its first message, as stock clients do."""
SILENCE_S: Final = 15.0
"""A name server that did not answer is skipped for this time, while another one answers."""
CACHED_MAX: Final = 2_000
T = TypeVar("T")


class Retry(Enum):
    """What another try needs."""

    NONE = "none"
    """The answer is final, be it good or bad."""
    SAME_NODE = "same node"
    """The node is busy; it may accept the request a moment later."""
    NEW_LEADER = "new leader"
    """The node is not the leader, or not yet."""
    UNCERTAIN = "uncertain"
    """One of UNCERTAIN_CODES."""


def retry_of(answer: RemotingCommand) -> Retry:
    """How a request that got this answer may succeed."""
    code = answer.code
    if code in BUSY_CODES:
        return Retry.SAME_NODE
    remark = (answer.remark or "") if code == ResponseCode.SYSTEM_ERROR else ""
    if any(words in remark for words in ACL_REFUSALS):
        return Retry.NONE
    names_leader = "leader" in remark.lower()
    if code in NOT_LEADER_CODES or names_leader:
        return Retry.NEW_LEADER
    return Retry.UNCERTAIN if code in UNCERTAIN_CODES else Retry.NONE


class RetryableError(Exception):
    """A try failed; a later one, perhaps at another node, may succeed."""


class Backoff:
    """The tries of one request: pauses that double up to a maximum, a deadline, and how the tries ended.

    Times are in seconds of the clock that the caller reads.
    """

    def __init__(
        self, deadline_s: float, now_s: float, pause_min_s: float = 0.05, pause_max_s: float = 1.0
    ) -> None:
        self._deadline_s = deadline_s
        self._started_s = now_s
        self._pause_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._reasons: dict[str, int] = {}
        self.tries = 0

    def failed(self, reason: str, now_s: float) -> float | None:
        """A try failed. Returns the pause before the next, or None when the deadline would pass meanwhile."""
        self.tries += 1
        if reason in self._reasons or len(self._reasons) < _REASONS_MAX:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        if now_s - self._started_s + self._pause_s > self._deadline_s:
            return None
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, self._pause_max_s)
        return pause_s

    def summary(self, now_s: float) -> str:
        """The number of tries, their time and how they ended, for the message of an error."""
        ends = "; ".join(f"{text} ({count} x)" for text, count in self._reasons.items())
        return f"no success in {self.tries} tries over {now_s - self._started_s:.1f} s: {ends}"


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic and the node to ask: its leader, or for reading any node when there is none."""

    broker_name: str
    queue_id: int
    address: str


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """One queue of one topic at one broker name (a replication group)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}:{self.queue_id}"


def name_server_addresses(text: str) -> list[str]:
    """The addresses of `host:port;host:port`; commas separate them, too."""
    return [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]


def route_request(topic: str) -> RemotingCommand:
    """The request for a topic's route."""
    return RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=TopicRequestHeader(topic).ext_fields()
    )


def read_route(answer: RemotingCommand, topic: str) -> TopicRoute | None:
    """The route that a name server answered; None when it does not know the topic.

    Raises:
        ClientError: the answer is an error or unreadable.
    """
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise ClientError(f"the name server answered code {answer.code}: {answer.remark}")
    try:
        return parse_topic_route(answer.body)
    except RouteError as error:
        raise ClientError(f"the name server's route of {topic} cannot be read ({error})") from error


def read_topic_names(answer: RemotingCommand) -> list[str]:
    """The topics of a successful answer to 206. Raises RouteError."""
    try:
        return [str(name) for name in loads(answer.body).get("topicList") or ()]
    except (FastjsonError, AttributeError, TypeError) as error:
        raise RouteError(f"not a list of topics: {error!r}") from None


def publish_queues(route: TopicRoute) -> list[Queue]:
    """The writable queues whose broker has a leader."""
    leaders = leaders_of(route.broker_datas)
    return [
        Queue(data.broker_name, queue_id, address)
        for data in route.queue_datas
        if data.perm & PERM_WRITE and (address := leaders.get(data.broker_name)) is not None
        for queue_id in range(data.write_queue_nums)
    ]


def subscribe_queues(route: TopicRoute) -> list[Queue]:
    """The readable queues of every broker that has a node at all; its leader is asked where there is one."""
    brokers = {broker.broker_name: broker for broker in route.broker_datas if broker.broker_addrs}
    return [
        Queue(data.broker_name, queue_id, broker.master_addr or next(iter(broker.broker_addrs.values())))
        for data in route.queue_datas
        if data.perm & PERM_READ and (broker := brokers.get(data.broker_name)) is not None
        for queue_id in range(data.read_queue_nums)
    ]


def leaders_of(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """The leader's address by broker name; a broker without a leader is left out."""
    found = {broker.broker_name: broker.master_addr for broker in brokers}
    return {name: address for name, address in found.items() if address is not None}


def merged_routes(routes: Sequence[TopicRoute]) -> TopicRoute:
    """The union of what several name servers know. Of a broker that several know, the first with a leader
    counts, and the most queues.
    """
    queues: dict[str, QueueData] = {}
    for data in (data for route in routes for data in route.queue_datas):
        known = queues.get(data.broker_name)
        if known is None or data.read_queue_nums > known.read_queue_nums:
            queues[data.broker_name] = data
    brokers = _merged_brokers([broker for route in routes for broker in route.broker_datas])
    return TopicRoute(tuple(queues.values()), tuple(brokers.values()), routes[0].order_topic_conf)


def merged_cluster_infos(infos: Sequence[ClusterInfo]) -> ClusterInfo:
    """The union of what several name servers know, as by `merged_routes`."""
    clusters: dict[str, dict[str, None]] = {}
    for info in infos:
        for cluster, names in info.clusters.items():
            clusters.setdefault(cluster, {}).update(dict.fromkeys(names))
    brokers = _merged_brokers([broker for info in infos for broker in info.brokers.values()])
    return ClusterInfo(brokers, {cluster: tuple(names) for cluster, names in clusters.items()})


def _merged_brokers(brokers: Sequence[BrokerData]) -> dict[str, BrokerData]:
    found: dict[str, BrokerData] = {}
    for broker in brokers:
        known = found.get(broker.broker_name)
        if known is None or (known.master_addr is None and broker.master_addr is not None):
            found[broker.broker_name] = broker
    return found


class NameServers:
    """The addresses of the name servers, in the order in which they are asked. Times are in seconds."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = list(addresses)
        self._silent_since_s: dict[str, float] = {}

    def to_ask(self, now_s: float) -> list[str]:
        """Those that answered last or were not asked for SILENCE_S; all of them when none did."""
        silent = {address for address, since_s in self._silent_since_s.items() if now_s - since_s < SILENCE_S}
        return [address for address in self._addresses if address not in silent] or list(self._addresses)

    def answered(self, address: str) -> None:
        """The name server answered, whatever it said."""
        self._silent_since_s.pop(address, None)

    def failed(self, address: str, now_s: float) -> None:
        """The name server gave no answer."""
        self._silent_since_s[address] = now_s

    def ask_all(self) -> None:
        """Have all of them asked next time."""
        self._silent_since_s.clear()

    def rotate(self) -> None:
        """Begin with another one next time: one may know of a change of leader later than the others."""
        self._addresses.append(self._addresses.pop(0))


class RouteCache(Generic[T]):
    """What was read from routes, by topic, valid for `valid_s` seconds; above a bound the oldest go."""

    def __init__(self, valid_s: float = float("inf"), cached_max: int = CACHED_MAX) -> None:
        self._valid_s = valid_s
        self._cached_max = cached_max
        self._cached: OrderedDict[str, tuple[T, float]] = OrderedDict()

    def get(self, topic: str, now_s: float = 0.0) -> T | None:
        """The topic's entry while it is valid."""
        cached = self._cached.get(topic)
        return None if cached is None or now_s - cached[1] >= self._valid_s else cached[0]

    def outdated(self, topic: str) -> T | None:
        """The entry even when it is no longer valid: better than none while no name server answers."""
        cached = self._cached.get(topic)
        return None if cached is None else cached[0]

    def put(self, topic: str, entry: T, now_s: float = 0.0) -> None:
        self._cached[topic] = (entry, now_s)
        self._cached.move_to_end(topic)
        if len(self._cached) > self._cached_max:
            self._cached.popitem(last=False)

    def invalidate(self, topic: str) -> None:
        self._cached.pop(topic, None)

    def clear(self) -> None:
        self._cached.clear()


class Leaders:
    """The leader of each broker, by routes and failed requests."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._former: dict[str, str] = {}

    def get(self, broker_name: str) -> str | None:
        """The address that requests should go to."""
        return self._known.get(broker_name)

    def former(self, broker_name: str) -> str | None:
        """The leader before the last failure: the best guess while no name server answers."""
        return self._former.get(broker_name)

    def learn(self, leaders: dict[str, str]) -> None:
        """Name servers know these leaders, by broker name."""
        self._known |= leaders

    def suppose(self, broker_name: str, address: str) -> None:
        """Try this address unless a leader is known."""
        self._known.setdefault(broker_name, address)

    def failed(self, broker_name: str) -> str | None:
        """A request to the leader failed; its address, if one was known."""
        address = self._known.pop(broker_name, None)
        if address is not None:
            self._former[broker_name] = address
        return address
