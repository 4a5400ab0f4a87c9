"""Consumer groups as `/api/v1/consumer-groups` shows them. A number nobody knows is null, never 0."""

from enum import StrEnum

from pydantic import Field

from admin_api.schemas.base import Partial, RequestSchema, Schema


class GroupPresence(StrEnum):
    """ONLINE: a consumer is connected. OFFLINE: every broker says that none is. UNKNOWN: nobody could say."""

    ONLINE = "online"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class GroupSort(StrEnum):
    """What the list is ordered by."""

    NAME = "name"
    LAG = "lag"
    MEMBERS = "members"
    RATE = "rate"


class ConsumerGroupItem(Schema):
    """One group in the list."""

    group: str
    brokers: list[str] = Field(description="names of the brokers that have its settings")
    is_system: bool = Field(description="one of RocketMQ's own")
    presence: GroupPresence
    members: int | None = Field(
        description="connected consumers; each counts once, however many brokers know it"
    )
    message_model: str | None = Field(description="CLUSTERING or BROADCASTING, as its consumers say")
    consume_type: str | None = Field(
        description="CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull), CONSUME_POP"
    )
    consume_enabled: bool | None = Field(description="null where brokers differ")
    lag: int | None = Field(
        description="messages not consumed yet in all topics, retries included; null for a group that has no "
        "offset, for one that broadcasts (its consumers keep their offsets), and where it was not asked for"
    )
    is_lag_partial: bool = Field(description="a broker that may have more of it gave no answer")
    unknown_queues: int | None = Field(description="queues with messages that it has no offset for")
    lag_by_topic: dict[str, int | None] = Field(default={}, description="the same by topic")
    consume_tps: float | None = Field(description="messages a second over the last minute")
    pop_in_flight: int | None = Field(description="popped, and neither acknowledged nor given up")


class GroupSettings(Schema):
    """What can be set of a group."""

    consume_enabled: bool = Field(default=True, description="false: its consumers get nothing")
    consume_from_min_enabled: bool = True
    consume_broadcast_enabled: bool = Field(default=True, description="whether its consumers may broadcast")
    is_orderly: bool = Field(default=False, description="POP hands a queue out in order")
    retry_queues: int = Field(default=1, ge=0, le=1024, description="queues of its retry topic")
    retry_max_times: int = Field(default=16, ge=0, le=1_000_000, description="then a message goes to its DLQ")
    notify_consumer_ids_changed: bool = True
    consume_timeout_minutes: int = Field(default=15, ge=0, le=525_600)


class GroupSettingsChange(RequestSchema):
    """What is left out stays as it is; a new group gets RocketMQ's values."""

    consume_enabled: bool | None = None
    consume_from_min_enabled: bool | None = None
    consume_broadcast_enabled: bool | None = None
    is_orderly: bool | None = None
    retry_queues: int | None = Field(default=None, ge=0, le=1024)
    retry_max_times: int | None = Field(default=None, ge=0, le=1_000_000)
    notify_consumer_ids_changed: bool | None = None
    consume_timeout_minutes: int | None = Field(default=None, ge=0, le=525_600)
    brokers: list[str] | None = Field(
        default=None, max_length=256, description="names of brokers; all of the cluster when left out"
    )


class BrokerSettings(Schema):
    """A group's settings on one broker."""

    broker_name: str
    settings: GroupSettings | None = Field(description="null where the broker does not have the group")


class ConsumeMode(StrEnum):
    """How RocketMQ 5 consumers get messages when the broker shares the queues out."""

    PULL = "PULL"
    POP = "POP"


class ConsumeModeView(Schema):
    """What was set of one topic on one broker; where nothing was, the broker's own default counts."""

    topic: str
    broker_name: str
    mode: str = Field(description="PULL or POP")
    pop_share_queues: int = Field(description="how many consumers pop a queue; 0: all of them")


class ConsumeModeChange(RequestSchema):
    """Of one topic, on all brokers that have it."""

    topic: str = Field(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_-]+$")
    mode: ConsumeMode
    pop_share_queues: int = Field(default=0, ge=0, le=100_000, description="for POP; 0: all share all queues")


class SubscriptionView(Schema):
    """What the group wants of one topic."""

    topic: str
    expression: str = Field(description="`*`, tags, or SQL")
    expression_type: str | None = Field(description="TAG or SQL92")


class MemberView(Schema):
    """One connected consumer."""

    client_id: str
    address: str | None
    language: str | None
    version: str | None = Field(description="of its client library, such as 4.9.8; null when it is not known")
    brokers: list[str] = Field(description="brokers it is connected to")


class MembersView(Partial):
    """Who of a group is connected, and what they want."""

    group: str
    presence: GroupPresence
    message_model: str | None
    consume_type: str | None
    consume_from_where: str | None
    members: list[MemberView] | None = Field(description="null: no broker could say")
    subscriptions: list[SubscriptionView] | None = Field(description="null: no broker could say")


class ConsumerGroupView(Partial):
    """One group: its settings broker by broker, and who is connected."""

    group: str
    is_system: bool
    presence: GroupPresence
    is_broadcast: bool | None = Field(
        description="its consumers keep their own offsets, so that brokers know no lag; null while offline"
    )
    message_model: str | None
    consume_type: str | None
    consume_from_where: str | None
    member_count: int | None
    lag: int | None
    unknown_queues: int | None
    consume_tps: float | None
    pop_in_flight: int | None
    has_same_settings: bool | None = Field(
        description="whether all brokers have the same; null while one is silent"
    )
    brokers: list[BrokerSettings]
    consume_modes: list[ConsumeModeView] | None = Field(
        description="topics whose mode was set; null where no broker knows modes (RocketMQ 4)"
    )
    members: list[MemberView] | None = Field(description="null: no broker could say")
    subscriptions: list[SubscriptionView] | None = Field(description="null: no broker could say")


class QueueProgress(Schema):
    """How far a group is in one queue."""

    broker_name: str
    queue_id: int
    min_offset: int | None = Field(description="its first message; null when it was not told")
    max_offset: int = Field(description="the offset the next message gets")
    offset: int | None = Field(description="the next message to consume; null: the group has no offset here")
    lag: int | None = Field(description="messages not consumed yet; null without an offset")
    in_flight: int | None = Field(
        description="pulled and not committed, where the broker counts it (RocketMQ 5); else null"
    )
    last_consumed_at_ms: int | None = Field(description="store time of the last message consumed, Unix ms")
    delay_ms: int | None = Field(description="how long the next message has been waiting; 0 without one")
    client_id: str | None = Field(description="the consumer that has the queue; null: none, or not known")


class TopicProgressView(Schema):
    """One topic that the group consumes."""

    topic: str
    is_retry: bool
    lag: int | None = Field(
        description="of the queues where it is known; null where it is of none that is filled"
    )
    unknown_queues: int = Field(description="queues with messages that the group has no offset for")
    queues: list[QueueProgress]


class ProgressView(Partial):
    """How far a group is, queue by queue."""

    group: str
    presence: GroupPresence
    is_broadcast: bool | None
    as_of_ms: int = Field(description="Unix time in ms")
    lag: int | None
    consume_tps: float | None
    topics: list[TopicProgressView] | None = Field(description="null: no broker could say")


class MemberQueue(Schema):
    """What a consumer has of one queue, in its own words."""

    topic: str
    broker_name: str
    queue_id: int
    is_pop: bool
    commit_offset: int | None
    cached_messages: int | None = Field(description="got and not consumed yet")
    cached_mib: int | None
    cached_min_offset: int | None
    cached_max_offset: int | None
    unacknowledged: int | None = Field(description="popped and not acknowledged")
    is_locked: bool | None
    is_dropped: bool | None
    last_pull_at_ms: int | None
    last_consume_at_ms: int | None


class MemberRates(Schema):
    """What a consumer measured of one topic in the last minute."""

    topic: str
    pull_ms: float | None
    pull_tps: float | None
    consume_ms: float | None
    consume_ok_tps: float | None
    consume_failed_tps: float | None
    consume_failed_messages: int | None


class MemberRunningView(Schema):
    """What one consumer says of itself (RocketMQ's ConsumerRunningInfo)."""

    group: str
    client_id: str
    broker_name: str = Field(description="the broker that passed the question on")
    properties: dict[str, str]
    subscriptions: list[SubscriptionView]
    queues: list[MemberQueue]
    rates: list[MemberRates]
    stack: str | None = Field(description="what its threads do, if that was asked for and it can say so")
