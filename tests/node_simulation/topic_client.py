"""What clients of the simulated cluster do with a topic: find who takes its messages, send to it, read it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from commitlog.record import format_properties
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import publish_queues
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.headers.consume import PullMessageRequestHeader, QueueRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.histories.operations import Drain, Queue, Seek
from tests.node_simulation.clients import History, RecordingClient
from tests.simulation.invariants import require

NAME_SERVER = "10.0.1.1:9876"
HAS_SUBSCRIPTION = 4
PAUSE_S = 0.2
WATCH_PAUSE_S = 0.3


class TopicClient:
    """A client of one topic with so many queues. Answers are None while no node answers."""

    def __init__(self, topic: str, queues: int, timeout_s: float) -> None:
        self.topic = topic
        self.remoting = RemotingClient()
        self._queues = queues
        self._timeout_s = timeout_s
        self._routes = RouteTable(self.remoting, NAME_SERVER)

    async def leader(self) -> str | None:
        """The address that takes the topic's messages, by the route that is known."""
        try:
            queues = await self._routes.publish_queues(self.topic)
        except ClientError:
            return None
        return queues[0].address if queues else None

    def forget_route(self) -> None:
        self._routes.invalidate(self.topic)

    async def invoke(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        try:
            return await self.remoting.invoke(address, command, self._timeout_s)
        except RemotingError:
            return None

    def message(
        self, queue_id: int, body: bytes, properties: Mapping[str, str], born_ms: int, sys_flag: int = 0
    ) -> RemotingCommand:
        """What sends a message; it makes the topic when there is none."""
        header = SendMessageRequestHeader(
            producer_group=properties.get("PGROUP", "producers"),
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=self._queues,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            properties=format_properties(properties).decode(),
        )
        return RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=body)

    async def watch(self, take: Callable[[bytes], None]) -> NoReturn:
        """Reads on in all queues for ever, so that a run can wait for what is missing."""
        ends: Counter[int] = Counter()
        while True:
            await asyncio.sleep(WATCH_PAUSE_S)
            self.forget_route()
            address = await self.leader()
            if address is None:
                continue
            for queue_id in range(self._queues):
                header = pull_header(Queue(self.topic, queue_id), ends[queue_id])
                command = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.ext_fields())
                answer = await self.invoke(address, command)
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    take(answer.body)
                    ends[queue_id] = int(answer.ext_fields["nextBeginOffset"])

    async def read_all(self, address: str, take: Callable[[bytes], None]) -> None:
        """Every queue once, from its first offset to its last; then the client is closed."""
        for queue_id in range(self._queues):
            queue = Queue(self.topic, queue_id)
            begin, end = await ask_bounds(self.remoting, address, queue)
            await read_between(self.remoting, address, queue, begin, end, take)
        await self.remoting.close()


async def leader_of_all(routes: RouteTable) -> str | None:
    """The address that takes messages of any topic, as the name server has it now.

    Raises: ClientError when it cannot be asked.
    """
    route = await routes.request(DEFAULT_TOPIC)
    queues = publish_queues(route) if route is not None else []
    return queues[0].address if queues else None


async def read_queues_back(history: History, name: str, address: str, queues: Sequence[Queue]) -> None:
    """Every queue from its first offset to its last, at the leader's address, for the history."""
    client = RecordingClient(history, name)
    for queue in queues:
        place = history.queue(address, queue.topic, queue.queue_id)
        reader = f"{name}/{place}"
        invoked = history.now
        begin, end = await ask_bounds(client, address, queue)
        history.add(Seek(reader, history.now, place, begin))
        await read_between(client, address, queue, begin, end)
        history.add(Drain(reader, invoked, history.now, place, begin, end))
    await client.close()


async def ask_bounds(client: RemotingClient, address: str, queue: Queue) -> tuple[int, int]:
    """The queue's first offset, and the one behind its last."""
    header = QueueRequestHeader(queue.topic, queue.queue_id)
    first = await _ask(client, address, RequestCode.GET_MIN_OFFSET, header)
    last = await _ask(client, address, RequestCode.GET_MAX_OFFSET, header)
    return int(first.ext_fields["offset"]), int(last.ext_fields["offset"])


async def read_between(
    client: RemotingClient,
    address: str,
    queue: Queue,
    begin: int,
    end: int,
    take: Callable[[bytes], None] | None = None,
) -> None:
    """Pulls from one offset to the other. `take` gets the bytes of the messages."""
    position = begin
    while position < end:
        answer = await _ask(client, address, RequestCode.PULL_MESSAGE, pull_header(queue, position))
        if take is not None:
            take(answer.body)
        following = int(answer.ext_fields["nextBeginOffset"])
        require(following > position, "reading", queue, "stands still at", position, "before", end)
        position = following


def pull_header(queue: Queue, position: int) -> PullMessageRequestHeader:
    """Of a pull that is not held."""
    return PullMessageRequestHeader(
        consumer_group="reader",
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=position,
        max_msg_nums=64,
        sys_flag=HAS_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        expression_type="TAG",
    )


async def _ask(client: RemotingClient, address: str, code: RequestCode, header: Any) -> RemotingCommand:
    """Asked again until there is an answer of success; the world bounds how long."""
    while True:
        try:
            answer = await client.invoke(address, RemotingCommand(code, ext_fields=header.ext_fields()))
        except RemotingError:
            await asyncio.sleep(PAUSE_S)
            continue
        if answer.code == ResponseCode.SUCCESS:
            return answer
        await asyncio.sleep(PAUSE_S)
