"""A topic's traffic, summed over the brokers' statistics. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from admin_api.errors import PartialFields
from admin_api.schema import Partial, Schema
from admin_api.sources.topics import Figures


class Counts(Schema):
    """Of messages (or bytes) over windows that end now."""

    last_minute: int
    last_hour: int
    last_day: int
    per_second: float = Field(description="over the last minute")


class BrokerTopicStats(Schema):
    """What one broker counted. null: nothing since it started, or the counter was dropped."""

    broker_name: str
    put_messages: Counts | None
    put_bytes: Counts | None


class GroupTopicStats(Schema):
    """What one group fetched of the topic, over all brokers. null: no broker counted any."""

    group: str
    got_messages: Counts | None
    got_bytes: Counts | None


class TopicStats(Partial):
    """Traffic of a topic. The windows go back a minute, an hour and a day from now."""

    topic: str
    put_messages: Counts | None = Field(description="over all brokers; null when none counted any")
    put_bytes: Counts | None
    brokers: list[BrokerTopicStats]
    groups: list[GroupTopicStats] | None = Field(description="null: no broker could say which there are")
    groups_left_out: int | None = Field(description="groups beyond the bound, that were not asked for")


def joined(each: Iterable[Figures | None]) -> Counts | None:
    """The sum of those that counted anything; None when none did."""
    counted = [figures for figures in each if figures is not None]
    if not counted:
        return None
    return Counts(
        last_minute=sum(figures.stats_minute.sum for figures in counted),
        last_hour=sum(figures.stats_hour.sum for figures in counted),
        last_day=sum(figures.stats_day.sum for figures in counted),
        per_second=sum(figures.stats_minute.tps for figures in counted),
    )


Counted = Mapping[tuple[str, str, str], Figures | None]
"""By (broker name, statistic, key)."""


def stats_view(
    topic: str,
    brokers: Sequence[str],
    groups: Sequence[str] | None,
    groups_left_out: int | None,
    counted: Counted,
    partial: PartialFields,
) -> TopicStats:
    """`groups` are those whose traffic was asked for; None where it is unknown which there are."""
    figures = _ByStat(counted)
    return TopicStats(
        topic=topic,
        put_messages=joined(figures.of("TOPIC_PUT_NUMS", topic)),
        put_bytes=joined(figures.of("TOPIC_PUT_SIZE", topic)),
        brokers=[figures.broker_stats(broker, topic) for broker in brokers],
        groups=None if groups is None else [figures.group_stats(group, topic) for group in groups],
        groups_left_out=groups_left_out,
        **partial,
    )


@dataclass(frozen=True, slots=True)
class _ByStat:
    answers: Counted

    def of(self, stat: str, key: str) -> list[Figures | None]:
        return [figures for (_, name, of), figures in self.answers.items() if (name, of) == (stat, key)]

    def broker_stats(self, broker: str, topic: str) -> BrokerTopicStats:
        return BrokerTopicStats(
            broker_name=broker,
            put_messages=joined([self.answers.get((broker, "TOPIC_PUT_NUMS", topic))]),
            put_bytes=joined([self.answers.get((broker, "TOPIC_PUT_SIZE", topic))]),
        )

    def group_stats(self, group: str, topic: str) -> GroupTopicStats:
        key = f"{topic}@{group}"
        return GroupTopicStats(
            group=group,
            got_messages=joined(self.of("GROUP_GET_NUMS", key)),
            got_bytes=joined(self.of("GROUP_GET_SIZE", key)),
        )
