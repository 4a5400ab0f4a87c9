"""How much one peer may get now: all that is there, what is left free, or a fixed quota of each second."""

from collections.abc import Callable
from dataclasses import dataclass

from dledger.core.catch_up import CatchUp
from dledger.core.config import Config
from dledger.core.events import PushThrottled
from dledger.core.output import Outbox
from dledger.core.throttle import Throttle
from dledger.core.types import LONG_AGO_MS


@dataclass(slots=True)
class Push:
    """One that is unacknowledged."""

    first_index: int
    last_index: int
    sent_ms: int
    size_bytes: int


class Pace:
    """Of one peer in one leadership. `lag_bytes` tells how much is still to be pushed to it."""

    def __init__(
        self, peer: str, config: Config, catch_up: CatchUp, lag_bytes: Callable[[], int], outbox: Outbox
    ) -> None:
        self.is_far_behind = False
        self.is_spare = False
        """A quorum does without this peer."""
        self.waits_until_ms: int | None = None
        """When more may be pushed, if the last answer was no."""
        self._peer = peer
        self._config = config
        self._catch_up = catch_up
        self._lag_bytes = lag_bytes
        self._outbox = outbox
        quota = config.throttle_bytes_per_s
        self._throttle = None if quota is None else Throttle(quota)
        self._reported_ms = LONG_AGO_MS

    def may_push(self, now_ms: int, pending_bytes: int) -> bool:
        """Whether the next range may leave now, with so much unacknowledged.

        Of a peer that is far behind little is under way, so that it comes to rest when it is to.
        """
        self.waits_until_ms = None
        if self._throttle is not None:
            self.waits_until_ms = self._over_quota_until_ms(self._throttle, now_ms)
        elif self.is_far_behind and self.is_spare:
            if pending_bytes > self._catch_up.under_way_bytes_max:
                return False
            self.waits_until_ms = self._catch_up.blocked_until_ms(now_ms)
        return self.waits_until_ms is None

    @property
    def is_throttled(self) -> bool:
        """Whether the peer gets what is left free, or waits for its next quota, with more there for it."""
        is_paced = self._throttle is None and self.is_far_behind and self.is_spare
        return is_paced or self.waits_until_ms is not None

    def pushed(self, size_bytes: int, now_ms: int) -> None:
        """A new range left."""
        if self._throttle is not None:
            self._throttle.sample(size_bytes, now_ms)
        elif self.is_far_behind:
            self._catch_up.sent(size_bytes, is_bounded=self.is_spare)

    def look(self) -> None:
        """See how far behind the peer is now that all was pushed that may be."""
        self.is_far_behind = self._lag_bytes() >= self._config.catch_up_lag_bytes

    def _over_quota_until_ms(self, throttle: Throttle, now_ms: int) -> int | None:
        until_ms = throttle.blocked_until_ms(now_ms)
        if until_ms is None or (lag_bytes := self._lag_bytes()) < self._config.throttle_lag_bytes:
            return None
        if until_ms != self._reported_ms:
            self._reported_ms = until_ms
            self._outbox.report(PushThrottled(self._peer, lag_bytes, until_ms))
        return until_ms
