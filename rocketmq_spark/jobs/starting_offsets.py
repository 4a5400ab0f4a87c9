"""The source's options for a query without a checkpoint that goes on where an archive ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import orjson

from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queues import MessageQueue, bounds
from rocketmq_spark.errors import ClusterUnavailableError
from rocketmq_spark.jobs.manifest import QueueName
from rocketmq_spark.source.offsets import to_json
from rocketmq_spark.source.removals import Removals
from rocketmq_spark.source.source_options import Subscription, stream_options
from rocketmq_spark.source.subscribing import look_for_queues, require_named, resolve

_STARTING: Final = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingOffsets",
)

logger = logging.getLogger(__name__)


def continued(source: Mapping[str, str], ends: Mapping[QueueName, int]) -> dict[str, str]:
    """The options with startingOffsets for every subscribed queue: where the archive ends, or as asked for.

    Raises: OptionError, ClusterUnavailableError, TopicNotFoundError; DataLossError when queues were removed.
    """
    common = stream_options(source).common
    connection = common.connection
    with Cluster(connection.namesrv, connection.timeout_s, connection.deadline_s) as cluster:
        removals = Removals(cluster, common.fail_on_data_loss, common.group)
        found = bounds(cluster, _queues_with(cluster, common.subscription, ends, removals))
        offsets = resolve(cluster, common.start, found, common.missing, common.group)
    for queue in offsets:
        offsets[queue] = ends.get(_name(queue), offsets[queue])
    kept = {name: value for name, value in source.items() if name not in _STARTING}
    return kept | {"startingOffsets": orjson.dumps(to_json(offsets)).decode()}


def _queues_with(
    cluster: Cluster, subscription: Subscription, ends: Mapping[QueueName, int], removals: Removals
) -> list[MessageQueue]:
    """The subscribed queues, once those that the archive knows are among them, or do not come: one that joins
    the query later begins at its beginning, which the archive has. Queues that were removed do not come.
    """
    wanted = {MessageQueue(*name): ends[name] for name in ends if _is_subscribed(name, subscription)}
    backoff = Backoff("looking for the queues of the archive", cluster.deadline_s)
    while True:
        queues = look_for_queues(cluster, subscription)
        removed = removals.among(wanted, wanted.keys() - queues)
        wanted = removed.left_of(wanted)
        require_named(cluster, subscription, queues, removed.deleted)
        away = sorted(wanted.keys() - queues)
        if not away:
            return queues
        try:
            backoff.failed(f"not there: {', '.join(map(str, away[:5]))}")
        except ClusterUnavailableError as error:
            logger.warning("%s. Should they come back, remove the checkpoint then", error)
            return queues


def _name(queue: MessageQueue) -> QueueName:
    return QueueName(queue.topic, queue.broker_name, queue.queue_id)


def _is_subscribed(name: QueueName, subscription: Subscription) -> bool:
    if subscription.pattern is not None:
        return subscription.pattern.fullmatch(name.topic) is not None
    return name.topic in subscription.topics or MessageQueue(*name) in subscription.queues
