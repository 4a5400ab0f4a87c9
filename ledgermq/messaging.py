"""A small producer and a small consumer for the commands that send and receive messages, and the client that
connects them to the brokers.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from commitlog.record import format_properties
from dledger.environment import Environment
from ledgermq.errors import WRONG_USAGE, UserError
from remoting.acl import AclError
from remoting.client.aio import RemotingClient, RouteTable, ask_once, client_from
from remoting.client.routes import DEFAULT_QUEUES_MAX, Queue, RetryableError, subscribe_queues
from remoting.client.tls import client_tls_from
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, ReadOnlyTopicError
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.fields import RequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.message_body import BodyError, unpack_body
from remoting.record import CorruptRecordError, Record
from remoting.record import decode_records as read_records
from remoting.route import DEFAULT_TOPIC
from sockets.tls import TlsCredentials, TlsFilesError

_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 0.5
_PULL_HELD_MS = 15_000
_PULL_TIMEOUT_S = 20.0
_PULL_MESSAGES = 32
_MAY_BE_HELD = 2
_HAS_SUBSCRIPTION = 4
_BODY_BYTES_MAX = 16 * 1024 * 1024
_ROUTE_INTERVAL_S = 5.0
_COMMIT_INTERVAL_S = 2.0
_RETRY_PAUSE_S = 0.3
_BATCHES_MAX = 64
QueueKey = tuple[str, int]
"""Broker name and queue id, which stay the same when the leader changes."""
_T = TypeVar("_T")


def messaging_client() -> RemotingClient:
    """A client on the running event loop. The environment names its account and its TLS files; the caller
    closes it.

    Raises: UserError.
    """
    try:
        return client_from(os.environ)
    except (AclError, TlsFilesError) as error:
        raise UserError(str(error), WRONG_USAGE) from error


def tls_credentials() -> TlsCredentials | None:
    """The TLS files that the environment names, for programs with their own sockets; None: plain text.

    Raises: UserError.
    """
    try:
        tls = client_tls_from(os.environ)
        return None if tls is None else tls.credentials()
    except TlsFilesError as error:
        raise UserError(str(error), WRONG_USAGE) from error


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """The place of an acknowledged message. `tries` is 1 when the first attempt was successful."""

    unique_key: str
    offset_msg_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    tries: int


class Producer:
    """Sends to the queues of a topic in turn. Each send is retried at the current leader until it is
    acknowledged or its time limit is reached.

    If an answer is lost, the message may have been stored nevertheless. So a message can be stored twice,
    with the same UNIQ_KEY.
    """

    def __init__(
        self,
        client: RemotingClient,
        namesrv: str,
        *,
        group: str = "ledgermq-cli",
        try_timeout_s: float = 3.0,
        give_up_s: float = 30.0,
        environment: Environment | None = None,
    ) -> None:
        self._client = client
        self._routes = RouteTable(client, namesrv)
        self._group = group
        self._environment = environment or Environment()
        self._try_timeout_s = try_timeout_s
        self._give_up_s = give_up_s
        self._turn = 0

    async def send(
        self, topic: str, body: bytes, *, tag: str | None = None, key: str | None = None
    ) -> SendReceipt:
        """Return once a majority has the message.

        Raises: ClientError when a retry cannot help, or there is no acknowledgement within `give_up_s`.
        """
        unique_key = f"{self._environment.rng.getrandbits(128):032X}"
        properties = {"UNIQ_KEY": unique_key, "WAIT": "true"}
        properties |= {name: value for name, value in (("TAGS", tag), ("KEYS", key)) if value}
        text = format_properties(properties).decode()
        tries, pause_s, reason = 0, _PAUSE_FIRST_S, "no leader was found"
        try:
            async with asyncio.timeout(self._give_up_s):
                while True:
                    try:
                        tries += 1
                        queue, answer = await self._try(topic, body, text)
                    except RetryableError as error:
                        reason = str(error)
                        self._routes.invalidate(topic)
                        await asyncio.sleep(pause_s)
                        pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                    else:
                        return _receipt(unique_key, queue, answer, tries)
        except TimeoutError as error:
            raise ClientError(f"no acknowledgement within {self._give_up_s:g} s: {reason}") from error

    async def _try(self, topic: str, body: bytes, properties: str) -> tuple[Queue, RemotingCommand]:
        """One attempt to send. Raises: RetryableError if a retry may succeed, ClientError if not."""
        try:
            queues = await self._routes.publish_queues(topic)
        except ReadOnlyTopicError:
            raise
        except ClientError as error:
            raise RetryableError(str(error)) from error
        if not queues:
            raise RetryableError(f"no broker accepts messages for {topic}")
        self._turn += 1
        queue = queues[self._turn % len(queues)]
        request = self._request(topic, queue.queue_id, body, properties)
        answer = await ask_once(self._client, queue.address, request, _STORED, self._try_timeout_s)
        return queue, answer

    def _request(self, topic: str, queue_id: int, body: bytes, properties: str) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group=self._group,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUES_MAX,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp_ms=self._environment.wall_clock_ms(),
            properties=properties,
        )
        return RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=body)


def _receipt(unique_key: str, queue: Queue, answer: RemotingCommand, tries: int) -> SendReceipt:
    ext = answer.ext_fields
    try:
        queue_id, queue_offset = int(ext["queueId"]), int(ext["queueOffset"])
    except (KeyError, ValueError) as error:
        raise ClientError(
            f"{queue.address} acknowledged without saying where the message is ({error!r})"
        ) from error
    return SendReceipt(unique_key, ext.get("msgId", ""), queue.broker_name, queue_id, queue_offset, tries)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and the queue it came from."""

    queue: QueueKey
    record: Record


class Consumer:
    """Reads every queue of one topic by long polling and commits the group's offsets to the broker.

    It does not share queues with other consumers of the group: each of two consumers receives all messages.
    Use it with `async with`; at the end of the block the offsets of consumed messages are committed.
    """

    def __init__(
        self,
        client: RemotingClient,
        namesrv: str,
        topic: str,
        group: str,
        *,
        from_first: bool = True,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._routes = RouteTable(client, namesrv)
        self._topic = topic
        self._group = group
        self._from_first = from_first
        self._say = say
        self._queues: dict[QueueKey, Queue] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._batches: asyncio.Queue[tuple[QueueKey, list[Record]] | ClientError] = asyncio.Queue(
            _BATCHES_MAX
        )
        self._taken: dict[QueueKey, int] = {}
        self._committed: dict[QueueKey, int] = {}

    async def __aenter__(self) -> Self:
        self._run("routes", self._follow_routes())
        self._run("offsets", self._commit_regularly())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.commit()

    async def messages(self) -> AsyncGenerator[Delivery, None]:
        """Messages as they arrive; the messages of one queue are in order.

        Raises: ClientError.
        """
        while True:
            item = await self._batches.get()
            if isinstance(item, ClientError):
                raise item
            key, records = item
            for record in records:
                yield Delivery(key, record)

    def consume(self, delivery: Delivery) -> None:
        """Mark the message as processed: the group continues with the next offset."""
        self._taken[delivery.queue] = delivery.record.queue_offset + 1

    async def commit(self) -> None:
        """Commit the offsets that changed since the last commit; failed ones are retried at the next."""
        for key, offset in list(self._taken.items()):
            queue = self._queues.get(key)
            if queue is None or self._committed.get(key) == offset:
                continue
            header = UpdateConsumerOffsetRequestHeader(self._group, self._topic, key[1], offset)
            try:
                await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)
            except RetryableError as error:
                self._say(f"offset {offset} of queue {key[1]} is not stored yet: {error}")
            else:
                self._committed[key] = offset

    def _run(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except ClientError as error:
                await self._batches.put(error)

        self._tasks[name] = asyncio.create_task(guarded())

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_INTERVAL_S)
            await self.commit()

    async def _follow_routes(self) -> None:
        """Start to read each new queue; report once when the topic does not exist yet."""
        has_said = False
        while True:
            if not await self._refresh_route() and not has_said:
                self._say(f"waiting for the topic {self._topic} ...")
                has_said = True
            await asyncio.sleep(_ROUTE_INTERVAL_S if self._queues else _RETRY_PAUSE_S)

    async def _refresh_route(self) -> bool:
        """Return whether the topic has queues. Raises: ClientError if the first route cannot be read."""
        try:
            route = await self._routes.request(self._topic)
        except ClientError:
            if not self._queues:
                raise
            return True
        for queue in subscribe_queues(route) if route else []:
            key = (queue.broker_name, queue.queue_id)
            self._queues[key] = queue
            if key not in self._tasks:
                self._run(key, self._read(key))
        return bool(self._queues)

    async def _read(self, key: QueueKey) -> None:
        offset = await self._retried(partial(self._first_offset, key))
        while True:
            offset, records = await self._retried(partial(self._pull, key, offset))
            if records:
                await self._batches.put((key, records))

    async def _retried(self, work: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await work()
            except RetryableError:
                await asyncio.sleep(_RETRY_PAUSE_S)
                await self._refresh_route()

    async def _first_offset(self, key: QueueKey) -> int:
        """The group's stored offset; without one, the minimum or maximum offset of the queue."""
        queue = self._queues[key]
        header = QueryConsumerOffsetRequestHeader(
            self._group, self._topic, key[1], set_zero_if_not_found=False
        )
        answer = await self._ask(
            queue, RequestCode.QUERY_CONSUMER_OFFSET, header, ResponseCode.QUERY_NOT_FOUND
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            code = RequestCode.GET_MIN_OFFSET if self._from_first else RequestCode.GET_MAX_OFFSET
            answer = await self._ask(queue, code, QueueRequestHeader(self._topic, key[1]))
        return _number(answer, "offset")

    async def _pull(self, key: QueueKey, offset: int) -> tuple[int, list[Record]]:
        """One pull by long polling. Return the next offset, and the messages."""
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=self._topic,
            queue_id=key[1],
            queue_offset=offset,
            max_msg_nums=_PULL_MESSAGES,
            sys_flag=_MAY_BE_HELD | _HAS_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=_PULL_HELD_MS,
            subscription="*",
            expression_type="TAG",
        )
        ends = (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        answer = await self._ask(
            self._queues[key], RequestCode.PULL_MESSAGE, header, *ends, timeout_s=_PULL_TIMEOUT_S
        )
        records = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
        return _number(answer, "nextBeginOffset"), records

    async def _ask(
        self,
        queue: Queue,
        code: RequestCode,
        header: RequestHeader,
        *accepted: ResponseCode,
        timeout_s: float = 3.0,
    ) -> RemotingCommand:
        """Raises: RetryableError if a retry may succeed, ClientError if not."""
        request = RemotingCommand(code, ext_fields=header.ext_fields())
        return await ask_once(
            self._client, queue.address, request, (ResponseCode.SUCCESS, *accepted), timeout_s
        )


def decode_records(body: bytes) -> list[Record]:
    """The records in the answer to a pull, with bodies decompressed.

    Raises: ClientError when the bytes are not records.
    """
    try:
        records = read_records(body)
        for each in records:
            each.body = unpack_body(each.body, each.sys_flag, _BODY_BYTES_MAX)
    except (CorruptRecordError, BodyError) as error:
        raise ClientError(f"a message cannot be read: {error}") from error
    return records


def _number(answer: RemotingCommand, name: str) -> int:
    try:
        return int(answer.ext_fields[name])
    except (KeyError, ValueError) as error:
        raise ClientError(f"an answer lacks the number {name}") from error
