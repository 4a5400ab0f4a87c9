"""Where a topic's queues are, on all brokers there are, as the name servers say (TopicRouteInfoManager)."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.state.state import ReplicatedState
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.route import PERM_READ, RouteError, parse_topic_route

ROUTES_MAX = 2_000
"""That are remembered."""
KEEP_MS = 5_000
ASK_TIMEOUT_S = 1.0

BrokerQueues = tuple[tuple[str, int], ...]
"""Each broker's name and how many queues of the topic can be read there."""


@dataclass(slots=True)
class _Known:
    queues: BrokerQueues
    asked_ms: int


class TopicRoutes:
    """The routes that one broker asked for lately."""

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
        self._spawn = spawn
        self._client = client
        self._now_ms = now_ms
        addresses = config.namesrv_addr.split(";")
        self._name_servers = [address.strip() for address in addresses if address.strip()]
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Task[BrokerQueues | None]] = {}

    async def queues(self, topic: str) -> BrokerQueues | None:
        """Of every broker with the topic. This broker's own queues when no name server answers or knows it
        yet; None when the topic is nowhere.
        """
        known = self._known.get(topic)
        if known is not None and self._now_ms() - known.asked_ms < KEEP_MS:
            return known.queues
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = self._spawn(self._ask(topic))
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        found = await asyncio.shield(asking)
        if found is not None:
            self._keep(topic, found)
            return found
        return known.queues if known is not None else self._own(topic)

    def _own(self, topic: str) -> BrokerQueues | None:
        config = self._state.topics.get(topic)
        if config is None:
            return None
        return ((self._config.broker_name, config.read_queue_nums),)

    def _keep(self, topic: str, queues: BrokerQueues) -> None:
        self._known[topic] = _Known(queues, self._now_ms())
        self._known.move_to_end(topic)
        if len(self._known) > ROUTES_MAX:
            self._known.popitem(last=False)

    async def _ask(self, topic: str) -> BrokerQueues | None:
        """What the first name server that answers says; None: nobody knows the topic, or nobody answers."""
        for address in self._name_servers:
            request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
            try:
                answer = await self._client.invoke(address, request, ASK_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    route = parse_topic_route(answer.body)
                    readable = [data for data in route.queue_datas if data.perm & PERM_READ]
                    return tuple((data.broker_name, data.read_queue_nums) for data in readable)
            except (RemotingError, RouteError):
                continue
        return None
