"""Runs a consumer's handler: async ones as they are, others in threads, around them the hooks and a limit."""

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ledgermq.client.hooks import Hooks
from ledgermq.client.messages import ReceivedMessage
from ledgermq.client.outcomes import DeadLetter, RetryLater

Handler = Callable[[ReceivedMessage], Awaitable[object]] | Callable[[ReceivedMessage], object]
"""An async function, or one that may block. What it returns is ignored; an exception means that the message
is not done.
"""
HANDLER_TIMEOUT_S: Final = 15 * 60.0
"""RocketMQ's consumeTimeout."""

logger = logging.getLogger(__name__)


class HandlerRunner:
    """Made on the running loop. threads: for a handler that is not async."""

    def __init__(self, handler: Handler, hooks: Hooks, threads: int, timeout_s: float) -> None:
        self._handler = handler
        self._hooks = hooks
        self._timeout_s = timeout_s
        self._is_async = is_async(handler)
        self._pool = None if self._is_async else ThreadPoolExecutor(threads, "ledgermq-handler")
        self._left: set[Future[object]] = set()
        """Of handlers in threads that are not waited for any more."""

    async def run(self, message: ReceivedMessage) -> Exception | None:
        """How it has failed; None: it has not. Cancelling it cancels an async handler. A thread cannot be
        ended: after the time limit it runs on, and its message counts as failed.
        """
        try:
            with self._hooks.handling(message):
                async with asyncio.timeout(self._timeout_s):
                    await self._call(message)
        except Exception as error:
            if not isinstance(error, RetryLater | DeadLetter):
                logger.warning(
                    "the handler of %s %s failed", message.queue, message.message_id, exc_info=error
                )
            return error
        return None

    async def _call(self, message: ReceivedMessage) -> None:
        if self._pool is None:
            result = self._handler(message)
            assert inspect.isawaitable(result), "an async handler returns an awaitable"
            await result
            return
        future = self._pool.submit(contextvars.copy_context().run, self._handler, message)
        try:
            result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._left = {each for each in self._left if not each.done()} | {future}
            raise
        if inspect.isawaitable(result):  # of a lambda around an async function
            await result

    def close(self) -> None:
        """Ends the threads; one in which a handler still runs ends with that."""
        if self._pool is None:
            return
        running = sum(not future.done() for future in self._left)
        if running:
            logger.warning("%d handlers still run; their messages come again", running)
        self._pool.shutdown(wait=not running, cancel_futures=True)


def is_async(handler: Handler) -> bool:
    """Of functions, methods, `functools.partial`, and objects that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
