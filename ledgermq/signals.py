"""SIGTERM ends a long command as Ctrl-C does: the command reports its progress and cleans up."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

from ledgermq.errors import TERMINATED

T = TypeVar("T")


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside this block a SIGTERM raises SystemExit in the main thread, so that every `finally` runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but SIGTERM cancels the main task, as SIGINT does in asyncio. The cancelled task may
    still await something, such as the commit of offsets, while the tasks that it needs for that continue.

    Raises: SystemExit after a SIGTERM.
    """
    with ending_in_order():
        return asyncio.run(_cancelled_by_sigterm(main))


async def _cancelled_by_sigterm(main: Coroutine[Any, Any, T]) -> T:
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    assert own is not None
    asked: list[int] = []

    def stop() -> None:
        asked.append(signal.SIGTERM)
        own.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await main
    except asyncio.CancelledError:
        if asked:
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
