"""The queues of a subscription, the offsets of a starting or ending position in them, and their end offsets.

A running stream requests the end offsets for every trigger. While no name server answers, or while one that
has just started lists too few queues, the stream continues with the queues and leaders that it knows. An
unreachable queue keeps its offset.
"""

import logging
import time
from collections.abc import Collection, Iterable
from typing import Final

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.cluster import Backoff, Cluster, QueueBounds, by_broker
from rocketmq_spark.client.offset_lookup import offsets_at
from rocketmq_spark.client.pulling import DEFAULT_GROUP, named
from rocketmq_spark.client.queue_offsets import bounds, max_offsets
from rocketmq_spark.errors import ClusterUnavailableError, OptionError, RocketmqSparkError, TopicNotFoundError
from rocketmq_spark.source.offsets import EARLIEST, LATEST, Offsets, require_same_queues
from rocketmq_spark.source.options import Missing, Position, Subscription

_log = logging.getLogger(__name__)


def find_queues(cluster: Cluster, subscription: Subscription) -> list[MessageQueue]:
    """The subscribed queues, sorted; requested again from the name servers, for a query that begins.

    Queues that no name server lists are unknown to the query. Two signs of that are logged as a warning: a
    pattern without a match, and a broker without a leader, whose topics no name server knows then.

    Raises:
        TopicNotFoundError: a topic that was named, not merely matched by a pattern, does not exist.
        OptionError: a queue that was named does not exist.
        ClusterUnavailableError: no name server answers, or a broker that is required does not come.
    """
    found = wait_for_queues(cluster, subscription)
    require_named(cluster, subscription, found)
    return found


def wait_for_queues(cluster: Cluster, subscription: Subscription) -> list[MessageQueue]:
    """As `find_queues`, without an error for a missing topic or queue. Raises ClusterUnavailableError."""
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
    """What was named, not merely matched by a pattern, must exist, but for the queues of a deleted topic
    that the query drops.

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
    """Wait until each broker has a leader: a name server learns the topics of a broker from its leader."""
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
                "broker %s has no leader now: its queues of the subscribed topics, if any, are not read", name
            )


def resolve(
    cluster: Cluster,
    position: Position,
    found: dict[MessageQueue, QueueBounds],
    missing: Missing,
    group: str,
) -> Offsets:
    """The offsets of a position in these queues.

    missing: what to do for a queue without a message at or after the time.

    Raises:
        OptionError: it does not name all subscribed queues, or no message is new enough.
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


NAMESRV_PAUSE_S: Final = 5.0
"""Pause before name servers are asked again after none of them has answered."""
LISTING_SHARE: Final = 0.1
"""At most this share of the time is spent on listing the queues: a list needs one request for each topic,
which would be too much at every trigger of a stream of a thousand topics.
"""
LISTING_PAUSE_MAX_S: Final = 30.0
"""Upper limit of the pause between two lists: new queues are found after this time at the latest."""


class LatestOffsets:
    """Requests the end offsets of a stream's queues. `last` is the last answer, None before the first."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        fail_on_data_loss: bool,
        group: str = DEFAULT_GROUP,
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._fails = fail_on_data_loss
        self._group = group
        self._known: Offsets = {}
        """The last known end offset of each queue that a name server has listed."""
        self._unlisted_since_s: dict[MessageQueue, float] = {}
        self._silent_since_s: float | None = None
        self._listed: list[MessageQueue] = []
        self._list_again_s = 0.0
        """The next list, by the monotonic clock."""
        self._away: frozenset[MessageQueue] = frozenset()
        self._has_begun = False
        self.last: Offsets | None = None

    def newest(self) -> Offsets:
        """The end offsets of all subscribed queues that can be reached. Raises RocketmqSparkError."""
        found = self._of_listed()
        found |= self._of_unlisted(self._known.keys() - self._listed)
        self._known |= found
        self.last = found
        return found

    def _of_listed(self) -> Offsets:
        """The end offsets of the listed queues."""
        # The last list is used again until it is due, if all leaders answer at the first attempt.
        began_s = time.monotonic()
        if self.last is not None and began_s < self._list_again_s:
            try:
                return max_offsets(self._cluster, self._listed, deadline_s=0.0)
            except RocketmqSparkError:
                began_s = time.monotonic()
        begins = self.last is None
        self._listed = wait_for_queues(self._cluster, self._subscription) if begins else self._list()
        ended_s = time.monotonic()
        self._list_again_s = ended_s + min((ended_s - began_s) / LISTING_SHARE, LISTING_PAUSE_MAX_S)
        self._cluster.namesrv_deadline_s = 0.0  # from now on known queues and leaders can be used instead
        return max_offsets(self._cluster, self._listed)

    def _list(self) -> list[MessageQueue]:
        now_s = time.monotonic()
        if self._silent_since_s is not None and now_s - self._silent_since_s < NAMESRV_PAUSE_S:
            return sorted(self._known)
        self._cluster.refresh()
        try:
            listed = listed_queues(self._cluster, self._subscription)
        except ClusterUnavailableError as error:
            if self._silent_since_s is None:
                _log.warning("%s; going on with the queues and leaders known before", error)
            self._silent_since_s = now_s
            return sorted(self._known)
        self._silent_since_s = None
        return listed

    def _of_unlisted(self, queues: Collection[MessageQueue]) -> Offsets:
        """End offsets of unlisted queues that brokers still have: a name server learns topics within 30 s
        after its start. Queues that stay unlisted are removed here; the stream keeps their offsets.
        """
        found: Offsets = {}
        now_s = time.monotonic()
        self._unlisted_since_s = {queue: self._unlisted_since_s.get(queue, now_s) for queue in queues}
        for queue, since_s in self._unlisted_since_s.items():
            if now_s - since_s > self._cluster.deadline_s:
                self._known.pop(queue, None)
        for asked in by_broker(self._known.keys() & queues).values():
            try:
                found |= max_offsets(self._cluster, asked, deadline_s=0.0)
            except RocketmqSparkError:
                continue
        # For a deleted topic a broker may still answer, with an end of 0.
        return {queue: end for queue, end in found.items() if end >= self._known[queue]}

    def unlisted(self, start: Offsets) -> list[MessageQueue]:
        """Queues of the stream that are not in the last list; none while no name server answers."""
        if self._silent_since_s is not None:
            return []
        return sorted(queue for queue in start.keys() - self._listed if self._subscription.covers(queue))

    def require_named(self, deleted: Collection[MessageQueue]) -> None:
        """For a query that begins: raise TopicNotFoundError or OptionError as `require_named` above."""
        if not self._has_begun:
            require_named(self._cluster, self._subscription, self._listed, deleted)
            self._has_begun = True

    def drop(self, removed: Collection[MessageQueue]) -> None:
        """Remove queues from the known ones and from the reported lag."""
        for queue in removed:
            self._known.pop(queue, None)
        if self.last is not None:
            self.last = {queue: end for queue, end in self.last.items() if queue not in removed}

    def first_offsets(self, queues: Iterable[MessageQueue], start_ms: int | None) -> Offsets:
        """First offsets of queues that were found after the start: of the first message, or of the first one
        stored at `start_ms` or later if the stream began at a time. Raises RocketmqSparkError.
        """
        found = bounds(self._cluster, sorted(queues))
        if start_ms is None:
            return {queue: ends.min_offset for queue, ends in found.items()}
        return offsets_at(self._cluster, dict.fromkeys(found, start_ms), found, self._group)

    def note_away(self, start: Offsets, ends: Offsets) -> None:
        """Log the unreachable queues of the stream when there are new ones."""
        away = frozenset(self._not_there(start, ends))
        if away - self._away:
            _log.warning("%s: not available now, so no messages of it are read", named(sorted(away)))
        self._away = away

    def wait_for_away(self, start: Offsets, ends: Offsets) -> Offsets:
        """`ends` with the queues that become available within the retry deadline: a query with
        Trigger.AvailableNow must not end without a queue that it has read before.

        Raises:
            ClusterUnavailableError: naming the queues that stay unavailable.
        """
        backoff = Backoff("queues of the checkpoint", self._cluster.deadline_s)
        found = dict(ends)
        while away := self._not_there(start, found):
            try:
                backoff.failed("no name server lists them")
            except ClusterUnavailableError:
                text = f"no registered broker has {named(away)}, of which the query has read before"
                if self._fails:
                    raise ClusterUnavailableError(
                        f"{text}. With failOnDataLoss=false the query ends without reading more of it."
                    ) from None
                _log.warning("%s; failOnDataLoss is false, so the query ends without it", text)
                return found
            self._list_again_s = 0.0
            newest = self.newest()
            found |= {queue: newest[queue] for queue in away if queue in newest}
        return found

    def _not_there(self, start: Offsets, ends: Offsets) -> list[MessageQueue]:
        return sorted(queue for queue in start if queue not in ends and self._subscription.covers(queue))
