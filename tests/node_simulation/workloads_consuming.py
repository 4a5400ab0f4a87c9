"""Consumers of the group workload: they pull, commit, and take queues from each other at stored offsets."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.messaging import decode_records
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import subscribe_queues
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.fields import RequestHeader
from tests.histories.operations import Assign, Queue, Seek
from tests.node_simulation.clients import History, value_of
from tests.node_simulation.topic_client import HAS_SUBSCRIPTION

MAY_BE_HELD = 2
HELD_MS = 1_000
TIMEOUT_S = 3.0
PAUSE_S = 0.1
PULL_MESSAGES = 8
EMPTY = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


@dataclass(slots=True)
class Group:
    """A consumer group: which member has which queue. Members take turns by chance, and when one dies."""

    name: str
    members: list[str]
    rng: random.Random
    owners: dict[Queue, str] = field(default_factory=dict)
    taken: dict[str, set[str]] = field(default_factory=dict)
    """Values by topic that some member has got."""

    def owner(self, queue: Queue) -> str:
        if queue not in self.owners:
            self.owners[queue] = self.rng.choice(self.members)
        return self.owners[queue]

    def hand_over(self, queue: Queue) -> None:
        self.owners[queue] = self.rng.choice(self.members)

    def lost(self, member: str) -> None:
        """The member died: its queues go to any member, itself included when it comes back."""
        for queue, owner in list(self.owners.items()):
            if owner == member:
                self.hand_over(queue)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Probabilities by pull: to commit what was got, and to give the queue away."""

    commit_probability: float = 0.3
    hand_over_probability: float = 0.02


class Member:
    """One client of a group: a task for each queue of the topics, which works while the queue is its own."""

    def __init__(
        self,
        name: str,
        group: Group,
        client: RemotingClient,
        namesrv: str,
        rng: random.Random,
        history: History,
        options: ConsumerOptions,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._name = name
        self._group = group
        self._client = client
        self._routes = RouteTable(client, namesrv)
        self._rng = rng
        self._history = history
        self._options = options
        self._is_stopping = is_stopping
        self._addresses: dict[Queue, str] = {}

    async def run(self, queue: Queue) -> None:
        """Work on the queue whenever it is this member's."""
        while True:
            if self._group.owner(queue) != self._name:
                await asyncio.sleep(PAUSE_S)
                continue
            position = await self._fetch(queue)
            while position is not None and self._group.owner(queue) == self._name:
                position = await self._turn(queue, position)

    def _process(self, queue: Queue) -> str:
        return f"{self._name}/{queue}"

    async def _turn(self, queue: Queue, position: int) -> int | None:
        """One pull and what follows of it: the next offset, None when the queue is given away."""
        following = await self._pull(queue, position)
        if following is None:
            await asyncio.sleep(PAUSE_S)
            return position
        rng, options = self._rng, self._options
        if following > position and rng.random() < options.commit_probability:
            await self._commit(queue, following)
        if not self._is_stopping() and rng.random() < options.hand_over_probability:
            self._group.hand_over(queue)
            return None
        return following

    async def _fetch(self, queue: Queue) -> int | None:
        header = QueryConsumerOffsetRequestHeader(
            self._group.name, queue.topic, queue.queue_id, set_zero_if_not_found=False
        )
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            minimum = QueueRequestHeader(queue.topic, queue.queue_id)
            answer = await self._ask(queue, RequestCode.GET_MIN_OFFSET, minimum)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            await asyncio.sleep(PAUSE_S)
            return None
        offset = int(answer.ext_fields["offset"])
        process, now = self._process(queue), self._history.now
        self._history.add(Assign(process, now, (queue,)))
        self._history.add(Seek(process, now, queue, offset))
        return offset

    async def _pull(self, queue: Queue, position: int) -> int | None:
        header = PullMessageRequestHeader(
            consumer_group=self._group.name,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=position,
            max_msg_nums=PULL_MESSAGES,
            sys_flag=MAY_BE_HELD | HAS_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=HELD_MS,
            subscription="*",
            expression_type="TAG",
        )
        answer = await self._ask(queue, RequestCode.PULL_MESSAGE, header)
        if answer is None or not (answer.code == ResponseCode.SUCCESS or answer.code in EMPTY):
            return None
        if answer.code == ResponseCode.SUCCESS:
            values = {value_of(record.body) for record in decode_records(answer.body)}
            self._group.taken.setdefault(queue.topic, set()).update(values)
        return int(answer.ext_fields["nextBeginOffset"])

    async def _commit(self, queue: Queue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(self._group.name, queue.topic, queue.queue_id, offset)
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _ask(self, queue: Queue, code: RequestCode, header: RequestHeader) -> RemotingCommand | None:
        """The broker's answer, whatever it is; None when there is no broker or no answer."""
        request = RemotingCommand(code, ext_fields=header.ext_fields())
        try:
            address = self._addresses.pop(queue, None) or await self._find(queue)
            if address is None:
                return None
            answer = await self._client.invoke(address, request, TIMEOUT_S)
        except (ClientError, RemotingError):
            return None
        if answer.code == ResponseCode.SUCCESS or answer.code in EMPTY:
            self._addresses[queue] = address
        return answer

    async def _find(self, queue: Queue) -> str | None:
        route = await self._routes.request(queue.topic)
        routed = subscribe_queues(route) if route is not None else []
        return next((found.address for found in routed if found.queue_id == queue.queue_id), None)
