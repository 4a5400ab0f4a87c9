"""A topic's traffic."""

from pydantic import Field

from admin_api.schemas.base import Partial, Schema


class Counts(Schema):
    """Of messages (or bytes) over windows that end now."""

    last_minute: int
    last_hour: int
    last_day: int
    per_second: float = Field(description="over the last minute")


class BrokerTopicStats(Schema):
    """What one broker counted. null: nothing since it started, or it has forgotten it."""

    broker_name: str
    put_messages: Counts | None
    put_bytes: Counts | None


class GroupTopicStats(Schema):
    """What one group fetched of the topic, over all brokers. null: nobody counted any."""

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
