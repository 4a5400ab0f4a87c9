"""QueryRoute and QueryAssignment: which queues a topic has, and at which endpoint to ask for them
(RouteActivity).

A client connects to no broker: every queue is reached through the endpoints that the client names in its
request, which are the ones that it was configured with.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from grpc_endpoint.brokers import Brokers
from grpc_endpoint.call import Call
from grpc_endpoint.messaging_pb2 import (
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from grpc_endpoint.status import StatusError, ok
from grpc_endpoint.validation import group_of, topic_of
from remoting.route import PERM_READ, PERM_WRITE, QueueData

_MIXED: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_TYPES: Final[Mapping[str, tuple[MessageType, ...]]] = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    "MIXED": _MIXED,
}
_UNSPECIFIED: Final = (MessageType.MESSAGE_TYPE_UNSPECIFIED,)
TYPE_ATTRIBUTE: Final = "message.type"
ANY_QUEUE: Final = -1


class Routes:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def query_route(self, call: Call, request: QueryRouteRequest) -> QueryRouteResponse:
        topic = topic_of(request.topic)
        await self._brokers.check_client()
        route = await self._brokers.route(topic)
        types = await self.accepted_types(topic)
        response = QueryRouteResponse(status=ok())
        for data in route.queue_datas:
            broker = Broker(name=data.broker_name, id=0, endpoints=request.endpoints)
            response.message_queues.extend(_queues(data, request.topic, broker, types))
        return response

    async def query_assignment(self, call: Call, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        await self._brokers.check_client()
        route = await self._brokers.route(topic)
        config = await self._brokers.group_config(group)
        is_fifo = config is not None and config.get("consumeMessageOrderly") is True
        response = QueryAssignmentResponse(status=ok())
        for data in route.queue_datas:
            if data.perm & PERM_READ and data.read_queue_nums > 0:
                ids = range(data.read_queue_nums) if is_fifo else (ANY_QUEUE,)
                for queue_id in ids:
                    queue = _assigned(data, queue_id, request.topic, request.endpoints)
                    response.assignments.append(Assignment(message_queue=queue))
        if not response.assignments:
            raise StatusError(Code.FORBIDDEN, "no readable queue")
        return response

    async def accepted_types(self, topic: str) -> tuple[MessageType, ...]:
        """The types of messages that may be sent to the topic. Raises StatusError."""
        return _types_in(await self._brokers.topic_config(topic))

    def known_types(self, topic: str) -> tuple[MessageType, ...] | None:
        """As `accepted_types`, when no one has to be asked."""
        config = self._brokers.known_topic_config(topic)
        return None if config is None else _types_in(config)


def _types_in(config: Mapping[str, Any] | None) -> tuple[MessageType, ...]:
    attributes = (config or {}).get("attributes") or {}
    name = attributes.get(TYPE_ATTRIBUTE, "NORMAL") if isinstance(attributes, dict) else "NORMAL"
    return _TYPES.get(str(name), _UNSPECIFIED)


def _assigned(data: QueueData, queue_id: int, topic: Resource, endpoints: Endpoints) -> MessageQueue:
    broker = Broker(name=data.broker_name, id=0, endpoints=endpoints)
    return MessageQueue(topic=topic, id=queue_id, permission=permission_of(data.perm), broker=broker)


def permission_of(perm: int) -> Permission:
    if perm & PERM_READ and perm & PERM_WRITE:
        return Permission.READ_WRITE
    if perm & PERM_READ:
        return Permission.READ
    return Permission.WRITE if perm & PERM_WRITE else Permission.NONE


def _queues(
    data: QueueData, topic: Resource, broker: Broker, types: tuple[MessageType, ...]
) -> Iterator[MessageQueue]:
    """In the proxy's order: the queues that can only be read, only be written, both, and none of it."""
    reads = data.read_queue_nums if data.perm & PERM_READ else 0
    writes = data.write_queue_nums if data.perm & PERM_WRITE else 0
    both = min(reads, writes)
    counts = {
        Permission.READ: reads - both,
        Permission.WRITE: writes - both,
        Permission.READ_WRITE: both,
    }
    if not data.perm & (PERM_READ | PERM_WRITE):
        counts = {Permission.NONE: max(1, data.read_queue_nums, data.write_queue_nums)}
    permissions = [permission for permission, count in counts.items() for _ in range(count)]
    for queue_id, permission in enumerate(permissions):
        yield MessageQueue(
            topic=topic, id=queue_id, permission=permission, broker=broker, accept_message_types=types
        )
