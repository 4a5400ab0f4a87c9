"""Which queues a subscription means just now, and where its positions lie in them."""

import logging
from collections.abc import Collection, Iterable

from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.offset_lookup import offsets_at
from rocketmq_spark.client.queues import MessageQueue, QueueBounds
from rocketmq_spark.errors import OptionError, TopicNotFoundError
from rocketmq_spark.source.offsets import EARLIEST, LATEST, Offsets, require_same_queues
from rocketmq_spark.source.options import Missing, Position, Subscription

_log = logging.getLogger(__name__)


def find_queues(cluster: Cluster, subscription: Subscription) -> list[MessageQueue]:
    """The subscribed queues, sorted; requested again from the name servers, for a query that begins.

    What no name server lists cannot be known to exist. What makes that likely is a warning in the log: a
    pattern that nothing matches, a group of nodes without a leader, whose topics no name server knows then.

    Raises:
        TopicNotFoundError: a topic that was named, not merely matched by a pattern, does not exist.
        OptionError: a queue that was named does not exist.
        ClusterUnavailableError: no name server answers, or a broker that is required does not come.
    """
    found = wait_for_queues(cluster, subscription)
    require_named(cluster, subscription, found)
    return found


def wait_for_queues(cluster: Cluster, subscription: Subscription) -> list[MessageQueue]:
    """The same, without those that are not there. Raises ClusterUnavailableError."""
    cluster.refresh()
    _wait_for_brokers(cluster, subscription.brokers)
    found = listed_queues(cluster, subscription)
    if subscription.queues:
        return found
    if subscription.pattern is not None and not found:
        _log.warning("no topic matches the pattern %s now", subscription.pattern.pattern)
    _warn_of_silent_brokers(cluster, found)
    return found


def require_named(
    cluster: Cluster,
    subscription: Subscription,
    found: Iterable[MessageQueue],
    deleted: Collection[MessageQueue] = (),
) -> None:
    """What was named, not merely matched by a pattern, must exist, but for the queues of a deleted topic that
    the query goes on without.

    Raises:
        TopicNotFoundError, OptionError: naming what does not exist.
    """
    _require_existing({*found, *deleted}, subscription.queues)
    for topic in {*subscription.topics} - {queue.topic for queue in deleted}:
        cluster.route(topic)


def listed_queues(cluster: Cluster, subscription: Subscription) -> list[MessageQueue]:
    """The subscribed queues that the name servers list, sorted. Raises ClusterUnavailableError."""
    if subscription.queues:
        wanted = set(subscription.queues)
        topics = sorted({queue.topic for queue in wanted})
        return sorted(
            queue for topic in topics for queue in _queues_or_none(cluster, topic) if queue in wanted
        )
    if subscription.pattern is None:
        return sorted(queue for topic in subscription.topics for queue in _queues_or_none(cluster, topic))
    matched = filter(subscription.pattern.fullmatch, cluster.topics())
    return sorted(queue for topic in matched for queue in _queues_or_none(cluster, topic))


def _wait_for_brokers(cluster: Cluster, names: Iterable[str]) -> None:
    """Wait until each has a leader. Only with it has a name server learnt the broker's topics."""
    backoff = Backoff("the brokers of option requireBrokers", cluster.deadline_s)
    while True:
        brokers = cluster.cluster_info().brokers if names else {}
        leaders = {name for name, broker in brokers.items() if broker.master_addr is not None}
        away = sorted(set(names) - leaders)
        if not away:
            return
        backoff.failed(f"no leader of {', '.join(away)} is registered")


def _warn_of_silent_brokers(cluster: Cluster, found: Iterable[MessageQueue]) -> None:
    known = {queue.broker_name for queue in found}
    for name, broker in sorted(cluster.cluster_info().brokers.items()):
        if broker.master_addr is None and name not in known:
            _log.warning(
                "broker %s has no leader now: if it has queues of the topics, they are not read", name
            )


def resolve(
    cluster: Cluster,
    position: Position,
    found: dict[MessageQueue, QueueBounds],
    missing: Missing,
    group: str,
) -> Offsets:
    """The offsets that a position means in these queues.

    missing: what a time later than all messages of a queue means.

    Raises:
        OptionError: it does not name the queues that are subscribed, or no message is that new.
    """
    if position.of_all is not None:
        return {queue: _end(position.of_all, ends) for queue, ends in found.items()}
    if position.by_queue is not None:
        require_same_queues(position.option, position.by_queue, found)
        return {queue: _end(position.by_queue[queue], ends) for queue, ends in found.items()}
    if position.times_ms is not None:
        require_same_queues(position.option, position.times_ms, found)
        times = position.times_ms
    else:
        assert position.time_ms is not None
        times = dict.fromkeys(found, position.time_ms)
    offsets = offsets_at(cluster, times, found, group)
    if missing is Missing.ERROR:
        _require_messages(position, times, offsets, found)
    return offsets


def _end(offset: int, ends: QueueBounds) -> int:
    return {EARLIEST: ends.min_offset, LATEST: ends.max_offset}.get(offset, offset)


def _require_messages(
    position: Position, times: Offsets, offsets: Offsets, found: dict[MessageQueue, QueueBounds]
) -> None:
    late = [queue for queue, ends in found.items() if offsets[queue] >= ends.max_offset]
    if late:
        listed = ", ".join(f"{queue} (time {times[queue]})" for queue in late)
        raise OptionError(
            f"option {position.option}: no message is that new in {listed}. With "
            "startingOffsetsByTimestampStrategy=latest such a queue is read from its end."
        )


def _require_existing(existing: Iterable[MessageQueue], assigned: Iterable[MessageQueue]) -> None:
    """Raises OptionError naming those that no broker has."""
    unknown = sorted(set(assigned) - set(existing))
    if unknown:
        raise OptionError(f"option assign names queues that do not exist: {', '.join(map(str, unknown))}")


def _queues_or_none(cluster: Cluster, topic: str) -> list[MessageQueue]:
    try:
        return cluster.queues(topic)
    except TopicNotFoundError:
        return []
