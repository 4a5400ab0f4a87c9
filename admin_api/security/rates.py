"""Rate limits: token buckets per client in a table of bounded size, and a bounded number of concurrent
requests.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

CLIENTS_MAX: Final = 1_000
"""Beyond it the one unseen for longest is dropped, and starts again with a full bucket."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class RateLimit:
    """At most `burst` at once and `per_s` on average, for each client by itself."""

    def __init__(
        self,
        burst: int,
        per_s: float,
        *,
        clients_max: int = CLIENTS_MAX,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clients_max = clients_max
        self._now_s = now_s
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def acquire(self, client: str) -> float:
        """0.0: acquired; else the seconds after which one will be available."""
        bucket = self._bucket(client)
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / self._per_s
        bucket.left -= 1.0
        return 0.0

    def wait_s(self, client: str) -> float:
        """As `acquire` would answer; acquires nothing."""
        return max(0.0, (1.0 - self._bucket(client).left) / self._per_s)

    def _bucket(self, client: str) -> _Bucket:
        now_s = self._now_s()
        bucket = self._buckets.get(client)
        if bucket is None:
            while len(self._buckets) >= self._clients_max:
                self._buckets.popitem(last=False)
            bucket = self._buckets[client] = _Bucket(float(self._burst), now_s)
        self._buckets.move_to_end(client)
        bucket.left = min(float(self._burst), bucket.left + (now_s - bucket.at_s) * self._per_s)
        bucket.at_s = now_s
        return bucket


@dataclass(slots=True)
class _Own:
    """The places of one client; `users` have one or wait for one."""

    places: asyncio.Semaphore
    users: int = field(default=0)


class Turns:
    """At most `each` under way for one client and `total` for all; one more waits, first come first served.

    A client waits for a place of its own before it waits for one of all, so that what one asks many times
    delays its own requests only. Made anywhere, used on one loop.
    """

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._all = asyncio.Semaphore(total)
        self._clients: dict[str, _Own] = {}

    @property
    def clients(self) -> int:
        """Of which something is under way, or waits."""
        return len(self._clients)

    async def acquire(self, client: str, wait_s: float) -> bool:
        """Whether there was a place within that time; `release` returns it."""
        own = self._clients.setdefault(client, _Own(asyncio.Semaphore(self._each)))
        own.users += 1
        has_own = is_taken = False
        try:
            async with asyncio.timeout(wait_s):
                has_own = await own.places.acquire()
                is_taken = await self._all.acquire()
        except TimeoutError:
            pass
        finally:
            if not is_taken:
                self._leave(client, own, has_place=has_own)
        return is_taken

    def release(self, client: str) -> None:
        self._all.release()
        self._leave(client, self._clients[client], has_place=True)

    def _leave(self, client: str, own: _Own, *, has_place: bool) -> None:
        if has_place:
            own.places.release()
        own.users -= 1
        if own.users == 0:
            del self._clients[client]
