"""The producer: sends, each acknowledged once a majority has the message."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final, Unpack

from ledgermq.client.errors import (
    MessagingError,
    NotSentError,
    RefusedError,
    TopicNotFoundError,
    UnreadableError,
    WrongMessageError,
)
from ledgermq.client.hooks import Hook, Hooks
from ledgermq.client.idempotent import NumberedSends
from ledgermq.client.messages import (
    BODY_BYTES_MAX,
    Compression,
    Message,
    Packed,
    ReceivedMessage,
    SendResult,
    batch_part,
    check_topic,
    pack,
)
from ledgermq.client.requests import Replies, reply_to
from ledgermq.client.session import Client, ConnectionOptions, Session, Surroundings, Tries
from ledgermq.client.transactions import (
    PREPARED,
    PRODUCER_GROUP,
    TRANSACTION,
    Transaction,
    TransactionListener,
    TransactionOutcome,
    Transactions,
)
from remoting.client.routes import DEFAULT_QUEUES_MAX, MessageQueue, Retry, retry_of
from remoting.client.send_requests import batch_command
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.headers.send import RecallMessageRequestHeader
from remoting.recall_handle import HandleError, decode_handle
from remoting.record import tags_code
from remoting.route import DEFAULT_TOPIC, PERM_WRITE, TopicRoute
from remoting.unique_keys import PROCESS_BYTES, UniqueKeys

STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
IN_FLIGHT_MAX: Final = 10_000
"""Sends under way; a further one waits."""

logger = logging.getLogger(__name__)


class ProducerOptions(ConnectionOptions, total=False):
    """The keyword arguments of a Producer."""

    group: str
    send_timeout_s: float
    in_flight_max: int
    compression: Compression | None
    creates_topics: bool
    idempotent: bool
    transaction_listener: TransactionListener | None
    hooks: Iterable[Hook]
    surroundings: Surroundings | None


class Producer(Client):
    """Sends messages. `async with Producer("127.0.0.1:9876") as producer: await producer.send(...)`.

    group: the producer group; brokers ask any of its members about unended transactions.
    send_timeout_s: a send with all its tries.
    in_flight_max: sends under way; a further one waits until one has ended.
    creates_topics: a topic that does not exist is made by the first send, where brokers allow it.
    idempotent: the messages of each queue are numbered, and a try after a lost answer stores none twice. For
        LedgerMQ only; without compression, delays and transactions.
    transaction_listener: for `send_in_transaction`, and for the brokers' questions about transactions.
    hooks: see `ledgermq.client.hooks`.

    Made anywhere, used on the loop on which it was started. Cancelling a send leaves nothing behind in the
    client; the message may be in the log.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str = "DEFAULT_PRODUCER",
        send_timeout_s: float = 10.0,
        in_flight_max: int = IN_FLIGHT_MAX,
        compression: Compression | None = None,
        creates_topics: bool = True,
        idempotent: bool = False,
        transaction_listener: TransactionListener | None = None,
        hooks: Iterable[Hook] = (),
        surroundings: Surroundings | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        self._namesrv = namesrv
        self._group = group
        self._send_timeout_s = send_timeout_s
        self._places = asyncio.Semaphore(in_flight_max)
        self._compression = compression
        self._creates_topics = creates_topics
        self._is_idempotent = idempotent
        self._listener = transaction_listener
        self._hooks = Hooks(hooks, group)
        self._surroundings = surroundings or Surroundings()
        self._connection = connection
        self._is_member = False
        self._queues: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}
        self._turn = self._surroundings.rng.randrange(1 << 16)
        self._ids = UniqueKeys(self._surroundings.rng.randbytes(PROCESS_BYTES), self._surroundings.now_ms)

    async def start(self) -> None:
        """Connections are made by the first send. Raises TlsFilesError."""
        session = self._open_session(self._namesrv, self._connection, self._surroundings)
        check = None if self._listener is None else self._listener.check
        self._transactions = Transactions(session, self._group, check, self._send_timeout_s)
        self._replies = Replies(session)
        self._numbered = NumberedSends(session, self._group, self._send_timeout_s)

    async def close(self) -> None:
        """Sends under way end with ClosedError. No task and no connection is left."""
        if self._session is None or self._session.is_closed:
            return
        if self._is_idempotent:
            with suppress(MessagingError):
                await self._numbered.close()
        await self._session.close()

    # -- sends

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Return once a majority has the message. Tries again until it has, for `send_timeout_s`; where an
        answer was lost, the message may be stored twice, with the same id.

        queue: None chooses: by the message's ordering key, else one after the other.

        Raises: MessagingError, whose `is_retry_safe` says whether the message is certainly not stored.
        """
        session = self._running()
        message = self._hooks.own(message)
        with self._hooks.sending(message) as span:
            async with self._places:
                if self._is_idempotent:
                    result = await self._send_numbered(session, message, queue)
                else:
                    packed = pack(message, self._ids.next(), self._compression)
                    result = await self._send_packed(session, message, packed, queue)
            span.sent(result)
        return result

    async def _send_packed(
        self, session: Session, message: Message, packed: Packed, queue: MessageQueue | None
    ) -> SendResult:
        """Raises: MessagingError."""
        answer, found, tries = await self._deliver(
            session, message, queue, lambda at: self._command(message, packed, at)
        )
        return _result(packed.message_id, found, answer, tries)

    async def _send_numbered(
        self, session: Session, message: Message, queue: MessageQueue | None
    ) -> SendResult:
        """Raises: MessagingError."""
        _check_undelayed(message)
        packed = pack(message, self._ids.next())
        target = queue or await self._choose(session, message, frozenset())
        stored = await self._numbered.send(target, batch_part(message, packed, target.queue_id))
        return SendResult(packed.message_id, "", target, stored.offset, stored.tries)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all of them are stored in one queue, or none. Not for
        delayed ones. Raises: as `send`.
        """
        session = self._running()
        if not messages:
            return []
        own = [self._hooks.own(each) for each in messages]
        with ExitStack() as stack:
            spans = [stack.enter_context(self._hooks.sending(each)) for each in own]
            results = await self._send_batch(session, own, queue)
            for span, result in zip(spans, results, strict=True):
                span.sent(result)
        return results

    async def _send_batch(
        self, session: Session, messages: Sequence[Message], queue: MessageQueue | None
    ) -> list[SendResult]:
        """Raises: MessagingError."""
        packed = [pack(each, self._ids.next()) for each in messages]
        _check_batch(messages, packed)
        parts = [batch_part(*each) for each in zip(messages, packed, strict=True)]
        size = sum(map(len, parts))
        if size > BODY_BYTES_MAX:
            raise WrongMessageError(f"the batch has {size} bytes; {BODY_BYTES_MAX} are possible")
        first = messages[0]
        async with self._places:
            answer, found, tries = await self._deliver(
                session,
                first,
                queue,
                lambda at: batch_command(self._group, at, parts, self._surroundings.now_ms()),
            )
        result = _result(packed[0].message_id, found, answer, tries)
        assert result.queue_offset is not None, "every answer to a batch has one"
        offset_ids = result.offset_message_id.split(",")
        return [
            SendResult(each.message_id, offset_id, found, result.queue_offset + number, tries)
            for number, (each, offset_id) in enumerate(zip(packed, offset_ids, strict=True))
        ]

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an acknowledgement: the message may be lost. Raises: MessagingError, where no leader
        is known.
        """
        session = self._running()
        packed = pack(message, self._ids.next(), self._compression)
        target = queue or await self._choose(session, message, frozenset())
        address = await session.find_leader(target.broker_name, message.topic)
        try:
            connection = await session.client.connect(address, session.request_timeout_s)
            command = self._command(message, packed, target)
            session.client.sign(command)
            connection.send_oneway(command)
        except RemotingError as error:
            session.failed(target.broker_name, message.topic)
            raise NotSentError(f"a send to {message.topic}: {error}") from error

    # -- transactions, requests

    async def transaction(self, message: Message) -> Transaction:
        """Prepare a message, which no consumer sees until the transaction is committed:

            async with await producer.transaction(message):
                ...  # the own work; an error rolls back

        Raises: as `send`.
        """
        session = self._running()
        await self._join(session, message.topic)
        properties = {**message.properties, TRANSACTION: "true", PRODUCER_GROUP: self._group}
        half = replace(message, properties=properties)
        with self._hooks.sending(half) as span:
            packed = pack(half, self._ids.next(), self._compression)
            packed = replace(packed, sys_flag=packed.sys_flag | PREPARED)
            async with self._places:
                result = await self._send_packed(session, half, packed, None)
            span.sent(result)
        return Transaction(self._transactions, message, result)

    async def send_in_transaction(self, message: Message) -> tuple[SendResult, TransactionOutcome]:
        """Prepare the message, have the listener do its work, and end the transaction as it says.

        Raises: as `send`; what the listener raises, after which the broker asks its `check`.
        """
        if self._listener is None:
            raise ValueError("a transaction needs a transaction_listener")
        transaction = await self.transaction(message)
        outcome = await self._listener.execute(message, transaction.result)
        if outcome is not TransactionOutcome.UNKNOWN:
            await transaction.end(outcome)
        return transaction.result, outcome

    async def request(self, message: Message, *, timeout_s: float = 3.0) -> ReceivedMessage:
        """Send a message and return the reply that its consumer sends. Raises: as `send`; UncertainError
        when no reply came in time.
        """
        session = self._running()
        await self._join(session, message.topic)
        end_s = asyncio.get_running_loop().time() + timeout_s
        request_id, properties = self._replies.expect(timeout_s)
        try:
            await self.send(replace(message, properties={**message.properties, **properties}))
            return await self._replies.wait(request_id, end_s - asyncio.get_running_loop().time())
        finally:
            self._replies.give_up(request_id)

    async def reply(self, request: ReceivedMessage, body: bytes) -> SendResult:
        """Answer a request that a consumer got. Raises: as `send`; RefusedError when its sender is gone."""
        session = self._running()
        message = reply_to(request, body)
        queues = await self._queues_of(session, message.topic)
        near = [each for each in queues if each.broker_name == request.queue.broker_name]
        packed = pack(message, self._ids.next())
        async with self._places:
            answer, found, tries = await self._deliver(
                session,
                message,
                near[0] if near else None,
                lambda at: self._command(message, packed, at, RequestCode.SEND_REPLY_MESSAGE_V2),
            )
        return _result(packed.message_id, found, answer, tries)

    async def recall(self, topic: str, handle: str) -> str:
        """Take back a message for a later time, by its SendResult's `recall_handle`; returns its id.

        Raises: MessagingError; RefusedError where it was delivered, or the broker does not allow it.
        """
        session = self._running()
        try:
            broker_name = decode_handle(handle).broker_name
        except HandleError as error:
            raise WrongMessageError(str(error)) from error
        header = RecallMessageRequestHeader(topic, handle, self._group)
        command = session.command(RequestCode.RECALL_MESSAGE, header)
        answer = await session.ask(broker_name, topic, command, limit_s=self._send_timeout_s)
        return answer.command.ext_fields.get("msgId", "")

    async def _join(self, session: Session, topic: str) -> None:
        """Brokers must know the group's members before they can ask or reply."""
        await self._queues_of(session, topic)
        if not self._is_member:
            self._is_member = True
            await session.join(lambda: {"producerDataSet": [{"groupName": self._group}]})

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that take messages, in the same order for every client. Raises: MessagingError."""
        return list(await self._queues_of(self._running(), topic))

    async def _deliver(
        self,
        session: Session,
        message: Message,
        queue: MessageQueue | None,
        command_for: Callable[[MessageQueue], RemotingCommand],
    ) -> tuple[RemotingCommand, MessageQueue, int]:
        """The answer that the message is stored, the queue, and the number of tries.

        A message without a queue or key of its own goes to another broker after a failure: it need not wait
        for a new leader. Raises: MessagingError.
        """
        now_s = asyncio.get_running_loop().time()
        tries = Tries(f"a send to {message.topic}", now_s + self._send_timeout_s, now_s)
        failed: set[str] = set()
        while True:
            try:
                target = queue or await self._choose(session, message, failed)
                address = await session.find_leader(target.broker_name, message.topic)
            except NotSentError as error:
                await tries.unroutable(error)
                continue
            try:
                limit_s = tries.left_s(session.request_timeout_s)
                answer = await session.client.invoke(address, command_for(target), limit_s)
            except RemotingError as error:
                self._running()
                failed.add(target.broker_name)
                session.failed(target.broker_name, message.topic)
                await tries.unanswered(error)
                continue
            if is_stored(answer):
                return answer, target, tries.count
            failed.add(target.broker_name)
            if retry_of(answer) in (Retry.NEW_LEADER, Retry.UNCERTAIN):
                session.failed(target.broker_name, message.topic)
            await tries.refused(answer, address)

    async def _choose(
        self, session: Session, message: Message, failed: "set[str] | frozenset[str]"
    ) -> MessageQueue:
        """Raises: MessagingError."""
        queues = await self._queues_of(session, message.topic)
        if message.ordering_key is not None:
            return queues[abs(tags_code(message.ordering_key)) % len(queues)]
        self._turn += 1
        if not failed and session.has_all_leaders:
            return queues[self._turn % len(queues)]
        usable = [
            each
            for each in queues
            if each.broker_name not in failed and session.leader(each.broker_name) is not None
        ]
        chosen = usable or queues
        return chosen[self._turn % len(chosen)]

    async def _queues_of(self, session: Session, topic: str) -> list[MessageQueue]:
        """Those of brokers without a leader too, so that a key keeps its queue. Raises: MessagingError."""
        check_topic(topic)
        route = await session.route(topic)
        if route is None:
            return await self._queues_to_make(session, topic)
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            known = self._queues[topic] = (route, publish_queues_of(route, topic))
        if not known[1]:
            words = f"no broker has the permission to write to the topic {topic}"
            raise RefusedError(words, ResponseCode.NO_PERMISSION, "the route has no queue for messages")
        return known[1]

    async def _queues_to_make(self, session: Session, topic: str) -> list[MessageQueue]:
        """Those that the topic will have once the first message has made it. Raises: MessagingError."""
        default = await session.route(DEFAULT_TOPIC) if self._creates_topics else None
        queues = publish_queues_of(default, topic) if default is not None else []
        queues = [each for each in queues if each.queue_id < DEFAULT_QUEUES_MAX]
        if not queues:
            raise TopicNotFoundError(
                f"no name server knows the topic {topic}", ResponseCode.TOPIC_NOT_EXIST, "no route"
            )
        return queues

    # -- requests

    def _command(
        self,
        message: Message,
        packed: Packed,
        queue: MessageQueue,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> RemotingCommand:
        header = {
            "a": self._group,
            "b": message.topic,
            "c": DEFAULT_TOPIC,
            "d": str(DEFAULT_QUEUES_MAX),
            "e": str(queue.queue_id),
            "f": str(packed.sys_flag),
            "g": str(self._surroundings.now_ms()),
            "h": str(message.flag),
            "i": packed.properties,
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }
        return RemotingCommand(code, ext_fields=header, body=packed.body)


def publish_queues_of(route: TopicRoute, topic: str) -> list[MessageQueue]:
    """The route's queues for messages, in the order of Java's clients."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_WRITE
        for queue_id in range(data.write_queue_nums)
    )


def is_stored(answer: RemotingCommand) -> bool:
    """Whether the broker has the message; a stock one may not have it on disk or at a slave yet."""
    return answer.code in STORED or (
        answer.code == ResponseCode.SLAVE_NOT_AVAILABLE and "queueOffset" in answer.ext_fields
    )


def _check_batch(messages: Sequence[Message], packed: Sequence[Packed]) -> None:
    """Raises WrongMessageError."""
    if len({each.topic for each in messages}) > 1:
        raise WrongMessageError("the messages of a batch have one topic")
    for each in messages:
        _check_undelayed(each)
    if len({each.ordering_key for each in messages}) > 1:
        raise WrongMessageError("the messages of a batch have one ordering key")


def _check_undelayed(message: Message) -> None:
    """Raises WrongMessageError."""
    if message.delay_level or message.delay_ms or message.deliver_at_ms:
        raise WrongMessageError("a delayed message is sent alone, and without numbers")


def _result(message_id: str, queue: MessageQueue, answer: RemotingCommand, tries: int) -> SendResult:
    """Raises UnreadableError."""
    ext = answer.ext_fields
    try:
        queue_id, queue_offset = int(ext["queueId"]), int(ext["queueOffset"])
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"{queue.broker_name} does not say where the message is: {error!r}") from error
    return SendResult(
        message_id,
        ext.get("msgId", ""),
        queue if queue.queue_id == queue_id else MessageQueue(queue.topic, queue.broker_name, queue_id),
        queue_offset,
        tries,
        ext.get("transactionId", ""),
        ext.get("recallHandle", ""),
        is_durable=answer.code == ResponseCode.SUCCESS,
    )
