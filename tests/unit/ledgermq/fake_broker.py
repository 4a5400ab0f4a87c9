"""A name server and a broker on one loopback port: queues in memory, answers that a test can bend."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from commitlog.record import Message, encode_record
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import BrokerData, QueueData, TopicRoute, format_topic_route
from remoting.router import Router
from remoting.server import Connection, RemotingServer

TOPIC = "orders"
GROUP = "group"
Refusal = tuple[ResponseCode, str]


class FakeBroker:
    """Keeps `queue_count` queues of TOPIC; `refusals` are answered to sends before any is taken."""

    def __init__(self, queue_count: int = 2) -> None:
        self.queues: dict[int, list[Message]] = {number: [] for number in range(queue_count)}
        self.topics: dict[str, int] = {TOPIC: queue_count}
        self.offsets: dict[int, int] = {}
        self.first_offsets: dict[int, int] = {}
        self.refusals: list[Refusal] = []
        self.sends: list[SendMessageRequestHeader] = []
        self.route_asks: list[str] = []
        self.has_leader = True
        self.perm = 6
        self.pull_refusals: list[Refusal] = []
        self.grew = asyncio.Event()
        self.answers = asyncio.Event()
        """Cleared: it takes what it is sent, and answers nothing."""
        self.answers.set()
        self.address = ""

    def put(self, queue_id: int, body: bytes, sys_flag: int = 0) -> None:
        self.queues[queue_id].append(Message(TOPIC, queue_id, body, sys_flag=sys_flag))
        self.grew.set()

    def router(self) -> Router:
        router = Router()
        router.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        router.register(RequestCode.SEND_MESSAGE, self._take)
        router.register(RequestCode.SEND_MESSAGE_V2, self._take)
        router.register(RequestCode.QUERY_CONSUMER_OFFSET, self._query_offset)
        router.register(RequestCode.UPDATE_CONSUMER_OFFSET, self._update_offset)
        router.register(RequestCode.GET_MIN_OFFSET, self._bound(lambda queue_id: self._begin(queue_id)))
        router.register(RequestCode.GET_MAX_OFFSET, self._bound(lambda queue_id: len(self.queues[queue_id])))
        router.register(RequestCode.PULL_MESSAGE, self._pull)
        return router

    def _begin(self, queue_id: int) -> int:
        return self.first_offsets.get(queue_id, 0)

    def _route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        self.route_asks.append(topic)
        if topic not in self.topics:
            return error_response(request, ResponseCode.TOPIC_NOT_EXIST, "no route")
        addresses = {0 if self.has_leader else 2: self.address}
        count = self.topics[topic]
        route = TopicRoute((QueueData("b", count, count, self.perm),), (BrokerData("c", "b", addresses),))
        return success_response(request, body=format_topic_route(route))

    async def _take(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        answer = self._send(request, connection)
        await self.answers.wait()
        return answer

    def _send(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = SendMessageRequestHeader.parse(request.ext_fields)
        self.sends.append(header)
        if self.refusals:
            return error_response(request, *self.refusals.pop(0))
        self.topics.setdefault(header.topic, header.default_topic_queue_nums)
        self.put(header.queue_id, request.body)
        at = len(self.queues[header.queue_id]) - 1
        ext = {"msgId": "M", "queueId": str(header.queue_id), "queueOffset": str(at)}
        return success_response(request, ext)

    def _query_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = QueryConsumerOffsetRequestHeader.parse(request.ext_fields)
        stored = self.offsets.get(header.queue_id)
        if stored is None:
            return error_response(request, ResponseCode.QUERY_NOT_FOUND, "none")
        return success_response(request, {"offset": str(stored)})

    def _update_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.parse(request.ext_fields)
        self.offsets[header.queue_id] = header.commit_offset
        return success_response(request)

    def _bound(
        self, offset_of: Callable[[int], int]
    ) -> Callable[[RemotingCommand, Connection], RemotingCommand]:
        def answer(request: RemotingCommand, _: Connection) -> RemotingCommand:
            header = QueueRequestHeader.parse(request.ext_fields)
            return success_response(request, {"offset": str(offset_of(header.queue_id))})

        return answer

    async def _pull(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = PullMessageRequestHeader.parse(request.ext_fields)
        if self.pull_refusals:
            return error_response(request, *self.pull_refusals.pop(0))
        begin, queue = self._begin(header.queue_id), self.queues[header.queue_id]
        if header.queue_offset < begin:
            ext = {"nextBeginOffset": str(begin)}
            return success_response(request, ext, code=ResponseCode.PULL_OFFSET_MOVED)
        while header.queue_offset >= len(queue):
            self.grew.clear()
            await self.grew.wait()
        found = list(enumerate(queue))[header.queue_offset :][:2]
        body = b"".join(encode_record(message, offset, 0) for offset, message in found)
        return success_response(request, {"nextBeginOffset": str(found[-1][0] + 1)}, body)


@asynccontextmanager
async def serving(broker: FakeBroker) -> AsyncIterator[RemotingClient]:
    """The broker on a free port, and a client to reach it with."""
    server = RemotingServer(broker.router(), "127.0.0.1", 0)
    await server.start()
    broker.address = f"127.0.0.1:{server.port}"
    client = RemotingClient()
    try:
        yield client
    finally:
        await client.close()
        await server.stop()
