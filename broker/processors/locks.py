"""Queue locks of ordered consumers: 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ. Only the leader grants them.

The table is not replicated: a new leader starts with none, and every client renews its locks within 20 s.
Until then two clients may hold the same queue in their own view for as long as the old one trusts its lock
(30 s); the old owner stops earlier, since it is told of the new one by a rebalance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from broker.clients import ClientConnection
from broker.context import BrokerContext
from broker.heartbeats import HeartbeatError, client_id_of
from broker.locks import LockTable
from broker.readiness import Readiness
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import RequestError
from remoting.router import HandlerResult

QUEUES_PER_REQUEST_MAX = 65_536
ELECTION_WAIT_MS = 700
"""Java's and C++'s clients wait 1 s for their locks, and close the connection, held pulls and all, when they
get no answer.
"""


@dataclass(frozen=True, slots=True)
class _LockRequest:
    group: str
    client_id: str
    queues: list[tuple[str, int]]


class LockProcessor:
    """Grants and frees locks in the leader's table."""

    def __init__(self, context: BrokerContext, readiness: Readiness, table: LockTable | None = None) -> None:
        self._context = context
        self._readiness = readiness
        self._table = LockTable() if table is None else table

    def lock(self, request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
        """41: answers the queues that are the client's now. During an election the request is held for a
        moment.
        """
        if self._readiness.is_ready():
            return self._lock(request)
        return self._wait_and_lock(request)

    def unlock(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """42. On a follower there is nothing to free, which is what the client wants."""
        wanted = _parse(request.body)
        for queue in wanted.queues:
            self._table.unlock(wanted.group, queue, wanted.client_id)
        return success_response(request)

    def on_writable_change(self, is_writable: bool) -> None:
        """Locks are one leadership's."""
        if not is_writable:
            self._table.clear()

    async def _wait_and_lock(self, request: RemotingCommand) -> RemotingCommand:
        if not await self._readiness.wait(ELECTION_WAIT_MS):
            raise self._readiness.refusal()
        return self._lock(request)

    def _lock(self, request: RemotingCommand) -> RemotingCommand:
        wanted = _parse(request.body)
        now_ms = self._context.clock()
        granted = [
            {"brokerName": self._context.config.broker_name, "queueId": queue_id, "topic": topic}
            for topic, queue_id in wanted.queues
            if self._exists(topic, queue_id)
            and self._table.lock(wanted.group, (topic, queue_id), wanted.client_id, now_ms)
        ]
        return success_response(request, body=orjson.dumps({"lockOKMQSet": granted}))

    def _exists(self, topic: str, queue_id: int) -> bool:
        config = self._context.state.topics.get(topic)
        return config is not None and 0 <= queue_id < config.queue_nums


def _parse(body: bytes) -> _LockRequest:
    """Raises RequestError."""
    try:
        data = orjson.loads(body)
        if not isinstance(data, dict) or not isinstance(data.get("consumerGroup"), str):
            raise HeartbeatError("consumerGroup is missing")
        queues = data.get("mqSet") or []
        if not isinstance(queues, list) or len(queues) > QUEUES_PER_REQUEST_MAX:
            raise HeartbeatError(f"mqSet is not a list of at most {QUEUES_PER_REQUEST_MAX}")
        return _LockRequest(
            data["consumerGroup"], client_id_of(data, "clientId"), [_queue(item) for item in queues]
        )
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"lock request refused: {error}") from error


def _queue(item: Mapping[str, Any]) -> tuple[str, int]:
    topic, queue_id = (item.get("topic"), item.get("queueId")) if isinstance(item, dict) else (None, None)
    if not isinstance(topic, str) or isinstance(queue_id, bool) or not isinstance(queue_id, int | str):
        raise HeartbeatError("mqSet holds something other than queues")
    return topic, int(queue_id)


def register(context: BrokerContext) -> None:
    readiness = Readiness(
        context.log, context.engine, context.config.dledger_self_id, context.environment.monotonic_ms
    )
    processor = LockProcessor(context, readiness)
    context.router.register(RequestCode.LOCK_BATCH_MQ, processor.lock)
    context.router.register(RequestCode.UNLOCK_BATCH_MQ, processor.unlock)
    context.log.on_writable_change(processor.on_writable_change)
