"""An asyncio event loop in virtual time: one for each simulated process, all driven by one event queue.

A turn runs what was ready when it began, as asyncio's does. A process can be killed or stopped between any
two turns, and killed within one by a file operation.
"""

import asyncio
import contextlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from tests.node_simulation.clocks import MachineClock
from tests.simulation.clock import Event, VirtualClock

_T = TypeVar("_T")


class ProcessKilledError(BaseException):
    """Raised out of whatever a process does when it is killed in the midst of it."""


class LoopError(AssertionError):
    """An exception that asyncio would only log, since no task awaits it."""


@dataclass(slots=True)
class LoopTimes:
    """How long things take, in world microseconds: a turn, a job of a worker thread; how long the loop stands
    still after a callback.
    """

    turn_us: Callable[[], int] = lambda: 5
    job_us: Callable[[], int] = lambda: 500
    stall_us: Callable[[], int] = lambda: 0


class SimTimer(asyncio.TimerHandle):
    """A timer handle that takes its event out of the world's queue when it is cancelled."""

    __slots__ = ("event",)
    event: Event | None

    def cancel(self) -> None:
        super().cancel()
        if self.event is not None:
            self.event.cancel()
            self.event = None


@dataclass(slots=True)
class _Worker:
    """The one thread of an executor: its jobs, one after the other."""

    free_at_us: int = 0


@dataclass(slots=True)
class _Signals:
    handlers: dict[int, Callable[[], object]] = field(default_factory=dict)


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one process. `network` makes its servers and connections (tests.node_simulation.net)."""

    def __init__(
        self,
        world: VirtualClock,
        clock: MachineClock,
        on_error: Callable[[BaseException], None],
        after_turn: Callable[[], None] = lambda: None,
        times: LoopTimes | None = None,
    ) -> None:
        self.world = world
        self.clock = clock
        self.network: Any = None
        self._on_error = on_error
        self._after_turn = after_turn
        self._tasks_made = 0
        self._tasks: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()
        """In the order they were made, which asyncio's own set of them does not keep."""
        self._times = times or LoopTimes()
        self._ready: deque[asyncio.Handle] = deque()
        self._late: list[SimTimer] = []
        self._workers: dict[object, _Worker] = {}
        self._signals = _Signals()
        self._is_turn_due = False
        self._is_paused = False
        self._is_dead = False
        self._stall_us = 0
        self._is_still = False
        self._overdue: deque[asyncio.Handle] = deque()
        self.name = ""

    # -- life and death

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def kill(self) -> None:
        """Nothing of this loop runs from now on, not even the rest of the turn under way."""
        self._is_dead = True
        self._ready.clear()
        self._overdue.clear()
        self._late.clear()

    def bury(self) -> None:
        """Closes what a killed process left behind, so that Python finds nothing to warn of."""
        assert self._is_dead, "a live loop"
        for task in [task for task in self._tasks.values() if not task.done()]:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = cast("Generator[Any, Any, Any]", task.get_coro())
            with contextlib.suppress(Exception, ProcessKilledError):
                coroutine.close()

    def pause(self) -> None:
        """SIGSTOP: nothing runs until `resume`; timers come due meanwhile, and bytes wait."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        late, self._late = self._late, []
        for timer in late:
            self._schedule_timer(timer)
        self._wake()

    def signal(self, number: int) -> None:
        """What the process gets with kill(2), if it asked for it."""
        handler = self._signals.handlers.get(number)
        if handler is not None:
            self.call_soon(handler)

    # -- turns

    def _wake(self) -> None:
        if self._ready and not (self._is_turn_due or self._is_still or self._is_paused or self._is_dead):
            self._is_turn_due = True
            self.world.schedule(self._times.turn_us(), self._turn)

    def _turn(self) -> None:
        if self._is_still:
            return
        self._is_turn_due = False
        if self._is_paused or self._is_dead:
            return
        ready = self._ready
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                    if self._is_dead:
                        return
                    self._stall_us += self._times.stall_us()
                    if self._stall_us:
                        break
        finally:
            events._set_running_loop(None)
        if self._stall_us:
            self._go_on_later()
            return
        self._wake()
        self._after_turn()

    def stand_still(self, duration_us: int) -> None:
        """After the callback under way nothing runs for so long, in the midst of the turn if it is one.

        What is due by then comes first, as in uvloop: timers before what was ready.
        """
        self._stall_us += duration_us

    def _go_on_later(self) -> None:
        self._is_still = True
        duration_us, self._stall_us = self._stall_us, 0
        self.world.schedule(duration_us, self._go_on)

    def _go_on(self) -> None:
        self._is_still = False
        self._ready.extendleft(reversed(self._overdue))
        self._overdue.clear()
        self._turn()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_dead:
            self._ready.append(handle)
            self._wake()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    # -- timers

    def time(self) -> float:
        return self.clock.monotonic_us(self.world.now_us) / 1_000_000

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        timer.event = None
        if not self._is_dead:
            self._schedule_timer(timer)
        return timer

    def _schedule_timer(self, timer: SimTimer) -> None:
        if self.clock.is_stalled:
            self._late.append(timer)
            return
        due_us = self.clock.world_us(-int(-timer.when() * 1_000_000 // 1))
        timer.event = self.world.schedule(due_us - self.world.now_us, lambda: self._fire(timer))

    def _fire(self, timer: SimTimer) -> None:
        timer.event = None
        if self._is_dead or timer.cancelled():
            return
        if self.clock.is_stalled or self.time() < timer.when() - 1e-6:
            self._schedule_timer(timer)
            return
        (self._overdue if self._is_still else self._ready).append(timer)
        self._wake()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio's handles tell their loop; SimTimer has done what there is to do."""

    # -- futures, tasks, threads

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[_T]":
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks_made += 1
        self._tasks[self._tasks_made] = task
        if self._is_dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro.close()
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> "asyncio.Future[_T]":
        """Calls func between two turns, a while from now: after the job before it when the executor is one
        thread (any executor but the default one), and then lets another while pass.
        """
        future: asyncio.Future[_T] = asyncio.Future(loop=self)
        start_us = self.world.now_us
        worker = None
        if executor is not None:
            worker = self._workers.setdefault(executor, _Worker())
            start_us = max(start_us, worker.free_at_us)
        run_us = start_us + self._times.job_us()
        end_us = run_us + self._times.job_us()
        if worker is not None:
            worker.free_at_us = end_us
        self._run_job(lambda: func(*args), future, run_us, end_us)
        return future

    def _run_job(self, job: Callable[[], _T], future: "asyncio.Future[_T]", run_us: int, end_us: int) -> None:
        def run() -> None:
            if self._is_dead:
                return
            if self._is_paused:
                self.world.schedule(1_000, run)
                return
            try:
                result = job()
            except ProcessKilledError:
                return
            except BaseException as error:  # noqa: BLE001 (a thread's exception goes into its future)
                self._report_later(end_us, future, future.set_exception, error)
            else:
                self._report_later(end_us, future, future.set_result, result)

        self.world.schedule(run_us - self.world.now_us, run)

    def _report_later(
        self, end_us: int, future: "asyncio.Future[Any]", settle: Callable[[Any], None], value: object
    ) -> None:
        def report() -> None:
            if not future.done():
                settle(value)

        self.at(end_us, partial(self.call_soon, report))

    def at(self, world_us: int, action: Callable[[], object]) -> None:
        """Has action called at a moment of the world, unless the process is dead by then."""

        def act() -> None:
            if not self._is_dead:
                action()

        self.world.schedule(world_us - self.world.now_us, act)

    # -- sockets

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(self, protocol_factory, host, port)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(self, protocol_factory, host, port)

    # -- the rest that asyncio and the product ask for

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._signals.handlers[sig] = lambda: callback(*args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._is_dead:
            return
        error = context.get("exception")
        failure = LoopError(f"{context.get('message')}: {error!r}")
        failure.__cause__ = error
        self._on_error(failure)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_dead

    def is_closed(self) -> bool:
        return self._is_dead
