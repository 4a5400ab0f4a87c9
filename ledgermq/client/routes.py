"""Where a topic's queues are, from the name server; requested again only after `forget`."""

import asyncio
from dataclasses import dataclass

from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.headers.topics import TopicRequestHeader
from remoting.route import PERM_READ, PERM_WRITE, RouteError, TopicRoute, parse_topic_route


class ClientError(Exception):
    """The cluster refused, or could not be reached in the time that was given."""


DEFAULT_TOPIC = "TBW102"
"""A topic that does not exist is made after this one when the first message for it arrives."""
DEFAULT_QUEUES_MAX = 4
"""Queues asked for in a topic that is made so, as stock clients do."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic and the node to ask: its leader, or for reading any node when there is none."""

    broker_name: str
    queue_id: int
    address: str


class RouteTable:
    """Known routes by topic. Askers that come while a topic is asked for share the answer."""

    def __init__(self, client: RemotingClient, namesrv: str, timeout_s: float = 3.0) -> None:
        self._client = client
        self._namesrv = namesrv
        self._timeout_s = timeout_s
        self._publish: dict[str, list[Queue]] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}

    async def publish_queues(self, topic: str) -> list[Queue]:
        """Queues that take messages; of a topic that does not exist, those it will have. May be empty.

        Raises: ClientError when the name server cannot be asked.
        """
        known = self._publish.get(topic)
        if known is None:
            known = await self._ask_publish_queues(topic)
            if known:
                self._publish[topic] = known
        return known

    async def _ask_publish_queues(self, topic: str) -> list[Queue]:
        route = await self.ask(topic)
        if route is not None:
            return publish_queues(route)
        default = await self.ask(DEFAULT_TOPIC)
        if default is None:
            return []
        return [queue for queue in publish_queues(default) if queue.queue_id < DEFAULT_QUEUES_MAX]

    def forget(self, topic: str) -> None:
        """The next to need the topic asks again."""
        self._publish.pop(topic, None)

    async def ask(self, topic: str) -> TopicRoute | None:
        """What the name server says now; None when it knows no such topic.

        Raises: ClientError.
        """
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.create_task(self._ask(topic))
            self._asking[topic] = asking
            asking.add_done_callback(lambda asked: self._asked(topic, asked))
        return await asyncio.shield(asking)

    def _asked(self, topic: str, asking: asyncio.Task[TopicRoute | None]) -> None:
        del self._asking[topic]
        if not asking.cancelled():
            asking.exception()  # retrieved, since all who wanted the answer may have been cancelled

    async def _ask(self, topic: str) -> TopicRoute | None:
        request = RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=TopicRequestHeader(topic).ext_fields()
        )
        try:
            answer = await self._client.invoke(self._namesrv, request, self._timeout_s)
        except RemotingError as error:
            raise ClientError(f"the name server gives no answer ({error})") from error
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise ClientError(f"the name server answered code {answer.code}: {answer.remark}")
        try:
            return parse_topic_route(answer.body)
        except RouteError as error:
            raise ClientError(f"the name server's route of {topic} cannot be read ({error})") from error


def publish_queues(route: TopicRoute) -> list[Queue]:
    """The writable queues whose broker has a leader."""
    leaders = {broker.broker_name: broker.master_addr for broker in route.broker_datas}
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
