"""One look at the cluster for however many viewers; nobody looking means nobody asked."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from weakref import WeakSet

from admin_api.schemas.cluster import ClusterView
from admin_api.settings import Settings


class TooManyWatchersError(Exception):
    """The bound on open event streams is reached."""


class _Place:
    """One of the open event streams; it lives as long as its stream, also one that was never begun."""


class Feed:
    """Gives a view again while it is younger than `cache_ms`; askers that come during a read share it."""

    def __init__(self, read: Callable[[], Awaitable[ClusterView]], settings: Settings) -> None:
        self._read = read
        self._settings = settings
        self._view: ClusterView | None = None
        self._read_at_s = 0.0
        self._reading: asyncio.Task[ClusterView] | None = None
        self._closed = asyncio.Event()
        self._places: WeakSet[_Place] = WeakSet()

    @property
    def watchers(self) -> int:
        """Open event streams."""
        return len(self._places)

    async def current(self) -> ClusterView:
        """The newest view, at most `cache_ms` old."""
        if self._view is not None and time.monotonic() - self._read_at_s < self._settings.cache_ms / 1000:
            return self._view
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._reading)

    async def _refresh(self) -> ClusterView:
        try:
            self._view = await self._read()
            self._read_at_s = time.monotonic()
            return self._view
        finally:
            self._reading = None

    def watch(self) -> AsyncGenerator[ClusterView, None]:
        """A view each `watch_interval_ms` until `close`; closing or dropping the iterator frees its place.

        Raises: TooManyWatchersError at once when `watchers_max` are open.
        """
        if self.watchers >= self._settings.watchers_max:
            raise TooManyWatchersError(f"{self.watchers} event streams are open, no more are allowed")
        place = _Place()
        self._places.add(place)
        return self._watch(place)

    async def _watch(self, place: _Place) -> AsyncGenerator[ClusterView, None]:
        try:
            while not self._closed.is_set():
                yield await self.current()
                await self._pause()
        finally:
            self._places.discard(place)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._settings.watch_interval_ms / 1000):
                await self._closed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Ends every stream."""
        self._closed.set()
