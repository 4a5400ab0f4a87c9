"""Short constructors for metric families of Prometheus. All names begin with PREFIX."""

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from telemetry.histogram import Histogram

PREFIX: Final = "ledgermq_"

Row = tuple[Sequence[str], float | None]
"""Values of the labels, and the value of the sample; None: unknown, so there is no sample."""


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """One value that rises and falls; None: unknown, so there is no sample."""
    return gauges(name, text, (), [((), value)])


def gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> GaugeMetricFamily:
    """One gauge for each combination of label values."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in rows:
        if value is not None:
            family.add_metric(list(values), value)
    return family


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """One value that only grows. `name` is without `_total`."""
    return counters(name, text, (), [((), value)])


def counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> CounterMetricFamily:
    """One counter for each combination of label values. `name` is without `_total`."""
    family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in rows:
        if value is not None:
            family.add_metric(list(values), value)
    return family


def histogram(name: str, text: str, figures: Histogram) -> HistogramMetricFamily:
    """The present state of a histogram."""
    return histograms(name, text, (), [((), figures)])


def histograms(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
) -> HistogramMetricFamily:
    """One histogram for each combination of label values."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, figures in rows:
        bounds = (*map(floatToGoString, figures.bounds), "+Inf")
        family.add_metric(list(values), list(zip(bounds, figures.cumulative(), strict=True)), figures.sum)
    return family
