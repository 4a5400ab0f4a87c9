"""Percentiles of the load generator against plain sorting."""

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.load.run import Histogram


@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=200), st.floats(0.001, 1.0))
def test_percentile_is_the_sorted_one_to_a_thousandth(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    rank = max(1, -int(-share * len(values) // 1))
    exact_us = sorted(values)[rank - 1]
    found_ms = histogram.percentile_ms(share)
    assert found_ms is not None
    assert exact_us * (1 - 1 / 512) <= found_ms * 1000 + 1e-6 or rank == len(values)
    assert found_ms * 1000 <= exact_us + 1e-6


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 50)), min_size=1, max_size=50))
def test_counts_are_the_same_as_single_values(pairs: list[tuple[int, int]]) -> None:
    together, single = Histogram(), Histogram()
    for value, count in pairs:
        together.add(value, count)
        for _ in range(count):
            single.add(value)
    assert together.summary_ms() == single.summary_ms()
    assert together.total == single.total
    assert together.summary_ms()["max_ms"] == max(value for value, _ in pairs) / 1000


def test_nothing_measured_has_no_percentile() -> None:
    assert Histogram().summary_ms() == {"p50_ms": None, "p99_ms": None, "p999_ms": None, "max_ms": None}
    assert Histogram().curve() == []


def test_curve_goes_no_further_than_there_are_values() -> None:
    histogram = Histogram()
    for value in range(1, 101):
        histogram.add(value)
    assert histogram.curve() == [
        *((0.5, 0.05), (0.75, 0.075), (0.9, 0.09), (0.95, 0.095), (0.99, 0.099)),
        (1.0, 0.1),
    ]


def test_clock_that_steps_back_counts_as_no_time() -> None:
    histogram = Histogram()
    histogram.add(-5)
    assert histogram.percentile_ms(1.0) == 0.0
