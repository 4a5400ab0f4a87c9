"""What a stream has lost: messages that retention took before they were read, or the end of a queue."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import DEFAULT_GROUP
from rocketmq_spark.client.queues import MessageQueue, bounds, max_offsets, min_offsets
from rocketmq_spark.client.range_reader import QueueRange, report_lost
from rocketmq_spark.client.times import store_time_ms
from rocketmq_spark.errors import ClusterUnavailableError, DataLossError
from rocketmq_spark.source.offsets import Offsets

CLOCKS_MS: Final = 60_000
"""How far the clocks of driver and brokers may differ where a store time decides about a place."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Behind:
    """A queue that ends before what was read of it: since when, and the lowest end it had since."""

    since_s: float
    end: int


class Losses:
    """Looks for losses at every trigger. `looked` is what was looked at last: the stream's places, and where
    the queues with more messages began.
    """

    def __init__(self, cluster: Cluster, fail_on_data_loss: bool, group: str = DEFAULT_GROUP) -> None:
        self._cluster = cluster
        self._fails = fail_on_data_loss
        self._group = group
        self._behind: dict[MessageQueue, _Behind] = {}
        self._fine_ms: dict[MessageQueue, int] = {}
        self.looked: tuple[Offsets, Offsets] = ({}, {})

    def overtaken(self, start: Offsets, ends: Offsets) -> Offsets:
        """Where queues begin whose next messages retention has taken.

        Raises:
            DataLossError: naming all that is lost, unless the query goes on without it.
        """
        waiting = [queue for queue in sorted(ends) if start.get(queue, ends[queue]) < ends[queue]]
        kept = min_offsets(self._cluster, waiting)
        self.looked = (start, kept)
        ranges = [QueueRange(queue, start[queue], kept[queue]) for queue in waiting]
        lost = [one for one in ranges if len(one)]
        if lost:
            report_lost(lost, self._fails)
        return {one.queue: one.stop for one in lost}

    def set_back(self, start: Offsets, ends: Offsets, waits: bool) -> Offsets:
        """Where to go on in queues that end before what was read of them. An election may make one look so
        for a moment, but one that stays so has lost messages, or is another queue of the same name.

        waits: whether to ask again here until it is clear, rather than at the next triggers.

        Raises:
            DataLossError: it stayed so for as long as requests are tried again, and the query does not go
                on with data lost.
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
                f"{text}: messages were lost, or the topic was made anew. With failOnDataLoss=false a topic "
                "that was made anew is read from its beginning."
            )
        places = {queue: self._place_in(queue, self._behind.pop(queue).end) for queue in due}
        goes_on = ", ".join(f"{queue} at offset {place}" for queue, place in places.items())
        _log.warning("%s; failOnDataLoss is false, so the query goes on in %s", text, goes_on)
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
        """Those that stay short, after one waiting time for all."""
        backoff = Backoff("the ends of queues", self._cluster.deadline_s)
        while short := self._short(start, max_offsets(self._cluster, short)):
            try:
                backoff.failed(f"{len(short)} end too early")
            except ClusterUnavailableError:
                break
        return short

    def _place_in(self, queue: MessageQueue, end: int) -> int:
        """The end of a queue that was cut off, the beginning of another one of its name.

        Only of one that was seen whole can be told which it is: messages of another one are younger.
        """
        kept = bounds(self._cluster, [queue])[queue]
        fine_ms = self._fine_ms.get(queue)
        if fine_ms is not None and kept.min_offset < end:
            first_ms = store_time_ms(self._cluster, queue, kept.min_offset, self._group)
            if first_ms is not None and first_ms < fine_ms - CLOCKS_MS:
                return min(end, kept.max_offset)
        return kept.min_offset
