"""Which brokers hold the queues of a topic."""

import asyncio
from dataclasses import dataclass

from admin_api.errors import InvalidError, NotFoundError, UnavailableError
from admin_api.gateway import AskError
from admin_api.sources.brokers import BrokerDirectory, BrokerSet
from remoting.route import PERM_WRITE, TopicRoute

QUEUES_MAX = 1024
"""Queues of one topic that a search reads; beyond it a broker has to be named."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """One queue, and the node that knows its ends."""

    broker_name: str
    queue_id: int
    address: str


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic's part on one broker. `addresses`: the one that accepts writes first, where there is one."""

    broker_name: str
    queues: int
    writable_queues: int
    addresses: tuple[str, ...]


class Places:
    """Finds topics."""

    def __init__(self, directory: BrokerDirectory) -> None:
        self._directory = directory

    async def of_topic(self, topic: str) -> list[TopicPlace]:
        """Raises: NotFoundError, UnavailableError when every name server is silent."""
        try:
            routing = self._directory.name_servers.route(topic)
            route, brokers = await asyncio.gather(routing, self._directory.current())
        except AskError as error:
            raise UnavailableError(f"The name server does not answer: {error}") from error
        if route is None:
            raise NotFoundError(f"The topic {topic} does not exist.")
        return _places(route, brokers)

    async def queues_of(
        self, topic: str, broker_name: str | None = None, queue_id: int | None = None
    ) -> list[QueuePlace]:
        """Every queue of the topic; of one broker, or one number, where these are given.

        Raises: as of_topic; InvalidError for more than `QUEUES_MAX`.
        """
        places = [place for place in await self.of_topic(topic) if broker_name in (None, place.broker_name)]
        queues = [
            QueuePlace(place.broker_name, number, place.addresses[0])
            for place in places
            for number in range(place.queues)
            if queue_id in (None, number)
        ]
        if not queues:
            raise NotFoundError(f"The topic {topic} has no such queue.")
        if len(queues) > QUEUES_MAX:
            raise InvalidError(f"{topic} has {len(queues)} queues; name a broker or a queue.")
        return queues

    async def writer_of(self, topic: str, broker_name: str | None = None) -> TopicPlace:
        """The broker that takes messages for the topic, or one of several.

        Raises: as of_topic; UnavailableError when none does.
        """
        places = [place for place in await self.of_topic(topic) if broker_name in (None, place.broker_name)]
        if not places:
            raise NotFoundError(f"The topic {topic} is not on the broker {broker_name}.")
        masters = (await self._directory.current()).masters
        for place in places:
            if place.writable_queues and place.broker_name in masters:
                return place
        raise UnavailableError(f"No broker takes messages for {topic} now.")


def _places(route: TopicRoute, brokers: BrokerSet) -> list[TopicPlace]:
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    found = []
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        routed = addresses.get(data.broker_name, {})
        order = [brokers.masters.get(data.broker_name), *(routed[number] for number in sorted(routed))]
        known = tuple(dict.fromkeys(filter(None, order)))
        if known:
            queues = max(data.read_queue_nums, data.write_queue_nums, 0)
            writable = data.write_queue_nums if data.perm & PERM_WRITE else 0
            found.append(TopicPlace(data.broker_name, queues, writable, known))
    return found
