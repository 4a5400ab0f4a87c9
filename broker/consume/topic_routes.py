"""Where a topic's queues are, on all brokers of the cluster, by the name servers (TopicRouteInfoManager)."""

from collections.abc import Callable
from typing import Final

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.state.state import ReplicatedState
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import RouteCache
from remoting.errors import ClientError
from remoting.route import PERM_READ

VALID_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 1.0

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
        self._routes = RouteTable(client, config.namesrv_addr, REQUEST_TIMEOUT_S, spawn)
        self._cache: RouteCache[BrokerQueues] = RouteCache(VALID_S)

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
