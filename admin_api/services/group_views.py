"""Settings, members and running consumers as they are shown. Pure."""

from collections.abc import Mapping, Sequence

from admin_api.schemas.group_details import (
    BrokerSettings,
    GroupSettings,
    MemberQueue,
    MemberRates,
    MemberRunningView,
    MemberView,
    SubscriptionView,
)
from admin_api.security.masking import masked
from admin_api.services.group_overview import Overview
from admin_api.sources.bodies import QueueKey
from admin_api.sources.client_versions import version_name
from admin_api.sources.consumer_groups import Connections, GroupConfig, ProcessQueue, Running, SubscriptionRow

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
    """Of every broker that told its groups."""
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
