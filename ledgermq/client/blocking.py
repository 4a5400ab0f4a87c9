"""The client for programs without an event loop: the same names, which block. Each object has one thread with
a loop, in which the asyncio client runs; any number of threads may use it.

    with Producer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"..."))

A `timeout` of the caller ends what it waits for, as cancelling does in asyncio; Ctrl-C does so too.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from ledgermq.client import producer as asyncio_producer
from ledgermq.client import pull_consumer as asyncio_pull_consumer
from ledgermq.client import push_consumer as asyncio_push_consumer
from ledgermq.client import simple_consumer as asyncio_simple_consumer
from ledgermq.client.errors import ClosedError
from ledgermq.client.handling import Handler
from ledgermq.client.messages import Message, ReceivedMessage, SendResult
from ledgermq.client.offsets import Start
from ledgermq.client.producer import ProducerOptions
from ledgermq.client.pull_consumer import PullConsumerOptions
from ledgermq.client.push_consumer import PushConsumerOptions
from ledgermq.client.session import Client
from ledgermq.client.simple_consumer import SimpleConsumerOptions
from ledgermq.client.subscriptions import Sql, Topics
from ledgermq.client.transactions import Transaction, TransactionOutcome
from remoting.client.routes import MessageQueue
from remoting.tag_filters import SUB_ALL

_JOIN_S: Final = 5.0
_T = TypeVar("_T")


class LoopThread:
    """A thread with a running event loop, until `close`. As a daemon it does not keep a process that ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_closed = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def start(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Run it on the loop. Raises ClosedError."""
        if self._is_closed:
            work.close()
            raise ClosedError("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Its result, once it has one; an interrupted caller cancels it. Raises what it raises."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("the client is closed") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop; what runs on it is not waited for."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_S)


class BlockingClient:
    """What the blocking clients have in common: a thread from `start` to `close`, which `with` calls."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Raises what `start` of the asyncio class raises."""
        if self._thread is not None:
            raise ClosedError("a client is started once")
        self._thread = LoopThread("ledgermq-client")
        try:
            self._thread.run(self._client.start())
        except BaseException:
            self._thread.close()
            raise

    def close(self) -> None:
        """As `close` of the asyncio class; calls of other threads end with ClosedError. The thread has ended
        after it.
        """
        if self._thread is not None:
            try:
                self._thread.run(self._client.close())
            except ClosedError:
                return
            finally:
                self._thread.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Raises ClosedError."""
        return self._running(work).run(work)

    def _running(self, work: Coroutine[Any, Any, Any]) -> LoopThread:
        """The thread for this work. Raises ClosedError."""
        if self._thread is None:
            work.close()
            raise ClosedError("the client is not started")
        return self._thread


class Producer(BlockingClient):
    """As `ledgermq.client.Producer`, with the same options. For any number of threads."""

    def __init__(self, namesrv: str, **options: Unpack[ProducerOptions]) -> None:
        self._producer = asyncio_producer.Producer(namesrv, **options)
        super().__init__(self._producer)

    def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """As `Producer.send`."""
        return self._run(self._producer.send(message, queue=queue))

    def send_soon(self, message: Message, *, queue: MessageQueue | None = None) -> "Future[SendResult]":
        """Begin to send. The future has the result or the error of `send`; cancelling it cancels the send."""
        work = self._producer.send(message, queue=queue)
        return self._running(work).start(work)

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """As `Producer.send_batch`."""
        return self._run(self._producer.send_batch(messages, queue=queue))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """As `Producer.send_oneway`."""
        self._run(self._producer.send_oneway(message, queue=queue))

    def queues(self, topic: str) -> list[MessageQueue]:
        """As `Producer.queues`."""
        return self._run(self._producer.queues(topic))

    @contextmanager
    def transaction(self, message: Message) -> "Iterator[BlockingTransaction]":
        """As `Producer.transaction`: the block's end commits, an error rolls back."""
        transaction = BlockingTransaction(self._run(self._producer.transaction(message)), self._run)
        try:
            yield transaction
        except BaseException:
            transaction.end_once(TransactionOutcome.ROLLBACK)
            raise
        transaction.end_once(TransactionOutcome.COMMIT)

    def send_in_transaction(self, message: Message) -> tuple[SendResult, TransactionOutcome]:
        """As `Producer.send_in_transaction`; the listener runs on the client's loop."""
        return self._run(self._producer.send_in_transaction(message))

    def request(self, message: Message, *, timeout_s: float = 3.0) -> ReceivedMessage:
        """As `Producer.request`."""
        return self._run(self._producer.request(message, timeout_s=timeout_s))

    def reply(self, request: ReceivedMessage, body: bytes) -> SendResult:
        """As `Producer.reply`."""
        return self._run(self._producer.reply(request, body))

    def recall(self, topic: str, handle: str) -> str:
        """As `Producer.recall`."""
        return self._run(self._producer.recall(topic, handle))


class BlockingTransaction:
    """As `Transaction`, for a thread."""

    def __init__(self, transaction: Transaction, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._transaction = transaction
        self._run = run
        self._is_ended = False

    @property
    def result(self) -> SendResult:
        return self._transaction.result

    def commit(self) -> None:
        """As `Transaction.commit`."""
        self._end(TransactionOutcome.COMMIT)

    def rollback(self) -> None:
        """As `Transaction.rollback`."""
        self._end(TransactionOutcome.ROLLBACK)

    def end_once(self, outcome: TransactionOutcome) -> None:
        if not self._is_ended:
            self._end(outcome)

    def _end(self, outcome: TransactionOutcome) -> None:
        self._is_ended = True
        self._run(self._transaction.end(outcome))


class PushConsumer(BlockingClient):
    """As `ledgermq.client.PushConsumer`, with the same options. The handler is an ordinary function, which
    runs in `concurrency` threads at once, or an async one, which runs on the client's loop.
    """

    def __init__(
        self,
        namesrv: str,
        handler: Handler,
        *,
        group: str,
        topics: Topics,
        **options: Unpack[PushConsumerOptions],
    ) -> None:
        super().__init__(
            asyncio_push_consumer.PushConsumer(namesrv, handler, group=group, topics=topics, **options)
        )


class SimpleConsumer(BlockingClient):
    """As `ledgermq.client.SimpleConsumer`, with the same options. For any number of threads."""

    def __init__(
        self, namesrv: str, *, group: str, topics: Topics, **options: Unpack[SimpleConsumerOptions]
    ) -> None:
        self._consumer = asyncio_simple_consumer.SimpleConsumer(
            namesrv, group=group, topics=topics, **options
        )
        super().__init__(self._consumer)

    def receive(
        self, max_messages: int = 16, *, invisible_s: float = 60.0, wait_s: float = 20.0
    ) -> list[ReceivedMessage]:
        """As `SimpleConsumer.receive`."""
        return self._run(self._consumer.receive(max_messages, invisible_s=invisible_s, wait_s=wait_s))

    def ack(self, message: ReceivedMessage) -> None:
        """As `SimpleConsumer.ack`."""
        self._run(self._consumer.ack(message))

    def change_invisible(self, message: ReceivedMessage, seconds: float) -> None:
        """As `SimpleConsumer.change_invisible`."""
        self._run(self._consumer.change_invisible(message, seconds))


class PullConsumer(BlockingClient):
    """As `ledgermq.client.PullConsumer`, with the same options. For one thread."""

    def __init__(self, namesrv: str, **options: Unpack[PullConsumerOptions]) -> None:
        self._consumer = asyncio_pull_consumer.PullConsumer(namesrv, **options)
        super().__init__(self._consumer)

    def queues(self, topic: str) -> list[MessageQueue]:
        """As `PullConsumer.queues`."""
        return self._run(self._consumer.queues(topic))

    def assign(self, queues: Iterable[MessageQueue], wanted: str | Sql = SUB_ALL) -> None:
        """As `PullConsumer.assign`."""
        self._run(self._consumer.assign(queues, wanted))

    def seek(self, queue: MessageQueue, to: Start | int) -> None:
        """As `PullConsumer.seek`."""

        async def seek() -> None:
            self._consumer.seek(queue, to)

        self._run(seek())

    def position(self, queue: MessageQueue) -> int | None:
        """As `PullConsumer.position`."""
        return self._consumer.position(queue)

    def offset_at(self, queue: MessageQueue, unix_ms: int) -> int:
        """As `PullConsumer.offset_at`."""
        return self._run(self._consumer.offset_at(queue, unix_ms))

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """As `PullConsumer.bounds`."""
        return self._run(self._consumer.bounds(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """As `PullConsumer.committed`."""
        return self._run(self._consumer.committed(queue))

    def commit(self) -> None:
        """As `PullConsumer.commit`."""
        self._run(self._consumer.commit())

    def poll(self, max_messages: int = 500, *, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """As `PullConsumer.poll`: the fast way, since each call goes to the client's thread."""
        return self._run(self._consumer.poll(max_messages, timeout_s=timeout_s))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """As `async for`: for ever, message by message."""
        while True:
            yield self._run(self._consumer.__anext__())

    def read_to_end(self) -> Iterator[ReceivedMessage]:
        """As `PullConsumer.read_to_end`."""
        messages = self._consumer.read_to_end()

        async def step() -> ReceivedMessage | None:
            return await anext(messages, None)

        while (message := self._run(step())) is not None:
            yield message
