"""Waits for a condition that other tasks, threads or processes bring about, with a deadline."""

import asyncio
from collections.abc import Callable

LIMIT_S = 20.0
PAUSE_S = 0.001


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return as soon as the condition holds. It is checked once per millisecond at most.

    Raises: TimeoutError.
    """
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(PAUSE_S)


async def loop_turns(count: int = 20) -> None:
    """Let everything run that is ready now, and what that makes ready."""
    for _ in range(count):
        await asyncio.sleep(0)
