"""Which queues a subscription means just now, and where its positions lie in them."""

from collections.abc import Iterable

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queues import MessageQueue, QueueBounds
from rocketmq_spark.client.times import offset_at
from rocketmq_spark.errors import OptionError, TopicNotFoundError
from rocketmq_spark.source.offsets import EARLIEST, LATEST, Offsets, require_same_queues
from rocketmq_spark.source.source_options import Missing, Position, Subscription


def find_queues(cluster: Cluster, subscription: Subscription) -> list[MessageQueue]:
    """The subscribed queues, sorted; asked of the name servers anew.

    Raises:
        TopicNotFoundError: a topic that was named, not merely matched by a pattern, does not exist.
    """
    cluster.refresh()
    if subscription.queues:
        return _require_existing(cluster, subscription.queues)
    if subscription.pattern is None:
        return sorted(queue for topic in subscription.topics for queue in cluster.queues(topic))
    found: list[MessageQueue] = []
    for topic in cluster.topics():
        if subscription.pattern.fullmatch(topic):
            found += _queues_or_none(cluster, topic)
    return sorted(found)


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
    offsets = {queue: offset_at(cluster, queue, times[queue], ends, group) for queue, ends in found.items()}
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


def _require_existing(cluster: Cluster, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The assigned queues. Raises OptionError naming those that no broker has."""
    wanted = sorted(queues)
    existing = {queue for topic in {queue.topic for queue in wanted} for queue in cluster.queues(topic)}
    unknown = [str(queue) for queue in wanted if queue not in existing]
    if unknown:
        raise OptionError(f"option assign names queues that do not exist: {', '.join(unknown)}")
    return wanted


def _queues_or_none(cluster: Cluster, topic: str) -> list[MessageQueue]:
    try:
        return cluster.queues(topic)
    except TopicNotFoundError:
        return []  # listed a moment ago and deleted since
