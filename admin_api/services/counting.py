"""RocketMQ's statistics of several brokers as one. Pure."""

from collections.abc import Iterable

from admin_api.schemas.topic_traffic import Counts
from admin_api.sources.topics import Figures


def joined(each: Iterable[Figures | None]) -> Counts | None:
    """The sum of those that counted anything; None when none did."""
    told = [figures for figures in each if figures is not None]
    if not told:
        return None
    return Counts(
        last_minute=sum(figures.stats_minute.sum for figures in told),
        last_hour=sum(figures.stats_hour.sum for figures in told),
        last_day=sum(figures.stats_day.sum for figures in told),
        per_second=sum(figures.stats_minute.tps for figures in told),
    )
