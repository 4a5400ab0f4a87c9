"""Detection of data loss in a stream: messages deleted by retention before they were read, queues that end
before the stream's offset, and removed queues.

A queue is removed when its topic is deleted or gets fewer queues. A missing entry at the name servers does
not prove it: a name server that has just started, or whose broker is unreachable, lists too few queues. So
the leader that is registered for the queue's broker is asked, and the queue counts as removed when the leader
refuses to serve it for DENIED_S: a node that has just been started or elected may lack some topics for a
moment.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from remoting.client.routes import MessageQueue
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.cluster import TOPIC_NOT_EXIST, Backoff, Cluster, by_broker
from rocketmq_spark.client.offset_lookup import store_time_ms
from rocketmq_spark.client.pulling import (
    DEFAULT_GROUP,
    DENIED_S,
    QueueRange,
    named,
    pull_command,
    report_lost,
)
from rocketmq_spark.client.queue_offsets import bounds, max_offsets, min_offsets
from rocketmq_spark.errors import (
    ClusterUnavailableError,
    DataLossError,
    RequestRefusedError,
    RocketmqSparkError,
)
from rocketmq_spark.source.offsets import Offsets

CLOCKS_MS: Final = 60_000
"""Allowed difference between the clocks of driver and brokers, where an offset is chosen by store time."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Behind:
    """A queue that ends before the stream's offset: since when, and its lowest end since then."""

    since_s: float
    end: int


class LossDetector:
    """Checks for losses at every trigger. `checked` is the last check: the offsets of the stream, and the
    minimum offsets of the queues with new messages.
    """

    def __init__(self, cluster: Cluster, fail_on_data_loss: bool, group: str = DEFAULT_GROUP) -> None:
        self._cluster = cluster
        self._fails = fail_on_data_loss
        self._group = group
        self._behind: dict[MessageQueue, _Behind] = {}
        self._fine_ms: dict[MessageQueue, int] = {}
        self.checked: tuple[Offsets, Offsets] = ({}, {})

    def overtaken(self, start: Offsets, ends: Offsets) -> Offsets:
        """The minimum offsets of queues whose next messages were deleted by retention.

        Raises:
            DataLossError: naming all lost ranges, with failOnDataLoss.
        """
        waiting = [queue for queue in sorted(ends) if start.get(queue, ends[queue]) < ends[queue]]
        kept = min_offsets(self._cluster, waiting)
        self.checked = (start, kept)
        ranges = [QueueRange(queue, start[queue], kept[queue]) for queue in waiting]
        lost = [one for one in ranges if len(one)]
        if lost:
            report_lost(lost, self._fails)
        return {one.queue: one.stop for one in lost}

    def set_back(self, start: Offsets, ends: Offsets, waits: bool) -> Offsets:
        """New offsets for queues that end before the stream's offset. During an election this is normal for a
        moment; if it lasts longer than the retry deadline, the queue has lost messages or was created again.

        waits: whether to repeat the check here for that time, instead of at the next triggers.

        Raises:
            DataLossError: the queue still ends too early after the retry deadline, with failOnDataLoss.
        """
        short = self._short(start, ends)
        if waits and short:
            short = self._wait_for_ends(start, short)
        now_s = time.monotonic()
        due = [
            queue
            for queue in sorted(short)
            if waits or now_s - self._behind[queue].since_s > self._cluster.deadline_s
        ]
        if not due:
            return {}
        text = "; ".join(
            f"{queue} ends at offset {short[queue]}, but the query has read up to {start[queue]} of it"
            for queue in due
        )
        if self._fails:
            raise DataLossError(
                f"{text}: messages were lost, or the topic was created again. With failOnDataLoss=false "
                "a topic that was created again is read from its beginning."
            )
        places = {queue: self._place_in(queue, self._behind.pop(queue).end) for queue in due}
        goes_on = ", ".join(f"{queue} at offset {place}" for queue, place in places.items())
        _log.warning("%s; failOnDataLoss is false, so the query continues in %s", text, goes_on)
        return places

    def _short(self, start: Offsets, ends: Mapping[MessageQueue, int]) -> Offsets:
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        short: Offsets = {}
        for queue, end in ends.items():
            if end >= start.get(queue, 0):
                self._behind.pop(queue, None)
                self._fine_ms[queue] = now_ms
                continue
            short[queue] = end
            behind = self._behind.setdefault(queue, _Behind(now_s, end))
            behind.end = min(behind.end, end)
        return short

    def _wait_for_ends(self, start: Offsets, short: Offsets) -> Offsets:
        """The queues that still end too early after the retry deadline, which is one for all of them."""
        backoff = Backoff("the ends of queues", self._cluster.deadline_s)
        while short := self._short(start, max_offsets(self._cluster, short)):
            try:
                backoff.failed(f"{len(short)} end too early")
            except ClusterUnavailableError:
                break
        return short

    def _place_in(self, queue: MessageQueue, end: int) -> int:
        """The end of a queue that was truncated, or the minimum offset of a queue that was created again.

        This can only be decided for a queue that was seen whole: messages of another one are younger.
        """
        kept = bounds(self._cluster, [queue])[queue]
        fine_ms = self._fine_ms.get(queue)
        if fine_ms is not None and kept.min_offset < end:
            first_ms = store_time_ms(self._cluster, queue, kept.min_offset, self._group)
            if first_ms is not None and first_ms < fine_ms - CLOCKS_MS:
                return min(end, kept.max_offset)
        return kept.min_offset


POLL_INTERVAL_S: Final = 5.0
"""Pause before queues that were not found to be removed are checked again."""
_NO_QUEUE_CODES = (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
_NO_QUEUE_REMARK = "queueId["


@dataclass(frozen=True, slots=True)
class Removed:
    """deleted: queues of deleted topics; the stream drops their offsets. closed: queues that a topic lost.
    If it gets them back, they continue with their old offsets, so the stream keeps these.
    """

    deleted: frozenset[MessageQueue] = frozenset()
    closed: frozenset[MessageQueue] = frozenset()

    def left_of(self, offsets: Mapping[MessageQueue, int]) -> Offsets:
        """The offsets without those of removed queues."""
        gone = self.deleted | self.closed
        return {queue: offset for queue, offset in offsets.items() if queue not in gone}


class RemovalDetector:
    """Finds removed queues among those that are suspected: not listed, or with an end that is too low."""

    def __init__(self, cluster: Cluster, fail_on_data_loss: bool, group: str = DEFAULT_GROUP) -> None:
        self._cluster = cluster
        self._fails = fail_on_data_loss
        self._group = group
        self._closed: Offsets = {}
        """End offsets of closed queues."""
        self._asked: frozenset[MessageQueue] = frozenset()
        self._ask_again_s = 0.0
        """The queues in `_asked` are not checked again before this time of the monotonic clock."""

    def find(self, start: Offsets, suspects: Collection[MessageQueue]) -> Removed:
        """The removed ones among the suspected queues.

        start: the offsets of the stream.

        Raises:
            DataLossError: naming topics, queues and offsets, with failOnDataLoss.
        """
        self._closed = {queue: end for queue, end in self._closed.items() if queue in suspects}
        refused = self._refused(frozenset(suspects) - self._closed.keys())
        deleted = sorted(queue for queue, end in refused.items() if end is None)
        closed = {queue: end for queue, end in refused.items() if end is not None}
        if deleted:
            self._report(
                _deleted_text(start, deleted),
                "drops them (a topic that is created again is read from its beginning)",
            )
        unread = sorted(queue for queue, end in closed.items() if end > start[queue])
        if unread:
            self._report(_closed_text(start, closed, unread), "continues without them")
        self._closed |= closed
        return Removed(frozenset(deleted), frozenset(self._closed))

    def _report(self, text: str, then: str) -> None:
        if self._fails:
            raise DataLossError(
                f"{text} To go on without these queues, start the query once with failOnDataLoss=false: "
                f"it {then}."
            )
        _log.warning("%s failOnDataLoss is false, so the query %s", text, then)

    def _refused(self, suspects: frozenset[MessageQueue]) -> dict[MessageQueue, int | None]:
        """The queues that leaders refuse for DENIED_S, with their end offsets; None for a deleted topic."""
        now_s = time.monotonic()
        if not suspects or (suspects <= self._asked and now_s < self._ask_again_s):
            return {}
        backoff = Backoff("queues that were removed", min(DENIED_S, self._cluster.deadline_s))
        refused = self._refused_now(suspects)
        while refused:
            try:
                backoff.failed("refused")
            except ClusterUnavailableError:
                break
            again = self._refused_now(refused.keys())
            refused = {
                queue: end for queue, end in again.items() if (end is None) == (refused[queue] is None)
            }
        self._asked = suspects - refused.keys()
        self._ask_again_s = time.monotonic() + POLL_INTERVAL_S
        return refused

    def _refused_now(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int | None]:
        """One check."""
        # A queue whose leader is not registered or does not answer is left out: it may still exist.
        found: dict[MessageQueue, int | None] = {}
        try:
            leaders = self._cluster.registered_leaders()
        except RocketmqSparkError:
            return found
        for broker_name, asked in by_broker(sorted(queues)).items():
            try:
                if broker_name in leaders:
                    found |= self._refused_by(broker_name, asked)
            except RocketmqSparkError:
                continue
        return found

    def _refused_by(
        self, broker_name: str, queues: list[MessageQueue]
    ) -> Iterator[tuple[MessageQueue, int | None]]:
        try:
            # Only a leader answers this request; and a pull at the end of a queue returns no message.
            ends = max_offsets(self._cluster, queues, deadline_s=0.0)
        except RequestRefusedError:
            ends = {}
        pulls = [pull_command(queue, ends.get(queue, 0), count_max=1, group=self._group) for queue in queues]
        answers = self._cluster.invoke_leader_many(broker_name, pulls, deadline_s=0.0)
        for queue, answer in zip(queues, answers, strict=True):
            if answer.code == TOPIC_NOT_EXIST:
                yield queue, None
            elif queue in ends and _is_no_queue(answer):
                yield queue, ends[queue]


def _is_no_queue(answer: RemotingCommand) -> bool:
    return answer.code in _NO_QUEUE_CODES and _NO_QUEUE_REMARK in (answer.remark or "")


def _deleted_text(start: Offsets, queues: list[MessageQueue]) -> str:
    topics = sorted({queue.topic for queue in queues})
    places = named([f"{queue} up to offset {start[queue]}" for queue in queues])
    were = "topic {} was" if len(topics) == 1 else "topics {} were"
    return (
        f"{were.format(named(topics))} deleted: the brokers do not know it any more. The query has read "
        f"{places}; what came after that is lost."
    )


def _closed_text(start: Offsets, ends: Offsets, queues: list[MessageQueue]) -> str:
    places = named([f"{queue} up to offset {start[queue]} of {ends[queue]}" for queue in queues])
    return (
        f"a topic was given fewer queues before all was read: the query has read {places}, and the brokers "
        "do not give the rest any more. Give the topic as many queues again to read it."
    )
