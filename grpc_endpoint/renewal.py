"""Keeps messages invisible while a push consumer works on them (DefaultReceiptHandleManager).

A client that asks for it (`auto_renew`) names no invisible time: the endpoint gives the message one minute
and renews that shortly before its end, until the client ends the message with the handle that it got, or has
gone for good. The client never sees the newer handles.

Each renewal is for a minute again, where RocketMQ's proxy takes steps of up to an hour (RenewStrategyPolicy):
the newest handle is here only, and when this process dies no message may wait longer than that for its next
consumer.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Final

from grpc_endpoint.status import StatusError
from remoting.pop_receipts import ReceiptHandle

AHEAD_MS: Final = 10_000
"""So long before its end an invisible time is renewed."""
INVISIBLE_MS: Final = 60_000
"""Invisible time of a message when it is handed out, and again with each renewal."""
TOTAL_MAX_MS: Final = 3 * 3_600_000
"""A message that was not ended after this time is given to another consumer."""
FAILURES_MAX: Final = 3
RENEWED_MAX: Final = 200_000
"""Beyond it messages are not renewed: they come again after their first invisible time."""
FREED_MS: Final = 1_000
"""Messages of a client that has gone are visible again after this time."""
_FAILED_PAUSE_MS: Final = 2_000

logger = logging.getLogger(__name__)
Change = Callable[[str, str, ReceiptHandle, int], Awaitable[ReceiptHandle]]
"""Changes the invisible time: group, topic, handle, new time (ms); returns the new handle."""
Pause = Callable[[str, int], Awaitable[int]]
"""How long (ms) a message of the group waits that was tried so often."""


@dataclass(slots=True)
class _Renewed:
    topic: str
    handle: ReceiptHandle
    attempts: int
    since_ms: int
    context: Context
    """Of the client's call: with its proof."""
    failures: int = 0
    is_ended: bool = False
    """The client wants no more of it; its newest handle stays known until it was ended by it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the broker is asked to change or to end the message, which makes the handle invalid."""


_Key = tuple[str, str, str]
"""Client, group, and the handle that the client knows."""


class Renewals:
    """`run` does the work; times of handles are those of the wall clock."""

    def __init__(self, change: Change, pause: Pause) -> None:
        self._change = change
        self._pause = pause
        self._renewed: dict[_Key, _Renewed] = {}
        self._due: list[tuple[int, _Key]] = []
        self._is_earlier = asyncio.Event()

    def __len__(self) -> int:
        return len(self._renewed)

    def add(self, client_id: str, group: str, topic: str, handle: ReceiptHandle, attempts: int) -> None:
        """The client has the message from now on; it was tried `attempts` times before."""
        if len(self._renewed) >= RENEWED_MAX:
            return
        key = client_id, group, str(handle)
        self._renewed[key] = _Renewed(topic, handle, attempts, _now_ms(), copy_context())
        self._schedule(key, handle.visible_at_ms - AHEAD_MS)

    def has(self, client_id: str, group: str, handle: ReceiptHandle) -> bool:
        """Whether the message is renewed: then only `ending` knows its newest handle."""
        return bool(self._renewed) and (client_id, group, str(handle)) in self._renewed

    def take(self, client_id: str, group: str, handle: ReceiptHandle) -> ReceiptHandle:
        """The newest handle of the message, which is not renewed any more."""
        renewed = self._renewed.pop((client_id, group, str(handle)), None)
        return handle if renewed is None else renewed.handle

    @asynccontextmanager
    async def ending(self, client_id: str, group: str, handle: ReceiptHandle) -> AsyncIterator[ReceiptHandle]:
        """The newest handle of a message that its client ends now: it is not renewed any more. Where that
        fails, the client may try again with the handle that it has until the message is visible again.
        """
        key = client_id, group, str(handle)
        renewed = self._renewed.get(key)
        if renewed is None:
            yield handle
            return
        renewed.is_ended = True
        async with renewed.lock:
            try:
                yield renewed.handle
            except BaseException:
                self._schedule(key, renewed.handle.visible_at_ms)
                raise
        self._renewed.pop(key, None)

    def drop_client(self, client_id: str) -> list[tuple[str, str, ReceiptHandle]]:
        """Renew nothing for the client any more; group, topic and handle of what it had."""
        keys = [key for key in self._renewed if key[0] == client_id]
        dropped = [(key, self._renewed.pop(key)) for key in keys]
        return [(group, renewed.topic, renewed.handle) for (_, group, _), renewed in dropped]

    async def run(self) -> None:
        """Renew what is due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for key in self._take_due(_now_ms()):
                    tasks.create_task(self._renew(key), context=self._renewed[key].context)
                await self._wait()

    async def _wait(self) -> None:
        self._is_earlier.clear()
        limit_s = max(0.0, (self._due[0][0] - _now_ms()) / 1000) if self._due else None
        try:
            async with asyncio.timeout(limit_s):
                await self._is_earlier.wait()
        except TimeoutError:
            return

    def _schedule(self, key: _Key, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, key))
        if self._due[0][1] == key:
            self._is_earlier.set()

    def _take_due(self, now_ms: int) -> list[_Key]:
        due = []
        while self._due and self._due[0][0] <= now_ms:
            due.append(heapq.heappop(self._due)[1])
        return [key for key in due if key in self._renewed]

    async def _renew(self, key: _Key) -> None:
        renewed = self._renewed.get(key)
        if renewed is None:
            return
        if renewed.is_ended:
            if renewed.handle.visible_at_ms <= _now_ms():
                self._renewed.pop(key, None)
            return
        async with renewed.lock:
            await self._renew_now(key, renewed)

    async def _renew_now(self, key: _Key, renewed: _Renewed) -> None:
        group = key[1]
        try:
            if _now_ms() - renewed.since_ms >= TOTAL_MAX_MS:
                del self._renewed[key]
                pause_ms = await self._pause(group, renewed.attempts)
                await self._change(group, renewed.topic, renewed.handle, pause_ms)
                return
            renewed.handle = await self._change(group, renewed.topic, renewed.handle, INVISIBLE_MS)
        except StatusError as error:
            self._failed(key, renewed, error)
            return
        renewed.failures = 0
        if key in self._renewed:
            self._schedule(key, renewed.handle.visible_at_ms - AHEAD_MS)

    def _failed(self, key: _Key, renewed: _Renewed, error: StatusError) -> None:
        renewed.failures += 1
        if renewed.failures >= FAILURES_MAX or renewed.handle.visible_at_ms <= _now_ms():
            logger.info("a message is not renewed any more, it will be handed out again: %s", error)
            self._renewed.pop(key, None)
        elif key in self._renewed:
            self._schedule(key, _now_ms() + _FAILED_PAUSE_MS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
