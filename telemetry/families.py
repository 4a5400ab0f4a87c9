"""Prometheus' metric families, in as few words as a collector can say them. The names of all begin alike."""

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from telemetry.histogram import Histogram

PREFIX: Final = "ledgermq_"

Row = tuple[Sequence[str], float | None]
"""Values of the labels, and the figure; None: it is not known, and not shown."""


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """One figure that goes up and down; no sample when it is not known."""
    return gauges(name, text, (), [((), value)])


def gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> GaugeMetricFamily:
    """A figure of several things."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in rows:
        if value is not None:
            family.add_metric(list(values), value)
    return family


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """One figure that only grows. `name` is without `_total`."""
    return counters(name, text, (), [((), value)])


def counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> CounterMetricFamily:
    """Of several things. `name` is without `_total`."""
    family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in rows:
        if value is not None:
            family.add_metric(list(values), value)
    return family


def histogram(name: str, text: str, figures: Histogram) -> HistogramMetricFamily:
    """A histogram as it stands now."""
    family = HistogramMetricFamily(PREFIX + name, text)
    bounds = (*map(floatToGoString, figures.bounds), "+Inf")
    family.add_metric([], list(zip(bounds, figures.cumulative(), strict=True)), figures.sum)
    return family
