"""Which messages a pull wants: by the expression it brings along, or by its group's heartbeats."""

from broker.clients import ClientRegistry
from broker.filters import SQL92_REFUSED, FilterError, TagFilter, is_tag_type, parse_tag_expression
from broker.heartbeats import version_ms
from broker.state.groups import SubscriptionGroupConfig
from remoting.codes import ResponseCode
from remoting.errors import RequestError
from remoting.headers import PullMessageRequestHeader

SYS_FLAG_SUBSCRIPTION = 4
"""The pull brings its own expression: C++ clients always, Java's and Go's on request."""


def wanted_by(
    header: PullMessageRequestHeader, clients: ClientRegistry, group_config: SubscriptionGroupConfig
) -> TagFilter:
    """The filter of a pull. Raises RequestError as PullMessageProcessor does: 23, 24, 25, 16, or 1 for
    SQL92.
    """
    if header.sys_flag & SYS_FLAG_SUBSCRIPTION:
        return _own_filter(header)
    group = clients.consumer_groups.get(header.consumer_group)
    if group is None:
        raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    if group.is_broadcasting and not group_config.consume_broadcast_enable:
        remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
        raise RequestError(ResponseCode.NO_PERMISSION, remark)
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        remark = f"the consumer's subscription of topic {header.topic} not exist"
        raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    if subscription.version_ms < version_ms(header.sub_version):
        raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    if not is_tag_type(subscription.expression_type):
        raise RequestError(ResponseCode.SYSTEM_ERROR, SQL92_REFUSED)
    if subscription.filter is None:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
    return subscription.filter


def _own_filter(header: PullMessageRequestHeader) -> TagFilter:
    if not is_tag_type(header.expression_type):
        raise RequestError(ResponseCode.SYSTEM_ERROR, SQL92_REFUSED)
    try:
        return parse_tag_expression(header.subscription)
    except FilterError as error:
        remark = f"parse the consumer's subscription failed: {error}"
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error
