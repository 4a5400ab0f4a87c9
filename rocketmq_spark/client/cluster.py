"""A cluster as its name servers describe it, and requests that reach whoever leads just now."""

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.fastjson import FastjsonError, loads
from remoting.route import (
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    RouteError,
    TopicRoute,
    parse_cluster_info,
    parse_topic_route,
)
from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.connection import Connection, Connections
from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.client.system_topics import is_system_topic
from rocketmq_spark.errors import (
    ClusterUnavailableError,
    OptionError,
    RequestRefusedError,
    RocketmqSparkError,
    TopicNotFoundError,
)

TIMEOUT_S: Final = 5.0
"""How long one request may take."""
DEADLINE_S: Final = 60.0
"""How long a request is tried again while nobody leads."""
NAMESRV_DEADLINE_S: Final = 10.0
"""How long name servers are asked again; a mistyped address must not cost a minute."""
IN_FLIGHT_MAX: Final = 64
"""Requests sent ahead of their answers on one connection."""
TOPIC_NOT_EXIST: Final = int(ResponseCode.TOPIC_NOT_EXIST)
_BUSY_CODES = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
_NOT_LEADER_CODES = frozenset(
    {
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)

T = TypeVar("T")


class BusyError(RocketmqSparkError):
    """The leader would take the request a moment later."""


class NotLeaderError(RocketmqSparkError):
    """The node does not lead, or not yet."""


class Cluster:
    """The nodes behind some name servers. Routes are kept until `refresh`. Not for use by several threads.

    namesrv_addr: `host:port`, several of them separated by `;`.
    timeout_s: for one request. deadline_s: for a request and all its repetitions.
    """

    def __init__(
        self, namesrv_addr: str, timeout_s: float = TIMEOUT_S, deadline_s: float = DEADLINE_S
    ) -> None:
        self._namesrvs = [part.strip() for part in namesrv_addr.replace(",", ";").split(";") if part.strip()]
        if not self._namesrvs:
            raise OptionError("no name server is given: the option namesrv takes host:port, several with `;`")
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self._connections = Connections(timeout_s)
        self._routes: dict[str, TopicRoute] = {}
        self._leaders: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def refresh(self) -> None:
        """Forget routes and leaders; the next question asks the name servers again."""
        self._routes.clear()
        self._leaders.clear()

    def topics(self, include_system: bool = False) -> list[str]:
        """The names of all topics, sorted; of RocketMQ's own, retry and dead-letter ones only if asked."""
        answer = self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        try:
            names = sorted({str(name) for name in loads(answer.body).get("topicList") or ()})
        except (FastjsonError, AttributeError, TypeError) as error:
            raise RequestRefusedError("the list of topics", answer.code, f"unreadable: {error!r}") from None
        if include_system:
            return names
        info = self.cluster_info()
        own_names = {*info.clusters, *info.brokers}
        return [name for name in names if not is_system_topic(name, own_names)]

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters, asked for anew."""
        return self._cluster_info(NAMESRV_DEADLINE_S)

    def _cluster_info(self, deadline_s: float) -> ClusterInfo:
        answer = self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, {}, (), deadline_s)
        try:
            return parse_cluster_info(answer.body)
        except RouteError as error:
            raise RequestRefusedError("the cluster's description", answer.code, str(error)) from None

    def route(self, topic: str) -> TopicRoute:
        """Where the topic is. Raises TopicNotFoundError, ClusterUnavailableError."""
        route = self._routes.get(topic)
        if route is None:
            route = self._routes[topic] = self._find_route(topic)
            for broker in route.broker_datas:
                if broker.master_addr is not None:
                    self._leaders[broker.broker_name] = broker.master_addr
        return route

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, sorted. Raises TopicNotFoundError, ClusterUnavailableError."""
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in self.route(topic).queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's writable queues, sorted, of brokers with a leader or without one."""
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in self.route(topic).queue_datas
            if data.perm & PERM_WRITE
            for queue_id in range(data.write_queue_nums)
        )

    def leader(self, broker_name: str) -> str:
        """The address of the node with broker id 0. Raises ClusterUnavailableError while there is none."""
        address = self._leaders.get(broker_name)
        if address is None:
            broker = self._cluster_info(0.0).brokers.get(broker_name)
            address = None if broker is None else broker.master_addr
        if address is None:
            raise ClusterUnavailableError(f"the name server knows no leader of broker {broker_name}")
        self._leaders[broker_name] = address
        return address

    def forget_leader(self, broker_name: str) -> None:
        """Close the connection to the leader as known. The next question goes to another name server, if
        there are several: one may be behind.
        """
        self._namesrvs.append(self._namesrvs.pop(0))
        address = self._leaders.pop(broker_name, None)
        self._routes.clear()
        if address is not None:
            self._connections.drop(address)

    def invoke_leader(
        self,
        broker_name: str,
        make_command: Callable[[], RemotingCommand],
        deadline_s: float | None = None,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Ask the broker's leader until a leader answers, `deadline_s` at most.

        `make_command` is called for every try. The caller judges the answer's code: only those that say "not
        the leader" or "busy" are tried again here. A request that failed may have been carried out.

        Raises:
            ClusterUnavailableError: naming what was tried.
        """
        return self.with_leader(
            broker_name, lambda: self._try_leader(broker_name, make_command(), timeout_s), deadline_s
        )

    def invoke_leader_many(
        self, broker_name: str, commands: Sequence[RemotingCommand], deadline_s: float | None = None
    ) -> list[RemotingCommand]:
        """The answers to many requests, in their order. They are sent ahead of each other; after a failure
        some may be carried out twice.
        """
        found: list[RemotingCommand] = []

        def go_on() -> list[RemotingCommand]:
            while len(found) < len(commands):
                found.extend(self._try_many(broker_name, commands[len(found) :][:IN_FLIGHT_MAX]))
            return found

        return self.with_leader(broker_name, go_on, deadline_s)

    def with_leader(self, broker_name: str, attempt: Callable[[], T], deadline_s: float | None = None) -> T:
        """Call `attempt` until it returns, `deadline_s` at most; after each failure the leader is looked for.

        A failed attempt raises RemotingError, ClusterUnavailableError or NotLeaderError.
        """
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        backoff = Backoff(f"the leader of broker {broker_name}", limit_s)
        while True:
            try:
                return attempt()
            except BusyError as error:
                backoff.failed(str(error))
            except (RemotingError, ClusterUnavailableError, NotLeaderError) as error:
                self.forget_leader(broker_name)
                backoff.failed(str(error))

    def leader_connection(self, broker_name: str) -> Connection:
        """The connection to the leader as known. Raises ConnectFailedError, ClusterUnavailableError."""
        return self._connections.get(self.leader(broker_name))

    def _try_leader(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None
    ) -> RemotingCommand:
        return check_leads(self.leader_connection(broker_name).invoke(command, timeout_s))

    def _try_many(self, broker_name: str, commands: Sequence[RemotingCommand]) -> list[RemotingCommand]:
        connection = self.leader_connection(broker_name)
        places = {connection.send(command): place for place, command in enumerate(commands)}
        found: dict[int, RemotingCommand] = {}
        while len(found) < len(places):
            answer = connection.receive()
            if answer.opaque in places:
                found[places[answer.opaque]] = answer
        return [check_leads(found[place]) for place in range(len(commands))]

    def _find_route(self, topic: str) -> TopicRoute:
        answer = self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, {TOPIC_NOT_EXIST})
        if answer.code == TOPIC_NOT_EXIST:
            raise TopicNotFoundError(f"the name server knows no topic {topic}: {answer.remark}")
        try:
            return parse_topic_route(answer.body)
        except RouteError as error:
            raise RequestRefusedError(f"the route of {topic}", answer.code, str(error)) from None

    def _ask_namesrv(
        self,
        code: RequestCode,
        ext: dict[str, str],
        expected: Collection[int] = (),
        deadline_s: float = NAMESRV_DEADLINE_S,
    ) -> RemotingCommand:
        backoff = Backoff(f"name server request {code.name}", min(deadline_s, self.deadline_s))
        while True:
            failures, unwanted = [], None
            for address in tuple(self._namesrvs):
                try:
                    answer = self._connections.get(address).invoke(RemotingCommand(code, ext_fields=ext))
                except RemotingError as error:
                    failures.append(str(error))
                    self._namesrvs.append(self._namesrvs.pop(0))  # the next question goes elsewhere first
                    continue
                if answer.code == ResponseCode.SUCCESS:
                    return answer
                if answer.code in expected:
                    unwanted = answer  # another one may know better: this one may have just been started
                failures.append(f"{address}: code {answer.code}, {answer.remark}")
            if unwanted is not None:
                return unwanted
            backoff.failed("; ".join(failures))


def check_leads(answer: RemotingCommand) -> RemotingCommand:
    """The answer, if a leader gave it. Raises NotLeaderError, BusyError."""
    code = answer.code
    if code in _BUSY_CODES:
        raise BusyError(f"code {code}, {answer.remark}")
    names_leader = code == ResponseCode.SYSTEM_ERROR and "leader" in (answer.remark or "").lower()
    if code in _NOT_LEADER_CODES or names_leader:
        raise NotLeaderError(f"code {code}, {answer.remark}")
    return answer
