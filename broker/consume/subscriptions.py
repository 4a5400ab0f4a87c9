"""Which messages a pull wants: by the expression in the pull request, or by its group's heartbeats.

A pull may name a newer version of the subscription than any heartbeat did. Java's consumer raises the version
when its queues change, and skips the heartbeat with the new version if another of its heartbeats is being
sent: in 5.x both happen 1 s after its start, and the next heartbeat may be 30 s away. Such a pull gets
messages of all tags, for every client filters by tag itself; filtering by the older expression could skip
messages that the newer one wants. Only pulls with expressions over properties, which clients do not filter,
wait for the heartbeat.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection, ClientRegistry, ConsumerGroup, rebalance_notice
from broker.consume.filters import (
    MATCH_ALL,
    FilterError,
    MessageFilter,
    PropertyFilter,
    is_tag_type,
    parse_tag_expression,
    property_filter_refused,
)
from broker.consume.heartbeats import Subscription, version_ms
from broker.sql92.filters import SqlFilter, SqlFilters
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import RETRY_PREFIX
from commitlog.record import get_property
from remoting.codes import ResponseCode
from remoting.errors import RequestError
from remoting.headers.consume import PullMessageRequestHeader

SYS_FLAG_SUBSCRIPTION = 4
"""The pull has its own expression: C++ clients always set it, Java and Go clients on request."""
_PARSE_FAILED = "parse the consumer's subscription failed"
_NO_FILTER_DATA = "The broker's consumer filter data is not exist!Your expression may be wrong!"
_PROPERTY_RETRY_TOPIC = b"RETRY_TOPIC"


class PullSubscriptions:
    """The filters of pulls."""

    def __init__(self, clients: ClientRegistry, sql_filters: SqlFilters, config: BrokerConfig) -> None:
        self._clients = clients
        self._sql_filters = sql_filters
        self._config = config

    def wanted_by(
        self,
        header: PullMessageRequestHeader,
        group_config: SubscriptionGroupConfig,
        connection: ClientConnection,
    ) -> MessageFilter:
        """The filter of a pull. Raises RequestError as PullMessageProcessor does: 23, 24, 25, 16, 27, or 1
        for SQL92 while it is not enabled.
        """
        if header.sys_flag & SYS_FLAG_SUBSCRIPTION:
            return self._own_filter(header)
        group = self._group(header, group_config)
        subscription = _registered(group, header.topic)
        if subscription.version_ms < version_ms(header.sub_version):
            self._nudge(group, group_config, connection)
            return _filter_ahead(header, subscription)
        if is_tag_type(subscription.expression_type):
            if subscription.filter is None:
                raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
            return subscription.filter
        try:
            wanted = self._sql_filters.filter_for(subscription.expression_type, subscription.expression)
        except FilterError as error:
            raise RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, f"{_NO_FILTER_DATA} {error}") from error
        self._check_enabled(subscription.expression_type)
        return self._for_topic(header, wanted)

    def _group(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> ConsumerGroup:
        """The pull's group by its heartbeats. Raises RequestError."""
        group = self._clients.consumer_groups.get(header.consumer_group)
        if group is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if group.is_broadcasting and not group_config.consume_broadcast_enable:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        return group

    def _nudge(
        self, group: ConsumerGroup, config: SubscriptionGroupConfig, connection: ClientConnection
    ) -> None:
        """Have the client balance its queues: if these change, it sends the heartbeat that it left out."""
        if group.is_broadcasting or not config.notify_consumer_ids_changed_enable:
            return
        if self._clients.may_nudge(connection.connection_id):
            connection.send_oneway(rebalance_notice(group.name))

    def _own_filter(self, header: PullMessageRequestHeader) -> MessageFilter:
        is_tag = is_tag_type(header.expression_type)
        if not is_tag and header.subscription:
            self._check_enabled(header.expression_type)
        try:
            if is_tag:
                return parse_tag_expression(header.subscription)
            wanted = self._sql_filters.filter_for(header.expression_type, header.subscription)
            return self._for_topic(header, wanted)
        except FilterError as error:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"{_PARSE_FAILED}: {error}") from error

    def _check_enabled(self, expression_type: str | None) -> None:
        if not self._config.enable_property_filter:
            raise RequestError(ResponseCode.SYSTEM_ERROR, property_filter_refused(expression_type))

    def _for_topic(self, header: PullMessageRequestHeader, wanted: SqlFilter) -> MessageFilter:
        if not self._config.filter_support_retry or not header.topic.startswith(RETRY_PREFIX):
            return wanted
        group = header.consumer_group
        return RetryFilter(wanted.expression, lambda topic: self._filter_of(group, topic))

    def _filter_of(self, group_name: str, topic: str) -> SqlFilter | None:
        """What the group registered for a topic; None when that is no expression over properties."""
        group = self._clients.consumer_groups.get(group_name)
        subscription = group.subscriptions.get(topic) if group is not None else None
        if subscription is None or is_tag_type(subscription.expression_type):
            return None
        try:
            return self._sql_filters.filter_for(subscription.expression_type, subscription.expression)
        except FilterError:
            return None


def _registered(group: ConsumerGroup, topic: str) -> Subscription:
    """The group's subscription of the topic, from its heartbeats. Raises RequestError."""
    subscription = group.subscriptions.get(topic)
    if subscription is None:
        remark = f"the consumer's subscription of topic {topic} not exist"
        raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    return subscription


def _filter_ahead(header: PullMessageRequestHeader, subscription: Subscription) -> MessageFilter:
    """A filter for a pull whose subscription version no heartbeat has named yet: it selects at least every
    message that the pull wants. Go clients send the type TAG for every subscription, so the registered type
    is checked, too. Raises RequestError.
    """
    if is_tag_type(header.expression_type) and is_tag_type(subscription.expression_type):
        return MATCH_ALL
    raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")


@dataclass(frozen=True, slots=True)
class RetryFilter(PropertyFilter):
    """The filter of a retry topic (ExpressionForRetryMessageFilter): a message is wanted when the group's
    filter of its original topic selects it, or when the group has no such filter for that topic.
    """

    expression: str
    filter_of: Callable[[str], SqlFilter | None] = field(repr=False, compare=False)

    def wants(self, properties: bytes) -> bool:
        wanted = self._filter_for(properties)
        return wanted is None or wanted.wants(properties)

    def work_us(self, properties: bytes) -> int:
        wanted = self._filter_for(properties)
        return 4 if wanted is None else 4 + wanted.work_us(properties)

    def _filter_for(self, properties: bytes) -> SqlFilter | None:
        topic = get_property(properties, _PROPERTY_RETRY_TOPIC)
        return None if topic is None else self.filter_of(topic.decode(errors="replace"))
