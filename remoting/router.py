"""Passes each request to its handler, and turns each failure into an answer.

Typed errors become response codes here; handlers build no error answers. Requests are handled per turn of the
event loop: an `Inbox` collects those of all connections; a batch handler gets all of its codes in one call.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Final, Protocol

from remoting.codes import ResponseCode
from remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, error_response
from remoting.connection import Connection
from remoting.errors import CommandError, HeaderError, RequestError
from remoting.slices import SlicedWork, Steps, T

_log = logging.getLogger(__name__)

HandlerResult = RemotingCommand | None | Awaitable[RemotingCommand | None]
Handler = Callable[[RemotingCommand, Connection], HandlerResult | Steps[RemotingCommand | None]]
"""Returns the answer, an awaitable of it, the steps of long work that returns it, or None when
`Router.answer` brings it later.
"""
Handlers = Mapping[int, Handler]
"""By request code."""
Arrived = tuple[Connection, list[RemotingCommand], int]
"""Requests of one connection in order, and the code that all of them have, or -1."""
Guard = Callable[[RemotingCommand, Connection], RequestError | None]
"""Why a request is refused before any handler sees it; None: it is not."""
Batch = tuple[Connection, list[RemotingCommand]]
BatchHandler = Callable[[list[Batch]], None]
"""Handles all requests of a loop turn with its codes; answers each by `Router.answer`, now or later."""

UNKNOWN: Final = -1
NOTHING_THERE: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
    }
)
"""Codes of answers that are not refusals: the request succeeded, or found nothing."""
TASKS_MAX = 4096
TURN_S_MAX = 0.02
"""Time limit for the requests of one turn that are handled one by one."""
TURN_REQUESTS_MAX: Final = 2_048
"""Requests of one turn, and those of one connection more: about 20 ms for sends."""
BODY_BYTES_AS_REQUEST: Final = 4096
"""So many bytes of a body count as one more request."""
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"
_REPORTED_MAX = 1000


class Answered(Protocol):
    """The sender of a request: a connection, as far as answers need it."""

    def send(self, command: RemotingCommand) -> None: ...


class RequestCounts:
    """Requests and refusals of one server since its start, by code.

    A request code without a handler counts as UNKNOWN, so that clients cannot make the tables grow.
    """

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        """By request code."""
        self.refused: dict[tuple[int, int], int] = {}
        """By the codes of request and answer."""

    def add(self, code: int, count: int) -> None:
        """Count requests with a known code."""
        self.requests[code] = self.requests.get(code, 0) + count

    def refuse(self, code: int, answer_code: int, count: int = 1) -> None:
        """Count requests that are answered with this code."""
        if answer_code not in NOTHING_THERE:
            key = (code, int(answer_code))
            self.refused[key] = self.refused.get(key, 0) + count


class Router:
    """The table of handlers by request code.

    `tasks_max` bounds the requests whose awaitable handler has not ended; beyond it they are answered
    SYSTEM_BUSY before the handler has run. Futures are exempt: what they wait for has begun and has its own
    bound.
    """

    def __init__(self, tasks_max: int = TASKS_MAX) -> None:
        self._tasks_max = tasks_max
        self.counts = RequestCounts()
        self.guard: Guard | None = None
        """Asked before each request is handled. May be set and removed at any time."""
        self._handlers: dict[int, Handler] = {}
        self._batch_handlers: dict[int, BatchHandler] = {}
        self._fallback: Handler | None = None
        self._waiting: deque[tuple[Connection, RemotingCommand]] = deque()
        self._is_continuing = False
        self._sliced = SlicedWork()
        self._tasks: dict[asyncio.Future[RemotingCommand | None], None] = {}
        self._reported: set[tuple[int, type[BaseException]]] = set()

    def register(self, code: int, handler: Handler) -> None:
        """Have `handler` answer every request with this code.

        Raises:
            ValueError: the code has a handler already.
        """
        self._check_free(code)
        self._handlers[int(code)] = handler

    def register_batch(self, codes: Iterable[int], batch_handler: BatchHandler) -> None:
        """Have `batch_handler` answer the requests with these codes, all of a loop turn in one call, in order
        of arrival.

        Requests of other codes in the same turn are handled before the batches.

        Raises:
            ValueError: a code has a handler already.
        """
        for code in codes:
            self._check_free(code)
            self._batch_handlers[int(code)] = batch_handler

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that have a handler."""
        return frozenset((*self._handlers, *self._batch_handlers))

    def in_slices(self, steps: Steps[T], owner: str) -> "asyncio.Future[T]":
        """The result of long work: a handler's own, for the host that asked, or the node's own, for "". See
        remoting/slices.py.
        """
        return self._sliced.start(steps, owner)

    def register_fallback(self, handler: Handler) -> None:
        """Have `handler` answer every request whose code has no handler."""
        self._fallback = handler

    def dispatch(self, arrived: list[Arrived]) -> None:
        """Handle the requests of one loop turn. After TURN_S_MAX the rest waits for the next turns: a handler
        that blocks the event loop delays leader heartbeats.
        """
        if self.guard is not None:
            arrived = self._permitted(arrived, self.guard)
        batches: dict[BatchHandler, list[Batch]] = {}
        for connection, requests, code in arrived:
            batch_handler = self._batch_handlers.get(code)
            if batch_handler is not None:
                self.counts.add(code, len(requests))
                batches.setdefault(batch_handler, []).append((connection, requests))
            else:
                self._sort_out(connection, requests, batches)
        # Single requests come before the batches: a heartbeat or a lock does not wait for a put. While older
        # ones wait for the next turn, new ones queue behind them: requests keep their order.
        if self._waiting and not self._is_continuing:
            self._handle_waiting()
        for batch_handler, batch in batches.items():
            self._handle_batch(batch_handler, batch)

    def _permitted(self, arrived: list[Arrived], guard: Guard) -> list[Arrived]:
        """What the guard lets through, in its order; the others are answered here."""
        permitted: list[Arrived] = []
        for connection, requests, code in arrived:
            passed = [request for request in requests if self._passes(request, connection, guard)]
            if passed:
                permitted.append((connection, passed, code))
        return permitted

    def _passes(self, request: RemotingCommand, connection: Connection, guard: Guard) -> bool:
        try:
            error: Exception | None = guard(request, connection)
        except Exception as failure:  # noqa: BLE001  a request that cannot be judged is refused
            error = failure
        if error is None:
            return True
        self.refuse(request, connection, error)
        return False

    def refuse(self, request: RemotingCommand, connection: Connection, error: Exception) -> None:
        """Answer a request that no handler is to see, and count it."""
        is_known = request.code in self._handlers or request.code in self._batch_handlers
        self.counts.add(request.code if is_known else UNKNOWN, 1)
        self._fail(request, connection, error)

    def _sort_out(
        self,
        connection: Connection,
        requests: list[RemotingCommand],
        batches: dict[BatchHandler, list[Batch]],
    ) -> None:
        """Group requests of several codes, or of one that is handled one by one, by handler."""
        of_handlers: dict[BatchHandler, list[RemotingCommand]] = {}
        for request in requests:
            batch_handler = self._batch_handlers.get(request.code)
            if batch_handler is None:
                self._waiting.append((connection, request))
            else:
                self.counts.add(request.code, 1)
                of_handlers.setdefault(batch_handler, []).append(request)
        for batch_handler, batch in of_handlers.items():
            batches.setdefault(batch_handler, []).append((connection, batch))

    def _continue(self) -> None:
        self._is_continuing = False
        self._handle_waiting()

    def _handle_waiting(self) -> None:
        waiting = self._waiting
        loop = asyncio.get_running_loop()
        end_s = loop.time() + TURN_S_MAX
        while waiting:
            connection, request = waiting.popleft()
            self._handle(request, connection)
            if waiting and loop.time() > end_s:
                self._is_continuing = True
                loop.call_soon(self._continue)
                return

    async def close(self) -> None:
        """Cancel the running and waiting handlers; their requests get no answer."""
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_free(self, code: int) -> None:
        if code in self._handlers or code in self._batch_handlers:
            raise ValueError(f"request code {int(code)} has a handler already")

    def _handle_batch(self, handler: BatchHandler, batch: list[Batch]) -> None:
        try:
            handler(batch)
        except Exception as error:  # noqa: BLE001  every failure becomes an answer, and is logged there
            for connection, requests in batch:
                for request in requests:
                    self._fail(request, connection, error)

    def _handle(self, request: RemotingCommand, connection: Connection) -> None:
        handler = self._handlers.get(request.code)
        self.counts.add(request.code if handler is not None else UNKNOWN, 1)
        handler = handler or self._fallback
        if handler is None:
            connection.warn_once(f"code {request.code}", f"request code {request.code} has no handler")
            remark = f" request type {request.code} not supported"
            refusal = error_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            self.answer(request, connection, refusal)
            return
        try:
            result = handler(request, connection)
        except Exception as error:  # noqa: BLE001  every failure becomes an answer, and is logged there
            self._fail(request, connection, error)
            return
        if isinstance(result, RemotingCommand):
            self.answer(request, connection, result)
        elif result is not None:
            self._follow(request, connection, result)

    def _follow(
        self,
        request: RemotingCommand,
        connection: Connection,
        result: Awaitable[RemotingCommand | None] | Steps[RemotingCommand | None],
    ) -> None:
        # What has not started can be refused without effect. A future's work has begun.
        if (inspect.iscoroutine(result) or isinstance(result, Generator)) and len(
            self._tasks
        ) >= self._tasks_max:
            result.close()
            connection.warn_once("overload", f"{self._tasks_max} requests are being handled; request refused")
            refusal = error_response(request, ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
            self.answer(request, connection, refusal)
            return
        if isinstance(result, Generator):
            task = self._sliced.start(result, connection.remote_host)
            if task.done():
                self._finish(request, connection, task)
                return
        else:
            task = asyncio.ensure_future(result)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._finish(request, connection, done))

    def _finish(
        self, request: RemotingCommand, connection: Connection, task: asyncio.Future[RemotingCommand | None]
    ) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(request, connection, error)
            return
        result = task.result()
        if result is not None:
            self.answer(request, connection, result)

    def answer(self, request: RemotingCommand, connection: Answered, answer: RemotingCommand) -> None:
        """Send an answer with the request's opaque and serialize type; nothing for a oneway request. Every
        answer is sent here, at once or later, and counted if it refuses; only answers to sends are encoded
        together and counted elsewhere (broker/send/processor.py).
        """
        if answer.code:
            self._count(request, answer.code)
        if request.flag & ONEWAY_FLAG:
            return
        answer.opaque = request.opaque
        answer.flag |= RESPONSE_FLAG
        answer.serialize_type = request.serialize_type
        try:
            connection.send(answer)
        except CommandError as error:
            _log.warning("answer to request code %d cannot be sent: %s", request.code, error)
            self._count(request, ResponseCode.SYSTEM_ERROR)
            connection.send(error_response(request, ResponseCode.SYSTEM_ERROR, str(error)))

    def _count(self, request: RemotingCommand, answer_code: int) -> None:
        is_known = request.code in self._handlers or request.code in self._batch_handlers
        self.counts.refuse(request.code if is_known else UNKNOWN, answer_code)

    def _fail(self, request: RemotingCommand, connection: Connection, error: BaseException) -> None:
        if isinstance(error, RequestError):
            code, remark = error.code, error.remark
        elif isinstance(error, HeaderError):
            code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
            connection.warn_once(f"header {request.code}", f"request code {request.code}: {remark}")
        else:
            code, remark = int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}"
            self._report(request, error)
        self.answer(request, connection, error_response(request, code, remark))

    def _report(self, request: RemotingCommand, error: BaseException) -> None:
        """Log an unexpected error with its trace, once per request code and error type."""
        key = (request.code, type(error))
        if key not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(key)
            _log.error("handler of request code %d failed", request.code, exc_info=error)


class Inbox:
    """The requests of one loop turn, and those that the next turns handle. Bounded by the connections: each
    stops reading at its own bound of open requests.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._arrived: list[Arrived] = []

    def add(self, arrived: Arrived) -> None:
        # Callbacks run in order: all other connections that are readable now are read before _dispatch.
        if not self._arrived:
            self._loop.call_soon(self._dispatch)
        self._arrived.append(arrived)

    def _dispatch(self) -> None:
        arrived, self._arrived = self._arrived, []
        if len(arrived) > 1 and (end := _end_of_turn(arrived)) < len(arrived):
            arrived, self._arrived = arrived[:end], arrived[end:]
            self._loop.call_soon(self._dispatch)
        self._router.dispatch(arrived)


def _end_of_turn(arrived: list[Arrived]) -> int:
    """How many of them one turn handles: a few batches must not hold the loop as long as all connections can
    fill them.
    """
    work = 0
    for number, (_, requests, _) in enumerate(arrived, 1):
        # What arrives in many reads is complete at the begin of one: only the first can be large.
        work += len(requests) + len(requests[0].body) // BODY_BYTES_AS_REQUEST
        if work >= TURN_REQUESTS_MAX:
            return number
    return len(arrived)
