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
    """While the main thread is in it, a SIGTERM raises SystemExit there, so that every `finally` runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, where a SIGTERM cancels the main task as asyncio has a SIGINT do: it may still wait for
    something, such as the offsets of what was consumed, while the tasks that it needs for that go on.

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
