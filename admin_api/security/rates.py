"""Token buckets, one a client, in a table of bounded size."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CLIENTS_MAX: Final = 1_000
"""Beyond it the one unseen for longest is forgotten, and starts anew with a full bucket."""


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

    def take(self, client: str) -> float:
        """Takes one. 0.0: taken; else the seconds after which there will be one."""
        bucket = self._bucket(client)
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / self._per_s
        bucket.left -= 1.0
        return 0.0

    def wait_s(self, client: str) -> float:
        """As `take` would answer; takes nothing."""
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
