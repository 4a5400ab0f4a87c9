"""Topics, as `/api/v1/topics` answers and takes them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from admin_api.schemas.base import Page, Partial, RequestSchema, Schema

QUEUES_MAX = 65_536
ATTRIBUTES_MAX = 64

TopicName = Annotated[str, StringConstraints(pattern=r"^[%|a-zA-Z0-9_+-]+$", max_length=127)]
AttributeKey = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]+$", max_length=64)]
AttributeValue = Annotated[str, StringConstraints(pattern=r"^[^,=\x00-\x1f]*$", max_length=1024)]


class TopicKind(StrEnum):
    """NORMAL: made by people or by a first send. RETRY, DLQ: a consumer group's own. SYSTEM: the brokers'."""

    NORMAL = "normal"
    RETRY = "retry"
    DLQ = "dlq"
    SYSTEM = "system"


class TopicSort(StrEnum):
    """By what a list of topics is sorted; those that are the same go by name."""

    NAME = "name"
    QUEUES = "queues"


class TopicRow(Schema):
    """One topic over all brokers that have it."""

    name: str
    kind: TopicKind
    brokers: list[str] = Field(description="names of the brokers that have it")
    read_queues: int = Field(description="over all its brokers")
    write_queues: int = Field(description="over all its brokers")
    can_read: bool = Field(description="on one of its brokers at least")
    can_write: bool = Field(description="on one of its brokers at least")
    is_ordered: bool


class TopicConfigView(Schema):
    """A topic's configuration on one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    can_read: bool
    can_write: bool
    is_inherited: bool = Field(description="topics made by a first send take its queues and permissions")
    is_ordered: bool
    filter_type: str
    attributes: dict[str, str] | None = Field(description="null: the broker tells none (before RocketMQ 5)")
    message_type: str | None = Field(description="the attribute message.type; null where there is none")
    retention_ms: int | None = Field(
        description="the attribute retention.ms; null: messages stay as long as the broker's log has them"
    )


class TopicView(Partial):
    """One topic: how every broker that has it keeps it, and who consumes it."""

    name: str
    kind: TopicKind
    configs: list[TopicConfigView]
    consumer_groups: list[str] | None = Field(
        description="groups that subscribe to it or have offsets in it; null when no broker could say"
    )


class RouteBroker(Schema):
    """A broker that clients are sent to for the topic."""

    broker_name: str
    cluster: str
    read_queues: int | None = Field(description="null: it has no queues of the topic now")
    write_queues: int | None
    can_read: bool | None
    can_write: bool | None
    addresses: dict[str, str] = Field(description="broker id -> address; 0 takes the writes")


class TopicRouteView(Schema):
    """What the name server tells clients that ask for the topic."""

    topic: str
    namesrv: str
    order_conf: str | None = Field(description="brokers and queues of a strictly ordered topic")
    brokers: list[RouteBroker]


class QueueView(Schema):
    """One queue. It shows the messages from `minOffset` to before `maxOffset`."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    message_count: int
    last_message_at_ms: int | None = Field(description="Unix time in ms; null when it shows none")


class TopicQueues(Partial):
    """Every queue of a topic, by broker and id."""

    topic: str
    message_count: int | None = Field(description="in all queues; null when no broker could say")
    queues: list[QueueView] | None = Field(description="null when no broker could say")


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


class TopicSpec(RequestSchema):
    """What a topic shall be. What is left out stays as it is, and is 8 queues, readable and writable for a
    new topic."""

    read_queues: int | None = Field(default=None, ge=1, le=QUEUES_MAX)
    write_queues: int | None = Field(default=None, ge=1, le=QUEUES_MAX)
    can_read: bool | None = None
    can_write: bool | None = None
    is_ordered: bool | None = None
    attributes: dict[AttributeKey, AttributeValue | None] = Field(
        default={}, max_length=ATTRIBUTES_MAX, description="what to set; null takes an attribute away"
    )
    brokers: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="broker names; left out: those that have it, or all for a new topic",
    )


class TopicPage(Page[TopicRow]):
    """Topics over all brokers."""


class NewTopic(TopicSpec):
    """A topic that is not there yet."""

    name: TopicName
