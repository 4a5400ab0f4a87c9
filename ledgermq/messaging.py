"""What the commands that send and receive messages connect to brokers with, and a small consumer for them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from ledgermq.client import Producer
from ledgermq.client.session import Surroundings
from ledgermq.errors import WRONG_USAGE, UserError
from remoting.acl import AclError
from remoting.client.aio import RemotingClient, RouteTable, ask_once, client_from
from remoting.client.routes import Queue, RetryableError, subscribe_queues
from remoting.client.tls import client_tls_from
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.fields import RequestHeader
from remoting.message_body import BodyError, unpack_body
from remoting.record import CorruptRecordError, Record
from remoting.record import decode_records as read_records
from sockets.tls import TlsCredentials, TlsFilesError

GIVE_UP_S = 30.0
"""A send with all its tries."""
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


def command_producer(namesrv: str) -> Producer:
    """The producer of commands, with the account and the TLS files that the environment names."""
    return Producer(
        namesrv,
        group="ledgermq-cli",
        send_timeout_s=GIVE_UP_S,
        surroundings=Surroundings(make_client=lambda *_: messaging_client()),
    )


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
