"""What the bench of the admin service makes of its stretches."""

import math
from typing import Any, cast

from bench.admin_load import WARMUP_S, Stretches, bootstrap, ratios_of
from ledgermq.load.run import SERIES_S

WARMING = [0] * round(WARMUP_S / SERIES_S)


def stretches(*sides: bool, seconds: float) -> Stretches:
    nobody = cast("Any", None)
    return Stretches(nobody, {}, sides, seconds, nobody)


def test_rates_leave_out_the_warm_up_and_the_coming_and_going() -> None:
    series = [*WARMING, 1, 10, 20, 999, 40, 50]
    found = stretches(False, True, seconds=3 * SERIES_S).rates(series)
    assert found == [15 / SERIES_S, 45 / SERIES_S]


def test_a_stretch_in_which_nothing_moved_ends_no_run() -> None:
    sides = (False, True, True, False, False, True, True, False)
    assert ratios_of(sides, (4, 2, 3, 6, 0, 5, 0, 0)) == [0.5, 0.5, math.inf, 1.0]


def test_bootstrap_of_one_and_the_same_is_no_wider() -> None:
    assert bootstrap([0.97] * 12) == (0.97, 0.97)


def test_bootstrap_holds_the_median_and_leaves_out_a_single_stray() -> None:
    low, high = bootstrap([0.98, 0.99, 0.985, 0.99, 0.995, 1.0, 0.98, 0.99, 1.0, 0.985, 0.2, 0.99])
    assert 0.9 < low <= 0.99 <= high
