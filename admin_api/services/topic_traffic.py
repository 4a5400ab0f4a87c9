"""A topic's traffic, put together from what each broker counted. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from admin_api.schemas.topic_traffic import BrokerTopicStats, GroupTopicStats, TopicStats
from admin_api.services.counting import joined
from admin_api.services.partial import PartialFields
from admin_api.sources.topics import Figures

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
    """`groups` are those whose traffic was asked for; None where nobody said which there are."""
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
