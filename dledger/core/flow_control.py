"""How much a leader may push to one peer now: everything, the capacity that producers leave free, or a fixed
quota.

A peer that keeps up gets every entry at once. A peer that is far behind, and that no quorum needs, catches up
with the capacity that the producers leave free (`CatchUp`), or, where `peerPushQuota` is set, with that many
bytes a second (`Throttle`, DLedger's Quota).

`CatchUp` follows LEDBAT (RFC 6817; the pauses are from LEDBAT++). The time that callers wait for their
commits shows how busy the leader, its disk and the peers are, whichever of them is the bottleneck. The rate
grows while callers wait at most half as long again as they do when no peer catches up; when they wait longer,
it falls. It also falls when they wait longer at all and fewer appends are committed: callers that wait for
their answers before they send again lose throughput, and a busy leader reads requests later, which is in no
wait. Every few seconds catching up pauses; waits and commits during the pause are the base
for the next comparisons.
"""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dledger.core.config import Config
from dledger.core.events import PushThrottled
from dledger.core.output import Outbox
from dledger.core.types import LONG_AGO_MS

WINDOW_MS = 100
"""The rate is adapted at the end of each window."""
PAUSE_MS = 200
"""Long enough for whole windows in which nothing of the catching up is under way any more."""
WINDOWS_BETWEEN_PAUSES = 50
"""So catching up pauses about every 5 s."""
WAIT_RATIO = 1.5
"""Callers may wait this many times as long as in a pause, plus SLACK_MS, where they keep their commits."""
SLACK_MS = 1.0
"""For waits so short that the clock's milliseconds would decide."""
COMMITS_MIN = 0.85
"""The least share of the commits a second in a pause that callers keep."""
COMMITS_WEIGHT = 0.3
"""The weight of the newest window in the average of the commits meanwhile: producers send in bursts."""
AHEAD = 1.5
"""The rate is at least this multiple of the bytes a second that the log grows by: at less a peer would never
catch up, however long it takes, and the group would stay without the member.
"""
APPENDED_WEIGHT = 0.1
"""The weight of the newest window in the average of what the log grows by: about a second's."""
GROWTH = 1.5
"""The rate's factor in a window in which callers lose nothing; it is nearer to 1 the more they lose."""
SHRINKING_MIN = 0.5
"""The least factor in one window: one slow commit must not stop the catching up."""
BASE_WEIGHT = 0.5
"""The weight of the newest quiet window in the average wait that others are compared with."""
DISTURBED_WEIGHT = 0.05
"""Its weight where callers are worse off than before in every way."""
BYTES_PER_S_MAX = 1 << 32
"""More than any disk or network carries: the rate must not grow without bound while it limits nothing."""
TURN_BYTES_MAX = 2 << 20
"""So many are read and pushed to one such peer in one turn, which takes some milliseconds: heartbeats and
producers wait for its end.
"""
BURST_MS = 20
"""The bytes of this much time may be sent at once: longer bursts would delay producers."""
UNDER_WAY_MS = 100
"""The bytes of this much time may be unacknowledged: see `under_way_bytes_max`."""
UNDER_WAY_BYTES_MAX = 32 << 20
"""So many at most: two batches that keep a disk busy, one being written while the next one arrives. Beyond
that they only take memory on both sides.
"""


class CatchUp:
    """The one rate for all peers of a leadership that are far behind and that no quorum waits for."""

    def __init__(self, bytes_per_s_min: int) -> None:
        self.bytes_per_s = float(bytes_per_s_min)
        self._bytes_per_s_min = bytes_per_s_min
        self._window_end_ms = LONG_AGO_MS
        self._waits_ms = 0
        self._waits = 0
        self._commits = 0
        self._window_begin_ms = LONG_AGO_MS
        self._end_position: int | None = None
        self._appended_per_s = 0.0
        self._base_ms: float | None = None
        self._base_commits_per_ms = self._commits_per_ms = 0.0
        self._pause_end_ms = LONG_AGO_MS
        self._windows_since_pause = 0
        self._spent_bytes = 0
        self._tokens = 0.0
        self._filled_ms = LONG_AGO_MS

    def waited(self, wait_ms: int, entries: int) -> None:
        """Callers' appends of so many entries were committed, the oldest of them after `wait_ms`."""
        self._waits_ms += wait_ms
        self._waits += 1
        self._commits += entries

    def end_window(self, now_ms: int, oldest_wait_ms: int | None, end_position: int) -> None:
        """Adapts the rate if the window has ended. `oldest_wait_ms`: of the append that waits longest now.
        `end_position`: of the leader's log.
        """
        if now_ms < self._window_end_ms:
            return
        wait_ms = self._waits_ms / self._waits if self._waits else None
        # Commits that have stopped altogether complete no append, so the one still waiting has to count.
        if oldest_wait_ms is not None and oldest_wait_ms > WINDOW_MS:
            wait_ms = max(wait_ms or 0, oldest_wait_ms)
        commits_per_ms = self._commits / (now_ms - self._window_begin_ms)
        if self._end_position is not None:
            appended_per_s = (end_position - self._end_position) * 1000 / (now_ms - self._window_begin_ms)
            self._appended_per_s += (appended_per_s - self._appended_per_s) * APPENDED_WEIGHT
        self._end_position = end_position
        if self._spent_bytes == 0:
            self._update_base(wait_ms, commits_per_ms)
        else:
            self._commits_per_ms += (commits_per_ms - self._commits_per_ms) * COMMITS_WEIGHT
            self._adapt(wait_ms, now_ms)
        self._window_begin_ms, self._window_end_ms = now_ms, now_ms + WINDOW_MS
        self._waits_ms = self._waits = self._commits = self._spent_bytes = 0

    def _update_base(self, wait_ms: float | None, commits_per_ms: float) -> None:
        """A quiet window, in which no peer was caught up: the base that others are compared with.

        A pause is not always quiet: the peer still applies what it has, and its disk writes. Callers that
        wait longer and get fewer commits are still disturbed; with another load one of the two is better.
        """
        if wait_ms is None:
            return
        if self._base_ms is None:
            self._base_ms, self._base_commits_per_ms = wait_ms, commits_per_ms
        else:
            is_disturbed = wait_ms > self._base_ms and commits_per_ms < self._base_commits_per_ms
            weight = DISTURBED_WEIGHT if is_disturbed else BASE_WEIGHT
            self._base_ms += (wait_ms - self._base_ms) * weight
            self._base_commits_per_ms += (commits_per_ms - self._base_commits_per_ms) * weight
        self._commits_per_ms = self._base_commits_per_ms

    def _adapt(self, wait_ms: float | None, now_ms: int) -> None:
        """LEDBAT's controller (RFC 6817 2.4.2), with the wait above the base in the place of the queuing
        delay.
        """
        self._windows_since_pause += 1
        factor = GROWTH
        if wait_ms is not None:
            if self._base_ms is None or self._windows_since_pause >= WINDOWS_BETWEEN_PAUSES:
                # Without a pause now and then the base would only ever be as old as the last idle moment, and
                # a load that grew meanwhile would look like waits that catching up causes (LEDBAT++ 4.4).
                self._pause_end_ms = now_ms + PAUSE_MS
                self._windows_since_pause = 0
            if self._base_ms is None:
                return
            factor = self._factor(self._base_ms, wait_ms)
        floor = max(self._bytes_per_s_min, AHEAD * self._appended_per_s)
        self.bytes_per_s = min(max(self.bytes_per_s * factor, floor), BYTES_PER_S_MAX)

    def _factor(self, base_ms: float, wait_ms: float) -> float:
        """The nearer callers are to what they may lose, the less the rate grows: it settles there instead of
        passing it in every other window.
        """
        allowed_ms = base_ms * WAIT_RATIO + SLACK_MS
        if wait_ms > allowed_ms:
            return max(SHRINKING_MIN, allowed_ms / wait_ms)
        if wait_ms <= base_ms:
            return GROWTH  # fewer commits alone may be producers that send less
        allowed_commits = self._base_commits_per_ms * COMMITS_MIN
        if self._commits_per_ms < allowed_commits:
            return max(SHRINKING_MIN, self._commits_per_ms / allowed_commits)
        wait_left = (allowed_ms - wait_ms) / (allowed_ms - base_ms)
        commits_lost = self._base_commits_per_ms - allowed_commits
        commits_left = (self._commits_per_ms - allowed_commits) / max(commits_lost, sys.float_info.min)
        return 1 + (GROWTH - 1) * min(1.0, wait_left, commits_left)

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """When more may leave; None: now."""
        if now_ms < self._pause_end_ms:
            return self._pause_end_ms
        burst = self.bytes_per_s * BURST_MS / 1000
        filled = self._tokens + self.bytes_per_s * (now_ms - self._filled_ms) / 1000
        self._tokens, self._filled_ms = min(burst, filled), now_ms
        if self._tokens > 0:
            return None
        return now_ms + max(1, int(-self._tokens * 1000 / self.bytes_per_s) + 1)

    @property
    def under_way_bytes_max(self) -> float:
        """Unacknowledged bytes allowed to one peer: they must be acknowledged early in a pause, or the pause
        would measure the catching up itself.
        """
        return min(self.bytes_per_s * UNDER_WAY_MS / 1000, UNDER_WAY_BYTES_MAX)

    def sent(self, size_bytes: int, *, is_bounded: bool) -> None:
        """Accounts for bytes pushed to a peer that is far behind. `is_bounded`: the rate applies to them.
        Bytes that a quorum needs are pushed at any rate, and do not reduce what may be pushed later.
        """
        self._spent_bytes += size_bytes
        if is_bounded:
            self._tokens -= size_bytes


_SECOND_MS = 1_000
_SAMPLES = 6
"""So speeds are those of the last five seconds."""


class Progress:
    """How fast one peer that is far behind catches up."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_SAMPLES)
        """Time, bytes that the peer's disk has, bytes that it lacks."""

    def is_due(self, now_ms: int) -> bool:
        """One sample a second: the places of entries may have to be read from the files."""
        return not self._samples or now_ms - self._samples[-1][0] >= _SECOND_MS

    def add(self, now_ms: int, held_bytes: int, lag_bytes: int) -> None:
        self._samples.append((now_ms, held_bytes, lag_bytes))

    def clear(self) -> None:
        """It is not far behind any more, or the logs have to be compared first."""
        self._samples.clear()

    @property
    def bytes_per_s(self) -> int | None:
        found = self._change()
        return None if found is None else found[1] * _SECOND_MS // found[0]

    @property
    def caught_up_in_ms(self) -> int | None:
        found = self._change()
        if found is None or found[2] <= 0:
            return None
        took_ms, _, nearer_bytes = found
        return self._samples[-1][2] * took_ms // nearer_bytes

    def _change(self) -> tuple[int, int, int] | None:
        """Milliseconds, bytes stored and bytes by which the lag has shrunk; None when there is no time."""
        if len(self._samples) < 2:
            return None
        (first_ms, first_held, first_lag), (last_ms, held, lag) = self._samples[0], self._samples[-1]
        return last_ms - first_ms, max(0, held - first_held), first_lag - lag


class Throttle:
    """DLedger's Quota: counts the bytes sent in the current second."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._window_ms = LONG_AGO_MS
        self._used_bytes = 0

    def sample(self, size_bytes: int, now_ms: int) -> None:
        if now_ms >= self._window_ms + _SECOND_MS:
            self._window_ms, self._used_bytes = now_ms, 0
        self._used_bytes += size_bytes

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """When the next second begins if this one's bytes are used up, else None."""
        until_ms = self._window_ms + _SECOND_MS
        return until_ms if self._used_bytes >= self._bytes_per_s and now_ms < until_ms else None


@dataclass(slots=True)
class Push:
    """A range that was pushed and is not acknowledged yet."""

    first_index: int
    last_index: int
    sent_ms: int
    size_bytes: int


class Pace:
    """How much one peer may get now, in one leadership. `lag_bytes` returns the bytes still to be pushed to
    it.
    """

    def __init__(
        self, peer: str, config: Config, catch_up: CatchUp, lag_bytes: Callable[[], int], outbox: Outbox
    ) -> None:
        self.is_far_behind = False
        self.is_optional = False
        """Enough other members keep up for a quorum: no commit waits for this peer."""
        self.waits_until_ms: int | None = None
        """When more may be pushed, if `may_push` refused for now."""
        self._peer = peer
        self._config = config
        self._catch_up = catch_up
        self._lag_bytes = lag_bytes
        self._outbox = outbox
        quota = config.throttle_bytes_per_s
        self._throttle = None if quota is None else Throttle(quota)
        self._reported_ms = LONG_AGO_MS

    def may_push(self, now_ms: int, pending_bytes: int) -> bool:
        """Whether the next range may be pushed now, with `pending_bytes` unacknowledged.

        A peer that a quorum needs is never held back: its acknowledgements are what commits wait for.
        """
        self.waits_until_ms = None
        if self._throttle is not None:
            self.waits_until_ms = self._over_quota_until_ms(self._throttle, now_ms)
        elif self.is_far_behind and self.is_optional:
            if pending_bytes > self._catch_up.under_way_bytes_max:
                return False
            self.waits_until_ms = self._catch_up.blocked_until_ms(now_ms)
        return self.waits_until_ms is None

    @property
    def is_throttled(self) -> bool:
        """Whether the peer gets less than all entries that it lacks, now or until its next quota."""
        is_paced = self._throttle is None and self.is_far_behind and self.is_optional
        return is_paced or self.waits_until_ms is not None

    def pushed(self, size_bytes: int, now_ms: int) -> None:
        """A new range was pushed."""
        if self._throttle is not None:
            self._throttle.sample(size_bytes, now_ms)
        elif self.is_far_behind:
            self._catch_up.sent(size_bytes, is_bounded=self.is_optional)

    def update_lag(self) -> None:
        """Determines whether the peer is far behind, once everything was pushed that may be pushed now."""
        self.is_far_behind = self._lag_bytes() >= self._config.catch_up_lag_bytes

    def _over_quota_until_ms(self, throttle: Throttle, now_ms: int) -> int | None:
        until_ms = throttle.blocked_until_ms(now_ms)
        if until_ms is None or (lag_bytes := self._lag_bytes()) < self._config.throttle_lag_bytes:
            return None
        if until_ms != self._reported_ms:
            self._reported_ms = until_ms
            self._outbox.report(PushThrottled(self._peer, lag_bytes, until_ms))
        return until_ms
