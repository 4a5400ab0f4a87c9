"""Models of `/api/v1/topics`."""

from enum import StrEnum

from pydantic import Field

from admin_api.schema import Page, Partial, Schema


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
    attributes: dict[str, str] | None = Field(description="null: the broker has none (before RocketMQ 5)")
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
    """What the name server answers to clients that ask for the topic."""

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


class TopicPage(Page[TopicRow]):
    """Topics over all brokers."""
