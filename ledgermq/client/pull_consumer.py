"""The pull consumer: reads the queues that its user assigns, from where the user says
(DefaultLitePullConsumer with `assign`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Unpack

from ledgermq.client.errors import (
    ClosedError,
    MessagingError,
    RefusedError,
    TopicNotFoundError,
    WrongSubscriptionError,
)
from ledgermq.client.messages import ReceivedMessage
from ledgermq.client.offsets import AtTime, GroupOffsets, QueueBounds, Start, Where, first_offset
from ledgermq.client.progress import size_of
from ledgermq.client.pulling import Puller, check_expression, until_done
from ledgermq.client.rebalancing import readable_queues
from ledgermq.client.session import Client, ConnectionOptions, Session, Surroundings
from ledgermq.client.subscriptions import (
    ConsumeType,
    Sql,
    Subscription,
    check_group,
    consumer_part,
    subscription_of,
)
from remoting.client.routes import MessageQueue, Retry, retry_of
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.tag_filters import SUB_ALL

AHEAD_MESSAGES: Final = 10_000
AHEAD_BYTES: Final = 64 * 1024 * 1024
TURN_MESSAGES: Final = 32
"""Of one queue, before another one's are taken."""

logger = logging.getLogger(__name__)


class PullConsumerOptions(ConnectionOptions, total=False):
    """The keyword arguments of a PullConsumer."""

    group: str
    start_at: Start
    ahead_messages_max: int
    ahead_bytes_max: int
    surroundings: Surroundings | None


@dataclass(eq=False, slots=True)
class _Assigned:
    """One queue. start: where to begin; None: at the group's offset. pulled_to: the offset of the next pull,
    None until it is known.
    """

    queue: MessageQueue
    subscription: Subscription
    start: Start | int | None
    pulled_to: int | None = None
    messages: deque[tuple[ReceivedMessage, int]] = field(default_factory=deque)
    """With their sizes."""
    reader: asyncio.Task[None] | None = None
    failure: MessagingError | None = None

    @property
    def position(self) -> int | None:
        """The offset of the next message for the user."""
        if self.messages:
            return self.messages[0][0].queue_offset
        return self.pulled_to


class PullConsumer(Client):
    """Reads queues by itself: no other consumer of the group takes part.

        async with PullConsumer("127.0.0.1:9876", group="export") as consumer:
            await consumer.assign(await consumer.queues("orders"))
            async for message in consumer:
                ...

    The readers follow their brokers' leaders over failovers.

    group: whose offsets `commit` stores.
    start_at: where a queue begins of which the group has no offset, and that was not sought.
    ahead_messages_max, ahead_bytes_max: what is pulled ahead, of all queues; one answer of each queue may go
        over it.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str = "DEFAULT_CONSUMER",
        start_at: Start = Where.BEGINNING,
        ahead_messages_max: int = AHEAD_MESSAGES,
        ahead_bytes_max: int = AHEAD_BYTES,
        surroundings: Surroundings | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        check_group(group)
        if min(ahead_messages_max, ahead_bytes_max) < 1:
            raise WrongSubscriptionError("at least one message and one byte are pulled ahead")
        self._namesrv = namesrv
        self._group = group
        self._start_at = start_at
        self._ahead_messages_max = ahead_messages_max
        self._ahead_bytes_max = ahead_bytes_max
        self._surroundings = surroundings or Surroundings()
        self._connection = connection
        self._assigned: dict[MessageQueue, _Assigned] = {}
        self._ahead_messages = self._ahead_bytes = 0
        self._turns: deque[_Assigned] = deque()
        """The assigned queues; messages are taken of the first one."""
        self._taken_in_turn = 0
        self._is_member = False

    async def start(self) -> None:
        """Connections are made by the first call that needs one. Raises TlsFilesError."""
        session = self._open_session(self._namesrv, self._connection, self._surroundings)
        self._store = GroupOffsets(session, self._group)
        self._bounds = QueueBounds(session)
        self._puller = Puller(session, self._group)
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()

    async def close(self) -> None:
        """Calls under way end with ClosedError. Nothing is committed, and no task is left."""
        if self._session is not None:
            await self._session.close()
            self._changed.set()

    # -- queues and offsets

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues with messages to read, in the order of Java's clients.

        Raises: TopicNotFoundError, MessagingError.
        """
        route = await self._running().route(topic)
        if route is None:
            raise TopicNotFoundError(
                f"no name server knows the topic {topic}", ResponseCode.TOPIC_NOT_EXIST, "no route"
            )
        return readable_queues(route, topic)

    async def assign(self, queues: Iterable[MessageQueue], wanted: str | Sql = SUB_ALL) -> None:
        """Read these queues from now on, and no others. A queue that was assigned before goes on where it
        is, if as much of it is wanted.

        wanted: tags (`A || B`, `*` for all) or an `Sql`.

        Raises: WrongSubscriptionError, AccessDeniedError, RefusedError: the brokers do not evaluate the
            expression. NotSentError: no name server answers.
        """
        session = self._running()
        now_ms = self._surroundings.now_ms()
        new: dict[MessageQueue, _Assigned] = {}
        for queue in queues:
            subscription = subscription_of(queue.topic, wanted, now_ms)
            known = self._assigned.get(queue)
            is_same = known is not None and known.subscription.expression == subscription.expression
            new[queue] = known if known is not None and is_same else _Assigned(queue, subscription, None)
        for each in self._assigned.values():
            if new.get(each.queue) is not each:
                self._stop(each)
        self._assigned = new
        self._turns = deque(new.values())
        for each in new.values():
            if each.reader is None:
                self._begin(session, each)
        for topic, subscription in {each.queue.topic: each.subscription for each in new.values()}.items():
            await session.route(topic)
            await check_expression(session, self._group, topic, subscription)
        if new and not self._is_member:
            self._is_member = True
            await session.join(self._heartbeat)

    def seek(self, queue: MessageQueue, to: Start | int) -> None:
        """Go on at this offset, at `Where.BEGINNING`, `Where.END`, or `AtTime`. What was pulled ahead of the
        queue is dropped. Raises: WrongSubscriptionError, when the queue is not assigned.
        """
        session, known = self._running(), self._known(queue)
        self._stop(known)
        again = self._assigned[queue] = _Assigned(queue, known.subscription, to)
        self._turns = deque(self._assigned.values())
        self._begin(session, again)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message; None until it is known. Raises: WrongSubscriptionError."""
        each = self._known(queue)
        return each.start if isinstance(each.start, int) and each.pulled_to is None else each.position

    async def offset_at(self, queue: MessageQueue, unix_ms: int) -> int:
        """The offset of the first message that was stored at this time or later. Raises: MessagingError."""
        self._running()
        return await self._bounds.find(queue, AtTime(unix_ms))

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The offset of the oldest message, and the offset that the next new one will get.

        Raises: MessagingError.
        """
        self._running()
        return await self._bounds.find(queue, Where.BEGINNING), await self._bounds.find(queue, Where.END)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset; None where it has none. Raises: MessagingError."""
        self._running()
        return await self._store.stored(queue)

    async def commit(self) -> None:
        """Store the positions of all assigned queues: a consumer of the group that begins later goes on
        there. Raises: MessagingError; the other queues' are stored.
        """
        self._running()
        due = {queue: offset for queue in self._assigned if (offset := self.position(queue)) is not None}
        failures = await self._store.commit(due)
        for error in failures.values():
            raise error

    # -- messages

    async def poll(self, max_messages: int = 500, *, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """The next messages, of one queue or several, each queue's in order; none after the time without any.
        Cancelled, it takes none.

        Raises: MessagingError, when a queue cannot be read for a reason that does not pass.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := self._take(max_messages)):
                    await self._change()
                return found
        except TimeoutError:
            return []

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message of any queue, for ever. Raises: as `poll`."""
        while not (found := self._take(1)):
            await self._change()
        return found[0]

    async def read_to_end(self) -> AsyncIterator[ReceivedMessage]:
        """The messages of the assigned queues up to those that are the newest now. Raises: as `poll`."""
        self._running()
        ends = {queue: await self._bounds.find(queue, Where.END) for queue in list(self._assigned)}
        while ends:
            found = self._take(1, ends)
            if found:
                yield found[0]
                continue
            ends = {queue: end for queue, end in ends.items() if not self._is_at(queue, end)}
            if ends:
                await self._change()

    def _is_at(self, queue: MessageQueue, end: int) -> bool:
        """A queue that is not assigned any more is at its end."""
        each = self._assigned.get(queue)
        if each is None:
            return True
        position = each.position
        return position is not None and position >= end

    async def _change(self) -> None:
        """Wait until a reader has something. Raises ClosedError."""
        self._running()
        self._changed.clear()
        await self._changed.wait()
        self._running()

    def _take(self, most: int, ends: Mapping[MessageQueue, int] | None = None) -> list[ReceivedMessage]:
        """From the queues in turn, some of each. Raises: MessagingError."""
        self._running()
        found: list[ReceivedMessage] = []
        for _ in range(len(self._turns)):
            each = self._turns[0]
            if each.failure is not None and not each.messages and not found:
                self._turns.rotate(-1)  # the others can be read on
                raise each.failure
            end = None if ends is None else ends.get(each.queue, -1)
            room = min(most - len(found), TURN_MESSAGES - self._taken_in_turn)
            taken = self._take_of(each, room, end)
            found += taken
            self._taken_in_turn += len(taken)
            if len(found) == most and self._taken_in_turn < TURN_MESSAGES:
                break
            self._turns.rotate(-1)
            self._taken_in_turn = 0
            if len(found) == most:
                break
        return found

    def _take_of(self, each: _Assigned, most: int, end: int | None) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while each.messages and len(found) < most:
            message, size_bytes = each.messages[0]
            if end is not None and message.queue_offset >= end:
                break
            each.messages.popleft()
            found.append(message)
            self._ahead_messages -= 1
            self._ahead_bytes -= size_bytes
        if found:
            self._has_room.set()
        return found

    def _drop(self, each: _Assigned) -> None:
        """What was pulled ahead of the queue."""
        self._take_of(each, len(each.messages), None)

    # -- readers

    def _begin(self, session: Session, each: _Assigned) -> None:
        each.reader = session.spawn(self._read(each))

    def _stop(self, each: _Assigned) -> None:
        if each.reader is not None:
            each.reader.cancel()
        self._drop(each)

    async def _read(self, each: _Assigned) -> None:
        try:
            await self._read_on(each)
        except ClosedError:
            pass
        except MessagingError as error:
            each.failure = error
        self._changed.set()

    async def _read_on(self, each: _Assigned) -> None:
        """Raises: MessagingError, when another try does not help."""
        what = f"reading {each.queue}"
        each.pulled_to = await until_done(partial(self._first, each), what, is_final)
        self._changed.set()
        while True:
            while self._is_full():
                self._has_room.clear()
                await self._has_room.wait()
            pull = partial(self._puller.pull, each.queue, each.pulled_to, each.subscription)
            pulled = await until_done(pull, what, is_final)
            if pulled.is_reset:
                logger.warning("%s goes on at the offset %d, which was set", each.queue, pulled.next_offset)
                self._drop(each)
            else:
                self._add(each, pulled.messages, each.pulled_to)
            each.pulled_to = pulled.next_offset
            self._changed.set()

    def _add(self, each: _Assigned, messages: Sequence[ReceivedMessage], pulled_to: int) -> None:
        """An answer may begin before the offset that was asked for."""
        for message in messages:
            if message.queue_offset >= pulled_to:
                size_bytes = size_of(message)
                each.messages.append((message, size_bytes))
                self._ahead_messages += 1
                self._ahead_bytes += size_bytes

    def _is_full(self) -> bool:
        return self._ahead_messages >= self._ahead_messages_max or self._ahead_bytes >= self._ahead_bytes_max

    async def _first(self, each: _Assigned) -> int:
        if isinstance(each.start, int):
            return each.start
        if each.start is not None:
            return await self._bounds.find(each.queue, each.start)
        return await first_offset(self._store, self._bounds, each.queue, self._start_at)

    def _heartbeat(self) -> Mapping[str, Any]:
        wanted = {each.queue.topic: each.subscription for each in self._assigned.values()}
        return consumer_part(self._group, ConsumeType.PULL, wanted.values())

    def _known(self, queue: MessageQueue) -> _Assigned:
        known = self._assigned.get(queue)
        if known is None:
            raise WrongSubscriptionError(f"{queue} is not assigned")
        return known


def is_final(error: MessagingError) -> bool:
    """Whether the brokers refuse for a reason that does not pass. One of several tries was."""
    if not isinstance(error, RefusedError):
        return False
    return retry_of(RemotingCommand(error.code, remark=error.remark)) is Retry.NONE
