"""Runs a consumer's handler: async ones as they are, others in threads, around them the hooks and a limit."""

import asyncio
import contextvars
import functools
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ledgermq.client.hooks import Hooks
from ledgermq.client.messages import ReceivedMessage
from ledgermq.client.outcomes import DeadLetter, RetryLater

Handler = Callable[[ReceivedMessage], Awaitable[object]] | Callable[[ReceivedMessage], object]
"""An async function, or one that may block. What it returns is ignored; an exception means that the message
is not done.
"""
HANDLER_TIMEOUT_S: Final = 15 * 60.0
"""RocketMQ's consumeTimeout."""
_CHECK_MAX_S: Final = 1.0
_CHECKS_MIN: Final = 10

logger = logging.getLogger(__name__)


class HandlerRunner:
    """Made on the running loop. threads: for a handler that is not async. Of a handler's time up to a tenth
    more than `timeout_s` may pass.
    """

    def __init__(self, handler: Handler, hooks: Hooks, threads: int, timeout_s: float) -> None:
        self._handler = handler
        self._hooks = hooks
        self._threads = None if is_async(handler) else HandlerThreads(handler, threads)
        self._limit = _TimeLimit(timeout_s)

    async def run(self, message: ReceivedMessage) -> Exception | None:
        """How it has failed; None: it has not. Cancelling it cancels an async handler. A thread cannot be
        ended: after the time limit it runs on, and its message counts as failed.
        """
        self._limit.begin()
        try:
            with self._hooks.handling(message):
                await self._call(message)
        except asyncio.CancelledError:
            if not self._limit.is_over():
                raise
            return self._failed(message, TimeoutError("the handler took too long"))
        except Exception as error:  # noqa: BLE001  whatever a handler raises, the message is not done
            return self._failed(message, error)
        finally:
            self._limit.end()
        return None

    def _failed(self, message: ReceivedMessage, error: Exception) -> Exception:
        if not isinstance(error, RetryLater | DeadLetter):
            what = f"{message.queue} {message.message_id}"
            logger.warning("the handler of %s failed", what, exc_info=error)
        return error

    async def _call(self, message: ReceivedMessage) -> None:
        if self._threads is None:
            result = self._handler(message)
        else:
            result = await self._threads.call(message)
        if inspect.isawaitable(result):  # of threads: that of a lambda around an async function
            await result

    def close(self) -> None:
        """Ends the threads; one in which a handler still runs ends with that."""
        self._limit.close()
        if self._threads is not None:
            self._threads.close()


class _TimeLimit:
    """Cancels the tasks that take too long. One timer serves all: `asyncio.timeout` for each message costs as
    much as all else that is done for it.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._began: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The current task's time runs."""
        task = asyncio.current_task()
        assert task is not None
        self._began[task] = self._loop.time()
        if self._timer is None:
            self._arm()

    def is_over(self) -> bool:
        """Whether the current task was cancelled by its limit alone. The cancellation is taken back then."""
        task = asyncio.current_task()
        if task is None or task not in self._over:
            return False
        self._over.discard(task)
        return task.uncancel() == 0

    def end(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        del self._began[task]
        if task in self._over:  # its handler did not let itself be cancelled
            self._over.discard(task)
            task.uncancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        pause_s = min(_CHECK_MAX_S, self._limit_s / _CHECKS_MIN)
        self._timer = self._loop.call_later(pause_s, self._check)

    def _check(self) -> None:
        self._timer = None
        end_s = self._loop.time() - self._limit_s
        for task, began_s in self._began.items():
            if began_s <= end_s and task not in self._over:
                self._over.add(task)
                task.cancel()
        if self._began:
            self._arm()


class HandlerThreads:
    """So many threads that call one function. As daemons they do not keep a process that ends. What they
    have finished reaches the loop in one wake-up for all, unlike that of a ThreadPoolExecutor.
    """

    def __init__(self, handler: Callable[[ReceivedMessage], object], count: int) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[tuple[_Job, object, Exception | None]] = deque()
        self._is_woken = False
        self._threads: list[threading.Thread] = []
        self._count = count
        self._open = 0
        """Calls that were begun and have not returned."""

    async def call(self, message: ReceivedMessage) -> object:
        """Raises what the function raises. Cancelled, it leaves the function to itself."""
        if len(self._threads) <= self._open and len(self._threads) < self._count:
            name = f"ledgermq-handler-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        job = _Job(message, contextvars.copy_context(), self._loop.create_future())
        self._open += 1
        self._jobs.put(job)
        return await job.result

    def close(self) -> None:
        """Return when the threads have ended in which no function runs."""
        for _ in self._threads:
            self._jobs.put(None)
        if self._open:
            logger.warning("%d handlers still run; their messages come again", self._open)
            return
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            outcome = _called(job, self._handler)
            self._done.append((job, *outcome))
            # `_settle` clears the mark before it takes: it has not passed over this job, or is called again.
            if not self._is_woken:
                self._is_woken = True
                try:
                    self._loop.call_soon_threadsafe(self._settle)
                except RuntimeError:
                    return  # the loop is closed

    def _settle(self) -> None:
        self._is_woken = False
        while self._done:
            job, result, error = self._done.popleft()
            self._open -= 1
            if job.result.done():
                continue
            if error is None:
                job.result.set_result(result)
            else:
                job.result.set_exception(error)


class _Job:
    """A call in the context of its caller."""

    __slots__ = ("context", "message", "result")

    def __init__(
        self, message: ReceivedMessage, context: contextvars.Context, result: "asyncio.Future[object]"
    ) -> None:
        self.message = message
        self.context = context
        self.result = result


def _called(job: _Job, handler: Callable[[ReceivedMessage], object]) -> tuple[object, Exception | None]:
    """What the function returns, and how it has failed."""
    if job.result.cancelled():
        return None, None
    try:
        return job.context.run(handler, job.message), None
    except Exception as error:  # noqa: BLE001  it belongs to the caller
        return None, error
    except BaseException as error:  # noqa: BLE001  as sys.exit, which would end the loop there
        return None, RuntimeError(f"the handler raised {error!r}")


def is_async(handler: Handler) -> bool:
    """Of functions, methods, `functools.partial`, and objects that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
