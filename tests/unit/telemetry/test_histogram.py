"""Histograms: every value in its range, the bound itself in the lower one."""

from hypothesis import given
from hypothesis import strategies as st

from telemetry.histogram import COUNTS, SECONDS, SIZES, Histogram


def test_a_value_at_a_bound_is_in_the_range_below_it() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        histogram.observe(value)
    assert histogram.cumulative() == [2, 4, 5]
    assert (histogram.sum, histogram.count) == (24.0, 5)


@given(st.lists(st.floats(0, 100)))
def test_counts_are_those_of_the_values(values: list[float]) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    assert histogram.cumulative() == [
        *(sum(value <= bound for value in values) for bound in SECONDS),
        len(values),
    ]


def test_the_bounds_ascend() -> None:
    for bounds in (SECONDS, COUNTS, SIZES):
        assert list(bounds) == sorted(set(bounds))
