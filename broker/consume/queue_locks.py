"""Which client may consume which queue in order: the leader's view of the locks (RebalanceLockManager).

The holder of a lock is in the replicated state; only the leader has the time of its last renewal. A new
leader therefore assumes that every lock was renewed when it became the leader, which is never too early: see
docs/decisions/replicated_state.md#queue-locks. Pure: times are arguments.

Queue locks of ordered consumers: 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ.

Only the leader grants them. A new holder is written to the log, and answered once that is committed; a
renewal is not logged, and the leader grants it only while a majority acknowledges its leadership. A node that
does not lead forwards the request to the leader, since clients renew at the node that led when they last
polled the route.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.consume.heartbeats import HeartbeatError, client_id_of
from broker.leadership import Forwarder, Readiness
from broker.state.changes import LockQueues
from broker.state.groups import GROUP_CHARS_MAX
from broker.state.state import ReplicatedState
from broker.state.tables import QUEUE_LOCKS_MAX, LockKey, QueueKey
from commitlog.log import MessageLog, PutStatus
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import RequestError
from remoting.fastjson import loads_request
from remoting.router import HandlerResult, Handlers

LOCK_EXPIRY_MS = 60_000
"""A lock that is not renewed for so long is free (Java's `rocketmq.broker.rebalance.lockMaxLiveTime`).
Clients renew every 20 s and trust a lock for 30 s from the answer on, which they wait 1 s for.
"""


class Claim(Enum):
    """What becomes of a client's wish to hold a queue."""

    HELD = 1
    """It was the client's already; it is renewed."""
    NEW = 2
    """It is reserved for the client, and granted once that is committed."""
    REFUSED = 3


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int
    is_logged: bool


class LockTable:
    """The locks of every group. `locks_max` bounds it: beyond it a lock is not granted."""

    def __init__(self, *, expiry_ms: int = LOCK_EXPIRY_MS, locks_max: int = QUEUE_LOCKS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._locks_max = locks_max
        self._locks: dict[LockKey, _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def load(self, holders: Iterable[tuple[LockKey, str]], now_ms: int) -> None:
        """Begin to lead with the locks that the log knows."""
        self._locks = {key: _Lock(client_id, now_ms, True) for key, client_id in holders}

    def claim(self, group: str, queue: QueueKey, client_id: str, now_ms: int) -> Claim:
        """Acquire or renew the group's lock of the queue for the client."""
        lock = self._locks.get((group, queue))
        if lock is None:
            if len(self._locks) >= self._locks_max:
                return Claim.REFUSED
            self._locks[group, queue] = _Lock(client_id, now_ms, False)
            return Claim.NEW
        is_over = now_ms - lock.renewed_ms > self._expiry_ms
        if lock.client_id != client_id and not is_over:
            return Claim.REFUSED
        is_logged = lock.is_logged and lock.client_id == client_id
        lock.client_id, lock.renewed_ms, lock.is_logged = client_id, now_ms, is_logged
        return Claim.HELD if is_logged else Claim.NEW

    def logged(self, group: str, queue: QueueKey, client_id: str) -> bool:
        """The lock's record is committed now; return whether the client still holds the queue."""
        lock = self._locks.get((group, queue))
        if lock is None or lock.client_id != client_id:
            return False
        lock.is_logged = True
        return True

    def release(self, group: str, queue: QueueKey, client_id: str) -> bool:
        """Free the queue; whether the client held it."""
        lock = self._locks.get((group, queue))
        if lock is None or lock.client_id != client_id:
            return False
        del self._locks[group, queue]
        return True

    def holder(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """The client that holds the group's lock of the queue now."""
        lock = self._locks.get((group, queue))
        if lock is None or now_ms - lock.renewed_ms > self._expiry_ms:
            return None
        return lock.client_id

    def expire(self, now_ms: int) -> list[tuple[LockKey, str]]:
        """Drop the locks that were not renewed in time; returns them with their holders."""
        over = [
            (key, lock.client_id)
            for key, lock in self._locks.items()
            if now_ms - lock.renewed_ms > self._expiry_ms
        ]
        for key, _ in over:
            del self._locks[key]
        return over

    def clear(self) -> None:
        """Drop all: this node does not lead any more."""
        self._locks.clear()


QUEUES_PER_REQUEST_MAX = 8_192
ELECTION_WAIT_MS = 700
"""Java's and C++'s clients wait 1 s for their locks, and close the connection, held pulls and all, when they
get no answer.
"""
POLL_INTERVAL_S = 0.02
"""Until a leader has heard from its majority again; it does with every heartbeat."""
EXPIRY_INTERVAL_S = 10.0
_NOT_IN_THE_LOG = (
    PutStatus.SERVICE_NOT_AVAILABLE,
    PutStatus.OS_PAGE_CACHE_BUSY,
    PutStatus.MESSAGE_ILLEGAL,
)
"""After any other failure the change may still be committed."""


@dataclass(frozen=True, slots=True)
class _LockRequest:
    group: str
    client_id: str
    queues: list[QueueKey]


class LockProcessor:
    """Grants and frees locks; as a service, drops the locks of clients that have disconnected."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        now_ms: Callable[[], int],
        readiness: Readiness,
        forwarder: Forwarder,
        table: LockTable | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._readiness = readiness
        self._forwarder = forwarder
        self._table = LockTable() if table is None else table
        self._now_ms = now_ms
        self._timer: asyncio.TimerHandle | None = None
        self._leads = False
        """Whether the table is the group's."""
        log.on_writable_change(self.on_writable_change)

    def handlers(self) -> Handlers:
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
        """41: answers the queues that are the client's now. During an election the request is held for a
        moment.
        """
        if self._leads and self._readiness.has_lease():
            return self._lock(request)
        return self._wait_and_lock(request)

    def unlock(self, request: RemotingCommand, connection: ClientConnection) -> HandlerResult:
        """42."""
        if not self._leads:
            return self._have_unlocked(request)
        wanted = _parse(request.body)
        freed = [each for each in wanted.queues if self._table.release(wanted.group, each, wanted.client_id)]
        if freed:
            self._state.propose(LockQueues(wanted.group, wanted.client_id, _by_topic(freed), is_held=False))
        return success_response(request)

    def on_writable_change(self, is_writable: bool) -> None:
        """A new leader continues with the locks of the one before it."""
        self._leads = is_writable
        if is_writable:
            self._table.load(self._state.locks.items(), self._now_ms())
        else:
            self._table.clear()

    async def start(self) -> None:
        """A log without replication is writable from the start and never calls `on_writable_change`."""
        if self._log.is_writable():
            self.on_writable_change(True)
        self._arm()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expire(self) -> None:
        """Remove the holders that did not renew from the log."""
        queues: dict[tuple[str, str], list[QueueKey]] = {}
        for (group, queue), client_id in self._table.expire(self._now_ms()):
            queues.setdefault((group, client_id), []).append(queue)
        for (group, client_id), freed in queues.items():
            self._state.propose(LockQueues(group, client_id, _by_topic(freed), is_held=False))

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EXPIRY_INTERVAL_S, self._on_timer)

    def _on_timer(self) -> None:
        self._arm()
        if self._leads:
            self.expire()

    async def _wait_and_lock(self, request: RemotingCommand) -> RemotingCommand | None:
        end_ms = self._now_ms() + ELECTION_WAIT_MS
        while await self._readiness.wait(max(0, end_ms - self._now_ms())):
            if self._leads and self._readiness.has_lease():
                result = self._lock(request)
                return result if isinstance(result, RemotingCommand) else await result
            if self._now_ms() >= end_ms:
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        answer = await self._ask_leader(request)
        if answer is None:
            raise self._readiness.refusal()
        return answer

    async def _have_unlocked(self, request: RemotingCommand) -> RemotingCommand:
        """Where no leader can be asked the locks expire."""
        return await self._ask_leader(request) or success_response(request)

    async def _ask_leader(self, request: RemotingCommand) -> RemotingCommand | None:
        if not self._forwarder.may_forward(request):
            return None
        return await self._forwarder.ask_leader(request, ELECTION_WAIT_MS / 1000)

    def _lock(self, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        wanted = _parse(request.body)
        now_ms = self._now_ms()
        held: list[QueueKey] = []
        new: list[QueueKey] = []
        for queue in wanted.queues:
            if self._exists(*queue):
                claim = self._table.claim(wanted.group, queue, wanted.client_id, now_ms)
                if claim is not Claim.REFUSED:
                    (held if claim is Claim.HELD else new).append(queue)
        if not new:
            return self._granted(request, held)
        logged = self._state.propose(LockQueues(wanted.group, wanted.client_id, _by_topic(new)))
        return self._grant(request, wanted, held, new, logged)

    async def _grant(
        self,
        request: RemotingCommand,
        wanted: _LockRequest,
        held: list[QueueKey],
        new: list[QueueKey],
        logged: asyncio.Future[PutStatus],
    ) -> RemotingCommand:
        status = await logged
        group, client_id = wanted.group, wanted.client_id
        if status is PutStatus.PUT_OK:
            held += [queue for queue in new if self._table.logged(group, queue, client_id)]
        elif status in _NOT_IN_THE_LOG:
            for queue in new:
                self._table.release(group, queue, client_id)
        return self._granted(request, held)

    def _granted(self, request: RemotingCommand, queues: Iterable[QueueKey]) -> RemotingCommand:
        broker_name = self._config.broker_name
        rows = [{"brokerName": broker_name, "queueId": queue, "topic": topic} for topic, queue in queues]
        return success_response(request, body=orjson.dumps({"lockOKMQSet": rows}))

    def _exists(self, topic: str, queue_id: int) -> bool:
        config = self._state.topics.get(topic)
        return config is not None and 0 <= queue_id < config.queue_nums


def _by_topic(queues: Iterable[QueueKey]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, queue_id in queues:
        found.setdefault(topic, []).append(queue_id)
    return found


def _parse(body: bytes) -> _LockRequest:
    """Raises RequestError."""
    try:
        data = loads_request(body)
        group = data.get("consumerGroup") if isinstance(data, dict) else None
        if not isinstance(group, str) or not 0 < len(group) <= GROUP_CHARS_MAX:
            raise HeartbeatError(f"consumerGroup is no text of 1 to {GROUP_CHARS_MAX} characters")
        queues = data.get("mqSet") or []
        if not isinstance(queues, list) or len(queues) > QUEUES_PER_REQUEST_MAX:
            raise HeartbeatError(f"mqSet is not a list of at most {QUEUES_PER_REQUEST_MAX}")
        return _LockRequest(group, client_id_of(data, "clientId"), [_queue(item) for item in queues])
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"lock request refused: {error}") from error


def _queue(item: Mapping[str, Any]) -> tuple[str, int]:
    topic, queue_id = (item.get("topic"), item.get("queueId")) if isinstance(item, dict) else (None, None)
    if not isinstance(topic, str) or isinstance(queue_id, bool) or not isinstance(queue_id, int | str):
        raise HeartbeatError("mqSet holds something other than queues")
    return topic, int(queue_id)
