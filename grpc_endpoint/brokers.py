"""Requests to the brokers: each goes to the leader of the broker that it names, and again to the next leader
when that one has failed, until its time is over. What the endpoint has to know of topics, groups and nodes is
read from them and kept for some seconds.
"""

import asyncio
import logging
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpc_endpoint.call import PROOF
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError, refused, refused_right
from remoting.acl import GrpcProof
from remoting.client.aio import RemotingClient, RouteTable, SentRequest
from remoting.client.routes import (
    Backoff,
    Leaders,
    NameServers,
    Retry,
    RouteCache,
    leaders_of,
    name_server_addresses,
    retry_of,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import (
    ClientError,
    ConnectFailedError,
    PendingRequestsFullError,
    RemotingError,
)
from remoting.fastjson import FastjsonError, loads
from remoting.headers.admin import GrpcEndpointRequestHeader
from remoting.headers.fields import RequestHeader
from remoting.headers.namesrv import GRPC_ENDPOINTS, KvItemRequestHeader, KvKeyRequestHeader
from remoting.route import ClusterInfo, RouteError, TopicRoute, parse_cluster_info

VALID_S: Final = 20.0
"""So long routes and configurations are used (topicRouteServiceCacheRefreshSeconds and others)."""
PARTIAL_S: Final = 0.5
"""So long a list of nodes that lacks a leader: nodes that start together with this endpoint register a moment
later, one after the other.
"""
TRY_S: Final = 3.0
"""One try of a request that the broker does not hold."""
UNCERTAIN_TRIES: Final = 3
"""Tries of a request that is refused for a reason that a new leader may have for a moment."""
TELL_S: Final = 1.0
"""A name server's answer that nothing depends on."""
PROVED_S: Final = 10.0
"""So long a signature that a broker has verified is not shown to it again."""
PROVED_MAX: Final = 20_000
_PAUSE_MIN_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.3
_SUCCESS: Final = frozenset({ResponseCode.SUCCESS})
_SETTINGS: Final = {
    RequestCode.GET_TOPIC_CONFIG: "topic",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "group",
}

_ANY_SUBSCRIPTION: Final = (
    b'{"group":"grpc","subscriptionData":{"topic":"grpc","subString":"*","expressionType":"TAG"}}'
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's answer. `is_repeated`: an earlier try may have been carried out, its answer got lost."""

    command: RemotingCommand
    is_repeated: bool


class Brokers:
    """Made and used on one running loop. `namesrv`: `host:port`, several of them separated by `;`."""

    def __init__(self, client: RemotingClient, namesrv: str) -> None:
        self.client = client
        self._loop = asyncio.get_running_loop()
        self._routes = RouteTable(client, namesrv)
        self._addresses = name_server_addresses(namesrv)
        self._name_servers = NameServers(self._addresses)
        self._known: RouteCache[TopicRoute] = RouteCache(VALID_S)
        self._configs: RouteCache[Mapping[str, Any] | None] = RouteCache(VALID_S)
        self._asking: dict[str, asyncio.Task[Mapping[str, Any] | None]] = {}
        """Requests for configurations, each for all callers that want it meanwhile."""
        self._cluster = ClusterInfo({})
        self._cluster_end_s = 0.0
        self._leaders = Leaders()
        self._proved: dict[GrpcProof, float] = {}
        """Until when, by the loop's clock, a signature counts as verified."""

    async def route(self, topic: str, *, is_fresh: bool = False) -> TopicRoute:
        """Where the topic's queues are. Raises StatusError."""
        known = None if is_fresh else self.known_route(topic)
        if known is not None:
            return known
        try:
            found = await self._routes.request(topic)
        except ClientError as error:
            outdated = self._known.outdated(topic)
            if outdated is None:
                raise StatusError(Code.PROXY_TIMEOUT, str(error)) from error
            return outdated
        if found is None or not found.queue_datas:
            self._known.invalidate(topic)
            raise StatusError(Code.TOPIC_NOT_FOUND, f"no route of the topic {topic}: it does not exist")
        self._known.put(topic, found, self._loop.time())
        self._leaders.learn(leaders_of(found.broker_datas))
        return found

    def known_route(self, topic: str) -> TopicRoute | None:
        """As `route`, when no one has to be asked."""
        return self._known.get(topic, self._loop.time())

    async def ask(
        self,
        broker_name: str,
        request: RemotingCommand,
        end_s: float,
        *,
        topic: str | None = None,
        accepted: Container[int] = _SUCCESS,
        try_s: float = TRY_S,
        as_itself: bool = False,
        sent: SentRequest | None = None,
    ) -> Answer:
        """The answer of the broker's leader, with one of the accepted codes.

        topic: whose route names the leader; None: the cluster's list of brokers does.
        try_s: for one try; more than a broker may hold the request.
        as_itself: not for the client of the current task, whose rights count otherwise.
        sent: the first try, by `send`.

        Raises StatusError: the broker has refused for good, there is no such broker (UnknownBrokerError), or
        no leader has answered before `end_s`.
        """
        now_s = self._loop.time()
        backoff = Backoff(end_s - now_s, now_s, _PAUSE_MIN_S, _PAUSE_MAX_S)
        is_repeated = False
        proof = None if as_itself else PROOF.get()
        if proof is not None:
            request.ext_fields |= proof.ext_fields()
        while True:
            try:
                if sent is not None:
                    answer = await sent.result()
                else:
                    limit_s = min(try_s, end_s - self._loop.time())
                    answer = await self._try(broker_name, request, limit_s, topic)
            except RemotingError as error:
                is_repeated = is_repeated or _may_be_done(error)
                problem = StatusError(Code.PROXY_TIMEOUT, str(error))
                self._failed(broker_name, topic)
            else:
                if answer.code in accepted:
                    return Answer(answer, is_repeated)
                problem = refused(answer.code, answer.remark)
                if proof is not None and proof.user and answer.code == ResponseCode.NO_PERMISSION:
                    problem = refused_right(answer.remark)
                if not self._may_try_again(broker_name, topic, answer, backoff.tries, is_repeated):
                    raise problem
            sent = None
            pause_s = backoff.failed(problem.message, self._loop.time())
            if pause_s is None:
                raise problem
            await asyncio.sleep(pause_s)

    def send(
        self, broker_name: str, request: RemotingCommand, end_s: float, proof: GrpcProof | None
    ) -> SentRequest | None:
        """The first try of `ask`, without waiting, for the client with this proof. None: nothing was sent,
        since there is no known leader with an open connection.
        """
        address = self._leaders.get(broker_name)
        if address is None:
            return None
        if proof is not None:
            request.ext_fields |= proof.ext_fields()
        return self.client.send(address, request, max(0.0, min(TRY_S, end_s - self._loop.time())))

    async def check_client(self) -> None:
        """Let a broker verify the signature of the current task's client, before what asks no broker for it.

        Raises StatusError: it is wrong, or no broker answers.
        """
        proof = PROOF.get()
        now_s = self._loop.time()
        if proof is None or not proof.user or self._proved.get(proof, 0.0) > now_s:
            return
        info = await self.cluster()
        if not info.brokers:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no broker has registered yet")
        # What every user may send, and nothing can be read or changed by: only the signature decides.
        request = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=_ANY_SUBSCRIPTION)
        await self.ask(min(info.brokers), request, now_s + TRY_S)
        if len(self._proved) >= PROVED_MAX:
            self._proved.clear()
        self._proved[proof] = self._loop.time() + PROVED_S

    async def enter(self, address: str) -> None:
        """Have every name server list this endpoint, so that operators see whether it is there."""
        item = KvItemRequestHeader(GRPC_ENDPOINTS, address, str(time.time_ns() // 1_000_000))
        await self._tell_name_servers(RequestCode.PUT_KV_CONFIG, item)

    async def leave(self, address: str) -> None:
        """Have it listed no more: it stops because it was asked to."""
        await self._tell_name_servers(
            RequestCode.DELETE_KV_CONFIG, KvKeyRequestHeader(GRPC_ENDPOINTS, address)
        )

    async def announce(self, address: str) -> bool:
        """Have every node know by which connection to ask this endpoint about its clients; whether each has
        answered, and every broker's leader is among them.
        """
        header = GrpcEndpointRequestHeader(address)
        try:
            nodes = await self.nodes()
        except StatusError as error:
            logger.info("no broker knows this endpoint: %s", error)
            return False
        answered = await asyncio.gather(*(self._announce_to(node, header) for node in nodes))
        return all(answered) and _is_whole(self._cluster)

    async def _announce_to(self, node: str, header: GrpcEndpointRequestHeader) -> bool:
        """A stock broker does not know the request, and needs not."""
        command = RemotingCommand(RequestCode.LEDGERMQ_GRPC_ENDPOINT, ext_fields=header.ext_fields())
        try:
            answer = await self.client.invoke(node, command, TRY_S)
        except RemotingError as error:
            logger.debug("%s does not answer: %s", node, error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            logger.info("%s does not take this endpoint for one: %s", node, answer.remark)
        return True

    async def nodes(self) -> list[str]:
        """The addresses of all nodes of all brokers. Raises StatusError."""
        info = await self.cluster()
        return sorted({each for broker in info.brokers.values() for each in broker.broker_addrs.values()})

    async def _tell_name_servers(self, code: RequestCode, header: RequestHeader) -> None:
        """Those that do not answer, or refuse it (`--accounts`), do not list the endpoint."""
        for address in self._addresses:
            command = RemotingCommand(code, ext_fields=header.ext_fields())
            try:
                answer = await self.client.invoke(address, command, TELL_S)
                problem = answer.remark or str(answer.code) if answer.code != ResponseCode.SUCCESS else None
            except RemotingError as error:
                problem = str(error)
            if problem is not None:
                logger.info("the name server %s does not list this endpoint: %s", address, problem)

    def _may_try_again(
        self, broker_name: str, topic: str | None, answer: RemotingCommand, tries: int, is_repeated: bool
    ) -> bool:
        retry = retry_of(answer)
        if retry is Retry.NEW_LEADER:
            self._failed(broker_name, topic)
            return True
        return retry is Retry.UNCERTAIN and (is_repeated or tries > 0) and tries < UNCERTAIN_TRIES

    async def _try(
        self, broker_name: str, request: RemotingCommand, limit_s: float, topic: str | None
    ) -> RemotingCommand:
        """Raises RemotingError, StatusError."""
        address = self._leaders.get(broker_name)
        if address is None:
            await self._find_leader(broker_name, topic)
            address = self._leaders.get(broker_name) or self._leaders.former(broker_name)
        if address is None:
            raise NoLeaderError(f"{broker_name} has no leader now")
        return await self.client.invoke(address, request, max(0.0, limit_s))

    async def _find_leader(self, broker_name: str, topic: str | None) -> None:
        """Raises StatusError, UnknownBrokerError."""
        if topic is not None:
            route = await self.route(topic, is_fresh=True)
            if any(each.broker_name == broker_name for each in route.broker_datas):
                return
        info = await self.cluster(is_fresh=True)
        if broker_name not in info.brokers and (info.brokers or topic is None):
            raise UnknownBrokerError(broker_name)

    def _failed(self, broker_name: str, topic: str | None) -> None:
        self._leaders.failed(broker_name)
        if topic is not None:
            self._known.invalidate(topic)

    async def cluster(self, *, is_fresh: bool = False) -> ClusterInfo:
        """All brokers and their nodes. Raises StatusError."""
        now_s = self._loop.time()
        if now_s < self._cluster_end_s and not is_fresh:
            return self._cluster
        problem = "no name server is named"
        for address in self._name_servers.to_ask(now_s):
            try:
                answer = await self.client.invoke(
                    address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), TRY_S
                )
                info = parse_cluster_info(answer.body)
            except (RemotingError, RouteError) as error:
                problem = str(error)
                self._name_servers.failed(address, now_s)
                continue
            self._name_servers.answered(address)
            self._cluster = info
            self._cluster_end_s = self._loop.time() + (VALID_S if _is_whole(info) else PARTIAL_S)
            self._leaders.learn(leaders_of(info.brokers.values()))
            return info
        raise StatusError(Code.PROXY_TIMEOUT, f"the name server gives no answer ({problem})")

    def name_at(self, address: str) -> str | None:
        """The broker that has a node at this address, as far as it is known."""
        for name, broker in self._cluster.brokers.items():
            if address in broker.broker_addrs.values():
                return name
        return None

    async def topic_config(self, topic: str) -> Mapping[str, Any] | None:
        """RocketMQ's TopicConfig; None when the broker does not know the topic. Raises StatusError."""
        route = await self.route(topic)
        name = route.queue_datas[0].broker_name
        return await self._config(RequestCode.GET_TOPIC_CONFIG, topic, name, topic)

    def known_topic_config(self, topic: str) -> Mapping[str, Any] | None:
        """As `topic_config`, when no one has to be asked."""
        return self._configs.get(_config_key(RequestCode.GET_TOPIC_CONFIG, topic), self._loop.time())

    async def group_config(self, group: str) -> Mapping[str, Any] | None:
        """RocketMQ's SubscriptionGroupConfig; None while there is no such group. Raises StatusError."""
        info = await self.cluster()
        if not info.brokers:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no broker has registered yet")
        name = min(info.brokers)
        return await self._config(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group, name, None)

    async def _config(
        self, code: RequestCode, name: str, broker_name: str, topic: str | None
    ) -> Mapping[str, Any] | None:
        key = _config_key(code, name)
        known = self._configs.get(key, self._loop.time())
        if known is not None:
            return known
        asking = self._asking.get(key)
        if asking is None:
            asking = self._loop.create_task(self._read_config(code, name, broker_name, topic))
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(asking)

    def _asked(self, key: str, done: asyncio.Task[Mapping[str, Any] | None]) -> None:
        if self._asking.get(key) is done:
            del self._asking[key]
        if not done.cancelled():
            done.exception()  # read, so that asyncio does not report it when every caller has left

    async def _read_config(
        self, code: RequestCode, name: str, broker_name: str, topic: str | None
    ) -> Mapping[str, Any] | None:
        """Raises StatusError."""
        key = _config_key(code, name)
        end_s = self._loop.time() + TRY_S
        request = RemotingCommand(code, ext_fields={_SETTINGS[code]: name})
        try:
            answer = await self.ask(broker_name, request, end_s, topic=topic, as_itself=True)
            config = loads(answer.command.body)
        except StatusError as error:
            if error.code in (Code.TOPIC_NOT_FOUND, Code.CONSUMER_GROUP_NOT_FOUND):
                return None
            outdated = self._configs.outdated(key)
            if outdated is None:
                raise
            return outdated
        except FastjsonError as error:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, f"{name}: {error}") from error
        self._configs.put(key, config, self._loop.time())
        return config if isinstance(config, dict) else None

    def forget_group(self, group: str) -> None:
        """Read the group's configuration again at its next use."""
        key = _config_key(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group)
        self._configs.invalidate(key)
        self._asking.pop(key, None)  # what is under way may be of before


class UnknownBrokerError(StatusError):
    """No name server knows a broker of this name."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(Code.BAD_REQUEST, f"no broker is called {broker_name[:80]}")


class NoLeaderError(RemotingError):
    """Nothing was sent: no name server names a leader."""


def _config_key(code: RequestCode, name: str) -> str:
    return f"{_SETTINGS[code]} {name}"


def _may_be_done(error: RemotingError) -> bool:
    """Whether the broker may have carried out a request that ended so."""
    return not isinstance(error, NoLeaderError | ConnectFailedError | PendingRequestsFullError)


def _is_whole(info: ClusterInfo) -> bool:
    """Whether there are brokers, and the leader of each is known."""
    return bool(info.brokers) and leaders_of(info.brokers.values()).keys() == info.brokers.keys()
