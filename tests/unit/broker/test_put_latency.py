"""broker.monitoring.runtime_info: percentiles of the last puts, from a histogram that only grows."""

import pytest

from broker.monitoring.runtime_info import UNKNOWN_MS, PutLatency, percentile
from telemetry.histogram import Histogram

BOUNDS = (0.001, 0.01, 0.1)


def test_percentile_is_taken_within_its_range() -> None:
    assert percentile(BOUNDS, [50, 100, 100, 100], 0.5) == pytest.approx(0.001)
    assert percentile(BOUNDS, [50, 100, 100, 100], 0.75) == pytest.approx(0.0055)
    assert percentile(BOUNDS, [0, 0, 10, 10], 1.0) == pytest.approx(0.1)


def test_percentile_of_none_is_unknown_and_beyond_the_last_bound_it_is_that() -> None:
    assert percentile(BOUNDS, [0, 0, 0, 0], 0.99) is None
    assert percentile(BOUNDS, [1, 1, 1, 100], 0.99) == 0.1


def test_only_the_last_puts_count() -> None:
    seconds = Histogram(BOUNDS)
    latency = PutLatency(seconds)
    latency.meter.add(0.0)
    for _ in range(100):
        seconds.observe(0.05)
    assert latency.percentile_ms(0.99, 5.0) == pytest.approx(99.1)
    latency.meter.add(10.0)
    latency.meter.add(20.0)
    assert latency.percentile_ms(0.99, 25.0) == UNKNOWN_MS
    for _ in range(100):
        seconds.observe(0.0005)
    assert latency.percentile_ms(0.99, 25.0) == pytest.approx(0.99)
