"""One consumer group as `/api/v1/consumer-groups/{group}` shows it, and its members."""

from pydantic import Field

from admin_api.schemas.base import Partial, Schema
from admin_api.schemas.consumer_groups import GroupPresence


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


class BrokerSettings(Schema):
    """A group's settings on one broker."""

    broker_name: str
    settings: GroupSettings | None = Field(description="null where the broker does not have the group")


class ConsumeModeView(Schema):
    """What was set of one topic on one broker; where nothing was, the broker's own default counts."""

    topic: str
    broker_name: str
    mode: str = Field(description="PULL or POP")
    pop_share_queues: int = Field(description="how many consumers pop a queue; 0: all of them")


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
