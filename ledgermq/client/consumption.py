"""Hands a push consumer's messages to its handler: many at once, or in the order of each queue
(ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ledgermq.client.errors import MessagingError
from ledgermq.client.handling import HandlerRunner
from ledgermq.client.messages import ReceivedMessage
from ledgermq.client.outcomes import Action, Retries
from ledgermq.client.queue_runs import QueueRun
from ledgermq.client.send_back import SendBacks
from ledgermq.client.session import Session

AGAIN_S: Final = 5.0
"""A message that could not be sent back is handled here again after it."""

logger = logging.getLogger(__name__)


class Consumption(Protocol):
    """How the messages of all queues of one consumer are handled."""

    def begin(self, run: QueueRun) -> None:
        """Messages of the queue may come."""

    def deliver(self, run: QueueRun, messages: list[ReceivedMessage]) -> None:
        """New messages of the queue, in order."""

    async def end(self, run: QueueRun) -> None:
        """Begin to handle no more of the queue; return when none is handled whose order matters."""

    async def close(self, limit_s: float) -> None:
        """Begin nothing more, wait for the handlers, then cancel them."""


class ConcurrentConsumption:
    """Consumption by so many handlers at once, whatever queue a message is of."""

    def __init__(
        self, session: Session, runner: HandlerRunner, retries: Retries, backs: SendBacks, concurrency: int
    ) -> None:
        self._session = session
        self._runner = runner
        self._retries = retries
        self._backs = backs
        self._ready: asyncio.Queue[tuple[QueueRun, ReceivedMessage]] = asyncio.Queue()
        self._busy: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._workers = [session.spawn(self._work()) for _ in range(concurrency)]

    def begin(self, run: QueueRun) -> None:
        """Any worker takes its messages."""

    def deliver(self, run: QueueRun, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self._ready.put_nowait((run, message))

    async def end(self, run: QueueRun) -> None:
        """What is being handled ends without effect, as in Java's clients: the queue's next owner gets it
        too.
        """
        run.drop()

    async def close(self, limit_s: float) -> None:
        self._is_closing = True
        for worker in self._workers:
            if worker not in self._busy:
                worker.cancel()
        await _ended(self._workers, limit_s)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._is_closing:
            run, message = await self._ready.get()
            if run.is_dropped:
                continue
            self._busy.add(task)
            try:
                await self._consume(run, message)
            finally:
                self._busy.discard(task)

    async def _consume(self, run: QueueRun, message: ReceivedMessage) -> None:
        error = await self._runner.run(message)
        decision = self._retries.decide(error, message.attempts)
        if run.is_dropped:
            return
        if decision.action is Action.SEND_BACK and not await _sent_back(
            self._backs, message, decision.delay_level
        ):
            self._session.spawn(self._consume_later(run, message))
            return
        if decision.action is Action.DROP:
            logger.warning("%s %s failed; broadcast has no retries", run.queue, message.message_id)
        if not run.is_dropped:
            run.finish(message)

    async def _consume_later(self, run: QueueRun, message: ReceivedMessage) -> None:
        await asyncio.sleep(AGAIN_S)
        message.attempts += 1
        self._ready.put_nowait((run, message))


class OrderedConsumption:
    """Consumption of each queue's messages one after the other. One that fails is tried again until it is
    done, and the later ones of its queue wait.

    lost: the queue's lock has ended; another client may get it.
    """

    def __init__(
        self,
        session: Session,
        runner: HandlerRunner,
        retries: Retries,
        backs: SendBacks,
        concurrency: int,
        suspend_s: float,
        lost: Callable[[QueueRun], None],
    ) -> None:
        self._session = session
        self._runner = runner
        self._retries = retries
        self._backs = backs
        self._places = asyncio.Semaphore(concurrency)
        self._suspend_s = suspend_s
        self._lost = lost
        self._lines: dict[QueueRun, _Line] = {}

    def begin(self, run: QueueRun) -> None:
        earlier = [line for known, line in self._lines.items() if known.queue == run.queue]
        line = self._lines[run] = _Line()
        line.task = self._session.spawn(self._follow(run, line, earlier))

    def deliver(self, run: QueueRun, messages: list[ReceivedMessage]) -> None:
        if run in self._lines:
            self._lines[run].extend(messages)

    async def end(self, run: QueueRun) -> None:
        """Waits for the handler that runs, so that its message is not handled by the next owner too."""
        line = self._lines.get(run)
        run.stop_reading()
        if line is not None:
            line.is_ending = True
            await line.idle.wait()
            line.cancel()
        run.drop()

    async def close(self, limit_s: float) -> None:
        lines = list(self._lines.values())
        for line in lines:
            line.is_ending = True
            if line.idle.is_set():
                line.cancel()
        await _ended([line.task for line in lines if line.task is not None], limit_s)

    async def _follow(self, run: QueueRun, line: "_Line", earlier: list["_Line"]) -> None:
        """earlier: of the same queue, which was begun again at another offset."""
        try:
            for each in earlier:
                await each.idle.wait()
                each.cancel()
            while not line.is_ending and not run.is_dropped:
                message = await line.next()
                if run.lock is not None and not run.lock.is_valid(asyncio.get_running_loop().time()):
                    self._lost(run)
                    return
                if not await self._step(run, line, message):
                    await asyncio.sleep(self._suspend_s)
        finally:
            line.idle.set()
            self._lines.pop(run, None)

    async def _step(self, run: QueueRun, line: "_Line", message: ReceivedMessage) -> bool:
        """Whether the queue goes on with its next message."""
        async with self._places:
            if line.is_ending or run.is_dropped:
                return True
            line.idle.clear()
            try:
                error = await self._runner.run(message)
                decision = self._retries.decide(error, message.attempts)
                if run.is_dropped:
                    return True
                is_over = decision.action is not Action.TRY_AGAIN
                if decision.action is Action.SEND_BACK:
                    is_over = await _sent_back(self._backs, message, decision.delay_level)
                if is_over and not run.is_dropped:
                    line.pop()
                    run.finish(message)
                message.attempts += not is_over
                return is_over
            finally:
                line.idle.set()


class _Line:
    """The messages of one queue that wait for their turn. `idle`: none is being handled."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self.is_ending = False
        self.task: asyncio.Task[None] | None = None
        self._messages: deque[ReceivedMessage] = deque()
        self._arrived = asyncio.Event()

    def extend(self, messages: Iterable[ReceivedMessage]) -> None:
        self._messages.extend(messages)
        self._arrived.set()

    async def next(self) -> ReceivedMessage:
        """The first one, which stays until `pop`."""
        while not self._messages:
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages[0]

    def pop(self) -> None:
        self._messages.popleft()

    def cancel(self) -> None:
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


async def _sent_back(backs: SendBacks, message: ReceivedMessage, delay_level: int) -> bool:
    try:
        await backs.send_back(message, delay_level)
    except MessagingError as error:
        logger.warning("%s %s cannot be sent back: %s", message.queue, message.message_id, error)
        return False
    return True


async def _ended(tasks: list[asyncio.Task[None]], limit_s: float) -> None:
    """Wait for them, then cancel them."""
    if tasks:
        await asyncio.wait(tasks, timeout=limit_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
