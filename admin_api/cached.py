"""One read shared by all concurrent callers, and reused while it is young."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """What `read` brings, at most `lifetime_s` old; callers that come during a read share it.

    A read that fails is given to those who wait for it, and not kept. `now_s` never goes back.
    """

    def __init__(
        self, read: Callable[[], Awaitable[T]], lifetime_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._lifetime_s = lifetime_s
        self._now_s = now_s
        self._kept: tuple[float, T] | None = None
        self._reading: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Raises what `read` raises. A cancelled caller does not end the read of the others."""
        if self._kept is not None and self._now_s() - self._kept[0] < self._lifetime_s:
            return self._kept[1]
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
            self._reading.add_done_callback(retrieve)
        return await asyncio.shield(self._reading)

    def invalidate(self) -> None:
        """The next caller reads again: something was changed."""
        self._kept = None
        self._reading = None

    async def _refresh(self) -> T:
        own = asyncio.current_task()
        try:
            value = await self._read()
        finally:
            is_current = self._reading is own
            if is_current:
                self._reading = None
        if is_current:
            self._kept = (self._now_s(), value)
        return value


def retrieve(task: asyncio.Task[T]) -> None:
    """Reads the error, so that asyncio does not report it when every caller was cancelled."""
    if not task.cancelled():
        task.exception()
