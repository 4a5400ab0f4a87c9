"""One queue of a push consumer: pulls ahead of the handlers, within bounds (DefaultMQPushConsumerImpl,
PullMessageService).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ledgermq.client.messages import ReceivedMessage
from ledgermq.client.offsets import OffsetStore, QueueBounds, Start, first_offset
from ledgermq.client.progress import PullLimits, QueueProgress
from ledgermq.client.pulling import Puller, until_done
from ledgermq.client.queue_locks import QueueLock
from ledgermq.client.session import Session
from ledgermq.client.subscriptions import Subscription
from remoting.client.routes import MessageQueue


@dataclass(frozen=True, slots=True)
class Reading:
    """What all queues of one consumer are read with.

    deliver: gets new messages of a queue, in order. moved: the queue's offset was set to another.
    """

    session: Session
    puller: Puller
    store: OffsetStore
    bounds: QueueBounds
    consume_from: Start
    limits: PullLimits
    deliver: Callable[["QueueRun", list[ReceivedMessage]], None]
    moved: Callable[["QueueRun", int], None]


class QueueRun:
    """From the time when the consumer gets the queue until it loses it, or its offset is set.

    start: where to begin; None: at the group's offset. lock: of an ordered consumer.
    """

    def __init__(
        self,
        reading: Reading,
        queue: MessageQueue,
        subscription: Subscription,
        lock: QueueLock | None = None,
        start: int | None = None,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.lock = lock
        self.progress = None if start is None else QueueProgress(start)
        self.committed: int | None = None
        self.is_dropped = False
        """Another client may have the queue: how handlers end does not matter any more."""
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._reading = reading
        self._has_room = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._reader = self._reading.session.spawn(self._read())

    def stop_reading(self) -> None:
        """Nothing more is delivered. Not an end of the reader's own task, which may be the caller."""
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()

    def drop(self) -> None:
        """The queue is not this client's any more, or has begun again elsewhere."""
        self.is_dropped = True
        self.stop_reading()

    @property
    def committable(self) -> int | None:
        """None until it is known where the queue begins."""
        return None if self.progress is None else self.progress.committable

    def finish(self, message: ReceivedMessage) -> None:
        """It needs no further handling by this client."""
        assert self.progress is not None, "a message was delivered"
        self.progress.finish(message.queue_offset)
        self.last_consume_ms = self._reading.session.surroundings.now_ms()
        self._has_room.set()

    async def _read(self) -> None:
        reading, what = self._reading, f"reading {self.queue}"
        if self.progress is None:
            find = partial(first_offset, reading.store, reading.bounds, self.queue, reading.consume_from)
            self.progress = QueueProgress(await until_done(find, what))
        progress = self.progress
        while True:
            while not progress.may_pull(reading.limits):
                self._has_room.clear()
                await self._has_room.wait()
            self.last_pull_ms = reading.session.surroundings.now_ms()
            pull = partial(reading.puller.pull, self.queue, progress.next_offset, self.subscription)
            pulled = await until_done(pull, what)
            if pulled.is_reset:
                reading.moved(self, pulled.next_offset)
                return
            new = progress.pulled(pulled.messages, pulled.next_offset)
            if new:
                reading.deliver(self, new)
