"""Which queues a consumer gets when the broker assigns them, by the strategies of remoting.allocation.

QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401) and GET_ALL_MESSAGE_REQUEST_MODE (402): the broker
assigns queues to a consumer, and selects whether it pulls or pops them (QueryAssignmentProcessor).

Every node answers 400, from its own list of consumers. The mode is replicated: only the leader sets it. The
name servers know where a topic's queues are, on all brokers of the cluster (TopicRouteInfoManager).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection, ClientRegistry
from broker.leadership import Readiness
from broker.responses import put_error
from broker.state.changes import SetRequestMode
from broker.state.groups import POP, PULL, RequestMode
from broker.state.state import ReplicatedState
from broker.state.topics import ConfigFormatError
from commitlog.log import PutStatus
from remoting.allocation import averagely, by_circle
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import RouteCache
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import ClientError, RequestError
from remoting.fastjson import FastjsonError, list_in_steps, loads_request
from remoting.route import PERM_READ
from remoting.router import Handlers, Router
from remoting.topic_names import RETRY_PREFIX

ROUTE_VALID_S: Final = 5.0
ROUTE_TIMEOUT_S: Final = 1.0

BrokerQueues = tuple[tuple[str, int], ...]
"""Each broker's name and how many queues of the topic can be read there."""


class TopicRoutes:
    """The routes that one broker requested lately."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        client: RemotingClient,
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._config = config
        self._state = state
        self._now_ms = now_ms
        self._routes = RouteTable(client, config.namesrv_addr, ROUTE_TIMEOUT_S, spawn)
        self._cache: RouteCache[BrokerQueues] = RouteCache(ROUTE_VALID_S)

    async def queues(self, topic: str) -> BrokerQueues | None:
        """Of every broker with the topic. This broker's own queues when no name server answers or knows it
        yet; None when no broker has the topic.
        """
        cached = self._cache.get(topic, self._now_ms() / 1000)
        if cached is not None:
            return cached
        try:
            route = await self._routes.request(topic)
        except ClientError:
            route = None
        if route is None:
            return self._cache.outdated(topic) or self._own(topic)
        readable = [data for data in route.queue_datas if data.perm & PERM_READ]
        found = tuple((data.broker_name, data.read_queue_nums) for data in readable)
        self._cache.put(topic, found, self._now_ms() / 1000)
        return found

    def _own(self, topic: str) -> BrokerQueues | None:
        config = self._state.topics.get(topic)
        if config is None:
            return None
        return ((self._config.broker_name, config.read_queue_nums),)


class MessageQueue(NamedTuple):
    """In RocketMQ's order: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


class UnknownStrategyError(ValueError):
    """The broker has no assignment strategy of this name."""


_Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
_STRATEGIES: Mapping[str, _Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def _strategy(name: str) -> _Strategy:
    strategy = _STRATEGIES.get(name)
    if strategy is None:
        raise UnknownStrategyError(f"unsupported strategy {name[:64]!r}: {', '.join(_STRATEGIES)} are known")
    return strategy


def allocate(
    name: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """The client's queues in pull mode; both sequences in order. Raises UnknownStrategyError."""
    return _strategy(name)(client_id, queues, clients)


def allocate_for_pop(
    name: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    share_queue_num: int,
) -> list[MessageQueue]:
    """The client's queues in POP mode: its own share and those of the next `share_queue_num` clients. With no
    such number, or one as great as there are others, all pop everywhere: queue id -1 of each broker.

    Raises UnknownStrategyError.
    """
    strategy = _strategy(name)
    if share_queue_num <= 0 or share_queue_num >= len(clients) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=-1) for queue in queues))
    if client_id not in clients or not queues:
        return []
    at = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    sharers = [clients[(at + step) % len(clients)] for step in range(share_queue_num + 1)]
    return [queue for client in sharers for queue in strategy(client, queues, clients)]


QUEUES_MAX = 16_384
"""Of one topic over all brokers that are shared out."""
_BROADCASTING = ("BROADCASTING", 0)


class Assignment:
    """Answers from the replicated state, the heartbeats and the name servers' routes."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        clients: ClientRegistry,
        readiness: Readiness,
        routes: TopicRoutes,
        router: Router,
    ) -> None:
        self._router = router
        self._config = config
        self._clients = clients
        self._state = state
        self._readiness = readiness
        self._routes = routes

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }

    async def query(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """400: null when no assignment is possible now; the client then keeps its queues."""
        body = _object(request.body)
        topic, group, client_id = (_text(body, name) for name in ("topic", "consumerGroup", "clientId"))
        mode = self._mode(topic, group)
        found = await self._assigned(body, topic, group, client_id, mode)
        assignments = None
        if found is not None:
            rows = (_to_json(queue, mode.mode) for queue in dict.fromkeys(found))
            assignments = await self._router.in_slices(list_in_steps(rows), connection.remote_host)
        return _json_answer(request, {"messageQueueAssignments": assignments})

    async def set_mode(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """401."""
        self._readiness.check()
        body = _object(request.body)
        topic, group = _text(body, "topic"), _text(body, "consumerGroup")
        if topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if topic not in self._state.topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if group not in self._state.groups:
            remark = "subscription group does not exist"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        try:
            mode = RequestMode.from_json(body)
        except ConfigFormatError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        status = await self._state.propose(SetRequestMode(mode))
        if status is not PutStatus.PUT_OK:
            raise RequestError(*put_error(status))
        return success_response(request)

    def all_modes(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """402."""
        modes: dict[str, dict[str, Any]] = {}
        for mode in self._state.request_modes:
            modes.setdefault(mode.topic, {})[mode.group] = mode.to_json()
        return _json_answer(request, {"messageRequestModeMap": modes})

    def _mode(self, topic: str, group: str) -> RequestMode:
        """What was set, or the default; retry topics are pulled."""
        known = self._state.request_modes.get(topic, group)
        if known is not None:
            return known
        config = self._config
        mode = PULL if topic.startswith(RETRY_PREFIX) else config.default_request_mode
        return RequestMode(topic, group, mode, config.default_pop_share_queue_num if mode == POP else 0)

    async def _assigned(
        self, body: Mapping[str, Any], topic: str, group: str, client_id: str, mode: RequestMode
    ) -> list[MessageQueue] | None:
        brokers = await self._routes.queues(topic)
        if brokers is None:
            return None
        if sum(count for _, count in brokers) > QUEUES_MAX:
            remark = f"the topic has more than {QUEUES_MAX} queues"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        queues = [MessageQueue(topic, name, at) for name, count in sorted(brokers) for at in range(count)]
        if body.get("messageModel") in _BROADCASTING:
            return queues
        clients = self._clients.consumer_ids(group)
        if not clients:
            return None
        return self._shared_out(str(body.get("strategyName") or ""), client_id, queues, clients, mode)

    @staticmethod
    def _shared_out(
        strategy: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        clients: Sequence[str],
        mode: RequestMode,
    ) -> list[MessageQueue]:
        try:
            if mode.mode == POP:
                return allocate_for_pop(strategy, client_id, queues, clients, mode.share_queue_num)
            return allocate(strategy, client_id, queues, clients)
        except UnknownStrategyError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _to_json(queue: MessageQueue, mode: str) -> dict[str, Any]:
    place = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
    return {"messageQueue": place, "mode": mode}


def _json_answer(request: RemotingCommand, body: Mapping[str, Any]) -> RemotingCommand:
    return success_response(request, body=orjson.dumps(body))


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = loads_request(body)
    except FastjsonError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the body is not a JSON object")
    return data


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name} is missing")
    return value
