"""One consumer group in detail: settings, members, subscriptions, running consumers. Pure."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from admin_api.groups.overview import GroupPresence, Overview
from admin_api.schema import Partial, Schema
from admin_api.security.masking import masked
from admin_api.sources.bodies import QueueKey
from admin_api.sources.groups import (
    Connections,
    GroupConfig,
    ProcessQueue,
    Running,
    SubscriptionRow,
    version_name,
)


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


SETTING_KEYS: Mapping[str, str] = {
    "consume_enabled": "consume_enable",
    "consume_from_min_enabled": "consume_from_min_enable",
    "consume_broadcast_enabled": "consume_broadcast_enable",
    "is_orderly": "consume_message_orderly",
    "retry_queues": "retry_queue_nums",
    "retry_max_times": "retry_max_times",
    "notify_consumer_ids_changed": "notify_consumer_ids_changed_enable",
    "consume_timeout_minutes": "consume_timeout_minute",
}
"""Our names of the settings, and RocketMQ's."""


def settings_of(config: GroupConfig) -> GroupSettings:
    """As they are, also where RocketMQ would take no such value any more."""
    return GroupSettings.model_construct(**{ours: getattr(config, its) for ours, its in SETTING_KEYS.items()})


def subscription_view(row: SubscriptionRow) -> SubscriptionView:
    return SubscriptionView(topic=row.topic, expression=row.sub_string, expression_type=row.expression_type)


def subscription_views(clients: Mapping[str, Connections | None]) -> list[SubscriptionView]:
    """What all brokers heard the group wants, by topic."""
    rows: dict[str, SubscriptionRow] = {}
    for each in clients.values():
        rows.update({} if each is None else each.subscription_table)
    return [subscription_view(rows[topic]) for topic in sorted(rows)]


def member_views(clients: Mapping[str, Connections | None]) -> list[MemberView]:
    """Each consumer once, by its id."""
    made: dict[str, MemberView] = {}
    for broker_name in sorted(clients):
        connections = clients[broker_name]
        for row in () if connections is None else connections.connection_set:
            known = made.get(row.client_id)
            made[row.client_id] = MemberView(
                client_id=row.client_id,
                address=row.client_addr,
                language=row.language,
                version=version_name(row.version),
                brokers=[*(known.brokers if known else []), broker_name],
            )
    return [made[client_id] for client_id in sorted(made)]


def running_view(group: str, client_id: str, broker_name: str, running: Running) -> MemberRunningView:
    queues = [_queue(key, row, is_pop=False) for key, row in running.queues]
    queues += [_queue(key, row, is_pop=True) for key, row in running.pop_queues]
    return MemberRunningView(
        group=group,
        client_id=client_id,
        broker_name=broker_name,
        properties={key: masked(key, value) or "" for key, value in sorted(running.properties.items())},
        subscriptions=[subscription_view(row) for row in running.subscription_set],
        queues=sorted(queues, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id)),
        rates=[
            MemberRates(
                topic=topic,
                pull_ms=rates.pull_ms,
                pull_tps=rates.pull_tps,
                consume_ms=rates.consume_ms,
                consume_ok_tps=rates.consume_ok_tps,
                consume_failed_tps=rates.consume_failed_tps,
                consume_failed_messages=rates.consume_failed_msgs,
            )
            for topic, rates in sorted(running.status_table.items())
        ],
        stack=running.jstack or None,
    )


def _queue(key: QueueKey, row: ProcessQueue, *, is_pop: bool) -> MemberQueue:
    return MemberQueue(
        topic=key.topic,
        broker_name=key.broker_name,
        queue_id=key.queue_id,
        is_pop=is_pop,
        commit_offset=row.commit_offset,
        cached_messages=row.cached_msg_count,
        cached_mib=row.cached_msg_size_mib,
        cached_min_offset=row.cached_msg_min_offset if row.cached_msg_count else None,
        cached_max_offset=row.cached_msg_max_offset if row.cached_msg_count else None,
        unacknowledged=row.wait_ack_count,
        is_locked=row.locked,
        is_dropped=row.is_dropped,
        last_pull_at_ms=(row.last_pop_timestamp if is_pop else row.last_pull_timestamp) or None,
        last_consume_at_ms=row.last_consume_timestamp or None,
    )


def settings_rows(overview: Overview, group: str) -> list[BrokerSettings]:
    """Of every broker that reported its groups."""
    rows = []
    for name in sorted(overview.configs):
        config = overview.configs[name].get(group)
        settings = None if config is None else settings_of(config)
        rows.append(BrokerSettings(broker_name=name, settings=settings))
    return rows


def has_same(rows: Sequence[BrokerSettings], overview: Overview) -> bool | None:
    """Whether all brokers have the same settings; None while one is silent."""
    if len({row.model_dump_json(exclude={"broker_name"}) for row in rows}) > 1:
        return False
    return None if overview.brokers.masters.keys() - overview.configs.keys() else True
