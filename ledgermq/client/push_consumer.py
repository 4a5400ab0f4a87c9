"""The push consumer: shares a topic's queues with the other members of its group and calls a handler for each
message (DefaultMQPushConsumer).
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Unpack

from ledgermq.client.broker_questions import BrokerQuestions
from ledgermq.client.consumption import ConcurrentConsumption, Consumption, OrderedConsumption
from ledgermq.client.errors import ClosedError, MessagingError, WrongSubscriptionError
from ledgermq.client.handling import HANDLER_TIMEOUT_S, Handler, HandlerRunner
from ledgermq.client.hooks import Hook, Hooks
from ledgermq.client.messages import ReceivedMessage
from ledgermq.client.offsets import (
    AtTime,
    GroupOffsets,
    LocalOffsets,
    OffsetStore,
    QueueBounds,
    Start,
    Where,
)
from ledgermq.client.outcomes import Retries
from ledgermq.client.progress import PullLimits
from ledgermq.client.pulling import Puller, check_expression
from ledgermq.client.queue_locks import LOCK_AGAIN_S, LOCK_RENEW_S, QueueLock
from ledgermq.client.queue_runs import QueueRun, Reading
from ledgermq.client.rebalancing import Locks, Shares
from ledgermq.client.send_back import SendBacks
from ledgermq.client.session import Client, ConnectionOptions, Session, Surroundings
from ledgermq.client.subscriptions import (
    ConsumeType,
    Subscription,
    Topics,
    check_group,
    consumer_part,
    subscription_of,
    subscriptions_of,
)
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.tag_filters import SUB_ALL
from remoting.topic_names import RETRY_PREFIX

REBALANCE_S: Final = 20.0
ROUTE_WAIT_S: Final = 2.0
"""Until the route of a topic is asked for again that no name server knows."""
AGAIN_S: Final = 0.5
COMMIT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 10.0

logger = logging.getLogger(__name__)


class PushConsumerOptions(ConnectionOptions, total=False):
    """The keyword arguments of a PushConsumer, beside its group and its topics."""

    ordered: bool
    broadcast: bool
    offsets_file: Path | None
    consume_from: Start
    concurrency: int
    max_reconsume_times: int | None
    suspend_s: float
    handler_timeout_s: float
    close_timeout_s: float
    commit_interval_s: float
    limits: PullLimits
    hooks: Iterable[Hook]
    surroundings: Surroundings | None


class PushConsumer(Client):
    """Calls `handler` with each message of the topics. A message is done when the handler returns; one whose
    handler raises comes again later: see `RetryLater` and `DeadLetter`. After a crash, or when queues change
    hands, some messages come once more: handlers must bear that.

        async with PushConsumer("127.0.0.1:9876", handle, group="billing", topics={"orders": "paid || sent"}):
            await stopped.wait()

    handler: an async function, or one that may block, which runs in a thread.
    group: its members share the queues, stock RocketMQ clients among them; all have the same topics.
    ordered: the messages of a queue one after the other, by one member of the group at a time.
    broadcast: each member gets all messages, without retries; its offsets are in `offsets_file`.
    consume_from: where a group begins that is new to a queue.
    concurrency: handlers at once, of the whole consumer.
    max_reconsume_times: tries after the first; then the message is a dead letter. None: 16, but without end
        when ordered.
    suspend_s: when ordered, the pause before a message is tried again.
    handler_timeout_s: an async handler is cancelled then; the message counts as failed.
    close_timeout_s: how long `close` waits for handlers.
    limits: of what is pulled ahead, for each queue.
    """

    def __init__(
        self,
        namesrv: str,
        handler: Handler,
        *,
        group: str,
        topics: Topics,
        ordered: bool = False,
        broadcast: bool = False,
        offsets_file: Path | None = None,
        consume_from: Start = Where.END,
        concurrency: int = 20,
        max_reconsume_times: int | None = None,
        suspend_s: float = 1.0,
        handler_timeout_s: float = HANDLER_TIMEOUT_S,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        commit_interval_s: float = COMMIT_S,
        limits: PullLimits | None = None,
        hooks: Iterable[Hook] = (),
        surroundings: Surroundings | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        check_group(group)
        if concurrency < 1:
            raise WrongSubscriptionError(f"concurrency {concurrency} is below 1")
        self._surroundings = surroundings or Surroundings()
        self._namesrv = namesrv
        self._handler = handler
        self._group = group
        self._is_ordered = ordered
        self._is_broadcast = broadcast
        self._offsets_file = offsets_file
        self._consume_from = consume_from
        self._concurrency = concurrency
        self._retries = Retries(ordered, broadcast, max_reconsume_times)
        self._suspend_s = suspend_s
        self._handler_timeout_s = handler_timeout_s
        self._close_timeout_s = close_timeout_s
        self._commit_interval_s = commit_interval_s
        self._limits = limits or (PullLimits(span=None) if ordered else PullLimits())
        self._hooks = hooks
        self._connection = connection
        self._subscriptions = self._all_subscriptions(topics)
        self._runs: dict[MessageQueue, QueueRun] = {}
        self._ending: dict[MessageQueue, QueueRun] = {}
        """Queues of other members whose last handler still runs here; their locks are kept."""

    def _all_subscriptions(self, topics: Topics) -> dict[str, Subscription]:
        """What the group has sent back comes by its retry topic. Raises WrongSubscriptionError."""
        now_ms = self._surroundings.now_ms()
        found = subscriptions_of(topics, now_ms)
        if not self._is_broadcast:
            retry = RETRY_PREFIX + self._group
            found[retry] = subscription_of(retry, SUB_ALL, now_ms)
        return found

    # -- start and end

    async def start(self) -> None:
        """Register the consumer and begin. A topic that does not exist yet is waited for.

        Raises: NotSentError: no name server answers. AccessDeniedError, RefusedError: the brokers refuse the
            consumer or its expression. TlsFilesError, WrongSubscriptionError: the file of offsets.
        """
        session = self._open_session(self._namesrv, self._connection, self._surroundings)
        try:
            self._make_parts(session)
            for topic, subscription in self._subscriptions.items():
                await session.route(topic)
                await check_expression(session, self._group, topic, subscription)
            await session.join(self._heartbeat)
        except BaseException:
            self._runner.close()
            await session.close()
            raise
        self._consumption = self._make_consumption(session)
        self._services = [session.spawn(self._balance()), session.spawn(self._commit_regularly())]
        if self._has_locks:
            self._services.append(session.spawn(self._renew_locks()))

    def _make_parts(self, session: Session) -> None:
        self._wanted = asyncio.Event()
        hooks = Hooks(self._hooks, self._group)
        self._runner = HandlerRunner(self._handler, hooks, self._concurrency, self._handler_timeout_s)
        self._store: OffsetStore = (
            LocalOffsets(self._offsets_file) if self._is_broadcast else GroupOffsets(session, self._group)
        )
        self._shares = Shares(session, self._group, is_broadcast=self._is_broadcast)
        self._locks = Locks(session, self._group)
        self._reading = Reading(
            session,
            Puller(session, self._group),
            self._store,
            QueueBounds(session),
            self._consume_from,
            self._limits,
            self._deliver,
            self._restart,
        )
        session.answer(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        questions = BrokerQuestions(
            self._figures(),
            self._subscriptions.values(),
            self._runs,
            self._restart,
            self._runner,
            is_ordered=self._is_ordered,
        )
        questions.answer_in(session)

    def _figures(self) -> dict[str, str]:
        return {
            "PROP_CLIENT_VERSION": "LedgerMQ Python",
            "PROP_CONSUMEORDERLY": str(self._is_ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._surroundings.now_ms()),
            "PROP_CONSUME_TYPE": ConsumeType.PUSH.value,
            "PROP_NAMESERVER_ADDR": self._namesrv,
            "PROP_THREADPOOL_CORE_SIZE": str(self._concurrency),
        }

    def _make_consumption(self, session: Session) -> Consumption:
        backs = SendBacks(session, self._group, self._retries.times_max)
        if not self._is_ordered:
            return ConcurrentConsumption(session, self._runner, self._retries, backs, self._concurrency)
        return OrderedConsumption(
            session, self._runner, self._retries, backs, self._concurrency, self._suspend_s, self._lose
        )

    def _heartbeat(self) -> Mapping[str, Any]:
        start = self._consume_from
        return consumer_part(
            self._group,
            ConsumeType.PUSH,
            self._subscriptions.values(),
            is_broadcast=self._is_broadcast,
            consume_from="CONSUME_FROM_TIMESTAMP" if isinstance(start, AtTime) else start.value,
        )

    async def close(self) -> None:
        """Wait for the handlers that run, up to `close_timeout_s`, then cancel them; commit the offsets and
        leave the group. What was pulled and not handled comes to another member. No task is left, and no
        thread but those whose handler does not end.
        """
        session = self._session
        if session is None or session.is_closed:
            return
        try:
            self._services[0].cancel()
            for run in self._runs.values():
                run.stop_reading()
            await self._consumption.close(self._close_timeout_s)
            await self._commit([*self._runs.values(), *self._ending.values()])
            await self._locks.unlock_all()
        finally:
            for run in self._runs.values():
                run.drop()
            self._runner.close()
            await session.close()

    # -- queues

    @property
    def _has_locks(self) -> bool:
        return self._is_ordered and not self._is_broadcast

    def _open(self) -> Session:
        assert self._session is not None, "a part of it runs"
        return self._session

    def _restart(self, run: QueueRun, offset: int) -> None:
        """Go on at this offset, which an operator has set; what was pulled before counts no more."""
        if self._runs.get(run.queue) is not run:
            return
        logger.warning("%s goes on at the offset %d, which was set", run.queue, offset)
        session = self._open()
        session.spawn(self._consumption.end(run))
        run.drop()
        again = self._begin(run.queue, run.subscription, run.lock, offset)
        session.spawn(self._commit([again]))

    def _members_changed(self, request: RemotingCommand, connection: Connection) -> None:
        """40. The broker waits for no answer."""
        self._wanted.set()

    async def _balance(self) -> None:
        while True:
            self._wanted.clear()
            again_s = REBALANCE_S
            for topic in self._subscriptions:
                try:
                    again_s = min(again_s, await self._balance_topic(topic))
                except ClosedError:
                    return
                except MessagingError as error:
                    logger.warning("the queues of %s cannot be shared out now: %s", topic, error)
                    again_s = AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._wanted.wait()

    async def _balance_topic(self, topic: str) -> float:
        """After how many seconds it is worth to look again. Raises: MessagingError."""
        mine = await self._shares.of_topic(topic)
        if mine is None:
            return ROUTE_WAIT_S
        for queue, run in list(self._runs.items()):
            if queue.topic == topic and queue not in mine:
                del self._runs[queue]
                self._ending[queue] = run
                self._open().spawn(self._hand_over(run))
        new = mine - self._runs.keys() - self._ending.keys()
        granted, asked_s = new, asyncio.get_running_loop().time()
        if self._has_locks and new:
            granted, _ = await self._locks.lock(new)
        for queue in sorted(granted):
            lock = QueueLock(asked_s) if self._has_locks else None
            self._begin(queue, self._subscriptions[topic], lock)
        return REBALANCE_S if mine <= self._runs.keys() else AGAIN_S

    def _begin(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        lock: QueueLock | None,
        start: int | None = None,
    ) -> QueueRun:
        run = self._runs[queue] = QueueRun(self._reading, queue, subscription, lock, start)
        self._consumption.begin(run)
        run.begin()
        return run

    def _deliver(self, run: QueueRun, messages: list[ReceivedMessage]) -> None:
        self._consumption.deliver(run, messages)

    async def _hand_over(self, run: QueueRun) -> None:
        """The next owner begins at the offset that is committed here."""
        try:
            await self._consumption.end(run)
            await self._commit([run])
            if run.lock is not None:
                await self._locks.unlock([run.queue])
        finally:
            del self._ending[run.queue]

    def _lose(self, run: QueueRun) -> None:
        """The broker has not renewed the lock: another client may have the queue."""
        logger.warning("the lock of %s is lost", run.queue)
        run.drop()
        self._open().spawn(self._consumption.end(run))
        if self._runs.get(run.queue) is run:
            del self._runs[run.queue]
            self._wanted.set()

    async def _renew_locks(self) -> None:
        pause_s = LOCK_RENEW_S
        while True:
            await asyncio.sleep(pause_s)
            runs = [*self._runs.values(), *self._ending.values()]
            asked_s = asyncio.get_running_loop().time()
            granted, unknown = await self._locks.lock([run.queue for run in runs])
            pause_s = LOCK_AGAIN_S if unknown else LOCK_RENEW_S
            for run in runs:
                if run.lock is not None and run.queue in granted:
                    run.lock.renewed(asked_s)
                elif run.queue not in unknown and not run.is_dropped:
                    self._lose(run)

    # -- offsets

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval_s)
            await self._commit(self._runs.values())

    async def _commit(self, runs: Iterable[QueueRun]) -> None:
        """What fails is committed at the next time."""
        due = {
            run: offset for run in runs if (offset := run.committable) is not None and offset != run.committed
        }
        failures = await self._store.commit({run.queue: offset for run, offset in due.items()})
        for run, offset in due.items():
            if run.queue not in failures:
                run.committed = offset
        for queue, error in failures.items():
            logger.warning("the offset of %s is not stored: %s", queue, error)
