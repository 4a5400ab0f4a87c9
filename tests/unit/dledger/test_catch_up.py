"""dledger.core.flow_control, CatchUp: against a leader whose callers wait longer the more is caught up."""

from collections.abc import Callable

import pytest

from dledger.core.flow_control import (
    BURST_MS,
    BYTES_PER_S_MAX,
    SLACK_MS,
    WAIT_RATIO,
    WINDOW_MS,
    WINDOWS_BETWEEN_PAUSES,
    CatchUp,
)

MIB = 1 << 20
FLOOR = 20 * MIB
PUSH_BYTES = MIB


class Model:
    """Time in steps of a ms. `wait_ms` gives what callers wait at a rate of catching up; None: no callers."""

    def __init__(self, catch_up: CatchUp, wait_ms: Callable[[float], float | None]) -> None:
        self.catch_up = catch_up
        self.wait_ms = wait_ms
        self.now_ms = 0
        self.pushed_bytes = 0
        self.waits: list[float] = []
        self._carry = 0.0

    def run(self, duration_ms: int, is_behind: bool = True) -> float:
        """Bytes a second that were caught up."""
        before_bytes = self.pushed_bytes
        recent: list[int] = []
        for _ in range(duration_ms):
            self.now_ms += 1
            self.catch_up.end_window(self.now_ms, None, 0)
            step_bytes = 0
            while is_behind and self.catch_up.blocked_until_ms(self.now_ms) is None:
                self.catch_up.sent(PUSH_BYTES, is_bounded=True)
                step_bytes += PUSH_BYTES
            self.pushed_bytes += step_bytes
            recent = [*recent[-49:], step_bytes]
            wait_ms = self.wait_ms(sum(recent) * 1000 / 50)
            if wait_ms is not None:
                self.waits.append(wait_ms)
                self._carry += wait_ms - int(wait_ms)
                self.catch_up.waited(int(wait_ms) + int(self._carry), 1)
                self._carry -= int(self._carry)
        return (self.pushed_bytes - before_bytes) * 1000 / duration_ms


def test_without_callers_the_rate_doubles_every_other_window() -> None:
    model = Model(CatchUp(FLOOR), lambda rate: None)
    assert model.run(100) >= FLOOR
    assert model.run(2_000) > 500 * MIB
    model.run(5_000)
    assert model.catch_up.bytes_per_s <= BYTES_PER_S_MAX


def test_callers_that_are_not_disturbed_do_not_slow_it_down() -> None:
    model = Model(CatchUp(FLOOR), lambda rate: 2.0)
    model.run(500, is_behind=False)
    assert model.run(3_000) > 500 * MIB


@pytest.mark.parametrize("quiet_ms", [2.0, 5.0, 30.0])
@pytest.mark.parametrize("capacity", [200 * MIB, 800 * MIB])
def test_callers_wait_little_longer_than_without(quiet_ms: float, capacity: int) -> None:
    """A queue in front of what producers and the peer share: the wait grows as 1 / (1 - load)."""

    def wait_ms(rate: float) -> float:
        return quiet_ms / (1 - min(0.95, rate / capacity))

    model = Model(CatchUp(MIB), wait_ms)
    model.run(500, is_behind=False)
    model.run(3_000)
    model.waits.clear()
    bytes_per_s = model.run(20_000)
    mean_ms = sum(model.waits) / len(model.waits)
    assert quiet_ms < mean_ms < 1.2 * WAIT_RATIO * quiet_ms + 2 * SLACK_MS
    assert bytes_per_s > 0.08 * capacity


def test_callers_that_are_there_only_since_it_began_are_measured_in_a_pause() -> None:
    wait_ms: list[float | None] = [None]
    model = Model(CatchUp(FLOOR), lambda rate: wait_ms[0])
    model.run(2_000)
    wait_ms[0] = 4.0
    before_bytes = model.pushed_bytes
    model.run(2 * WINDOW_MS)
    paused_bytes = model.pushed_bytes
    model.run(WINDOW_MS)
    assert model.pushed_bytes == paused_bytes > before_bytes
    assert model.run(1_000) > 100 * MIB


def test_the_log_grows_more_slowly_than_a_peer_catches_up_whatever_callers_wait() -> None:
    """Else it never ends: producers that wait for answers fill the log as fast as they can."""
    catch_up = CatchUp(FLOOR)
    appended_per_ms = 40 * MIB // 1_000
    for now_ms in range(WINDOWS_BETWEEN_PAUSES * WINDOW_MS):
        if now_ms > 500 and catch_up.blocked_until_ms(now_ms) is None:
            catch_up.sent(PUSH_BYTES, is_bounded=True)
        catch_up.waited(5 if now_ms < 500 else 500, 1)
        catch_up.end_window(now_ms, None, now_ms * appended_per_ms)
    grows_per_s = 1_000 * appended_per_ms
    assert 1.4 * grows_per_s < catch_up.bytes_per_s < 1.6 * grows_per_s


def test_callers_keep_most_of_their_commits_when_the_leader_reads_their_requests_later() -> None:
    """Their appends hardly wait longer, but there are fewer of them: producers wait for answers."""
    share_kept = []
    catch_up = CatchUp(MIB)
    pushed_bytes = 0
    for now_ms in range(40_000):
        is_quiet = now_ms < 500
        while not is_quiet and catch_up.blocked_until_ms(now_ms) is None:
            catch_up.sent(PUSH_BYTES, is_bounded=True)
            pushed_bytes += PUSH_BYTES
        is_pushing = not is_quiet and catch_up.blocked_until_ms(now_ms) != catch_up._pause_end_ms
        lost = min(0.9, catch_up.bytes_per_s / (1000 * MIB)) if is_pushing else 0.0
        if now_ms > 5_000:
            share_kept.append(1 - lost)
        catch_up.waited(6 if now_ms % 2 or lost else 5, int(1_000 * (1 - lost)))
        catch_up.end_window(now_ms, None, 0)
    assert sum(share_kept) / len(share_kept) > 0.8
    assert pushed_bytes > 40 * 80 * MIB


def test_producers_that_send_less_do_not_slow_it_down() -> None:
    catch_up = CatchUp(FLOOR)
    for now_ms in range(4_000):
        if now_ms > 500 and catch_up.blocked_until_ms(now_ms) is None:
            catch_up.sent(PUSH_BYTES, is_bounded=True)
        catch_up.waited(5, 1_000 if now_ms < 1_000 else 10)
        catch_up.end_window(now_ms, None, 0)
    assert catch_up.bytes_per_s > 500 * MIB


def windows(
    catch_up: CatchUp, count: int, wait_ms: int, commits: int, begin_ms: int, *, is_quiet: bool
) -> int:
    """So many windows in which callers wait so long and so many entries are committed; their end."""
    for number in range(count):
        catch_up.waited(wait_ms, commits)
        if not is_quiet:
            catch_up.sent(1, is_bounded=True)
        catch_up.end_window(begin_ms + (number + 1) * WINDOW_MS, None, 0)
    return begin_ms + count * WINDOW_MS


def test_the_rate_grows_less_the_more_callers_lose() -> None:
    rates = []
    for wait_ms, commits in ((20, 1_000), (22, 950), (22, 900), (28, 1_000)):
        catch_up = CatchUp(MIB)
        now_ms = windows(catch_up, 12, 20, 1_000, 0, is_quiet=True)
        windows(catch_up, 5, wait_ms, commits, now_ms, is_quiet=False)
        rates.append(catch_up.bytes_per_s)
    assert rates[0] > 1.2 * rates[1] > 1.2 * 1.2 * rates[2] > 1.2 * 1.2 * MIB
    assert rates[0] > 1.2 * rates[3] > 1.2 * MIB


@pytest.mark.parametrize(
    ("wait_ms", "commits", "is_kept"), [(30, 700, True), (30, 1_500, False), (8, 300, False)]
)
def test_a_pause_in_which_callers_are_still_disturbed_hardly_counts(
    wait_ms: int, commits: int, is_kept: bool
) -> None:
    """The peer still applies what it has. More commits, or shorter waits, are another load instead."""
    catch_up = CatchUp(MIB)
    now_ms = windows(catch_up, 12, 20, 1_000, 0, is_quiet=True)
    base = catch_up._base_ms, catch_up._base_commits_per_ms
    windows(catch_up, 3, wait_ms, commits, now_ms, is_quiet=True)
    kept = catch_up._base_ms == pytest.approx(base[0], rel=0.1)
    kept = kept and catch_up._base_commits_per_ms == pytest.approx(base[1], rel=0.1)
    assert kept is is_kept


def test_never_less_than_the_least_whatever_callers_wait() -> None:
    model = Model(CatchUp(FLOOR), lambda rate: 1.0 if rate == 0 else 500.0)
    model.run(500, is_behind=False)
    model.run(1_000)
    assert 0.9 * FLOOR < model.run(10_000) < 1.1 * FLOOR


def test_a_commit_that_stands_still_counts_though_nobody_is_answered() -> None:
    catch_up = CatchUp(FLOOR)
    catch_up.waited(2, 1)
    catch_up.end_window(0, None, 0)
    for now_ms in range(0, 1_000, WINDOW_MS):
        catch_up.sent(1, is_bounded=True)
        catch_up.end_window(now_ms, None, 0)
    fast = catch_up.bytes_per_s
    for now_ms in range(1_000, 3_000, WINDOW_MS):
        catch_up.sent(1, is_bounded=True)
        catch_up.end_window(now_ms, now_ms - 900, 0)
    assert catch_up.bytes_per_s < fast / 8


def test_little_leaves_at_once_and_the_time_of_the_next_is_told() -> None:
    catch_up = CatchUp(FLOOR)
    sent = 0
    while (until_ms := catch_up.blocked_until_ms(1_000)) is None:
        catch_up.sent(1_000, is_bounded=True)
        sent += 1_000
    assert sent <= FLOOR * BURST_MS / 1000 + 1_000
    assert until_ms > 1_000
    assert catch_up.blocked_until_ms(until_ms) is None
    catch_up.sent(FLOOR, is_bounded=True)
    assert catch_up.blocked_until_ms(until_ms) == pytest.approx(until_ms + 1_000, abs=2)
