"""Whether what is old is judged by a clock that was set ahead."""

import pytest

from broker.store.retention import DOUBT_MS, STEP_MAX_MS, RetentionClock

DAY_MS = 24 * 3_600_000
NOW_MS = 1_700_000_000_000


class Clocks:
    """Both go on together unless the wall clock is set."""

    def __init__(self) -> None:
        self.wall_ms = NOW_MS
        self.passed_ms = 0
        self.clock = RetentionClock(lambda: self.wall_ms, lambda: self.passed_ms / 1_000)

    def after(self, passed_ms: int, set_by_ms: int = 0) -> int:
        """What it says then, from the first time on."""
        self.passed_ms += passed_ms
        self.wall_ms += passed_ms + set_by_ms
        return self.clock.now_ms() - NOW_MS


def test_it_is_the_wall_clock() -> None:
    clocks = Clocks()
    assert [clocks.after(0), clocks.after(10_000), clocks.after(10_000, STEP_MAX_MS)] == [
        0, 10_000, 20_000 + STEP_MAX_MS,
    ]  # fmt: skip


def test_clock_that_was_set_ahead_is_believed_a_day_later(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.after(0)
    assert clocks.after(10_000, 4 * DAY_MS) == 10_000
    assert clocks.after(DOUBT_MS - 10_000) == DOUBT_MS
    assert clocks.after(10_000) == 4 * DAY_MS + DOUBT_MS + 10_000
    assert clocks.after(10_000) == 4 * DAY_MS + DOUBT_MS + 20_000
    assert caplog.text.count("set ahead by 345600 s") == 1


def test_clock_that_is_set_back_is_believed_at_once() -> None:
    clocks = Clocks()
    clocks.after(0)
    assert clocks.after(10_000, 4 * DAY_MS) == 10_000
    assert clocks.after(10_000, -4 * DAY_MS) == 20_000
    assert clocks.after(10_000, -DAY_MS) == 30_000 - DAY_MS
