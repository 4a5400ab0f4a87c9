"""The simple consumer: takes messages that stay invisible to others until they are acknowledged or their time
has ended (POP; RocketMQ 5's SimpleConsumer). Any number of members share every queue, with no rebalancing.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Unpack

from ledgermq.client.errors import (
    ClosedError,
    MessagingError,
    ReceiptExpiredError,
    UnreadableError,
    WrongSubscriptionError,
)
from ledgermq.client.messages import ReceivedMessage, received_message
from ledgermq.client.offsets import Where
from ledgermq.client.pulling import check_expression
from ledgermq.client.session import Answer, Client, ConnectionOptions, Session, Surroundings
from ledgermq.client.subscriptions import (
    ConsumeType,
    Subscription,
    Topics,
    check_group,
    consumer_part,
    subscriptions_of,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.headers.fields import RequestHeader
from remoting.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PopMessageRequestHeader,
)
from remoting.message_body import BodyError
from remoting.pop_receipts import HandleError, PopAnswerError, ReceiptHandle, read_popped
from remoting.route import PERM_READ

MESSAGES_MAX: Final = 32
"""Of one pop."""
ACK_LIMIT_S: Final = 10.0
POP_LIMIT_S: Final = 5.0
POP_ONE_OF_SEVERAL_S: Final = 1.0
AVOIDED_S: Final = 5.0
"""A place that has failed is asked after it again, as long as there are others."""
NOTICE_MAX_S: Final = 15.0
NOTICE_EXTRA_S: Final = 5.0
GIVEN_BACK_MS: Final = 1_000
"""A message that no caller gets is visible again after this time."""
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_ANY_QUEUE: Final = -1
_POPPED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.POLLING_FULL,
    }
)
_ENDED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE})

logger = logging.getLogger(__name__)


class SimpleConsumerOptions(ConnectionOptions, total=False):
    """The keyword arguments of a SimpleConsumer, beside its group and its topics."""

    ordered: bool
    consume_from: Where
    surroundings: Surroundings | None


class Place(NamedTuple):
    """All queues of one topic at one broker: what a pop asks."""

    topic: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What acknowledges a popped message. topic: the consumer's."""

    handle: ReceiptHandle
    topic: str


class SimpleConsumer(Client):
    """Receives messages and acknowledges each by itself.

        async with SimpleConsumer("127.0.0.1:9876", group="billing", topics="orders") as consumer:
            for message in await consumer.receive(invisible_s=30):
                ...
                await consumer.ack(message)

    A message that is not acknowledged within its invisible time comes again, to any member of the group.
    Needs brokers with POP: LedgerMQ, RocketMQ 5. A group has simple consumers only, or none.

    ordered: of each queue only one batch at a time is out, until all of it is acknowledged.
    consume_from: where a group begins that is new to a queue.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str,
        topics: Topics,
        ordered: bool = False,
        consume_from: Where = Where.BEGINNING,
        surroundings: Surroundings | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        check_group(group)
        self._namesrv = namesrv
        self._group = group
        self._is_ordered = ordered
        self._consume_from = consume_from
        self._surroundings = surroundings or Surroundings()
        self._subscriptions = subscriptions_of(topics, self._surroundings.now_ms())
        self._connection = connection
        self._turn = 0
        self._avoided: dict[Place, float] = {}

    async def start(self) -> None:
        """Register the consumer at the brokers of its topics.

        Raises: NotSentError: no name server answers. AccessDeniedError, RefusedError: the brokers refuse the
            consumer or its expression. TlsFilesError.
        """
        session = self._open_session(self._namesrv, self._connection, self._surroundings)
        try:
            for topic, subscription in self._subscriptions.items():
                await session.route(topic)
                await check_expression(session, self._group, topic, subscription)
            await session.join(self._heartbeat)
        except BaseException:
            await session.close()
            raise

    async def close(self) -> None:
        """Calls under way end with ClosedError; what they have popped comes again after its invisible time.
        No task is left.
        """
        if self._session is not None:
            await self._session.close()

    def _heartbeat(self) -> Mapping[str, Any]:
        return consumer_part(
            self._group,
            ConsumeType.POP,
            self._subscriptions.values(),
            consume_from=self._consume_from.value,
        )

    # -- receive

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = 60.0, wait_s: float = 20.0
    ) -> list[ReceivedMessage]:
        """The next messages, of one topic and broker; none after `wait_s` without any. The places are asked
        in turn, each call begins behind the one that the call before got messages of. Waiting takes no
        message: brokers notify of new ones, and are asked then.

        Cancelled, it loses nothing: what a broker hands out after that is given back, and comes again after
        one second, or after `invisible_s` if the broker cannot be reached.

        Raises: MessagingError: WrongSubscriptionError for numbers that no broker takes.
        """
        session = self._running()
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise WrongSubscriptionError(f"{max_messages} messages are not 1 to {MESSAGES_MAX}")
        loop = asyncio.get_running_loop()
        end_s, pause_s = loop.time() + wait_s, _PAUSE_FIRST_S
        while True:
            places = self._in_turn(await self._places(session), loop.time())
            found = await self._take(session, places, max_messages, round(invisible_s * 1000))
            left_s = end_s - loop.time()
            if found or left_s <= 0:
                return found
            is_notified = await self._await_notice(session, places, min(left_s, NOTICE_MAX_S))
            # Another member was quicker, or the message has another tag; or no broker can be asked.
            if is_notified or not places:
                await asyncio.sleep(min(pause_s, max(0.0, end_s - loop.time())))
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _places(self, session: Session) -> list[Place]:
        """Raises: NotSentError."""
        places = []
        for topic in self._subscriptions:
            route = await session.route(topic)
            data = () if route is None else route.queue_datas
            places += [Place(topic, each.broker_name) for each in data if each.perm & PERM_READ]
        return sorted(set(places))

    def _in_turn(self, places: list[Place], now_s: float) -> list[Place]:
        """Those that answer, or all where none does."""
        self._avoided = {place: until_s for place, until_s in self._avoided.items() if until_s > now_s}
        places = [place for place in places if place not in self._avoided] or places
        at = self._turn % len(places) if places else 0
        return places[at:] + places[:at]

    async def _take(
        self, session: Session, places: list[Place], max_messages: int, invisible_ms: int
    ) -> list[ReceivedMessage]:
        """Raises: MessagingError, when all places fail."""
        errors = []
        limit_s = POP_LIMIT_S if len(places) == 1 else POP_ONE_OF_SEVERAL_S
        for place in places:
            try:
                found = await self._pop(session, place, max_messages, invisible_ms, limit_s)
            except ClosedError:
                raise
            except MessagingError as error:
                errors.append(error)
                self._avoided[place] = asyncio.get_running_loop().time() + AVOIDED_S
                continue
            self._turn += 1
            if found:
                return found
        if errors and len(errors) == len(places):
            raise errors[0]
        return []

    async def _pop(
        self, session: Session, place: Place, max_messages: int, invisible_ms: int, limit_s: float
    ) -> list[ReceivedMessage]:
        """Raises: MessagingError."""
        popping = session.spawn(self._ask_pop(session, place, max_messages, invisible_ms, limit_s))
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            if popping.cancelled():
                raise ClosedError("the consumer is closed") from None
            session.spawn(self._give_back(popping))
            raise

    async def _ask_pop(
        self, session: Session, place: Place, max_messages: int, invisible_ms: int, limit_s: float
    ) -> list[ReceivedMessage]:
        subscription = self._subscriptions[place.topic]
        header = PopMessageRequestHeader(
            consumer_group=self._group,
            topic=place.topic,
            queue_id=_ANY_QUEUE,
            max_msg_nums=max_messages,
            invisible_time_ms=invisible_ms,
            poll_time_ms=0,
            init_mode=int(self._consume_from is Where.END),
            exp_type=subscription.expression_type,
            exp=subscription.expression,
            order=self._is_ordered,
        )
        answer = await self._ask(
            session, place, RequestCode.POP_MESSAGE, header, limit_s=limit_s, accepted=_POPPED
        )
        if answer.command.code != ResponseCode.SUCCESS:
            return []
        try:
            popped = read_popped(answer.command, place.broker_name, in_order=self._is_ordered)
            messages = [received_message(record, place.broker_name) for _, record in popped]
        except (PopAnswerError, BodyError) as error:
            raise UnreadableError(f"messages of {place.broker_name} cannot be read: {error}") from error
        for message, (handle, _) in zip(messages, popped, strict=True):
            message.topic, message.handle = place.topic, Receipt(handle, place.topic)
        return self._wanted(session, subscription, messages)

    def _wanted(
        self, session: Session, subscription: Subscription, messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """A message whose tag only has a wanted one's hash is acknowledged: the group does not want it."""
        for message in messages:
            if not subscription.wants(message):
                session.spawn(self._quietly(self.ack(message)))
        return [each for each in messages if subscription.wants(each)]

    async def _await_notice(self, session: Session, places: list[Place], wait_s: float) -> bool:
        """Whether a broker notified of a message within the time, or may have."""
        if not places:
            return False
        waiting = [session.spawn(self._notice(session, place, wait_s)) for place in places]
        try:
            for each in asyncio.as_completed(waiting, timeout=wait_s + NOTICE_EXTRA_S):
                if await each:
                    return True
        except TimeoutError:
            return True
        except asyncio.CancelledError:
            if session.is_closed:
                raise ClosedError("the consumer is closed") from None
            raise
        finally:
            for task in waiting:
                task.cancel()
        return False

    async def _notice(self, session: Session, place: Place, wait_s: float) -> bool:
        subscription = self._subscriptions[place.topic]
        header = NotificationRequestHeader(
            consumer_group=self._group,
            topic=place.topic,
            queue_id=_ANY_QUEUE,
            poll_time_ms=round(wait_s * 1000),
            order=self._is_ordered,
            exp_type=subscription.expression_type,
            exp=subscription.expression,
        )
        try:
            answer = await self._ask(
                *(session, place, RequestCode.NOTIFICATION, header),
                limit_s=wait_s + NOTICE_EXTRA_S,
                try_s=wait_s + NOTICE_EXTRA_S,
            )
        except MessagingError as error:
            logger.debug("%s does not say when messages come: %s", place.broker_name, error)
            return True  # the pop, which comes next, says what is wrong
        return answer.command.ext_fields.get("hasMsg") == "true"

    async def _give_back(self, popping: "asyncio.Task[list[ReceivedMessage]]") -> None:
        """What the broker has handed out for a caller that was cancelled."""
        for message in await popping:
            await self._quietly(self._change(message, GIVEN_BACK_MS))

    async def _quietly(self, work: Any) -> None:
        try:
            await work
        except MessagingError as error:
            logger.info("a popped message comes again after its invisible time: %s", error)

    # -- what ends a message

    async def ack(self, message: ReceivedMessage) -> None:
        """The group does not get the message again.

        Raises: ReceiptExpiredError: its invisible time has ended: it may be handled by another member.
            MessagingError.
        """
        receipt = _receipt_of(message)
        header = AckMessageRequestHeader(
            consumer_group=self._group,
            topic=self._stored_topic(receipt),
            queue_id=receipt.handle.queue_id,
            extra_info=str(receipt.handle),
            offset=receipt.handle.offset,
        )
        await self._end(receipt, RequestCode.ACK_MESSAGE, header)

    async def change_invisible(self, message: ReceivedMessage, seconds: float) -> None:
        """The message stays invisible for so long from now on; 0 gives it back. It can still be acknowledged.

        Raises: as `ack`.
        """
        await self._change(message, max(1, round(seconds * 1000)))

    async def _change(self, message: ReceivedMessage, invisible_ms: int) -> None:
        receipt = _receipt_of(message)
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=self._stored_topic(receipt),
            queue_id=receipt.handle.queue_id,
            extra_info=str(receipt.handle),
            offset=receipt.handle.offset,
            invisible_time_ms=invisible_ms,
        )
        answer = await self._end(receipt, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        if answer.command.code == ResponseCode.SUCCESS:
            try:
                message.handle = Receipt(receipt.handle.changed(answer.command), receipt.topic)
            except PopAnswerError as error:
                raise UnreadableError(f"the new receipt cannot be read: {error}") from error

    async def _end(self, receipt: Receipt, code: RequestCode, header: RequestHeader) -> Answer:
        """After a repeated request an ended receipt is the first one's doing."""
        place = Place(receipt.topic, receipt.handle.broker_name)
        answer = await self._ask(self._running(), place, code, header, limit_s=ACK_LIMIT_S, accepted=_ENDED)
        if answer.command.code == ResponseCode.NO_MESSAGE and not answer.may_be_repeated:
            raise ReceiptExpiredError(answer.command.remark or "the receipt is not valid any more")
        return answer

    async def _ask(
        self,
        session: Session,
        place: Place,
        code: RequestCode,
        header: RequestHeader,
        *,
        limit_s: float,
        accepted: frozenset[int] = frozenset({ResponseCode.SUCCESS}),
        try_s: float | None = None,
    ) -> Answer:
        command = session.command(code, header)
        return await session.ask(
            place.broker_name, place.topic, command, limit_s=limit_s, accepted=accepted, try_s=try_s
        )

    def _stored_topic(self, receipt: Receipt) -> str:
        """A message that comes again is in a retry topic."""
        try:
            return receipt.handle.topic(receipt.topic, self._group)
        except HandleError as error:
            raise WrongSubscriptionError(str(error)) from error


def _receipt_of(message: ReceivedMessage) -> Receipt:
    """Raises WrongSubscriptionError."""
    if not isinstance(message.handle, Receipt):
        raise WrongSubscriptionError("only a message from `receive` can be acknowledged")
    return message.handle
