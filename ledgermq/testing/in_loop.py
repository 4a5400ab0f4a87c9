"""A broker and its name server on the test's own event loop, with clocks that the test moves ahead.

What waits in a broker waits for a clock: for that of its environment (delays, timers, invisible times, checks
of transactions, retention), or for a timer of the event loop. So all of them are moved together: the two
clocks of the environment, that of the name server, and `time()` of the loop itself. The test's own sleeps and
time-outs on this loop are moved with them, and those of clients on it.

The clocks run on between two moves, and never go back: a loop keeps what it was moved after the broker's end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger.environment import Environment
from ledgermq.errors import UserError
from ledgermq.local.plan import ClusterPlan, Scalar
from ledgermq.testing.homes import home_at, plan_in
from ledgermq.testing.probes import until_writable
from remoting.client.aio import RemotingClient

if TYPE_CHECKING:
    from ledgermq.testing.one_node import OneNode

READY_LIMIT_S: Final = 30.0
STEPS: Final = 500
STEP_MIN_S, STEP_MAX_S = 0.05, 2.0
"""Shorter than what the time-outs of clients leave after the time for which brokers hold a request (5 s or
more), so that both happen in their order.
"""
TURNS: Final = 8
"""Of the loop after each step, and at the end of all. Loopback carries bytes within a system call: a request,
its answer and what the client makes of it need a turn each.
"""
END_TURNS: Final = 100
DISK_PAUSE_S: Final = 0.0002
"""Real time, while a thread writes to the disk."""
DISK_LIMIT_S: Final = 20.0


class MovedClock:
    """The clocks of one event loop, so much ahead of the machine's."""

    def __init__(self, loop: asyncio.BaseEventLoop) -> None:
        self._loop_time = loop.time
        self._ahead_ns = 0

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> MovedClock:
        """The clock of this loop, whose `time()` is from now on that of the clock.

        Raises: UserError when the loop is not one of asyncio's own, which read their time by that method.
        """
        there = getattr(loop.time, "__self__", None)
        if isinstance(there, cls):
            return there
        if not isinstance(loop, asyncio.BaseEventLoop):
            raise UserError(f"the time of a {type(loop).__name__} cannot be moved; use a loop of asyncio.")
        clock = cls(loop)
        loop.time = clock.time_s  # type: ignore[method-assign]
        return clock

    def move(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * 1e9)

    def time_s(self) -> float:
        """What the event loop counts by."""
        return self._loop_time() + self._ahead_ns / 1e9

    def monotonic_ms(self) -> int:
        return (time.monotonic_ns() + self._ahead_ns) // 1_000_000

    def wall_clock_ms(self) -> int:
        """Unix time."""
        return (time.time_ns() + self._ahead_ns) // 1_000_000


class InProcessBroker:
    """The broker while its block runs."""

    def __init__(self, plan: ClusterPlan, clock: MovedClock, node: OneNode) -> None:
        self._plan = plan
        self._clock = clock
        self._node = node

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server, which every client needs."""
        return self._plan.namesrv_address

    def now_ms(self) -> int:
        """Unix time (ms) by the broker's clock: messages for an absolute time are timed by it."""
        return self._clock.wall_clock_ms()

    async def advance(self, seconds: float) -> None:
        """Move all clocks ahead, in steps of at most 2 s: at each, what is due by then happens, and what
        follows from it.

        Raises: ValueError for a time in the past; UserError when the broker has failed.
        """
        if seconds < 0:
            raise ValueError(f"time goes ahead only, not {seconds} s")
        step_s = min(max(seconds / STEPS, STEP_MIN_S), STEP_MAX_S)
        left_s = seconds
        while left_s > 0:
            self._clock.move(min(step_s, left_s))
            left_s -= step_s
            await self._settle(TURNS)
        await self._settle(END_TURNS)

    async def _settle(self, turns: int) -> None:
        """Let everything run that is due, and wait for the disk where something is written."""
        end_s = time.monotonic() + DISK_LIMIT_S
        while True:
            for _ in range(turns):
                await asyncio.sleep(0)
            self._node.check()
            if self._node.has_applied_all:
                return
            if time.monotonic() > end_s:
                raise UserError(f"the broker has not written its log within {DISK_LIMIT_S:g} s.")
            await asyncio.sleep(DISK_PAUSE_S)


@asynccontextmanager
async def in_process(
    path: Path | str | None = None, *, settings: Mapping[str, Scalar] | None = None
) -> AsyncIterator[InProcessBroker]:
    """A broker on the running event loop, ready for messages, until the end of the block. path and settings
    are those of `ledgermq.testing.broker`.

    Raises: UserError when it cannot start, or the loop's time cannot be moved.
    """
    # Only here: tests whose brokers have processes of their own need nothing of it.
    from ledgermq.testing.one_node import OneNode

    clock = MovedClock.of(asyncio.get_running_loop())
    environment = Environment(monotonic_ms=clock.monotonic_ms, wall_clock_ms=clock.wall_clock_ms)
    with home_at(None if path is None else Path(path)) as home:
        plan = plan_in(home, 1, settings)
        node, client = OneNode(plan, environment), RemotingClient()
        try:
            await node.start()
            await until_writable(client, plan.namesrv_address, READY_LIMIT_S, node.check)
            yield InProcessBroker(plan, clock, node)
        finally:
            await client.close()
            await node.stop()
