"""Brings the consume queues to the disk every few seconds, in a thread beside the loop."""

import asyncio
from collections.abc import Callable

from commitlog.consume_queues import ConsumeQueues
from commitlog.queue_checkpoint import Applied


class QueueFlusher:
    """One flush at a time: at the interval, when the queues are full, and at the end."""

    def __init__(
        self,
        queues: ConsumeQueues,
        queued: Callable[[], Applied],
        on_flushed: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._queues = queues
        self._queued = queued
        self._on_flushed = on_flushed
        self._on_error = on_error
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to flush at the interval."""
        self._task = asyncio.create_task(self._run(), name="consume queue flush")

    def flush_soon(self) -> None:
        """Flush without waiting for the interval."""
        self._wanted.set()

    async def stop(self) -> None:
        """Flush a last time. Raises OSError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._flush()

    async def _run(self) -> None:
        interval_s = self._queues.config.flush_interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._flush()
            except Exception as error:  # noqa: BLE001 (a top loop: a queue that cannot be written stops the node)
                self._on_error(error)
                return
            self._on_flushed()

    async def _flush(self) -> None:
        writes = None
        for writes in self._queues.take_writes_in_parts(self._queued()):
            if writes is None:
                await asyncio.sleep(0)
        if writes is None:
            return
        # Not cancelled half way: the last flush must not meet this one in the files.
        work = asyncio.ensure_future(asyncio.to_thread(self._queues.write, writes))
        try:
            await asyncio.shield(work)
        finally:
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                self._queues.written(writes)
