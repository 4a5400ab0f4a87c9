"""A name server and brokers, each on a loopback port of its own, with queues, groups, offsets, locks and pops
in memory: what consumers need. A code's answers can be scripted.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from commitlog.record import Message, encode_record, tags_code
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.fastjson import loads
from remoting.headers.consume import (
    ConsumerGroupRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PopMessageRequestHeader,
)
from remoting.headers.send import SendMessageRequestHeader
from remoting.record import format_properties, parse_properties
from remoting.record_layout import AT
from remoting.route import BrokerData, QueueData, TopicRoute, format_topic_route
from remoting.router import HandlerResult, Router
from remoting.server import RemotingServer
from remoting.tag_filters import parse_tag_expression
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX

TOPIC = "orders"
GROUP = "billing"
Scripted = tuple[int, str] | Callable[[RemotingCommand, Connection], HandlerResult]
QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class FakeBroker:
    """The leader of one broker name. `scripted`: answers to the next requests of a code, which are not
    carried out. `firsts`: of queues whose older messages are gone. `strangers`: members of the group beside
    those that are connected.
    """

    name: str
    queues: dict[QueueKey, list[Message]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    firsts: dict[QueueKey, int] = field(default_factory=dict)
    locks: dict[QueueKey, str] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)
    requests: list[RemotingCommand] = field(default_factory=list)
    scripted: dict[int, deque[Scripted]] = field(default_factory=dict)
    clients: dict[str, Connection] = field(default_factory=dict)
    beats: list[dict[str, Any]] = field(default_factory=list)
    popped: dict[QueueKey, set[int]] = field(default_factory=lambda: defaultdict(set))
    acked: list[tuple[str, int, int]] = field(default_factory=list)
    given_back: list[tuple[int, int]] = field(default_factory=list)
    grew: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""
    server: RemotingServer | None = None
    _positions: list[Message] = field(default_factory=list)

    def put(self, body: bytes, queue_id: int = 0, topic: str = TOPIC, **properties: str) -> None:
        text = format_properties(properties)
        self.store(Message(topic, queue_id, body, properties=text))

    def store(self, message: Message) -> None:
        self.queues[message.topic, message.queue_id].append(message)
        self.grew.set()
        self.grew = asyncio.Event()

    def script(self, code: RequestCode, *answers: Scripted) -> None:
        self.scripted.setdefault(code, deque()).extend(answers)

    def of(self, code: RequestCode) -> list[RemotingCommand]:
        return [each for each in self.requests if each.code == code]

    def tell(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a oneway request to all clients."""
        for connection in self.clients.values():
            connection.send_oneway(RemotingCommand(code, ext_fields=ext, body=body))

    async def ask(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """The answer of the only client."""
        (connection,) = self.clients.values()
        return await connection.request(RemotingCommand(code, ext_fields=ext, body=body))

    def router(self) -> Router:
        router = Router()
        router.register_fallback(self._handle)
        return router

    async def _handle(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        self.requests.append(request)
        waiting = self.scripted.get(request.code)
        if waiting:
            scripted = waiting.popleft()
            if isinstance(scripted, tuple):
                return error_response(request, *scripted)
            result = scripted(request, connection)
            return await result if isinstance(result, Awaitable) else result
        handlers = {
            RequestCode.HEART_BEAT: self._beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
        }
        if request.code in handlers:
            return handlers[RequestCode(request.code)](request, connection)
        answered = {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.CHECK_CLIENT_CONFIG: success_response,
        }
        if request.code == RequestCode.PULL_MESSAGE:
            return await self._pull(request)
        if request.code == RequestCode.NOTIFICATION:
            return await self._notify(request)
        return answered[RequestCode(request.code)](request)

    # -- groups

    def _beat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        beat = loads(request.body)
        self.beats.append(beat)
        self.clients[beat["clientID"]] = connection
        return success_response(request)

    def _unregister(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self.clients.pop(UnregisterClientRequestHeader.parse(request.ext_fields).client_id, None)
        return success_response(request)

    def _members(self, request: RemotingCommand) -> RemotingCommand:
        ConsumerGroupRequestHeader.parse(request.ext_fields)
        ids = [*self.clients, *self.strangers]
        return success_response(request, body=orjson.dumps({"consumerIdList": ids}))

    def _lock(self, request: RemotingCommand) -> RemotingCommand:
        body = loads(request.body)
        granted = []
        for row in body["mqSet"]:
            holder = self.locks.setdefault((row["topic"], row["queueId"]), body["clientId"])
            if holder == body["clientId"]:
                granted.append(row)
        return success_response(request, body=orjson.dumps({"lockOKMQSet": granted}))

    def _unlock(self, request: RemotingCommand) -> RemotingCommand:
        body = loads(request.body)
        for row in body["mqSet"]:
            key = (row["topic"], row["queueId"])
            if self.locks.get(key) == body["clientId"]:
                del self.locks[key]
        return success_response(request)

    # -- offsets

    def _query_offset(self, request: RemotingCommand) -> RemotingCommand:
        header = QueryConsumerOffsetRequestHeader.parse(request.ext_fields)
        stored = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if stored is None:
            return error_response(request, ResponseCode.QUERY_NOT_FOUND, "none")
        return success_response(request, {"offset": str(stored)})

    def _update_offset(self, request: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.parse(request.ext_fields)
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return success_response(request)

    def stored(self, queue_id: int = 0, topic: str = TOPIC, group: str = GROUP) -> int | None:
        return self.offsets.get((group, topic, queue_id))

    def _min_offset(self, request: RemotingCommand) -> RemotingCommand:
        header = QueueRequestHeader.parse(request.ext_fields)
        return success_response(request, {"offset": str(self.firsts.get((header.topic, header.queue_id), 0))})

    def _max_offset(self, request: RemotingCommand) -> RemotingCommand:
        header = QueueRequestHeader.parse(request.ext_fields)
        return success_response(request, {"offset": str(len(self.queues[header.topic, header.queue_id]))})

    def _search(self, request: RemotingCommand) -> RemotingCommand:
        """Message n was stored at n seconds."""
        header = SearchOffsetRequestHeader.parse(request.ext_fields)
        count = len(self.queues[header.topic, header.queue_id])
        return success_response(request, {"offset": str(min(count, -(-header.timestamp_ms // 1000)))})

    # -- messages

    async def _pull(self, request: RemotingCommand) -> RemotingCommand:
        header = PullMessageRequestHeader.parse(request.ext_fields)
        key = (header.topic, header.queue_id)
        first = self.firsts.get(key, 0)
        queue = self.queues[key]
        while header.queue_offset == len(queue):
            try:
                async with asyncio.timeout(header.suspend_timeout_ms / 1000):
                    await self.grew.wait()
            except TimeoutError:
                return self._pulled(request, ResponseCode.PULL_NOT_FOUND, header.queue_offset, first)
        if not first <= header.queue_offset <= len(queue):
            moved = first if header.queue_offset < first else len(queue)
            return self._pulled(request, ResponseCode.PULL_OFFSET_MOVED, moved, first)
        wanted = parse_tag_expression(header.subscription) if header.expression_type == "TAG" else None
        end = min(len(queue), header.queue_offset + header.max_msg_nums)
        body = b"".join(
            self.record(queue[offset], offset)
            for offset in range(header.queue_offset, end)
            if wanted is None or wanted.matches(_code_of(queue[offset]))
        )
        code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
        return self._pulled(request, code, end, first, body)

    def _pulled(
        self, request: RemotingCommand, code: ResponseCode, next_offset: int, first: int, body: bytes = b""
    ) -> RemotingCommand:
        ext = {"nextBeginOffset": str(next_offset), "minOffset": str(first), "maxOffset": "0"}
        return success_response(request, {**ext, "suggestWhichBrokerId": "0"}, body, code=code)

    def record(self, message: Message, offset: int) -> bytes:
        """With a position by which it can be sent back."""
        if message not in self._positions:
            self._positions.append(message)
        record = bytearray(encode_record(message, offset, offset * 1000))
        at = AT["physical_offset"]
        record[at : at + 8] = self._positions.index(message).to_bytes(8, "big")
        return bytes(record)

    def _send_back(self, request: RemotingCommand) -> RemotingCommand:
        """Without the delay."""
        header = ConsumerSendMsgBackRequestHeader.parse(request.ext_fields)
        message = self._positions[header.position]
        is_dead = header.delay_level < 0 or message.reconsume_times >= (header.max_reconsume_times or 16)
        topic = (DLQ_PREFIX if is_dead else RETRY_PREFIX) + header.group
        properties = parse_properties(message.properties)
        properties.setdefault("RETRY_TOPIC", message.topic)
        self.store(
            replace(
                message,
                topic=topic,
                queue_id=0,
                properties=format_properties(properties),
                reconsume_times=message.reconsume_times + 1,
            )
        )
        return success_response(request)

    def _send(self, request: RemotingCommand) -> RemotingCommand:
        header = SendMessageRequestHeader.parse(request.ext_fields)
        self.store(
            Message(
                header.topic,
                header.queue_id,
                request.body,
                properties=header.properties.encode(),
                reconsume_times=header.reconsume_times,
            )
        )
        return success_response(request, {"msgId": "M", "queueId": "0", "queueOffset": "0"})

    # -- pops

    def _visible(self, header: PopMessageRequestHeader | NotificationRequestHeader) -> list[tuple[int, int]]:
        found = []
        for (topic, queue_id), messages in self.queues.items():
            out = self.popped[topic, queue_id]
            if topic == header.topic:
                found += [(queue_id, offset) for offset in range(len(messages)) if offset not in out]
        return found

    def _pop(self, request: RemotingCommand) -> RemotingCommand:
        header = PopMessageRequestHeader.parse(request.ext_fields)
        found = self._visible(header)[: header.max_msg_nums]
        if not found:
            return error_response(request, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        body = b""
        for queue_id, offset in found:
            self.popped[header.topic, queue_id].add(offset)
            body += self.record(self.queues[header.topic, queue_id][offset], offset)
        starts = dict(reversed(found))
        ext = {
            "popTime": "1700000000000",
            "invisibleTime": str(header.invisible_time_ms),
            "reviveQid": "0",
            "startOffsetInfo": ";".join(f"0 {queue_id} {offset}" for queue_id, offset in starts.items()),
        }
        return success_response(request, ext, body)

    async def _notify(self, request: RemotingCommand) -> RemotingCommand:
        header = NotificationRequestHeader.parse(request.ext_fields)
        try:
            async with asyncio.timeout(header.poll_time_ms / 1000):
                while not self._visible(header):
                    await self.grew.wait()
        except TimeoutError:
            return success_response(request, {"hasMsg": "false"})
        return success_response(request, {"hasMsg": "true"})

    def _ack(self, request: RemotingCommand) -> RemotingCommand:
        header = AckMessageRequestHeader.parse(request.ext_fields)
        if header.offset not in self.popped[header.topic, header.queue_id]:
            return error_response(request, ResponseCode.NO_MESSAGE, "it is not in flight")
        self.acked.append((header.topic, header.queue_id, header.offset))
        return success_response(request)

    def _change(self, request: RemotingCommand) -> RemotingCommand:
        header = ChangeInvisibleTimeRequestHeader.parse(request.ext_fields)
        out = self.popped[header.topic, header.queue_id]
        if header.offset not in out:
            return error_response(request, ResponseCode.NO_MESSAGE, "it is not in flight")
        self.given_back.append((header.offset, header.invisible_time_ms))
        ext = {"popTime": "1800000000000", "invisibleTime": str(header.invisible_time_ms), "reviveQid": "0"}
        return success_response(request, ext)


def _code_of(message: Message) -> int:
    tag = parse_properties(message.properties).get("TAGS")
    return 0 if tag is None else tags_code(tag)


class FakeGroup:
    """`names` of brokers with TOPIC and the group's retry topic."""

    def __init__(self, *names: str, queues: int = 2) -> None:
        self.brokers = {name: FakeBroker(name) for name in names or ("broker-a",)}
        self.topics = {TOPIC: queues, RETRY_PREFIX + GROUP: 1}
        self.route_asks: list[str] = []
        self.has_leaders = True
        self.namesrv = ""

    @property
    def broker(self) -> FakeBroker:
        (broker,) = self.brokers.values()
        return broker

    def _route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        self.route_asks.append(topic)
        if topic not in self.topics:
            return error_response(request, ResponseCode.TOPIC_NOT_EXIST, "no route")
        count = self.topics[topic]
        node_id = 0 if self.has_leaders else 2
        brokers = [BrokerData("c", name, {node_id: broker.address}) for name, broker in self.brokers.items()]
        queues = [QueueData(name, count, count, 6) for name in self.brokers]
        return success_response(request, body=format_topic_route(TopicRoute(tuple(queues), tuple(brokers))))

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[FakeGroup]":
        router = Router()
        router.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        name_server = RemotingServer(router, "127.0.0.1", 0)
        servers = [name_server]
        try:
            await name_server.start()
            self.namesrv = f"127.0.0.1:{name_server.port}"
            for broker in self.brokers.values():
                broker.server = RemotingServer(broker.router(), "127.0.0.1", 0)
                servers.append(broker.server)
                await broker.server.start()
                broker.address = f"127.0.0.1:{broker.server.port}"
            yield self
        finally:
            await asyncio.gather(*(server.stop() for server in servers))
