"""A cluster as its name servers describe it (topics, queues, leaders), and requests to its leaders."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from remoting.client.blocking import Connection, Connections
from remoting.client.routes import Backoff as Pauses
from remoting.client.routes import (
    Leaders,
    MessageQueue,
    NameServers,
    Retry,
    RouteCache,
    leaders_of,
    merged_cluster_infos,
    merged_routes,
    name_server_addresses,
    read_route,
    read_topic_names,
    retry_of,
    route_request,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.route import (
    DEFAULT_TOPIC,
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    RouteError,
    TopicRoute,
    parse_cluster_info,
)
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_spark.errors import (
    ClusterUnavailableError,
    OptionError,
    RequestRefusedError,
    RocketmqSparkError,
    TopicNotFoundError,
)

if TYPE_CHECKING:
    from remoting.acl import Signer
    from sockets.tls import TlsCredentials


class Backoff:
    """The attempts of one request and the pauses between them. `what` names the request in errors."""

    def __init__(self, what: str, deadline_s: float) -> None:
        self._what = what
        self._pauses = Pauses(deadline_s, time.monotonic())

    def failed(self, reason: str) -> None:
        """Record a failed attempt, then pause before the next one.

        Raises:
            ClusterUnavailableError: the pause would pass the deadline; names the attempts and errors.
        """
        now_s = time.monotonic()
        pause_s = self._pauses.failed(reason, now_s)
        if pause_s is None:
            raise ClusterUnavailableError(f"{self._what}: {self._pauses.summary(now_s)}")
        time.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`min_offset`: offset of the first stored message. `max_offset`: offset that the next message gets."""

    min_offset: int
    max_offset: int


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """The queues by the name of their broker, in the given order."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found


SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""RocketMQ's `TopicValidator`, 4.9 and 5.x together."""
_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_")
_REPLY_SUFFIX = "_REPLY_TOPIC"


def is_system_topic(name: str, own_names: Collection[str] = ()) -> bool:
    """Whether the topic is RocketMQ's own, a retry or a dead-letter one.

    own_names: of clusters and brokers. Each has a topic with its name, a cluster also one for replies.
    """
    return (
        name in SYSTEM_TOPICS
        or name.startswith(_PREFIXES)
        or name in own_names
        or (name.endswith(_REPLY_SUFFIX) and name.removesuffix(_REPLY_SUFFIX) in own_names)
    )


TIMEOUT_S: Final = 5.0
"""Time limit of one request."""
DEADLINE_S: Final = 60.0
"""Time limit of a request with its retries while there is no leader."""
NAMESRV_DEADLINE_S: Final = 10.0
"""Time limit for the first answer of a name server: a mistyped address must be reported soon."""
IN_FLIGHT_MAX: Final = 64
"""Maximum of requests in flight on one connection: all their answers may be in memory together."""
TOPIC_NOT_EXIST: Final = int(ResponseCode.TOPIC_NOT_EXIST)

T = TypeVar("T")


class BusyError(RocketmqSparkError):
    """The leader is overloaded or not ready: the same node may accept the request later."""


class NotLeaderError(RocketmqSparkError):
    """The node is not the leader, or not yet."""


class Cluster:
    """The nodes behind some name servers. Routes are kept until `refresh`. Not for use by several threads.

    Answers of all name servers are merged: a name server that has just started knows only the brokers that
    have registered since.

    namesrv_addr: `host:port`, several of them separated by `;`.
    timeout_s: for one request. deadline_s: for a request and all its retries. tls: None for plain text.
    signer: signs each request for brokers with access control.
    `namesrv_deadline_s` may be changed: how long a request is repeated while no name server answers.
    """

    def __init__(
        self,
        namesrv_addr: str,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        tls: "TlsCredentials | None" = None,
        signer: "Signer | None" = None,
    ) -> None:
        addresses = name_server_addresses(namesrv_addr)
        if not addresses:
            raise OptionError("no name server is given: the option namesrv needs host:port, several with `;`")
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.namesrv_deadline_s = min(NAMESRV_DEADLINE_S, deadline_s)
        self._connections = Connections(timeout_s, tls, signer)
        self._name_servers = NameServers(addresses)
        self._routes: RouteCache[TopicRoute] = RouteCache()
        self._leaders = Leaders()

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
        """Invalidate the routes: the next request for one asks the name servers. Leaders stay known until a
        route or a failure names another one, so that requests reach them while no name server answers.
        """
        self._routes.clear()

    def topics(self, include_system: bool = False) -> list[str]:
        """The names of all topics, sorted; RocketMQ's own, retry and dead-letter topics only if requested."""
        answers = self._ask_namesrvs(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        try:
            names = sorted({name for answer in answers for name in read_topic_names(answer)})
        except RouteError as error:
            raise RequestRefusedError("the list of topics", ResponseCode.SUCCESS, str(error)) from None
        if include_system:
            return names
        info = self.cluster_info()
        own_names = {*info.clusters, *info.brokers}
        return [name for name in names if not is_system_topic(name, own_names)]

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters, requested again."""
        return self._cluster_info(self.namesrv_deadline_s)

    def _cluster_info(self, deadline_s: float) -> ClusterInfo:
        answers = self._ask_namesrvs(RequestCode.GET_BROKER_CLUSTER_INFO, {}, (), deadline_s)
        try:
            return merged_cluster_infos([parse_cluster_info(answer.body) for answer in answers])
        except RouteError as error:
            raise RequestRefusedError("the cluster's description", ResponseCode.SUCCESS, str(error)) from None

    def route(self, topic: str) -> TopicRoute:
        """The route of the topic. Raises TopicNotFoundError, ClusterUnavailableError."""
        route = self._routes.get(topic)
        if route is None:
            route = self._find_route(topic)
            self._routes.put(topic, route)
            self._leaders.learn(leaders_of(route.broker_datas))
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
        """The address of the leader (broker id 0); while no name server answers, of the last known leader.

        Raises ClusterUnavailableError while there is none.
        """
        address = self._leaders.get(broker_name) or self._find_leader(broker_name)
        if address is None:
            raise ClusterUnavailableError(f"the name server knows no leader of broker {broker_name}")
        self._leaders.learn({broker_name: address})
        return address

    def registered_leaders(self) -> dict[str, str]:
        """The leaders that the name servers know now, by broker; requests go to them from now on.

        Raises ClusterUnavailableError.
        """
        leaders = leaders_of(self.cluster_info().brokers.values())
        self._leaders.learn(leaders)
        return leaders

    def known_leader(self, broker_name: str) -> str | None:
        """The last known leader, without a request."""
        return self._leaders.get(broker_name)

    def suppose_leader(self, broker_name: str, address: str) -> None:
        """Use this address for the first attempt: it was the leader when the range was planned."""
        self._leaders.suppose(broker_name, address)

    def forget_leader(self, broker_name: str) -> None:
        """Close the connection to the last known leader and invalidate it. The next request asks another name
        server first, if there are several: one of them may have an old route.
        """
        self._name_servers.rotate()
        address = self._leaders.failed(broker_name)
        self._routes.clear()
        if address is not None:
            self._connections.drop(address)

    def _find_leader(self, broker_name: str) -> str | None:
        try:
            broker = self._cluster_info(0.0).brokers.get(broker_name)
        except ClusterUnavailableError:
            former = self._leaders.former(broker_name)
            if former is None:
                raise
            return former
        return None if broker is None else broker.master_addr

    def invoke_leader(
        self,
        broker_name: str,
        make_command: Callable[[], RemotingCommand],
        deadline_s: float | None = None,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Send a request to the broker's leader; retry until a leader answers, for `deadline_s` at most.

        `make_command` is called for every attempt. The caller checks the answer's code: only the codes "not
        the leader" and "busy" are retried here. A request that failed may have been executed.

        Raises:
            ClusterUnavailableError: no leader answered before the deadline; names the attempts.
        """
        return self.with_leader(
            broker_name, lambda: self._try_leader(broker_name, make_command(), timeout_s), deadline_s
        )

    def invoke_leader_many(
        self, broker_name: str, commands: Sequence[RemotingCommand], deadline_s: float | None = None
    ) -> list[RemotingCommand]:
        """The answers to many requests, in their order, with IN_FLIGHT_MAX of them in flight. After a failure
        some requests may be executed twice.
        """
        found: list[RemotingCommand] = []

        def go_on() -> list[RemotingCommand]:
            # `found` keeps earlier answers after a failure: only the group without answers is sent again.
            while len(found) < len(commands):
                found.extend(self._try_many(broker_name, commands[len(found) :][:IN_FLIGHT_MAX]))
            return found

        return self.with_leader(broker_name, go_on, deadline_s)

    def with_leader(self, broker_name: str, attempt: Callable[[], T], deadline_s: float | None = None) -> T:
        """Call `attempt` until it succeeds, for `deadline_s` at most; find the leader again after a failure.

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
        """The connection to the leader. Raises ConnectFailedError, ClusterUnavailableError."""
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
        request = route_request(topic)
        code = RequestCode(request.code)
        answers = self._ask_namesrvs(code, request.ext_fields, {TOPIC_NOT_EXIST})
        try:
            found = [read_route(answer, topic) for answer in answers]
        except ClientError as error:
            raise RequestRefusedError(f"the route of {topic}", ResponseCode.SUCCESS, str(error)) from None
        known = [route for route in found if route is not None]
        if not known:
            raise TopicNotFoundError(f"the name server knows no topic {topic}: {answers[0].remark}")
        return merged_routes(known)

    def _ask_namesrvs(
        self,
        code: RequestCode,
        ext: dict[str, str],
        expected: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> list[RemotingCommand]:
        """The answers of all name servers that answer, at least one. An answer whose code is
        neither SUCCESS nor in `expected` counts as a failure.
        """
        limit_s = self.namesrv_deadline_s if deadline_s is None else deadline_s
        backoff = Backoff(f"name server request {code.name}", min(limit_s, self.deadline_s))
        while True:
            answers, failures = [], []
            for address in self._name_servers.to_ask(time.monotonic()):
                try:
                    answer = self._connections.get(address).invoke(RemotingCommand(code, ext_fields=ext))
                except RemotingError as error:
                    self._name_servers.failed(address, time.monotonic())
                    failures.append(str(error))
                    continue
                self._name_servers.answered(address)
                if answer.code == ResponseCode.SUCCESS or answer.code in expected:
                    answers.append(answer)
                else:
                    failures.append(f"{address}: code {answer.code}, {answer.remark}")
            if answers:
                return answers
            self._name_servers.ask_all()
            backoff.failed("; ".join(failures))


def check_leads(answer: RemotingCommand) -> RemotingCommand:
    """The answer, if it came from a leader. Raises NotLeaderError, BusyError."""
    retry = retry_of(answer)
    if retry is Retry.SAME_NODE:
        raise BusyError(f"code {answer.code}, {answer.remark}")
    if retry is Retry.NEW_LEADER:
        raise NotLeaderError(f"code {answer.code}, {answer.remark}")
    return answer
