"""A cluster as its name servers describe it, and requests that reach whoever leads just now."""

import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.route import PERM_READ, PERM_WRITE, ClusterInfo, TopicRoute
from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.connection import Connection, Connections
from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.client.routes import (
    cluster_info_of,
    merged_cluster_infos,
    merged_routes,
    route_of,
    topic_names,
)
from rocketmq_spark.client.system_topics import is_system_topic
from rocketmq_spark.errors import (
    ClusterUnavailableError,
    OptionError,
    RocketmqSparkError,
    TopicNotFoundError,
)

TIMEOUT_S: Final = 5.0
"""How long one request may take."""
DEADLINE_S: Final = 60.0
"""How long a request is tried again while nobody leads."""
NAMESRV_DEADLINE_S: Final = 10.0
"""How long name servers are asked again at first; a mistyped address must not cost a minute."""
SILENCE_S: Final = 15.0
"""A name server that did not answer is left alone for so long while another one does."""
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

    What there is, is what any name server that answers knows: one that has just started knows only the
    brokers that have come to it since.

    namesrv_addr: `host:port`, several of them separated by `;`.
    timeout_s: for one request. deadline_s: for a request and all its repetitions.
    `namesrv_deadline_s` may be changed: for how long name servers are asked while none answers.
    """

    def __init__(
        self, namesrv_addr: str, timeout_s: float = TIMEOUT_S, deadline_s: float = DEADLINE_S
    ) -> None:
        self._namesrvs = [part.strip() for part in namesrv_addr.replace(",", ";").split(";") if part.strip()]
        if not self._namesrvs:
            raise OptionError("no name server is given: the option namesrv takes host:port, several with `;`")
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.namesrv_deadline_s = min(NAMESRV_DEADLINE_S, deadline_s)
        self._connections = Connections(timeout_s)
        self._routes: dict[str, TopicRoute] = {}
        self._leaders: dict[str, str] = {}
        self._former_leaders: dict[str, str] = {}
        self._silent_since_s: dict[str, float] = {}

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
        """Forget the routes: the next question asks the name servers again. Leaders are known until a route
        or a failure says otherwise, so that requests reach them while no name server answers.
        """
        self._routes.clear()

    def topics(self, include_system: bool = False) -> list[str]:
        """The names of all topics, sorted; of RocketMQ's own, retry and dead-letter ones only if asked."""
        answers = self._ask_namesrvs(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        names = sorted({name for answer in answers for name in topic_names(answer)})
        if include_system:
            return names
        info = self.cluster_info()
        own_names = {*info.clusters, *info.brokers}
        return [name for name in names if not is_system_topic(name, own_names)]

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters, asked for anew."""
        return self._cluster_info(self.namesrv_deadline_s)

    def _cluster_info(self, deadline_s: float) -> ClusterInfo:
        answers = self._ask_namesrvs(RequestCode.GET_BROKER_CLUSTER_INFO, {}, (), deadline_s)
        return merged_cluster_infos([cluster_info_of(answer) for answer in answers])

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
        """The address of the node with broker id 0; while no name server answers, of the one that had it.

        Raises ClusterUnavailableError while there is none.
        """
        address = self._leaders.get(broker_name) or self._find_leader(broker_name)
        if address is None:
            raise ClusterUnavailableError(f"the name server knows no leader of broker {broker_name}")
        self._leaders[broker_name] = address
        return address

    def registered_leaders(self) -> dict[str, str]:
        """The leaders that the name servers know now, by broker; requests go to them from now on.

        Raises ClusterUnavailableError.
        """
        brokers = self.cluster_info().brokers
        found = {name: broker.master_addr for name, broker in brokers.items()}
        leaders = {name: address for name, address in found.items() if address is not None}
        self._leaders |= leaders
        return leaders

    def known_leader(self, broker_name: str) -> str | None:
        """The leader as known, without a question."""
        return self._leaders.get(broker_name)

    def suppose_leader(self, broker_name: str, address: str) -> None:
        """Try this node first: somebody else has just asked it."""
        self._leaders.setdefault(broker_name, address)

    def forget_leader(self, broker_name: str) -> None:
        """Close the connection to the leader as known. The next question goes to another name server, if
        there are several: one may be behind.
        """
        self._namesrvs.append(self._namesrvs.pop(0))
        address = self._leaders.pop(broker_name, None)
        self._routes.clear()
        if address is not None:
            self._former_leaders[broker_name] = address
            self._connections.drop(address)

    def _find_leader(self, broker_name: str) -> str | None:
        try:
            broker = self._cluster_info(0.0).brokers.get(broker_name)
        except ClusterUnavailableError:
            former = self._former_leaders.get(broker_name)
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
        answers = self._ask_namesrvs(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, {TOPIC_NOT_EXIST})
        known = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
        if not known:
            raise TopicNotFoundError(f"the name server knows no topic {topic}: {answers[0].remark}")
        return merged_routes([route_of(answer, topic) for answer in known])

    def _ask_namesrvs(
        self,
        code: RequestCode,
        ext: dict[str, str],
        expected: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> list[RemotingCommand]:
        """What the name servers say, of each that answers; at least one does. Codes besides SUCCESS must be
        `expected`.
        """
        limit_s = self.namesrv_deadline_s if deadline_s is None else deadline_s
        backoff = Backoff(f"name server request {code.name}", min(limit_s, self.deadline_s))
        while True:
            answers, failures = [], []
            for address in self._speaking():
                try:
                    answer = self._connections.get(address).invoke(RemotingCommand(code, ext_fields=ext))
                except RemotingError as error:
                    self._silent_since_s[address] = time.monotonic()
                    failures.append(str(error))
                    continue
                self._silent_since_s.pop(address, None)
                if answer.code == ResponseCode.SUCCESS or answer.code in expected:
                    answers.append(answer)
                else:
                    failures.append(f"{address}: code {answer.code}, {answer.remark}")
            if answers:
                return answers
            self._silent_since_s.clear()
            backoff.failed("; ".join(failures))

    def _speaking(self) -> list[str]:
        """The name servers that did answer last, or have not been asked for a while; all when none did."""
        now_s = time.monotonic()
        silent = {address for address, since_s in self._silent_since_s.items() if now_s - since_s < SILENCE_S}
        return [address for address in self._namesrvs if address not in silent] or list(self._namesrvs)


def check_leads(answer: RemotingCommand) -> RemotingCommand:
    """The answer, if a leader gave it. Raises NotLeaderError, BusyError."""
    code = answer.code
    if code in _BUSY_CODES:
        raise BusyError(f"code {code}, {answer.remark}")
    names_leader = code == ResponseCode.SYSTEM_ERROR and "leader" in (answer.remark or "").lower()
    if code in _NOT_LEADER_CODES or names_leader:
        raise NotLeaderError(f"code {code}, {answer.remark}")
    return answer
