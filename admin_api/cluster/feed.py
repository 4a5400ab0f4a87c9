"""Shares one view of the cluster among all viewers. Without a viewer no broker is asked.

A view is encoded once; all streams send the same bytes, driven by one timer.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

from admin_api.cached import retrieve
from admin_api.cluster.schemas import ClusterView
from admin_api.settings import Settings

logger = logging.getLogger(__name__)

_PASSING: Final[Any] = {
    "as_of_ms": True,
    "groups": {"__all__": {"nodes": {"__all__": {"push": {"last_contact_ms"}}}}},
}
"""What differs from read to read although nothing changed: the time, and the age of the last contact."""


class TooManyWatchersError(Exception):
    """The bound on open event streams is reached."""


class _Place:
    """One of the open event streams; it lives as long as its stream, also one that was never begun."""

    def __init__(self, client: str | None) -> None:
        self.client = client


@dataclass(frozen=True, slots=True)
class _Frame:
    """A view as the streams get it. `version` grows whenever what it shows changes."""

    view: ClusterView
    shown: str
    version: int
    read_at_s: float
    whole: bytes
    unchanged: bytes


class Feed:
    """Gives a view again while it is younger than `cache_ms`; concurrent callers share a read."""

    def __init__(self, read: Callable[[], Awaitable[ClusterView]], settings: Settings) -> None:
        self._read = read
        self._settings = settings
        self._view: ClusterView | None = None
        self._read_at_s = 0.0
        self._reading: asyncio.Task[ClusterView] | None = None
        self._frame: _Frame | None = None
        self._updated = asyncio.Event()
        self._updating: asyncio.Task[None] | None = None
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
            self._reading.add_done_callback(retrieve)
        return await asyncio.shield(self._reading)

    async def _refresh(self) -> ClusterView:
        try:
            self._view = await self._read()
            self._read_at_s = time.monotonic()
            return self._view
        finally:
            self._reading = None

    def watch(self, client: str | None = None) -> AsyncGenerator[bytes, None]:
        """Server-sent events until `close`.

        `cluster`: the whole view, at first and when a read (each `watch_interval_ms`) has changes.
        `unchanged`: its time only, when for `unchanged_interval_ms` none did.

        Closing or dropping the iterator frees its place.
        Raises: TooManyWatchersError at once when `watchers_max` are open, or half of them by this client.
        """
        most = self._settings.watchers_max
        if self.watchers >= most:
            raise TooManyWatchersError(f"{self.watchers} event streams are open, no more are allowed")
        own = 0 if client is None else sum(place.client == client for place in self._places)
        if own >= max(1, most // 2):
            raise TooManyWatchersError(
                f"{own} event streams of this client are open; the others are reserved for other clients"
            )
        place = _Place(client)
        self._places.add(place)
        return self._watch(place)

    async def _watch(self, place: _Place) -> AsyncGenerator[bytes, None]:
        quiet_s = self._settings.unchanged_interval_ms / 1000
        version, sent_at_s = -1, 0.0
        try:
            frame = self._encode(await self.current())
            while True:
                updated = self._updated
                if frame.version != version or frame.read_at_s - sent_at_s >= quiet_s:
                    yield frame.unchanged if frame.version == version else frame.whole
                    version, sent_at_s = frame.version, frame.read_at_s
                if self._closed.is_set():
                    return
                if updated is self._updated:  # else there was an update while the stream was busy
                    self._start_updates()
                    await updated.wait()
                frame = self._frame or frame
        finally:
            self._places.discard(place)

    def _start_updates(self) -> None:
        if self._updating is None:
            self._updating = asyncio.create_task(self._update_while_watched())

    async def _update_while_watched(self) -> None:
        """The one timer of all streams. When a read fails, nothing is sent; viewers notice the silence."""
        while True:
            await self._pause()
            if self._closed.is_set() or not self._places:
                break
            try:
                self._encode(await self.current())
            except Exception:
                logger.exception("reading the cluster failed")
            self._wake()
        self._updating = None

    def _wake(self) -> None:
        """Wakes every stream."""
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()

    def _encode(self, view: ClusterView) -> _Frame:
        last = self._frame
        if last is not None and last.view is view:
            return last
        shown = view.model_dump_json(exclude=_PASSING)
        version = 0 if last is None else last.version + (last.shown != shown)
        whole = f"event: cluster\ndata: {view.model_dump_json(by_alias=True)}\n\n".encode()
        unchanged = f'event: unchanged\ndata: {{"asOfMs":{view.as_of_ms}}}\n\n'.encode()
        self._frame = _Frame(view, shown, version, self._read_at_s, whole, unchanged)
        return self._frame

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._settings.watch_interval_ms / 1000):
                await self._closed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Ends every stream."""
        self._closed.set()
        self._wake()
