"""Where the subscribed queues of a stream end, asked again for every trigger."""

import logging
import time
from collections.abc import Iterable

from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queues import MessageQueue, bounds, max_offset, max_offsets
from rocketmq_spark.errors import ClusterUnavailableError, DataLossError, TopicNotFoundError
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.source_options import Subscription
from rocketmq_spark.source.subscribing import find_queues

_log = logging.getLogger(__name__)


class Ends:
    """Asks for the ends. `last` is the newest answer, None before the first."""

    def __init__(self, cluster: Cluster, subscription: Subscription, fail_on_data_loss: bool) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._fails = fail_on_data_loss
        self._queues: list[MessageQueue] = []
        self._behind_since_s: dict[MessageQueue, float] = {}
        self.last: Offsets | None = None

    def newest(self) -> Offsets:
        """Where every subscribed queue ends now. Raises RocketmqSparkError."""
        try:
            self._queues = find_queues(self._cluster, self._subscription)
        except TopicNotFoundError as error:
            # A name server that has just started learns its topics from the brokers within half a minute.
            if not self._queues:
                raise
            _log.warning("%s; going on with the queues known before", error)
        self.last = max_offsets(self._cluster, self._queues)
        return self.last

    def first_offsets(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Where these queues begin. Raises RocketmqSparkError."""
        return {queue: ends.min_offset for queue, ends in bounds(self._cluster, sorted(queues)).items()}

    def require_not_before(self, start: Offsets, ends: Offsets, waits: bool) -> None:
        """A queue that ends before what was read of it already: an election may make it look so for a moment,
        but one that stays so has lost messages, or is another queue of the same name.

        waits: whether to ask again here until it is clear, rather than at the next triggers.

        Raises:
            DataLossError: it stayed so for as long as requests are tried again.
        """
        for queue in sorted(ends):
            if ends[queue] >= start.get(queue, 0):
                self._behind_since_s.pop(queue, None)
            elif waits:
                self._wait_until_at(queue, start[queue])
            else:
                since_s = self._behind_since_s.setdefault(queue, time.monotonic())
                if time.monotonic() - since_s > self._cluster.deadline_s:
                    self._report(queue, start[queue], ends[queue])

    def _wait_until_at(self, queue: MessageQueue, offset: int) -> None:
        backoff = Backoff(f"the end of {queue}", self._cluster.deadline_s)
        while (end := max_offset(self._cluster, queue)) < offset:
            try:
                backoff.failed(f"ends at {end}, before {offset}")
            except ClusterUnavailableError:
                self._report(queue, offset, end)
                return

    def _report(self, queue: MessageQueue, offset: int, end: int) -> None:
        text = (
            f"{queue} ends at offset {end}, but the query has read up to {offset} of it: messages were lost, "
            "or the topic was made anew"
        )
        if self._fails:
            raise DataLossError(
                f"{text}. With failOnDataLoss=false the query goes on once the queue has got there; to "
                "read a topic that was made anew, start a query with another checkpoint."
            )
        _log.warning("%s; failOnDataLoss is false, so the query waits until it has got there", text)
